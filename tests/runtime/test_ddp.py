"""The DDP hook: replicas agree bitwise, stay close to stock, and errors arrive as themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_on_one_gpu, run_ranks
from needs import has_extra
from ranks import ddp, gpu, planless_hook

Plans = Callable[..., str]


def test_replicas_agree_bitwise_and_with_stock_and_errors_are_raised_as_themselves(
    plans: Plans,
) -> None:
    """4 or 20 steps, one bucket and many, views, unused parameters' flag, no_sync, half precision,
    one hook for all models; what fails in the background reaches the training loop with its own
    type and message, on the rank where it failed.
    """
    run_ranks(ddp.replicas_and_errors, 3, plans("ring:3"))


def test_wrong_plans_are_refused_on_every_rank(plans: Plans) -> None:
    run_ranks(ddp.wrong_collective, 2, plans("ring:2", "allgather", "ring"))


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
def test_the_hook_on_a_gpu_agrees_with_stock(plans: Plans) -> None:
    """The side stream's averages are DDP's own; compressed ones are near them."""
    run_on_one_gpu(gpu.hook, plans("ring:2"))


@pytest.mark.skipif(not has_extra("summaries"), reason="no extra summaries")
def test_without_a_plan_the_hook_trains_by_what_the_backend_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOPLAN_PLANS", "ring:2")
    first, *others = run_ranks(planless_hook.train, 2, str(tmp_path))
    assert first, "no schedule of a plan ran"
    assert all(used == first for used in others)
