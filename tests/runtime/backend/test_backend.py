"""The backend "topo": collectives through plans are right, and all else is done as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch import run_ranks
from ranks import backend

from topoplan.topo.presets import preset


def test_collectives_go_through_plans_and_are_right(folder_of_plans: Callable[..., Path]) -> None:
    """Each of the six, sync and async, against float64; what no plan is for is done by gloo, with
    AVG as well.

    Broadcast's plan is for root 1, reduce's for root 2.
    """
    names = ("allreduce", "allgather", "reduce-scatter", "alltoall")
    rooted = (("broadcast", 1), ("reduce", 2))
    folder = folder_of_plans(
        *[("ring:4", name) for name in names],
        *[("ring:4", name, "auto", root) for name, root in rooted],
    )
    (folder / "ring.json").write_text(preset("ring:4").dumps(), encoding="utf-8")
    run_ranks(backend.every_collective, 4, str(folder))
