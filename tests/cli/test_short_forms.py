"""Command lines as people type them first: positional arguments, and topoplan's own commands."""

from __future__ import annotations

import shlex

import pytest
from needs import has_extra

from topoplan.cli.commands import list_commands
from topoplan.cli.topoplan import main


def run(line: str) -> int:
    """Return the exit code of a line of topoplan, from main or from the parser."""
    try:
        return main(shlex.split(line))
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    "line",
    [
        "allgather ring:4",
        "all_gather ring:4",
        "ring:4 allgather",
        "allgather --time-limit 5 ring:4",
        "--collective allgather --topology ring:4",
        "allgather ring:4 --collective all_gather --topology ring:4",
    ],
)
def test_a_collective_and_a_topology_need_no_options(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"synth {line} --bound-only") == 0
    assert capsys.readouterr().out.startswith("allgather on ring:4, 4 ranks: at most 2.667 (")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no collective and no topology given; expected both, as in: topoplan synth allreduce"),
        ("allgather", "no topology given; expected both, as in: topoplan synth allgather dgx1"),
        ("ring:4", "no collective given; expected both, as in: topoplan synth allreduce ring:4"),
        ("allgather ring:4 --topology ring:5", "ring:4 and --topology ring:5: expected one"),
        ("allgather ring:4 --collective reduce", "allgather and --collective reduce: expected one"),
        ("alreduce ring:4", "unknown collective 'alreduce' (did you mean 'allreduce'?)"),
        ("allgather dgxx1", "(did you mean 'dgx1'?)"),
        ("allgather ring:4 ring:5", "unrecognized arguments: ring:5"),
    ],
)
def test_what_is_missing_or_given_twice_is_one_line(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"synth {line}") == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("line", ["", "help", "-q", "--help"])
def test_topoplan_alone_lists_its_commands(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 0
    said = capsys.readouterr()
    assert not said.err
    for name, what in list_commands().items():
        assert f"\n    {name} " in said.out and what.split()[0] in said.out


@pytest.mark.parametrize("name", list_commands())
def test_help_shows_the_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"help {name}") == run(f"{name} --help") == 0
    first, second = capsys.readouterr().out.split(f"usage: topoplan {name}")[1:]
    assert first == second


@pytest.mark.skipif(not has_extra("joint"), reason="without the extra: joint")
def test_what_needs_a_topology_alone_asks_for_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("synth --groups tp:allreduce:64M=0,1") == 2
    assert "no topology given; expected one, such as dgx1 or a file" in capsys.readouterr().err
