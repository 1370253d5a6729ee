"""Collectives over some of a topology's GPUs, with helpers: verified, costed, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from planned import synthesize

from topoplan.synth.bounds.certificate import Bound, bound_of
from topoplan.synth.cost.affine import bandwidth_s_per_GB, cost, tighten
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.cost.segmentation import families, fastest
from topoplan.synth.cost.transfer_times import predict_times
from topoplan.synth.describe import describe_plan
from topoplan.synth.ir.addition_order import is_uniform, rounded
from topoplan.synth.ir.collective import COLLECTIVES, Collective, collective_on
from topoplan.synth.ir.schedule import Schedule, reverse
from topoplan.synth.ir.schedule_text import describe_schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.plan import Entry, Plan
from topoplan.synth.plan_text import hash_of
from topoplan.synth.verify import verify
from topoplan.topo.errors import InputError, VerificationError
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

RING = preset("ring:4")
PAIR = Collective("allreduce", 2, members=(0, 2))


def schedule(*rows: Transfer, collective: Collective = PAIR, helpers: Any = (1,)) -> Schedule:
    made = Schedule(
        collective, "by hand", collective.even_chunks(1), Transfers.of(rows), (), helpers=helpers
    )
    return tighten(made, RING)


# Rank 1 takes no part in the sum: first it relays, then it adds.
RELAYED = schedule(
    Transfer(0, 0, 1, 0),
    Transfer(1, 1, 2, 0, "reduce"),
    Transfer(2, 2, 1, 0),
    Transfer(3, 1, 0, 0),
)
ADDED = schedule(
    Transfer(0, 0, 1, 0, "reduce"),
    Transfer(0, 2, 1, 0, "reduce"),
    Transfer(1, 1, 0, 0),
    Transfer(1, 1, 2, 0),
)


def plan_of(*schedules: Schedule) -> Plan:
    cut = bound_of("cut", {"inside": [RING.ranks[0]]}, PAIR, RING)
    first, *others = schedules
    return Plan(RING, PAIR, (Entry(0, None, first),), cut, cut, tuple(others))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_chunks_and_roots_are_of_the_members(name: str) -> None:
    collective = Collective.with_default_root(name, 2, members=(1, 3))
    assert collective.root in (None, 1)
    chunks = collective.even_chunks(2)
    assert collective.problem_with(chunks) is None
    ends = {rank for c in chunks for rank in (*collective.holders(c), *collective.receivers(c))}
    assert ends <= {1, 3}
    assert sum(c.share for c in chunks if c.source in (None, 1)) <= 1
    if chunks[0].source is not None:
        wrong = (replace(chunks[0], source=0), *chunks[1:])
        assert "needs one of 1, 3" in (collective.problem_with(wrong) or "")


@pytest.mark.parametrize("members", [(0,), (2, 0), (0, 0), (-1, 2), (0, 1, 2)])
def test_members_are_different_ranks_in_order(members: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected 2 different ranks, ascending"):
        Collective("allreduce", 2, members=members)


def test_a_root_is_a_member() -> None:
    with pytest.raises(InputError, match="needs a root among 0, 2, got 1"):
        Collective("broadcast", 2, 1, (0, 2))


def test_all_gpus_are_members_by_default() -> None:
    collective = Collective("allreduce", 4)
    assert collective.has_all_gpus
    assert list(collective.members) == [0, 1, 2, 3]
    assert replace(collective, ranks=8) == Collective("allreduce", 8)
    assert collective != Collective("allreduce", 4, members=(0, 1, 2, 3))
    plan = synthesize(collective_on("allreduce", RING), RING, "ring").plan
    data = plan.to_json()
    assert data["version"] == 1
    assert "members" not in data
    assert not {"members", "helpers"} & set(data["schedules"][0])


@pytest.mark.parametrize("made", [RELAYED, ADDED])
def test_helpers_relay_and_add(made: Schedule) -> None:
    verify(made, RING)
    assert list(made.participants) == [0, 1, 2]
    assert is_uniform(made)
    assert rounded(made).uniform
    assert Schedule.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_schedule_among_members_alone_needs_no_helper() -> None:
    pair = Collective("allreduce", 2, members=(1, 2))
    swap = (Transfer(0, 1, 2, 0, "reduce"), Transfer(0, 2, 1, 0, "reduce"))
    verify(schedule(*swap, collective=pair, helpers=()), RING)


def test_a_reversed_broadcast_adds_at_its_helper() -> None:
    broadcast = Collective("broadcast", 2, 0, (0, 2))
    relayed = schedule(Transfer(0, 0, 1, 0), Transfer(1, 1, 2, 0), collective=broadcast)
    verify(relayed, RING)
    verify(reverse(relayed), RING)
    assert reverse(relayed).collective == Collective("reduce", 2, 0, (0, 2))


def test_costs_count_helpers_like_members() -> None:
    assert bandwidth_s_per_GB(RELAYED, RING) == 4
    assert cost(ADDED, RING).beta_s_per_GB == 2
    times = predict_times(ADDED, RING, 10**9)
    assert [(t.src, t.dst) for t in times] == [(0, 1), (2, 1), (1, 0), (1, 2)]
    host = HostCosts()
    assert len(predict_times(ADDED, RING, 10**6, host)) == 4
    best = fastest(families([RELAYED, ADDED], Router(RING)), RING, host, 10**9, batched=True)
    assert 0 < best[0][0] < float("inf")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (replace(ADDED, helpers=()), "participants are 0, 2"),
        (replace(ADDED, helpers=(3,)), "participants are 0, 2, 3"),
        (replace(ADDED, helpers=(1, 2)), "the helpers are 1, 2; expected"),
        (replace(ADDED, helpers=(3, 1)), "the helpers are 3, 1; expected"),
        (replace(ADDED, helpers=(1, 4)), "rank 4 takes part in the schedule; topology"),
        (replace(ADDED, collective=Collective("allreduce", 2)), "is for 2 ranks, topology"),
        (
            replace(ADDED, transfers=ADDED.transfers[2:]),
            "copy of chunk 0 from rank 1 to rank 0: the sender does not have it",
        ),
        (replace(ADDED, transfers=ADDED.transfers[1:]), "without the contribution of rank 0"),
        (
            replace(ADDED, transfers=ADDED.transfers[:2]),
            "rank 0 ends without the contribution of rank 2",
        ),
    ],
)
def test_wrong_schedules_with_helpers_are_refused(made: Schedule, says: str) -> None:
    with pytest.raises(VerificationError, match=says):
        verify(made, RING)


def test_a_plan_over_some_gpus_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = plan_of(ADDED, RELAYED)
    assert plan.gap_of(plan.entries[0]) == Fraction(3, 4)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert (again, again.hash) == (plan, plan.hash)
    data = json.loads((tmp_path / "plan.json").read_text())
    assert (data["version"], data["ranks"], data["members"]) == (2, 2, [0, 2])
    assert data["schedules"][0]["helpers"] == [1]
    assert "ranks 0, 2" in describe_plan(plan, 1 << 20)
    assert "ranks 0, 2, helper 1" in describe_schedule(ADDED)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=1), "plan version 1 for allreduce over ranks 0, 2"),
        (lambda d: d.update(groups=[]), "unknown field 'groups'"),
        (lambda d: d["schedules"][0].update(symmetric=1), r"schedules\[0\]: unknown field"),
        (lambda d: d["bound"]["certificate"].update(a=1), "bound.certificate: unknown field 'a'"),
        (lambda d: d.update(members=[]), "members: expected a list that is not empty"),
        (lambda d: d.update(members=[0, 3], helpers=[1]), "but holds a schedule for"),
        (lambda d: d["schedules"][0].update(helpers=[3]), "participants are 0, 2, 3"),
    ],
)
def test_what_a_plan_file_must_not_say(change: Callable[[Any], None], says: str) -> None:
    data = json.loads(json.dumps(plan_of(ADDED).to_json()))
    data.pop("hash")
    change(data)
    with pytest.raises(VerificationError, match=says):
        Plan.loads(json.dumps({**data, "hash": hash_of(data)}))


def test_mirrored_prices_prove_no_bound_over_some_gpus() -> None:
    prices = {"prices": [[RING.ranks[0], RING.ranks[1], 1]]}
    plan = replace(plan_of(ADDED), bound=Bound(Fraction(1), "prices", prices))
    with pytest.raises(VerificationError, match="no certificate of kind 'prices'"):
        plan.verify()
