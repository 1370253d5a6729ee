"""Collectives through plans, on real processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import patience
import pytest
from culprit import is_named
from launch import run_command, run_ranks
from planned import synthesize
from ranks import agreement, choices, collectives, faults, memory

from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset

Plans = Callable[..., str]


def test_dtypes_operators_shapes_and_lengths(plans: Plans) -> None:
    """Every reduction and dtype against float64, lengths that do not divide, empty, transposed and
    strided tensors.
    """
    run_ranks(collectives.dtypes_and_shapes, 3, plans("ring:3"))


def test_a_maker_of_the_users_may_have_arguments_bound_to_it(plans: Plans) -> None:
    run_ranks(collectives.in_a_group_of_the_users_maker, 2, plans("ring:2"))


def test_all_ranks_end_with_the_same_bits(plans: Plans) -> None:
    run_ranks(collectives.same_bits, 3, [plans("path:3"), plans("switch:3")])


@pytest.mark.long
def test_the_other_collectives(plans: Plans) -> None:
    names = ["allgather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "alltoall"]
    run_ranks(collectives.all_others, 3, {name: plans("path:3", name) for name in names})


def test_ranks_must_agree_on_a_plan_for_their_number_before_anything_moves(plans: Plans) -> None:
    """A plan that one rank cannot read is an error on all, which names it."""
    errors = run_ranks(
        agreement.wrong_plans, 3, plans("switch:3"), plans("ring:3"), plans("switch:4")
    )
    for rank, (other, unreadable, larger) in enumerate(errors):
        assert other.startswith("PlanMismatchError: ")
        assert "do not hold the same plan: rank 2 and rank 0 differ" in other
        assert (
            "nowhere.json: cannot be read" if rank == 2 else "rank 2 could not read its plan"
        ) in unreadable
        assert "the plan is for 4 ranks, the group has 3" in larger


def test_a_plan_for_another_machine_than_the_emulated_one_is_refused_once(
    plans: Plans, tmp_path: Path
) -> None:
    emulated = tmp_path / "machine.json"
    emulated.write_text(preset("path:3").dumps())
    done = run_command(
        *(sys.executable, "-m", "topoplan.cli.run", plans("full:3"), "-e", "1K"),
        env={"TOPOPLAN_EMULATED": str(emulated)},
    )
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "topo-run: error: the plan is for full:3, and the emulated machine path:3 has no link "
    )
    assert line.endswith("make one for path:3, or emulate full:3")


def test_a_rank_that_is_gone_is_an_error_that_names_it(plans: Plans) -> None:
    errors = run_ranks(faults.a_rank_is_gone, 3, plans("path:3"))
    for rank in (0, 2):
        assert is_named(1, errors[rank])
    assert "link gpu1 -> gpu0" in str(errors[0])


def test_after_the_end_of_the_process_group_a_call_says_so(plans: Plans) -> None:
    run_ranks(faults.the_group_is_destroyed, 2, plans("ring:2"))


def test_a_loaded_plan_allocates_nothing_per_call(plans: Plans) -> None:
    """Counted: tensors made by torch whose memory is neither an argument's nor the caller's, and
    what numpy takes.
    """
    run_ranks(memory.nothing_is_allocated, 3, plans("full:3"))


def test_tensors_at_ever_new_addresses_and_freed_ones_are_right(plans: Plans) -> None:
    """Views on the caller's memory are kept by address: another tensor there, or the same one
    elsewhere, is no surprise.
    """
    run_ranks(memory.new_addresses, 2, plans("ring:2"))


@pytest.mark.long
def test_choices_are_alike_on_all_ranks_and_keep_what_the_caller_brought(plans: Plans) -> None:
    by_rank = run_ranks(choices.by_race_and_by_model, 4, plans("full:4"))
    assert by_rank == [by_rank[0]] * 4
    for mode, _, _, entrants in by_rank[0]:
        assert "stock" in entrants and len(entrants) >= 2 if mode == "race" else not entrants


def test_where_stock_is_chosen_it_is_used_unless_it_lacks_the_dtype(plans: Plans) -> None:
    run_ranks(choices.stock_is_chosen, 2, plans("ring:2"))


def test_a_function_may_choose(plans: Plans) -> None:
    for last, stock, by_plan, last_candidate, of_the_plan in run_ranks(
        choices.by_a_function, 2, plans("ring:2")
    ):
        assert (last, stock, by_plan) == (last_candidate, "stock", of_the_plan)


def test_a_collective_in_the_callback_of_another_ends(plans: Plans) -> None:
    assert run_ranks(choices.in_a_callback, 2, plans("ring:2")) == [2.0 + 4.0] * 2


@pytest.mark.long
def test_plans_of_recorded_machines_run(recorded: Callable[[str], Path], tmp_path: Path) -> None:
    """The 4-GPU bridged machine, all collectives' worth of it being allreduce: from its file to
    right results.
    """
    from topoplan.topo.loader.resolve import resolve

    topology = resolve(str(recorded("nccl_xml/azure/ncv4-topo.xml")))
    path = tmp_path / "plan.json"
    synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(path)
    run_ranks(collectives.sums_of_ranks, 4, str(path))


@pytest.mark.gpu
@pytest.mark.usefixtures("one_gpu")
def test_nccl_with_several_ranks_on_one_gpu(plans: Plans, tmp_path: Path) -> None:
    """NCCL takes ranks with distinct NCCL_HOSTID for different hosts, and then lets them share a
    GPU.
    """
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.run",
        plans("ring:4"),
        "--backend",
        "nccl",
        "--json",
    ]
    ranks = []
    for rank in range(4):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "4",
            "TOPOPLAN_RENDEZVOUS": str(tmp_path / "rendezvous"),
            "NCCL_HOSTID": f"r{rank}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
        }
        ranks.append(
            subprocess.Popen(
                [*command, "-n", "2", "-w", "1"], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    printed = [patience.read_to_end(rank, "the end of all ranks", ranks)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    assert all(row["wrong"] == 0 for row in json.loads(printed[0])["rows"])
