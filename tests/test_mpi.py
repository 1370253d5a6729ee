"""Plans over MPI: the same collectives as over gloo, by ranks that mpirun starts, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from launch import Ended
from mpi_launch import NEEDS_MPI, mpirun, run_mpi_ranks
from ranks import backend, choices, collectives, compression, ddp, over_mpi

from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.topo.presets import preset

pytestmark = NEEDS_MPI
Plans = Callable[..., str]


def run_topo(*arguments: str, ranks: int, **env: str) -> Ended:
    return mpirun(ranks, sys.executable, "-m", "topoplan.cli.run", *arguments, env=env)


def test_collectives_and_training_go_over_mpi(plans: Plans) -> None:
    """What ranks over gloo are tested with; and the same bits as over gloo, by every schedule."""
    ring = plans("ring:4")
    several = [plans("full:4"), plans("switch:4", "allreduce", "recursive-doubling")]
    for used, *_ in run_mpi_ranks(
        4,
        [
            (over_mpi.all_of_it, ring, several),
            (collectives.dtypes_and_shapes, ring),
            (compression.sums_and_feedback, several[1:]),
            (choices.by_race_and_by_model, plans("full:4")),
            (ddp.replicas_and_errors, ring),
        ],
    ):
        assert used["name"] == "mpi"
        assert used["sent"] > 0


def test_the_other_collectives_and_the_backend_go_over_mpi(plans: Plans, folder_of_plans: Callable[..., Path]) -> None:
    names = ("allreduce", "allgather", "reduce-scatter", "alltoall")
    rooted = (("broadcast", 1), ("reduce", 2))
    folder = folder_of_plans(
        *[("ring:4", name) for name in names], *[("ring:4", name, "auto", root) for name, root in rooted]
    )
    (folder / "ring.json").write_text(preset("ring:4").dumps(), encoding="utf-8")
    run_mpi_ranks(4, [(backend.every_collective, str(folder))])
    others = [name for name in COLLECTIVES if name != "allreduce"]
    run_mpi_ranks(3, [(collectives.all_others, {name: plans("path:3", name) for name in others})])


def test_a_rank_that_stays_away_is_named(plans: Plans) -> None:
    errors = [said for (said,) in run_mpi_ranks(3, [(over_mpi.one_stays_away, plans("ring:3"))])]
    assert all("rank 2 does not answer" in said for said in errors[:2]), errors
    assert errors[2] == ""


def test_topo_run_joins_what_mpirun_started(plans: Plans) -> None:
    done = run_topo(plans("full:4"), "-b", "4K", "-e", "64K", "--choose", "plan", "--json", ranks=4)
    assert done.returncode == 0, done.stderr
    (run,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert run["backend"] == "mpi"
    assert all(row["wrong"] == 0 and row["stock_us"] for row in run["rows"])
