"""The kernel on 2, 3 and 4 real processes, by Triton's interpreter: exact in each call of many."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from launch import run_ranks
from ranks import kernels

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed (the extra `kernels`)"
)

Plans = Callable[..., str]
COLLECTIVES = ("allreduce", "broadcast", "allgather", "reduce-scatter", "alltoall")


def name_segment(test: str) -> str:
    """Return a name for shared memory that no other run of the tests has."""
    return f"topoplan-{test}-{os.getpid()}"


@pytest.mark.long
@pytest.mark.parametrize(("machine", "ranks", "calls"), [("ring:3", 3, 4), ("full:4", 4, 3)])
def test_calls_of_all_kinds_in_a_row(plans: Plans, machine: str, ranks: int, calls: int) -> None:
    paths = {name: plans(machine, name) for name in COLLECTIVES}
    run_ranks(kernels.calls, ranks, name_segment(f"calls{ranks}"), paths, calls, ranks)


@pytest.mark.long
def test_operators_are_compiled_into_one_graph(plans: Plans) -> None:
    paths = {name: plans("ring:2", name) for name in COLLECTIVES}
    run_ranks(kernels.compiled, 2, name_segment("compiled"), paths)


@pytest.mark.long
def test_every_use_is_right_and_a_rank_that_does_not_call_is_named(plans: Plans) -> None:
    """Calls of all kinds in a row, averages that do not overflow, tensors that are parts of each
    other, communicators: in one launch, since each rank imports Triton.
    """
    paths = {name: plans("ring:2", name) for name in COLLECTIVES}
    message, _ = run_ranks(
        kernels.on_two_ranks, 2, name_segment("two"), paths, plans("full:2", "allreduce")
    )
    assert message is not None
    assert message.startswith("rank 0: allreduce of 100 elements of float32 by ")
    assert "for rank 1" in message
