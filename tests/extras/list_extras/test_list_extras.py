"""topoplan extras: what each extra adds, whether it is here, and what other packages add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from called import call_command

from topoplan.extras import BY_NAME, EXTRAS, OPEN, Extra


def list_json(*arguments: str) -> dict[str, Any]:
    done = call_command("extras", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def test_all_extras_of_the_table_are_listed() -> None:
    listed = list_json()["extras"]
    assert [(row["name"], row["is_here"]) for row in listed] == [
        (extra.name, extra.is_here) for extra in EXTRAS
    ]
    for extra, row in zip(EXTRAS, listed, strict=True):
        added = [
            name for group, names in extra.adds.items() if group != "examples" for name in names
        ]
        assert [one["name"] for one in row["adds"]] == added
        assert row["needs"] == list(extra.needs)
        assert all({*one} == {"group", "name", "about"} and one["about"] for one in row["adds"])


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_table_has_every_extra_and_how_what_it_adds_is_named(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = call_command("extras")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "") and max(map(len, lines)) <= int(columns)
    heads = [line.split()[0] for line in lines if line[:1].strip()]
    assert [name for name in heads if name in {extra.name for extra in EXTRAS}] == [
        extra.name for extra in EXTRAS
    ]
    if columns == "200":
        is_here = BY_NAME["mscclpp"].is_here
        assert (" yes   topo-synth --format mscclpp " in done.stdout) == is_here
        assert "need" in next(line for line in lines if line.startswith("sockets "))


def test_named_extras_are_listed_alone() -> None:
    names = [EXTRAS[2].name, EXTRAS[0].name]
    listed = list_json(*names)
    assert [row["name"] for row in listed["extras"]] == names[::-1] and listed["packages"] == []
    done = call_command("extras", "mscclp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("topoplan extras: error: mscclp: there is no such extra (did you")
    assert len(done.stderr.splitlines()) == 1


def test_what_is_deleted_is_not_here_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = next(extra for extra in EXTRAS if len(extra.needs) == 1)
    gone = {user.name, *user.needs}
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name not in gone))
    assert not list_json(user.name)["extras"][0]["is_here"]
    said = call_command("extras", user.name).stdout
    assert "no: without" in said and user.needs[0] in said


def test_entry_points_of_other_packages_are_listed_with_what_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other-2.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.1\n")
    (package / "entry_points.txt").write_text(
        "[topoplan.commands]\nhops = other.hops\n"
        "[topoplan.layers]\nbytes = other:BYTES\n"
        "[topoplan.export]\ndot = other:DOT\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    packages = [row for row in list_json()["packages"] if row["package"]["name"] == "other"]
    assert [(row["group"], row["name"], row["is_used"]) for row in packages] == [
        ("commands", "hops", True),
        ("export", "dot", False),
        ("layers", "bytes", True),
    ]
    assert packages[0]["value"] == "other.hops" and packages[0]["package"]["version"] == "2.1"
    said = " ".join(call_command("extras").stdout.split())
    assert "other 2.1 topoplan hops other.hops" in said
    assert "other 2.1 around=bytes other:BYTES" in said
    assert "other 2.1 export: dot other:DOT; not used: packages add nothing to 'export'" in said
    assert "exports" in OPEN
