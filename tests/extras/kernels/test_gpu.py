"""The kernel on a GPU that ranks share: exact calls, eager and captured in a CUDA graph."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_command, run_on_one_gpu
from ranks import gpu

Plans = Callable[..., str]
BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks/kernels_on_gpu.py"


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_are_exact_on_one_gpu(ranks: int) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    done = run_command(
        *torchrun, "--nproc-per-node", str(ranks), str(BENCHMARK), "--calls", "200", quiet_s=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["wrong"] == 0
    assert row["ranks"] == ranks


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
def test_communicators_play_by_kernels_on_one_gpu(plans: Plans) -> None:
    """Also from a CUDA graph."""
    paths = {name: plans("ring:2", name) for name in ("allreduce", "allgather")}
    for labels in run_on_one_gpu(gpu.by_kernels, paths):
        assert all("one-sided" in label for label in labels)


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
def test_a_rank_that_does_not_call_on_a_gpu_is_named(plans: Plans) -> None:
    error, _ = run_on_one_gpu(gpu.absent, plans("ring:2"))
    assert "rank 1" in error


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
def test_streams_of_one_process_play_together() -> None:
    done = run_command(sys.executable, str(BENCHMARK), "--streams", "4", "--calls", "1000")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["wrong"] == 0
