"""Sizes that no memory holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from called import call_command


@pytest.mark.parametrize("sizes", ["-b 900G -e 900G", "-e 999999999999999999T"])
@pytest.mark.parametrize("start", ["PLAN", "--stock --nproc 2"])
def test_they_are_refused_before_any_is_taken(
    sizes: str, start: str, plans: Callable[..., str]
) -> None:
    pytest.importorskip("torch")
    done = call_command("run", *f"{start} {sizes}".replace("PLAN", plans("ring:2")).split())
    said = done.stderr.strip()
    assert done.returncode == 2 and not done.stdout and len(said.splitlines()) == 1
    assert "of memory on this host, for 2 ranks; there are " in said and said.endswith("size (-e)")
