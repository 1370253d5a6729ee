"""Plans over MPI: the same collectives as over gloo, by ranks that mpirun starts, and what is
refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import Ended
from mpi_launch import mpirun, run_mpi_ranks, run_mpi_ranks_to_their_end
from ranks import collectives, over_mpi

from topoplan.synth.ir.collective import COLLECTIVES

pytestmark = pytest.mark.network("mpirun", "mpi4py")
Plans = Callable[..., str]


def run_topo(*arguments: str, ranks: int, **env: str) -> Ended:
    return mpirun(ranks, sys.executable, "-m", "topoplan.cli.run", *arguments, env=env)


def test_collectives_and_the_backend_go_over_mpi(
    plans: Plans, folder_of_plans: Callable[..., Path]
) -> None:
    """What ranks over gloo are tested with; the same bits as over gloo, by every schedule and
    codec; and in the end a rank that stays away is named. One launch: four processes that import
    torch take longer than all of it.
    """
    folder = folder_of_plans(
        ("ring:4", "allreduce"), ("ring:4", "allgather"), ("ring:4", "broadcast", "auto", 1)
    )
    ring, others = plans("ring:4"), [name for name in COLLECTIVES if name != "allreduce"]
    calls = [
        (
            over_mpi.all_of_it,
            ring,
            [plans("full:4"), plans("switch:4", "allreduce", "recursive-doubling")],
        ),
        (collectives.all_others, {name: plans("path:4", name) for name in others}),
        (over_mpi.backend, str(folder)),
        (over_mpi.ctrl_c_ends_a_wait, ring),
        (over_mpi.one_stays_away, ring, [100_000, 1000]),
        (over_mpi.one_stays_away, plans("path:4", "broadcast"), [8000]),
    ]
    for rank, (used, _, _, took_s, said, of_sender) in enumerate(run_mpi_ranks(4, calls)):
        assert used["name"] == "mpi"
        assert used["sent"] > 0
        assert took_s < 30  # half its deadline
        assert len(said) == (2 if rank < 3 else 0)
        assert all("rank 3 does not answer" in one for one in said), said
        # Rank 2 alone has something to do with rank 3: a send that is too large to go before it is
        # received.
        assert [("sending to rank 3" in one) for one in of_sender] == {2: [True], 3: []}.get(
            rank, [False]
        ), of_sender


def test_who_stays_away_from_mpis_own_collective_is_named_before_the_job_ends(plans: Plans) -> None:
    done = run_mpi_ranks_to_their_end(2, over_mpi.one_stays_away_from_mpis_own, plans("ring:2"))
    assert done.returncode == 1
    assert "topoplan: rank 0: rank 1 does not answer" in done.stderr, done.stderr


def test_topo_run_joins_what_mpirun_started(plans: Plans) -> None:
    done = run_topo(plans("full:2"), "-b", "4K", "-e", "64K", "--choose", "plan", "--json", ranks=2)
    assert done.returncode == 0, done.stderr
    (run,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert run["backend"] == "mpi"
    assert all(row["wrong"] == 0 and row["stock_us"] for row in run["rows"])
