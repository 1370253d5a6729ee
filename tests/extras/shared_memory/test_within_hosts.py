"""Plans in real processes that pass for ranks of several hosts, with shared memory within each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import list_memory, run_joined, run_on_hosts
from needs import long_cases
from planned import synthesize
from ranks import one_sided

from topoplan.runtime.extras.native.library import load_library
from topoplan.synth.cost.host_costs import HostCosts, with_host
from topoplan.synth.ir.collective import COLLECTIVES, collective_on
from topoplan.topo.presets import preset

Plans = Callable[..., str]
LIBRARY = load_library()

pytestmark = pytest.mark.skipif(isinstance(LIBRARY, str), reason=str(LIBRARY))


@pytest.mark.long
def test_every_dtype_and_reduction_has_the_bits_of_messages(plans: Plans) -> None:
    run_on_hosts(one_sided.the_bits_are_those_of_messages, [2, 1], plans("ring:3"))


@pytest.mark.long
@pytest.mark.parametrize("hosts", long_cases([[2, 1], [2, 2]], [2, 2]))
def test_all_collectives_in_random_sizes_one_after_the_other(
    plans: Plans, hosts: list[int]
) -> None:
    paths = {name: plans(f"ring:{sum(hosts)}", name) for name in COLLECTIVES}
    run_on_hosts(one_sided.all_collectives, hosts, paths)


@pytest.mark.parametrize(
    "hosts", long_cases([[2, 1], [1, 2]], [1, 2]), ids=["of this host", "of another host"]
)
def test_a_killed_rank_is_named_and_no_memory_is_left(plans: Plans, hosts: list[int]) -> None:
    before = list_memory()
    errors = run_on_hosts(one_sided.a_rank_is_killed, hosts, plans("switch:3"))
    assert all("rank 1" in errors[rank] for rank in (0, 2)), errors
    assert list_memory() <= before


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named_in_time(plans: Plans) -> None:
    errors = run_on_hosts(one_sided.a_rank_does_not_come, [1, 2], plans("switch:3"))
    assert all("rank 2" in errors[rank] for rank in (0, 1)), errors


def test_ranks_that_make_other_calls_are_named(plans: Plans) -> None:
    errors = run_on_hosts(one_sided.ranks_make_other_calls, [2, 1], plans("switch:3"))
    assert all("1000 elements" in error and "2000 elements" in error for error in errors), errors


@pytest.mark.long
def test_no_other_program_goes_on_after_an_interrupted_call(plans: Plans) -> None:
    errors = run_on_hosts(one_sided.a_call_is_interrupted, [2, 1], plans("switch:3"))
    assert "was interrupted" in errors[0]
    assert all("rank 0" in error for error in errors), errors


def test_a_forked_child_ends_nothing(plans: Plans) -> None:
    run_on_hosts(one_sided.a_forked_child_ends, [2, 1], plans("switch:3"))


def test_aborting_a_group_ends_the_call_in_progress(plans: Plans) -> None:
    run_on_hosts(one_sided.groups_are_aborted, [2, 1], plans("switch:3"), ["one-sided"])


@pytest.mark.long
def test_it_races_beside_messages_and_stock(plans: Plans) -> None:
    path = plans("switch:3", "allreduce", "ring")
    run_on_hosts(one_sided.the_race_is_between_messages_shared_memory_and_stock, [2, 1], path)


@pytest.mark.long
def test_ranks_without_a_neighbour_share_nothing(plans: Plans) -> None:
    run_on_hosts(one_sided.each_rank_is_on_a_host_of_its_own, [1, 1], plans("switch:2"))


@pytest.mark.long
def test_topo_run_names_what_played(tmp_path: Path) -> None:
    path, machine = tmp_path / "plan.json", with_host(preset("switch:3"), HostCosts())
    synthesize(collective_on("allreduce", machine), machine).plan.save(path)  # not calibrated
    options = ["-b", "4K", "-e", "4K", "-n", "2", "--json", "--choose", "plan"]
    first, *_ = run_joined(
        "topoplan.cli.run", str(path), *options, "--executor", "one-sided",
        ranks=3, hosts=[2, 1],
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    (row,) = json.loads(first.stdout)["rows"]
    assert row["wrong"] == 0
    assert row["schedule"].endswith(", one-sided within hosts")
