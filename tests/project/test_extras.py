"""The table of extras: what it names is there, and what is deleted is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import extras as script
from topoplan.extras import EXTRAS, SCHEDULE_FORMATS, Extra, Names
from topoplan.synth.schedule_format import ScheduleFormat
from topoplan.topo.errors import InputError


def test_every_path_and_module_of_the_table_is_there() -> None:
    for extra in EXTRAS:
        assert all((script.ROOT / path).exists() for path in extra.paths), extra.name
        for group, added in extra.adds.items():
            assert all(Names(group).find(name) for name in added)
    assert all(isinstance(Names(SCHEDULE_FORMATS).find(x), ScheduleFormat) for x in ("mscclpp",))


def test_what_is_deleted_is_refused_and_listed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own deletion, and that of what it needs."""
    names = Names(SCHEDULE_FORMATS)
    assert "mscclpp" in names and "mscclpp" in list(names)
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "mscclpp"))
    assert "mscclpp" not in names and "mscclpp" not in list(names)
    with pytest.raises(InputError, match="the extra 'mscclpp' of topoplan is not installed"):
        names.find("mscclpp")
    with pytest.raises(InputError, match="nonsense: expected one of astra-sim"):
        names.find("nonsense")


def test_an_extra_is_gone_with_what_it_needs() -> None:
    gone = Extra("gone", ("synth/extras/no-such-folder",), {})
    assert not gone.is_here
    assert all(extra.is_here for extra in EXTRAS)


def test_the_script_lists_and_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--list"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [extra.name for extra in EXTRAS]
    assert {*listed[0]} == {"name", "paths", "needs", "adds"}
    assert script.main(["--count", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["core"] + sum(counts["extras"].values()) == counts["whole"]
    assert all(counts["extras"].values())
    assert script.main(["--check", "nonsense"]) == 2
    assert "nonsense: expected some of" in capsys.readouterr().err


def test_a_copy_without_an_extra_has_none_of_its_files(tmp_path: Path) -> None:
    script.copy_without([extra for extra in EXTRAS if extra.name == "mscclpp"], tmp_path)
    assert not (tmp_path / "synth/extras/mscclpp").exists()
    assert not (tmp_path / "tests/mscclpp_player.py").exists()
    assert (tmp_path / "synth/extras/astra_sim").is_dir() and (tmp_path / "extras.py").is_file()
