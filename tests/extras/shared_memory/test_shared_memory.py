"""One-sided programs in real processes, by the C++ library, in memory that they share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import list_memory, run_module, run_ranks
from needs import long_cases
from planned import synthesize
from ranks import one_sided
from sample_helped import build_helped, build_plan

from topoplan.runtime.extras.native.library import load_library
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import COLLECTIVES, collective_on
from topoplan.topo.presets import preset

Plans = Callable[..., str]
LIBRARY = load_library()

pytestmark = pytest.mark.skipif(isinstance(LIBRARY, str), reason=str(LIBRARY))


def test_every_dtype_and_reduction_has_the_bits_of_messages(plans: Plans) -> None:
    run_ranks(one_sided.the_bits_are_those_of_messages, 3, plans("ring:3"))


@pytest.mark.long
@pytest.mark.parametrize("world", long_cases([2, 3, 4], 2, 4))
def test_all_collectives_in_random_sizes_one_after_the_other(plans: Plans, world: int) -> None:
    paths = {name: plans(f"ring:{world}", name) for name in COLLECTIVES}
    run_ranks(one_sided.all_collectives, world, paths)


def test_a_killed_rank_is_named_and_no_memory_is_left(plans: Plans) -> None:
    before = list_memory()
    errors = run_ranks(one_sided.a_rank_is_killed, 3, plans("switch:3"))
    assert all("rank 1" in errors[rank] for rank in (0, 2)), errors
    assert list_memory() <= before


def test_a_killed_member_is_named_by_its_number_in_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    build_plan(build_helped("allreduce", 3, [0, 2], []), gpus=3).save(path)
    error = run_ranks(one_sided.a_member_is_killed, 3, str(path))[0]
    assert "rank 2 does not answer" in error


def test_a_rank_that_does_not_come_is_named_in_time(plans: Plans) -> None:
    errors = run_ranks(one_sided.a_rank_does_not_come, 3, plans("switch:3"))
    assert all("rank 2" in errors[rank] for rank in (0, 1)), errors


def test_ranks_that_make_other_calls_are_named(plans: Plans) -> None:
    errors = run_ranks(one_sided.ranks_make_other_calls, 3, plans("switch:3"))
    assert all("1000 elements" in error and "2000 elements" in error for error in errors), errors


def test_no_other_program_goes_on_after_an_interrupted_call(plans: Plans) -> None:
    errors = run_ranks(one_sided.a_call_is_interrupted, 2, plans("switch:2"))
    assert "was interrupted" in errors[0]
    assert "rank 0 does not answer" in errors[1]


def test_a_forked_child_ends_nothing(plans: Plans) -> None:
    run_ranks(one_sided.a_forked_child_ends, 2, plans("switch:2"))


def test_aborting_a_group_ends_the_call_in_progress(plans: Plans) -> None:
    executors = ["one-sided", "point-to-point"]
    run_ranks(one_sided.groups_are_aborted, 2, plans("switch:2"), executors)


def test_a_schedule_too_fine_for_the_memory_is_sent_as_messages() -> None:
    run_ranks(one_sided.a_schedule_too_fine_for_the_memory, 2)


def test_what_cannot_be_shared_is_refused(plans: Plans) -> None:
    run_ranks(one_sided.what_cannot_share, 2, plans("switch:2"))


def test_what_one_rank_lacks_no_rank_uses(plans: Plans) -> None:
    run_ranks(one_sided.one_rank_lacks_the_library, 3, plans("switch:3"))


def test_topo_run_names_what_played(tmp_path: Path) -> None:
    path, machine = tmp_path / "plan.json", with_host(preset("switch:2"), HostCosts())
    synthesize(collective_on("allreduce", machine), machine).plan.save(path)  # not calibrated
    options = ["-b", "4K", "-e", "4K", "-n", "2", "--json", "--choose", "plan"]
    done = run_module("topoplan.cli.run", str(path), *options, "--executor", "one-sided")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["wrong"] == 0
    assert row["schedule"].endswith(", one-sided")


def test_emulated_machines_share_no_memory(plans: Plans, tmp_path: Path) -> None:
    topology = preset("switch:2")
    (tmp_path / "machine.json").write_text(topology.dumps())
    done = run_module(
        "topoplan.cli.run", plans("switch:2"), "--executor", "one-sided",
        env={"TOPOPLAN_EMULATED": str(tmp_path / "machine.json")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "emulated: shared memory would bypass its links" in done.stderr
