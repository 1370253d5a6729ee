"""Slow links: when they are measured, which ones are found, and plans that follow their rates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import patience
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_ranks
from needs import long_cases
from planned import synthesize
from ranks import slowing
from reports import Reports
from thorough import count_examples

from topoplan.runtime.extras.replanning.segments import cut_like
from topoplan.runtime.extras.slow_links.believed import plan_at
from topoplan.runtime.extras.slow_links.pace import Pace
from topoplan.runtime.extras.slow_links.probe import (
    FlowTest,
    find_slow_links,
    group_experiments,
    list_experiments,
)
from topoplan.runtime.extras.slow_links.watch import find_change
from topoplan.synth.cost.segmentation import families
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan
from topoplan.topo.extras.measured.flows import Hop
from topoplan.topo.hardware_rule import HARDWARE
from topoplan.topo.presets import preset

Plans = Callable[..., str]
MACHINES = ("dgx1", "mesh:2x4", "switch:4", "dgx-h100", "pcie-2socket", "mi250:2")
_SMALL, _LARGE = 4 << 10, 4 << 20


def test_two_slow_periods_in_a_row_are_suspicious() -> None:
    pace = Pace()
    usual = [(_SMALL, 0.001)] * 8 + [(_LARGE, 0.1)] * 2
    slow = [(_SMALL, 0.001)] * 8 + [(_LARGE, 0.2)] * 2
    pace.note_period(usual)
    pace.note_period(slow)
    assert not pace.is_suspicious(1.0)
    pace.note_period(usual)  # it was a moment
    pace.note_period(slow)
    assert not pace.is_suspicious(2.0)
    pace.note_period(slow)
    assert pace.is_suspicious(3.0)
    assert pace.usual_s == {_SMALL: 0.001, _LARGE: 0.1}


def test_three_long_calls_in_a_row_are_suspicious() -> None:
    """Of calls that take longer than a period, each is one."""
    pace = Pace()
    pace.note_period([(_LARGE, 2.0)])
    for _ in range(2):
        assert not pace.is_suspicious(10.0)
        pace.note_period([(_LARGE, 4.0)])
        assert pace.is_in_doubt
    pace.note_period([(_LARGE, 4.0)])
    assert pace.is_suspicious(10.0)
    assert not pace.is_in_doubt


def test_calls_that_take_little_time_are_not_suspicious() -> None:
    """Small calls that take three times as long are a few percent of the time."""
    pace = Pace()
    for small_s in (0.001, 0.003, 0.003, 0.003):
        pace.note_period([(_SMALL, small_s)] * 4 + [(_LARGE, 0.1)] * 2)
    assert not pace.is_suspicious(9.0)


def test_measurements_are_rarer_the_more_they_cost_and_the_less_they_find() -> None:
    pace = Pace()
    pace.note_period([(_LARGE, 0.1)])
    pauses, now_s = [], 0.0
    for _ in range(12):
        while not pace.is_suspicious(now_s):
            pace.note_period([(_LARGE, 0.2)])
            now_s += 1.0
        pauses.append(now_s)
        pace.note_measurement(now_s, 1.0, has_changed=False)
    gaps = [b - a for a, b in pairwise(pauses)]
    assert gaps[0] == pytest.approx(20, abs=2)
    assert all(b == pytest.approx(min(2 * a, 600), abs=3) for a, b in pairwise(gaps))


def test_durations_are_learnt_anew_after_a_change_of_the_plan() -> None:
    pace = Pace()
    pace.note_period([(_LARGE, 0.1)])
    pace.note_measurement(0.0, 2.0, has_changed=True)
    assert not pace.is_return_due(9.0)
    assert pace.is_return_due(11.0)
    for _ in range(5):
        pace.note_period([(_LARGE, 0.15)])
    assert not pace.is_suspicious(200.0)


@pytest.mark.parametrize("name", MACHINES)
def test_experiments_fill_all_links_and_share_none_at_once(name: str) -> None:
    router, (experiments, _) = HARDWARE.on(preset(name)), experiments_on(name)
    topology, ranks = router.topology, range(len(router.topology.ranks))
    used = {
        hop for a in ranks for b in ranks if a != b for hop in pairwise(router.route(a, b) or ())
    }
    assert {link for x in experiments for link in x.crossed} == used
    groups = group_experiments(experiments, topology)
    assert sorted(x.pairs for group in groups for x in group) == sorted(
        x.pairs for x in experiments
    )
    for group in groups:
        for side in (0, 1):
            ends = [pair[side] for x in group for pair in x.pairs]
            assert len(ends) == len({*ends})
        crossed = [link for x in group for link in x.crossed]
        assert len(crossed) == len({*crossed})


@cache
def experiments_on(name: str) -> tuple[list[FlowTest], list[list[list[Hop]]]]:
    """Return a machine's experiments, and the routes of each one's flows."""
    router = HARDWARE.on(preset(name))
    experiments = list_experiments(router)
    return experiments, [
        [list(pairwise(router.route(*pair) or ())) for pair in x.pairs] for x in experiments
    ]


def measure(rates: dict[Hop, Fraction], routes: list[list[Hop]]) -> float:
    """Return the total rate of an experiment's flows: its links share their rates equally."""
    flows = Counter(hop for route in routes for hop in {*route})
    return float(sum(min(rates[hop] / flows[hop] for hop in route) for route in routes))


@settings(max_examples=count_examples(20))
@given(st.data())
def test_slow_links_are_found_and_no_others_of_other_routes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MACHINES))
    topology, (experiments, routes) = preset(name), experiments_on(name)
    filled = sorted({link for x in experiments for link in x.filled})
    link = data.draw(st.sampled_from(filled))
    factor = Fraction(data.draw(st.integers(2, 16)), 20)
    usual = dict(topology.capacity_GBps)
    slow = {hop: rate * (factor if hop == link else 1) for hop, rate in usual.items()}
    ratios = [measure(slow, of_flows) / measure(usual, of_flows) for of_flows in routes]
    found = find_slow_links(experiments, ratios)
    assert found[link] <= factor
    # Of four experiments and more that fill a link, the best one alone does not clear it.
    filling = Counter(hop for x in experiments for hop in x.filled)
    clear = Counter(hop for x in experiments if link not in x.crossed for hop in x.filled)
    fine = {hop for hop, count in clear.items() if count > (filling[hop] >= 4)}
    assert not found.keys() & fine


def test_what_all_experiments_share_is_no_slow_link() -> None:
    experiments, _ = experiments_on("dgx1")
    assert find_slow_links(experiments, [0.9] * len(experiments)) == {}


@pytest.mark.parametrize("name", long_cases(["mesh:2x3", "switch:4"], "mesh:2x3"))
def test_a_plan_for_slow_links_keeps_the_routes(name: str) -> None:
    topology = preset(name)
    plan = synthesize(collective_on("allreduce", topology), topology, "ring", 20).plan
    link = min(topology.capacity_GBps)
    slow = plan_at(plan, {link: Fraction(1, 4)})
    slow.verify()
    assert slow.topology.capacity_GBps[link] == topology.capacity_GBps[link] / 4
    ranks = range(len(topology.ranks))
    for pair in ((a, b) for a in ranks for b in ranks if a != b):
        assert slow.router.route(*pair) == plan.router.route(*pair)


def test_a_change_lists_slow_links_or_those_that_are_faster() -> None:
    half, most = Fraction(1, 2), Fraction(3, 4)
    one, other, third = ("a", "b"), ("b", "c"), ("c", "d")
    assert find_change({}, {one: half}) == ("slow", {one: half})
    assert find_change({one: half}, {one: half, other: most}) == ("slow", {one: half, other: most})
    assert find_change(dict.fromkeys((one, other), half), {one: half}) == (
        "recovered",
        {other: Fraction(1)},
    )
    before = {one: half, other: half, third: half}
    change = {other: most, third: Fraction(1)}
    assert find_change(before, {one: half, other: most}) == ("recovered", change)


@cache
def plan_with_a_slow_link() -> tuple[Plan, Plan]:
    """Return a plan, and the one for a link of a fourth of its rate."""
    topology = preset("mesh:2x4")
    plan = synthesize(collective_on("allreduce", topology), topology).plan
    return plan, plan_at(plan, {("gpu0", "gpu1"): Fraction(1, 4)})


@pytest.mark.long
@pytest.mark.parametrize("segments", [1, 8, 64])
def test_schedules_for_slow_links_send_messages_of_the_usual_size(segments: int) -> None:
    size = 4 << 20
    plan, slow = plan_with_a_slow_link()
    used = replace(plan.schedules[-1], segments=segments, stepwise=False)

    def find_length(schedule: Schedule) -> Fraction:
        return size * max(x.share for x in schedule.chunks) / schedule.segments

    # Of one that is not cut, the length says nothing of what messages cost.
    usual = find_length(used) if segments > 1 else Fraction(16 << 10)

    def find_ratio(schedule: Schedule) -> Fraction:
        return max(find_length(schedule) / usual, usual / find_length(schedule))

    for family in families(slow.schedules, slow.router):
        choices = [family.base, *(x for x in family.piped if segments > 1 or x.segments <= 64)]
        cut = cut_like(used, choices[-1], [*family.stepwise, *family.piped], size)
        assert cut in choices
        assert find_ratio(cut) <= 1.1 * min(map(find_ratio, choices))


@pytest.mark.long
def test_calls_have_the_same_results_while_they_are_watched(plans: Plans) -> None:
    paths = {name: plans("ring:2", name) for name in ("allreduce", "broadcast")}
    assert run_ranks(slowing.watched_calls_are_right, 2, paths) == [None] * 2


@pytest.mark.parametrize("members", [(0, 1, 3), (2, 3)])
def test_links_between_some_ranks_are_measured_by_these(members: tuple[int, ...]) -> None:
    """Experiments have the ranks' numbers in their group; routes may lead through other GPUs."""
    router = HARDWARE.on(preset("mesh:2x2"))
    experiments = list_experiments(router, labels=members)
    used = {
        hop
        for a in members
        for b in members
        if a != b and (route := router.route(a, b)) is not None
        for hop in pairwise(route)
    }
    assert {link for x in experiments for link in x.crossed} == used
    assert {rank for x in experiments for pair in x.pairs for rank in pair} == {
        *range(len(members))
    }


def test_a_plan_of_some_gpus_for_slow_links_needs_no_others() -> None:
    plan = plan_for_members("full:4", (0, 1, 3))
    slow = plan_at(plan, {("gpu0", "gpu1"): Fraction(1, 4)})
    slow.verify()
    assert slow.collective == plan.collective
    assert not slow.used_helpers


def plan_for_members(machine: str, members: tuple[int, ...]) -> Plan:
    collective = Collective("allreduce", len(members), members=members)
    return synthesize(collective, preset(machine), time_limit_s=10).plan


def test_what_cannot_be_followed_is_refused(plans: Plans) -> None:
    run_ranks(slowing.what_cannot_be_followed_is_refused, 2, plans("ring:2"))


@pytest.mark.network("namespaces")
@pytest.mark.parametrize("way", ["communicator", "backend"])
def test_the_plan_follows_a_slow_link(way: str, plans: Plans, tmp_path: Path) -> None:
    """All ranks change schedules at the same calls; the sums stay right."""
    from emulated import EmulatedRank

    from topoplan.runtime.extras.emulate import emulate, parse_rate
    from topoplan.runtime.extras.emulate.ranks import write_topology

    with (
        emulate(preset("mesh:2x2"), parse_rate("100Mbit")) as network,
        Reports(tmp_path / "reports") as reports,
    ):
        write_topology(network, tmp_path)
        outputs = [tmp_path / f"{rank}.out" for rank in range(4)]
        arguments = [plans("mesh:2x2"), str(reports.path), way]
        ranks = [
            EmulatedRank(network, rank, tmp_path, "ranks.slowing", arguments, output)
            for rank, output in enumerate(outputs)
        ]
        try:
            reports.read(4, "the usual pace", ranks)
            network.scale_rates("gpu0", "gpu1", Fraction(1, 4))
            codes = patience.wait_for_ends(ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert codes == [0] * 4, [output.read_text() for output in outputs]
        every = [json.loads(line) for line in reports.read(4, "what the ranks did")]
    for (row,) in every:
        assert row["kind"] == "slow"
        assert row["links"].keys() == {"gpu0 - gpu1"}
        assert row["links"]["gpu0 - gpu1"] <= 0.4
        assert row["before_s"] < row["during_s"]
        assert row["after_s"] == every[0][0]["after_s"] <= row["during_s"]
