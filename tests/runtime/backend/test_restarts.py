"""torchrun --max-restarts: a rank is killed, and the job comes up again, with a plan that was
changed meanwhile.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from launch import patient_ranks, run_command

from topoplan.synth.plan import Plan

SCRIPT = Path(__file__).parents[2] / "ranks" / "restarted.py"


def test_a_job_comes_up_again_and_takes_the_new_plan(
    plans: Callable[..., str], tmp_path: Path
) -> None:
    """The ranks meet in torchrun's own store, where all is left that those of the first attempt put
    there.
    """
    first, second = plans("ring:3"), plans("full:3", "allreduce", "direct")
    plan, next_plan = tmp_path / "plan.json", tmp_path / "next.json"
    shutil.copy(first, plan)
    shutil.copy(second, next_plan)
    done = run_command(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=3",
        "--max-restarts=1",
        "--standalone",
        str(SCRIPT),
        str(plan),
        str(next_plan),
        str(tmp_path),
        env={
            **patient_ranks(),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0",
        },
    )
    assert done.returncode == 0, done.stderr
    for attempt, path in enumerate((first, second)):
        wanted = [[6.0] * 4, [Plan.load(path).hash] * 2]
        found = [
            json.loads((tmp_path / f"{attempt}-{rank}.json").read_text(encoding="utf-8"))
            for rank in range(3)
        ]
        assert found == [wanted] * 3
