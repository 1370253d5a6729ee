"""Calls in any legal order end, with the same results, on gloo and on the backend.

A sample; benchmarks/orders.py draws as many programs as one has time for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from call_generator import generate, list_named
from call_programs import Operation, Program, find_stuck, parse_steps
from needs import long_cases
from program_runs import MODES, run_programs

# Seeds of the programs of each mode; every plan that a program needs takes a second to make.
_SEEDS = {"gloo": range(2), "race": range(2), "plan": range(1)}
# Seconds after which a program hangs. Plans are made within it, one after the other: with several
# tests a core they took 18 s. Groups time out at 80 s, and pytest at 300.
_HANG_S = 60.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans that the tests of this file share."""
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize("mode", long_cases(MODES, "gloo", "plan"))
def test_an_asynchronous_call_blocks_nobody(mode: str, cache: Path) -> None:
    """Each program hangs where one of them blocks its caller, or one group another."""
    _assert_all_end(list_named(), mode, cache)


@pytest.mark.parametrize(
    ("mode", "ranks"), long_cases([("gloo", 3), ("race", 3), ("plan", 3)], "gloo", "race")
)
def test_random_programs_end(mode: str, ranks: int, cache: Path) -> None:
    _assert_all_end([generate(seed, ranks) for seed in _SEEDS[mode]], mode, cache)


def test_random_programs_are_legal() -> None:
    """By the strictest rules, and all kinds of steps come in them."""
    programs = [generate(seed, ranks) for seed in range(40) for ranks in (2, 3, 4)]
    assert all(find_stuck(program) == [] for program in programs)
    strands = [strand for program in programs for of_rank in program.strands for strand in of_rank]
    steps = {step.action for strand in strands for step in strand}
    assert steps == {"run", "start", "drop", "wait", "poll", "pause"}
    assert generate(7, 3) == generate(7, 3) != generate(8, 3)
    assert Program.from_json(programs[0].to_json()) == programs[0]


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        (["run 0, run 1", "run 1, run 0"], ["rank 0 thread 0: run 0", "rank 1 thread 0: run 1"]),
        (["start 0, wait 0, run 1", "run 1, start 0"], ["rank 0 thread 0: wait 0"]),
    ],
)
def test_a_program_that_may_hang_is_seen(steps: list[str], where: list[str]) -> None:
    """Two synchronous calls of two groups in opposite orders, and a wait that needs one."""
    program = _make_two_groups(steps)
    assert find_stuck(program)[: len(where)] == where


def test_calls_of_a_group_in_different_orders_are_seen() -> None:
    operations = (Operation("barrier"), Operation("all_reduce", 0, 16))
    strands = tuple((parse_steps(text),) for text in ("start 0, start 1", "start 1, start 0"))
    with pytest.raises(ValueError, match="group 0 is called in the orders"):
        find_stuck(Program("wrong", ((0, 1),), operations, strands))


@pytest.mark.long
def test_a_hang_is_reported_with_the_program_and_each_ranks_stack(cache: Path) -> None:
    """A program that must hang, of two calls in opposite orders; the next one still runs."""
    program = _make_two_groups(["run 0, run 1", "run 1, run 0"])
    hung, after = run_programs([program, list_named()[0]], "gloo", cache, hang_s=1)
    assert (hung.how, after.how) == ("hung", "ok")
    for rank in (0, 1):
        stack = str(hung).partition(f"stacks of rank {rank}:")[2]
        assert "in all_reduce" in stack
    assert "rank 1 thread 0: run 1, run 0" in str(hung)


def _make_two_groups(steps: Sequence[str]) -> Program:
    world = tuple(range(len(steps)))
    operations = (Operation("all_reduce", 1, 16), Operation("all_reduce", 2, 16))
    strands = tuple((parse_steps(text),) for text in steps)
    return Program("two groups", (world, world, world), operations, strands)


def _assert_all_end(programs: Sequence[Program], mode: str, cache: Path) -> None:
    endings = run_programs(programs, mode, cache, _HANG_S)
    failed = [str(ending) for ending in endings if ending.how != "ok"]
    assert not failed, "\n\n".join(failed)
