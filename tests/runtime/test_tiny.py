"""Tensors without elements and of one element: nothing to divide among ranks, and hardly an
address.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch import run_ranks
from ranks import tiny

Plans = Callable[..., str]
ON_THE_BACKEND = ("allreduce", "allgather", "reduce-scatter", "alltoall")
ALL = (*ON_THE_BACKEND, "broadcast", "reduce", "gather", "scatter")


def test_no_element_and_one_on_a_communicator(plans: Plans) -> None:
    run_ranks(tiny.on_a_communicator, 2, {name: plans("ring:2", name) for name in ALL})


def test_no_element_and_one_on_the_backend(folder_of_plans: Callable[..., Path]) -> None:
    wanted = [*(("ring:2", name) for name in ON_THE_BACKEND), ("ring:2", "broadcast", "auto", 1)]
    run_ranks(tiny.on_the_backend, 2, str(folder_of_plans(*wanted)))


def test_no_element_and_one_in_a_bucket_of_the_hook(plans: Plans) -> None:
    run_ranks(tiny.on_the_hook, 2, plans("ring:2"))


def test_what_is_no_tensor_is_refused_in_one_line(plans: Plans) -> None:
    run_ranks(tiny.what_is_no_tensor, 2, plans("ring:2"))
