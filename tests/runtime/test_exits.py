"""Scripts that end while calls are in progress: with their own exit code and error, as by gloo."""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_planners
import pytest
from launch import patient_ranks, run_command
from ranks import exits

ALL = ["raise", "alone", "exit", "drop"]
# Ends by way; each case imports torch once.
OFTEN = {"topo": ["raise", "drop"]}
SELDOM = {
    "gloo": ["raise", "exit", "drop"],  # which waits for a rank that makes no call
    "topo": ["alone", "exit"],
    "search": ALL,
    "file": ALL,
    "hook": ["raise", "alone", "exit"],
    "stuck": ["alone"],
}


@pytest.fixture(scope="module")
def planners() -> Iterator[str]:
    """The socket of a process that planners are forked from, as `launch` has one for its ranks."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/planners"
        listener.bind(path)
        listener.listen()
        server = multiprocessing.get_context("forkserver").Process(
            target=forked_planners.serve, args=[listener], daemon=True
        )
        server.start()
        yield path
        server.kill()
        server.join()


@pytest.mark.parametrize("ends", [OFTEN, pytest.param(SELDOM, marks=pytest.mark.long)])
def test_the_exit_code_and_the_error_are_the_scripts_own(
    ends: dict[str, list[str]], plans: Callable[[str], str], planners: str, tmp_path: Path
) -> None:
    script = run_command(
        sys.executable, exits.__file__, plans("ring:2"), str(tmp_path), json.dumps(ends),
        env={**patient_ranks(), forked_planners.VARIABLE: planners, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    ended = json.loads(script.stdout)
    assert {way: list(of_way) for way, of_way in ended.items()} == ends
    for way, of_way in ended.items():
        for end, ranks in of_way.items():
            _assert_own(way, end, ranks)


def _assert_own(way: str, end: str, ranks: list[tuple[int, str]]) -> None:
    assert [code for code, _ in ranks] == [exits.CODES[end]] * exits.WORLD, (way, end, ranks)
    for rank, (_, printed) in enumerate(ranks):
        assert "terminate" not in printed and "plan:" not in printed, printed
        assert "estimate" not in printed, printed
        raises = end == "raise" or (end, rank) == ("alone", 0)
        assert ("OwnError" in printed) == raises, printed
        # Dropped calls ended on all ranks, or on none.
        if end == "drop" and way != "gloo":
            assert "sum 8192" in printed, printed
