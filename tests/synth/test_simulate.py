"""The cost model that plays messages, and what chooses by it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import synthesize
from random_graphs import graphs, on
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.cost.host_costs import HostCosts, host_of, with_host
from topoplan.synth.cost.segmentation import families, fastest, reroute, time_us
from topoplan.synth.cost.simulate import MAX_GROUPS, predict_us, shape_of
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.synth.verify import verify
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

FREE = HostCosts(0, 0, 0, 0, 0, 0, 0, cores=64, wire=1.0)
MB = 1 << 20


def built(name: str, topology: Topology) -> Schedule:
    return STRATEGIES[name](Request(collective_on("allreduce", topology), topology, make_effort()))[
        0
    ]


def no_latency(topology: Topology) -> Topology:
    return replace(
        topology, links=tuple(replace(x, latency_us=Fraction(0)) for x in topology.links)
    )


def test_a_ring_without_host_costs_takes_what_its_links_need() -> None:
    topology = no_latency(preset("ring:4"))
    ring = built("ring", topology)
    needed = float(bandwidth_s_per_GB(ring, topology)) * MB * 1e-3
    assert predict_us(ring, topology, FREE, MB) == pytest.approx(needed)
    assert predict_us(
        replace(ring, segments=4, stepwise=True), topology, FREE, MB
    ) == pytest.approx(needed)


@settings(max_examples=count_examples(8))
@given(
    graphs(switches=2),
    st.sampled_from(["ring", "packing", "direct", "double-tree"]),
    st.integers(1, 40),
)
def test_nothing_is_faster_than_its_busiest_link(
    topology: Topology, name: str, segments: int
) -> None:
    topology = no_latency(topology)
    try:
        base = reroute(built(name, topology).uncut, Router(topology))
    except InfeasibleError:
        return
    total = float(bandwidth_s_per_GB(replace(base, segments=2), topology)) * MB * 1e-3
    played = predict_us(replace(base, segments=segments), topology, FREE, MB)
    assert played is not None
    assert played >= total * (1 - 1e-9)
    stepwise = predict_us(replace(base, segments=1), topology, FREE, MB)
    assert stepwise is not None
    assert stepwise >= total * (1 - 1e-9)


def test_a_long_pipeline_comes_near_its_busiest_link() -> None:
    topology = no_latency(preset("mesh:3x3"))
    base = built("packing", topology)
    total = float(bandwidth_s_per_GB(replace(base, segments=2), topology)) * MB * 1e-3
    played = [
        predict_us(replace(base.uncut, segments=m), topology, FREE, MB) or 0
        for m in (4, 16, 64, 256)
    ]
    assert sorted(played, reverse=True) == played
    assert played[-1] < 1.05 * total


def test_every_cost_counts() -> None:
    topology = preset("ring:4")
    ring = built("ring", topology)
    host = HostCosts()
    before = predict_us(ring, topology, host, 4096)
    assert before is not None
    for field in ("send_us", "receive_us", "io_us", "wake_us", "call_us"):
        more = predict_us(ring, topology, replace(host, **{field: getattr(host, field) + 50}), 4096)
        assert more is not None
        assert more > before + 40, field
    for field in ("byte_ns", "add_ns"):
        more = predict_us(ring, None, replace(host, **dict[str, Any]({field: 10.0})), MB)
        less = predict_us(ring, None, host, MB)
        assert more is not None
        assert less is not None
        assert more > less


def test_more_cores_are_never_slower_and_batches_need_their_links_too() -> None:
    topology = preset("dgx1")
    base = built("packing", topology).uncut
    times = [predict_us(base, topology, HostCosts(cores=c), 65536) or 0 for c in (1, 2, 4, 16)]
    assert sorted(times, reverse=True) == times
    needed = float(bandwidth_s_per_GB(base, topology)) * MB * 1e-3
    assert (predict_us(base, no_latency(topology), FREE, MB, batched=True) or 0) == pytest.approx(
        needed
    )


def test_a_burst_is_carried_at_once() -> None:
    topology = preset("path:2")
    both = built("direct", topology)
    host = replace(FREE, burst_bytes=1 << 18)
    slow, fast = predict_us(both, topology, FREE, MB), predict_us(both, topology, host, MB)
    assert slow is not None
    assert fast is not None
    assert fast < slow


def test_schedules_of_too_many_messages_are_costed_without_playing() -> None:
    topology = preset("full:56")
    direct = built("direct", topology)
    assert len(direct.transfers) > MAX_GROUPS
    assert shape_of(direct.uncut, topology) is None
    assert time_us(direct, topology, HostCosts(), MB) > 0
    assert time_us(direct, None, HostCosts(), MB) == 0


@settings(max_examples=count_examples(3))
@given(graphs(switches=3))
def test_rerouting_keeps_the_schedule_and_takes_the_systems_routes(topology: Topology) -> None:
    base = built("packing", topology).uncut
    sent = reroute(base, Router(topology))
    verify(sent, topology)
    router = Router(topology)
    for transfer in sent.transfers:
        route = router.route(transfer.src, transfer.dst)
        assert route is None or route[1:-1] == transfer.route
    assert [(t.step, t.src, t.dst, t.chunk, t.op) for t in base.transfers] == [
        (t.step, t.src, t.dst, t.chunk, t.op) for t in sent.transfers
    ]


def test_fastest_is_the_fastest_of_all_cuts() -> None:
    topology = preset("switch:4")
    names = ("packing", "recursive-doubling")
    found = families([built(name, topology).uncut for name in names], Router(topology))
    for size in (4096, MB, 16 * MB):
        best, schedule = fastest(found, topology, HostCosts(), size)[0]
        assert best == time_us(schedule, topology, HostCosts(), size)
        every = [s for family in found for s in (*family.stepwise, *family.piped)]
        least = min(time_us(s, topology, HostCosts(), size) for s in every)
        assert best <= least * 1.1


def test_host_costs_come_with_a_topology_and_change_what_is_planned(tmp_path: Path) -> None:
    """Messages that cost a millisecond: a small buffer goes in few of them, and the time is
    predicted with them.
    """
    plain = preset("ring:3")
    dear = with_host(plain, HostCosts(send_us=500.0, receive_us=500.0, cores=8))
    assert host_of(plain) is None
    path = tmp_path / "dear.json"
    path.write_text(dear.dumps())
    assert host_of(Topology.load(path)) == HostCosts(send_us=500.0, receive_us=500.0, cores=8)
    assert dear.fingerprint == plain.fingerprint
    cheap, careful = (synthesize(on("allreduce", t), t, "auto", 20).plan for t in (plain, dear))
    few, many = (len(p.entry_for(200_000).schedule.transfers) for p in (careful, cheap))
    assert few < many
    entry = careful.entry_for(200_000)
    assert careful.time_s(entry, 200_000) > 2e-3 > careful.cost_of(entry).time_s(200_000)
    saved = tmp_path / "plan.json"
    careful.save(saved)
    assert Plan.load(saved).time_s(entry, 200_000) == careful.time_s(entry, 200_000)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "host: expected a JSON object, got an empty list"),
        ({"send_us": -1}, "host: send_us: expected a number from 0 to 1000000000, got -1"),
        ({"send_us": "1"}, "host: send_us: expected a number, got '1'"),
        ({"cores": 0}, "host: cores: expected a whole number from 1 to 1000000000, got 0"),
        ({"cores": 2.5}, "host: cores: expected a whole number, got 2.5"),
        ({"wire": 0}, "host: wire: expected a number above 0, got 0"),
        ({"wire": float("nan")}, "host: wire: expected a number above 0, got nan"),
        ({"byte_ns": True}, "host: byte_ns: expected a number, got true"),
    ],
)
def test_bad_host_costs_are_refused(data: object, says: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(says)}$"):
        HostCosts.from_json(data)


def test_plans_carry_alternatives_that_are_verified_too(tmp_path: Path) -> None:
    topology = preset("switch:4")
    plan = synthesize(on("allreduce", topology), topology, "auto", 20).plan
    names = {s.strategy for s in (*plan.alternatives, *(e.schedule for e in plan.entries))}
    assert {"recursive-doubling", "direct", "one-shot", "packing"} <= names
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    data = json.loads(path.read_text())
    number = data["alternatives"][0]
    assert number not in {entry["schedule"] for entry in data["entries"]}
    with pytest.raises(InputError, match="but holds a schedule for"):
        replace(
            plan,
            alternatives=(replace(plan.alternatives[0], collective=on("allgather", topology)),),
        )


def test_stepwise_cuts_survive_a_file(tmp_path: Path) -> None:
    topology = preset("ring:4")
    plan = synthesize(on("allreduce", topology), topology, "ring", 20).plan
    (entry,) = plan.entries
    cut = replace(
        plan, entries=(replace(entry, schedule=replace(entry.schedule, segments=4, stepwise=True)),)
    )
    path = tmp_path / "plan.json"
    cut.save(path)
    loaded = Plan.load(path)
    assert loaded == cut
    assert loaded.entries[0].schedule.label == "ring /4"
    assert loaded.gap_of(loaded.entries[0]) == plan.gap_of(plan.entries[0])
