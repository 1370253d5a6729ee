"""Joint plans: at the joint bound, verified by replay, and refused if anything is forged."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from topoplan.synth.extras.joint.joint_calls import JointCall, read_calls
from topoplan.synth.extras.joint.plan import FORMAT, JointPlan
from topoplan.synth.extras.joint.synthesize import plan_jointly, synthesize_joint
from topoplan.synth.ir.collective import COLLECTIVES, Collective
from topoplan.synth.plan_text import hash_of
from topoplan.topo.errors import InfeasibleError, VerificationError
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.hardware_rule import HARDWARE
from topoplan.topo.presets import preset

MESH = "tp:allreduce:64M=0,1|2,3 dp:allreduce:128M=0,2|1,3"


def complete(size: int) -> Topology:
    """Return GPUs with a link of 1 GB/s between each two."""
    names = [f"g{i}" for i in range(size)]
    links = [Link(a, b, Fraction(1)) for a in names for b in names if a != b]
    return Topology("complete", tuple(Device(name, "gpu") for name in names), tuple(links))


@pytest.fixture(scope="module")
def mesh_plan() -> JointPlan:
    return synthesize_joint(MESH, complete(4))


def test_helpers_level_out_the_links(mesh_plan: JointPlan) -> None:
    assert mesh_plan.gap == 0
    assert mesh_plan.bound.time_s == mesh_plan.bound_one_way.time_s
    # Without help the groups of dp take 128 MiB over 1 GB/s.
    assert mesh_plan.limit_s < Fraction(128 << 20, 10**9)
    total: dict[tuple[str, str], Fraction] = {}
    for group in mesh_plan.groups:
        for link, share in group.shares.items():
            total[link] = total.get(link, Fraction(0)) + share
    assert set(total.values()) == {Fraction(1)}


def test_help_that_gains_nothing_is_not_used() -> None:
    plan = synthesize_joint(MESH, "switch:4")
    assert plan.helpers == (0, 1, 2, 3)
    assert all(group.helpers == () for group in plan.groups)


def test_without_helpers_members_have_their_own_links_alone() -> None:
    plan = synthesize_joint(MESH, "hypercube:2", helpers="none")
    assert plan.limit_s == plan.bound.time_s == Fraction(128 << 20, 10**9)
    assert all(group.helpers == () for group in plan.groups)
    with pytest.raises(InfeasibleError, match="let other GPUs help"):
        synthesize_joint("tp:allreduce=0,3", "hypercube:2", helpers="none")


def test_a_call_of_twice_the_weight_ends_in_half_the_time() -> None:
    plan = synthesize_joint("a:allgather:1M=0,1 b:allgather:1M:2=0,1", "path:2")
    slow, fast = plan.groups
    assert slow.limit_s == 2 * fast.limit_s == plan.limit_s
    assert slow.shares["gpu0", "gpu1"] == Fraction(1, 3)


def test_every_collective_reaches_the_bound_beside_another() -> None:
    for name in COLLECTIVES:
        plan = synthesize_joint(f"a:{name}:3M=2,0,1 b:allreduce:1M=1,3", "ring:4")
        assert plan.gap < Fraction(1, 10**6), name
        assert plan.groups[0].plan.collective.root in (None, 2)


def test_files_and_their_plans_are_read_as_they_were_written(
    mesh_plan: JointPlan, tmp_path: Path
) -> None:
    mesh_plan.save(tmp_path / "joint.json")
    read = JointPlan.load(tmp_path / "joint.json")
    assert read == mesh_plan and read.hash == mesh_plan.hash
    assert [dict(group.shares) for group in read.groups] == [
        dict(group.shares) for group in mesh_plan.groups
    ]
    found = read.find([3, 1], "all_reduce", "dp")
    assert found is not None and found.call.name == "dp 1,3"
    assert read.find([0, 1], kind="dp") is read.find([0, 3]) is None
    assert found in read.groups_of(1)
    assert "dp 1,3" in read.describe()


def _double_share(data: Any) -> None:
    data["groups"][0]["shares"][0][2] = 1


def _halve_share(data: Any) -> None:
    data["groups"][0]["shares"] = [[a, b, "1/100"] for a, b, _ in data["groups"][0]["shares"]]


def _drop_share(data: Any) -> None:
    del data["groups"][0]["shares"][0]


def _raise_bound(data: Any) -> None:
    data["bound_one_way"]["time_s"] = 1


def _confuse_bounds(data: Any) -> None:
    data["bound"]["kind"] = "route-joint-prices"


def _forbid_helpers(data: Any) -> None:
    data["helpers"] = []


def _overlap(data: Any) -> None:
    data["groups"][2]["kind"] = "tp"


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (_double_share, "add up to"),
        (_halve_share, "overloaded"),
        (_drop_share, "no link"),
        (_raise_bound, "not the claimed 1"),
        (_confuse_bounds, "any use of the links"),
        (_forbid_helpers, "not among the helpers"),
        (_overlap, "two groups of kind tp"),
    ],
)
def test_forged_files_fail_even_with_a_fitting_hash(
    mesh_plan: JointPlan, forge: Callable[[Any], None], said: str
) -> None:
    data = json.loads(json.dumps(mesh_plan.to_json()))
    with pytest.raises(VerificationError, match="does not match its hash"):
        JointPlan.loads(json.dumps({**data, "helpers": [0]}))
    del data["hash"]
    forge(data)
    plans = [{**group, "plan": group["plan"]["hash"]} for group in data["groups"]]
    data["hash"] = hash_of({**data, "groups": plans})
    with pytest.raises(VerificationError, match=said):
        JointPlan.loads(json.dumps(data))


def test_a_plan_of_one_group_is_not_a_joint_plan(mesh_plan: JointPlan) -> None:
    one = mesh_plan.groups[0].plan
    with pytest.raises(Exception, match="not a plan") as error:
        JointPlan.loads(json.dumps(one.to_json()))
    assert one.to_json()["format"] != FORMAT and "\n" not in str(error.value)


def test_switches_that_add_are_in_the_bound() -> None:
    topology = preset("dgx-h100")
    plan = synthesize_joint("tp:allreduce:64M=0,1|2,3 dp:allreduce:64M=0,2|1,3", topology)
    plan.verify()
    assert plan.bound.time_s <= plan.limit_s


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Topology, list[JointCall]]:
    """Return a random machine and two or three groups that run at once on it."""
    topology = draw(graphs(most=5, two_way=False, switches=1))
    ranks = list(range(len(topology.ranks)))
    calls = []
    for number in range(draw(st.integers(2, 3))):
        members = draw(st.permutations(ranks))[: draw(st.integers(2, len(ranks)))]
        name = draw(st.sampled_from(COLLECTIVES))
        listed = () if len(members) == len(ranks) else sorted(members)
        root = members[0] if name in ("broadcast", "reduce", "gather", "scatter") else None
        one = Collective(name, len(members), root, listed)
        calls.append(JointCall(f"kind{number}", one, draw(st.integers(1, 4)) * 10**6))
    return topology, calls


@pytest.mark.long
@settings(max_examples=3, deadline=None)
@given(traffic())
def test_random_machines_are_shared_up_to_the_bound(
    drawn: tuple[Topology, list[JointCall]],
) -> None:
    topology, calls = drawn
    everyone = list(range(len(topology.ranks)))
    try:
        result = plan_jointly(calls, HARDWARE.on(topology), everyone)
    except InfeasibleError:
        return  # GPUs that only a switch joins in one direction
    plan, separate = result.plan, result.separate
    assert 0 <= plan.gap < Fraction(1, 10**6)
    assert plan.bound.time_s <= plan.bound_one_way.time_s
    # No call is faster than alone, and sharing links is no slower than one call after the other.
    assert plan.bound_one_way.time_s <= separate.together_s
    for group in plan.groups:
        alone_s = group.plan.bound_one_way.s_per_GB * group.call.demand_GB
        assert alone_s <= plan.limit_s


def test_calls_of_a_file_are_those_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(MESH)
    ring = preset("ring:4")
    written = read_calls(str(tmp_path / "groups"), ring, None, "1G")
    assert written == read_calls(MESH, ring, None, "1G")
