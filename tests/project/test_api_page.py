"""docs/api.md is as scripts/write_api.py writes it, and every name there has a docstring."""

from __future__ import annotations

import write_api

import topoplan


def test_the_page_is_up_to_date_and_every_name_has_a_docstring() -> None:
    assert write_api.PAGE.read_text(encoding="utf-8") == write_api.text(), "run make api"
    assert [name for name in topoplan.__all__ if not write_api.find_definition(name)[1]] == []
