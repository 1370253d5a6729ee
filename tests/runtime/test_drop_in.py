"""Scripts that were written for gloo, NCCL or DDP's own hooks: nothing but a name changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import run_module, run_ranks
from ranks import drop_in

import topoplan

Plans = Callable[..., str]


def folder_of(plans: Plans, folder: Path, machine: str = "ring:2") -> str:
    for name in ("allreduce", "allgather", "reduce-scatter"):
        shutil.copy(plans(machine, name), folder / f"{name}.json")
    return str(folder)


def test_sparse_tensors_go_to_gloo_and_expanded_inputs_are_copied(
    plans: Plans, tmp_path: Path
) -> None:
    run_ranks(drop_in.tensors_of_other_layouts, 2, folder_of(plans, tmp_path))


def test_sparse_gradients_arrive_though_a_future_has_its_value_late(
    plans: Plans, tmp_path: Path
) -> None:
    run_ranks(drop_in.sparse_gradients_by_late_futures, 2, folder_of(plans, tmp_path))


def test_process_groups_own_methods_profiles_and_errors_are_torchs(
    plans: Plans, tmp_path: Path
) -> None:
    run_ranks(drop_in.other_ways_to_call, 2, folder_of(plans, tmp_path))


@pytest.mark.long
def test_all_to_all_goes_by_plans_where_equal_parts_are_promised(
    folder_of_plans: Callable[..., Path],
) -> None:
    run_ranks(drop_in.all_to_all_of_every_kind, 4, str(folder_of_plans(("ring:4", "alltoall"))))


def test_works_last_where_only_cpp_keeps_hold_of_them(plans: Plans, tmp_path: Path) -> None:
    run_ranks(drop_in.works_that_are_handed_on, 3, folder_of(plans, tmp_path, "ring:3"))


def test_torchs_tools_see_what_was_called(plans: Plans, tmp_path: Path) -> None:
    run_ranks(drop_in.what_torchs_tools_see, 2, folder_of(plans, tmp_path))


def test_another_level_of_logging_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOPLAN_LOG", "loud")
    with pytest.raises(
        topoplan.InputError,
        match="TOPOPLAN_LOG='loud': expected one of debug, info, warning, error",
    ):
        topoplan.backend_options()


@pytest.mark.long
def test_backends_are_named_for_types_of_devices() -> None:
    for said in run_ranks(drop_in.groups_for_some_devices, 2):
        assert said == [
            "backend 'cuda:topo,cpu:nccl': beside topo, tensors on cpu go by gloo, not by nccl; "
            "name gloo or topo for cpu"
        ]


def test_a_hook_is_made_early_and_saved_with_its_model(plans: Plans) -> None:
    for shown in run_ranks(drop_in.a_saved_model, 2, plans("ring:2")):
        assert shown == "<topoplan.ddp_hook of allreduce on ring:2: choose='model'>"


@pytest.mark.long
def test_torchs_own_tests_pass_through_plans() -> None:
    """A few of them; `make torch-suite` runs all, through gloo as well."""
    pytest.importorskip("expecttest", reason="torch's own tests need expecttest")
    names = (
        "all_reduce_sum_async",
        "ddp_grad_div_uneven_inputs",
        "all_gather_full_group",
        "get_future",
        "grads_same_across_ranks_with_no_sync",
    )
    chosen = [part for name in names for part in ("-k", f"test_{name}")]
    ended = run_module("torch_suite", "--ways", "plan", *chosen)
    assert ended.returncode == 0, ended.stdout
    assert "plan: 5 passed, " in ended.stdout and " 0 failed of " in ended.stdout
