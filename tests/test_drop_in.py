"""Scripts that were written for gloo, NCCL or DDP's own hooks: nothing but a name changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_module, run_ranks
from ranks import drop_in

Plans = Callable[..., str]


def folder_of(plans: Plans, folder: Path) -> str:
    for name in ("allreduce", "allgather", "reduce-scatter"):
        shutil.copy(plans("ring:3", name), folder / f"{name}.json")
    return str(folder)


def test_sparse_tensors_go_to_gloo_and_expanded_inputs_are_copied(plans: Plans, tmp_path: Path) -> None:
    run_ranks(drop_in.tensors_of_other_layouts, 3, folder_of(plans, tmp_path))


def test_process_groups_own_methods_profiles_and_errors_are_torchs(plans: Plans, tmp_path: Path) -> None:
    run_ranks(drop_in.other_ways_to_call, 3, folder_of(plans, tmp_path))


def test_a_hook_is_made_early_and_saved_with_its_model(plans: Plans) -> None:
    for shown in run_ranks(drop_in.a_saved_model, 3, plans("ring:3")):
        assert shown == "<topoplan.ddp_hook of allreduce on ring:3: choose='model'>"


def test_torchs_own_tests_pass_through_plans() -> None:
    """A few of them; `make torch-suite` runs all, through gloo as well."""
    pytest.importorskip("expecttest", reason="torch's own tests need expecttest")
    names = ("all_reduce_sum_async", "all_gather_full_group", "get_future", "grads_same_across_ranks_with_no_sync")
    chosen = [part for name in names for part in ("-k", f"test_{name}")]
    ended = run_module("torch_suite", "--ways", "plan", *chosen)
    assert ended.returncode == 0, ended.stdout
    assert "plan: 4 passed, " in ended.stdout and " 0 failed of " in ended.stdout
