"""torchrun --max-restarts: a killed rank, and the job comes up again, with a plan that was changed meanwhile."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import patient_ranks, run_command

from topoplan.synth.plan import Plan

SCRIPT = Path(__file__).parent / "ranks" / "restarted.py"


def find_free_port() -> int:
    """Return the number of a TCP port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("backend", "way", "rendezvous", "fresh_store"),
    [
        ("topo", "backend", "--standalone", False),
        ("topo", "hook", "static", False),
        ("gloo", "hook", "--standalone", True),
    ],
)
def test_a_job_comes_up_again_and_takes_the_new_plan(
    plans: Callable[..., str], tmp_path: Path, backend: str, way: str, rendezvous: str, fresh_store: bool
) -> None:
    """The store outlives the first attempt's ranks, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set, as gloo needs it."""
    first, second = plans("ring:4"), plans("full:4", "allreduce", "direct")
    plan, next_plan = tmp_path / "plan.json", tmp_path / "next.json"
    shutil.copy(first, plan)
    shutil.copy(second, next_plan)
    where = rendezvous if rendezvous.startswith("-") else f"--master-port={find_free_port()}"
    done = run_command(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--max-restarts=1", where,
        str(SCRIPT), backend, way, str(plan), str(next_plan), str(tmp_path),
        env={
            **patient_ranks(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if fresh_store else "0",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for attempt, path in enumerate((first, second)):
        wanted = [2.5, 2.5, Plan.load(path).hash]  # the average of 1, 2, 3 and 4
        found = [json.loads((tmp_path / f"{attempt}-{rank}.json").read_text(encoding="utf-8")) for rank in range(4)]
        assert found == [wanted] * 4
