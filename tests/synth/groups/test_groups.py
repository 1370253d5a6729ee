"""Plans for a group with helpers: on random machines, on known ones, saved, loaded, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from needs import long_cases
from random_graphs import ROOTED, graphs
from thorough import count_examples

import topoplan
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.plan import Plan
from topoplan.synth.plan_text import hash_of
from topoplan.synth.verify import verify
from topoplan.topo.errors import InfeasibleError, InputError, VerificationError
from topoplan.topo.graph import Device, Link, Topology, both_directions

# Bounds on algbw in GB/s without and with help, from the links alone: on 8 MI300X each pair has a
# link of 64 GB/s, so two of them have 1 path without help and 7 with it.
FULL_MESH: dict[tuple[str, int], tuple[Any, Any]] = {
    ("allreduce", 2): (64, 7 * 64),
    ("reduce-scatter", 2): (128, 7 * 128),
    ("broadcast", 2): (64, 7 * 64),
    ("allgather", 4): (256, Fraction(7, 3) * 256),
    ("alltoall", 4): (256, Fraction(7, 3) * 256),
}


def least_gap_of(plan: Plan) -> Fraction:
    """The least gap of a plan's schedules in many segments, alternatives included.

    Its entries may have a larger one, and messages that hold each other up less.
    """
    piped = {replace(schedule.uncut, segments=2) for schedule in plan.schedules}
    least_s = min(bandwidth_s_per_GB(schedule, plan.topology) for schedule in piped)
    return 1 - plan.bound_one_way.s_per_GB / least_s if least_s else Fraction(0)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Any, Topology, list[int], Any]:
    """A collective, a random machine, a group on it, and its helpers."""
    machine = draw(graphs(most=6, two_way=draw(st.booleans()), switches=2))
    order = draw(st.permutations(range(len(machine.ranks))))
    size = draw(st.integers(2, len(order) - 1))
    helpers = draw(st.sampled_from(["rest", "none", list(order[size:])[:1]]))
    return draw(st.sampled_from(COLLECTIVES)), machine, sorted(order[:size]), helpers


@given(case=groups())
@settings(max_examples=count_examples(5), deadline=None)
def test_plans_on_random_machines(
    case: tuple[Any, Topology, list[int], Any],
) -> None:
    name, machine, group, helpers = case
    root = group[-1] if name in ROOTED else None
    try:
        plan = topoplan.synthesize(
            name, machine, "packing", group=group, helpers=helpers, root=root
        )
    except InfeasibleError as error:
        assert helpers != "rest"
        assert "only through other GPUs; let more of ranks" in str(error)
        assume(False)
    plan.verify()
    for schedule in plan.schedules:
        verify(schedule, machine)
        assert set(schedule.helpers) <= set(plan.helpers or ())
        assert list(schedule.collective.members) == group
    assert all(0 <= plan.gap_of(entry) < 1 for entry in plan.entries)
    assert plan.bound_with_helpers is not None
    assert plan.bound_with_helpers.s_per_GB <= plan.bound_one_way.s_per_GB
    if plan.bound_alone is not None:
        assert plan.bound_one_way.s_per_GB <= plan.bound_alone.s_per_GB
    # Trees and paths are found to the optimum, so schedules in many segments are at the bound.
    assert least_gap_of(plan) < Fraction(1, 10**4)
    assert Plan.loads(json.dumps(plan.to_json())) == plan


@pytest.mark.parametrize(("name", "size"), long_cases(FULL_MESH, "alltoall", "reduce-scatter"))
def test_a_full_mesh_has_a_path_through_each_helper(name: Any, size: int) -> None:
    plan = topoplan.synthesize(name, "mi300x", "packing", group=range(size))
    alone, helped = FULL_MESH[name, size]
    assert plan.bound_alone is not None
    assert (plan.bound_alone.algbw_GBps, plan.bound_one_way.algbw_GBps) == (alone, helped)
    assert plan.gap_of(plan.entry_for(1 << 40)) == 0
    assert plan.helpers == tuple(range(size, 8))


@pytest.mark.parametrize(
    ("machine", "group", "helpers", "alone", "helped"),
    [
        ("dgx1", [0, 5], "rest", None, 150),  # no link between them
        ("mi300x", [0, 1], [6, 7], 64, 3 * 64),
        ("mi300x", [0, 1], "none", 64, 7 * 64),
        ("dgx-a100", [2, 5], "rest", 300, 300),
        pytest.param(
            *("pcie-2socket", [0, 1, 4, 5, 6], "rest", 15, Fraction(76, 5)),
            marks=pytest.mark.long,
        ),
    ],
)
def test_bounds_with_and_without_help(
    machine: str, group: list[int], helpers: Any, alone: int | None, helped: Any
) -> None:
    plan = topoplan.synthesize("allreduce", machine, "packing", group=group, helpers=helpers)
    assert plan.bound_with_helpers is not None
    assert (plan.bound_alone and plan.bound_alone.algbw_GBps) == alone
    assert plan.bound_with_helpers.algbw_GBps == helped
    assert least_gap_of(plan) == 0


@cache
def plan_text(helpers: Any) -> str:
    plan = topoplan.synthesize("allreduce", "ring:4", "packing", group=[0, 1], helpers=helpers)
    return json.dumps(plan.to_json())


def plan_json(helpers: Any = "rest") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(plan_text(helpers))
    return data


@pytest.mark.parametrize(("helpers", "listed"), [("rest", [2, 3]), ("none", [])])
def test_the_file_of_a_plan_has_the_helpers_and_the_bounds(helpers: str, listed: list[int]) -> None:
    data = plan_json(helpers)
    assert (data["version"], data["ranks"], data["members"]) == (2, 2, [0, 1])
    assert data["helpers"] == listed
    assert data["bound_alone"]["s_per_GB"] == 1
    assert ("bound_with_helpers" in data) == (not listed)
    again = Plan.loads(json.dumps(data))
    assert again.bound_with_helpers is not None
    assert again.bound_with_helpers.algbw_GBps == 2


def test_a_plan_of_all_gpus_has_none_of_the_fields_of_groups() -> None:
    plan = topoplan.synthesize("allreduce", "ring:4", "packing", group=range(4))
    assert plan == topoplan.synthesize("allreduce", "ring:4", "packing")
    data = plan.to_json()
    assert data["version"] == 1
    assert not {"members", "helpers", "bound_alone", "bound_with_helpers"} & set(data)
    assert (plan.helpers, plan.bound_alone) == ((), None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(helpers=[1, 2]), "helpers: 1, 2; expected ranks below 4, ascending"),
        (lambda d: d.update(helpers=[3, 2]), "helpers: 3, 2; expected ranks below 4"),
        (lambda d: d.update(helpers=[3, 9]), "helpers: 3, 9; expected ranks below 4"),
        (lambda d: d.update(helpers=[3]), "rank 2 helps in its packing"),
        (lambda d: d.update(helpers=[]), "the plan may use no helpers"),
        (lambda d: d.update(bound_alone=d["bound"]), "the cut names 'gpu2'"),
        (lambda d: d.update(bound_alone={}), "bound_alone"),
    ],
)
def test_what_the_file_of_a_plan_must_not_say(change: Callable[[Any], None], says: str) -> None:
    data = plan_json()
    data.pop("hash")
    change(data)
    with pytest.raises(VerificationError, match=says):
        Plan.loads(json.dumps({**data, "hash": hash_of(data)}))


def test_helpers_may_be_fewer_than_the_bound_is_for() -> None:
    plan = topoplan.synthesize("allreduce", "ring:4", "packing", group=[0, 1])
    with pytest.raises(InputError, match="may use no helpers"):
        replace(plan, helpers=())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": [0, 0]}, "group: rank 0 is listed 2 times; list each rank once"),
        ({"group": [0, 9]}, "group: no rank 9; ring:4 has ranks 0 to 3"),
        ({"group": [0, -1]}, "group: no rank -1"),
        ({"group": [0, "1"]}, "group: no rank '1'"),
        ({"group": [2]}, "group: rank 2 alone; expected at least two ranks"),
        ({"group": []}, "group: no ranks; expected at least two"),
        ({"group": [0, 1], "helpers": [1]}, "helpers: rank 1 is a member of ranks 0, 1; helpers"),
        ({"group": [0, 1], "helpers": [2, 2]}, "helpers: rank 2 is listed 2 times"),
        ({"group": [0, 1], "helpers": [7]}, "helpers: no rank 7; ring:4 has ranks 0 to 3"),
        ({"group": [0, 1], "helpers": []}, "helpers: no ranks; expected rest, none, or ranks"),
        ({"group": [0, 1], "helpers": "some"}, "helpers 'some': expected rest, none, or ranks"),
        ({"helpers": [1]}, "helpers: rank 1 is a member of 4 ranks; helpers are other ranks"),
        ({"group": [0, 1], "root": 2, "collective": "broadcast"}, "a root among 0, 1, got 2"),
        ({"group": [0, 1], "helpers": [2], "reproducible": True}, "adds at members only"),
    ],
)
def test_wrong_groups_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        topoplan.synthesize(**{"collective": "allreduce", "topology": "ring:4", **options})


def test_members_that_reach_each_other_only_through_others_need_help() -> None:
    says = r"ranks 0, 2 on 'ring:4': they reach .* through other GPUs; let more of ranks 1, 3 help"
    with pytest.raises(InfeasibleError, match=says):
        topoplan.synthesize("allreduce", "ring:4", group=[0, 2], helpers="none")
    plan = topoplan.synthesize("allreduce", "ring:4", group=[0, 2])
    assert plan.bound_alone is None
    assert plan.bound_one_way.algbw_GBps == 2
    assert Plan.loads(json.dumps(plan.to_json())) == plan


def test_plans_of_groups_offer_schedules_without_help(tmp_path: Path) -> None:
    plan = topoplan.synthesize("allreduce", "mi300x", group=[0, 1])
    assert not plan.entry_for(0).schedule.helpers
    assert plan.entry_for(1 << 30).schedule.helpers == (2, 3, 4, 5, 6, 7)
    assert not all(schedule.helpers for schedule in plan.alternatives)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_helpers_that_cannot_reach_all_members_are_no_hindrance() -> None:
    # gpu2 is apart, and gpu3 only sends.
    devices = tuple(Device(f"gpu{i}", "gpu") for i in range(4))
    cable = both_directions(Link("gpu0", "gpu1", Fraction(1)))
    links = (*cable, Link("gpu3", "gpu0", Fraction(1)), Link("gpu3", "gpu1", Fraction(1)))
    machine = Topology("partly", devices, links)
    for name in ("allreduce", "allgather", "alltoall"):
        plan = topoplan.synthesize(name, machine, group=[0, 1])
        assert plan.bound_alone is not None
        assert plan.bound_one_way.s_per_GB == plan.bound_alone.s_per_GB
        assert min(map(plan.gap_of, plan.entries)) == 0


@pytest.mark.long
def test_many_members_have_a_bound_with_helpers_joined_to_them() -> None:
    plan = topoplan.synthesize("allreduce", "mesh:5x5", "packing", group=range(13))
    assert plan.bound_one_way.kind == "prices"
    joined = dict(plan.bound_one_way.certificate["joined"])
    assert set(joined) == {f"gpu{rank}" for rank in range(13, 25)}
    assert plan.bound_alone is not None
    assert plan.bound_one_way.algbw_GBps == Fraction(9, 5)
    assert plan.bound_alone.algbw_GBps == Fraction(3, 2)
    assert min(map(plan.gap_of, plan.entries)) == 0
    assert Plan.loads(json.dumps(plan.to_json())) == plan
    data = plan.to_json()
    data.pop("hash")
    data["bound"]["certificate"]["joined"][0] = ["gpu0", "gpu1"]
    with pytest.raises(VerificationError, match="'gpu0' is a member's GPU"):
        Plan.loads(json.dumps({**data, "hash": hash_of(data)}))
