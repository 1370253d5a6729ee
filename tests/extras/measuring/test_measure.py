"""Declared, measured, believed: sound on invented machines, and right about real sockets, emulated
and not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from called import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import Ended, run_joined
from random_graphs import graphs
from thorough import count_examples

from topoplan.runtime.extras.measuring.measure_links import (
    find_routes,
    group_contending,
    group_disjoint,
    list_fans,
    list_shifts,
)
from topoplan.runtime.extras.measuring.rates import Arrivals, estimate_rates_GBps, fit_rate
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.derived.hosts import join_cpu_hosts
from topoplan.topo.devices import Device, Link, both_directions
from topoplan.topo.extras.measured.believe import believe, round_down
from topoplan.topo.extras.measured.flows import Experiment, Measurements, Pair
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Route, route_links


def max_min(
    true: Topology, routes: Mapping[Pair, Route], flows: Iterable[Pair]
) -> dict[Pair, Fraction]:
    """Rates that no flow can raise without lowering one that has no more (progressive filling,
    exact).
    """
    left = dict(true.capacity_GBps)
    open_flows = {pair: set(route_links(routes[pair])) for pair in flows}
    rates = dict.fromkeys(open_flows, Fraction(0))
    while open_flows:
        users = {
            hop: sum(hop in hops for hops in open_flows.values())
            for hops in open_flows.values()
            for hop in hops
        }
        more = min(left[hop] / count for hop, count in users.items())
        for hop, count in users.items():
            left[hop] -= more * count
        for pair in open_flows:
            rates[pair] += more
        full = {hop for hop in users if left[hop] == 0}
        open_flows = {pair: hops for pair, hops in open_flows.items() if not full & hops}
    return rates


def measured_exactly(true: Topology, declared: Topology) -> Measurements:
    """What would be measured on `true` without any disturbance, data taking the declared routes."""
    routes = find_routes(declared)
    both = [(pair, pair[::-1]) for pair in routes if pair[0] < pair[1] and pair[::-1] in routes]
    sorts: dict[str, Iterable[Iterable[Pair]]] = {
        "alone": [(pair,) for pair in routes],
        "both": both,
        "together": group_contending(routes),
    }
    return Measurements(
        tuple(
            Experiment(how, max_min(true, routes, flows))
            for how, every in sorts.items()
            for flows in every
        )
    )


@settings(max_examples=count_examples(50))
@given(graphs(switches=4, two_way=False), st.data())
def test_what_is_believed_is_never_above_the_truth_and_explains_every_pair(
    true: Topology, data: st.DataObject
) -> None:
    factors = st.sampled_from(
        [Fraction(1), Fraction(1), Fraction(2), Fraction(4, 3), Fraction(1, 2), Fraction(1, 5)]
    )
    declared = Topology(
        true.name,
        true.devices,
        tuple(Link(x.src, x.dst, x.bandwidth_GBps * data.draw(factors)) for x in true.links),
    )
    routes = find_routes(declared)
    believed = believe(declared, measured_exactly(true, declared))
    for link, was, is_so in zip(believed.links, declared.links, true.links, strict=True):
        truth = is_so.bandwidth_GBps
        assert link.bandwidth_GBps <= max(was.bandwidth_GBps, truth)
        told = link.extra.get("measured")
        if link.extra["believed"] == "measured":
            # Equal links are believed equal: the highest of a twentieth.
            assert link.bandwidth_GBps <= truth * Fraction(21, 20)
            assert told is not None and told["GBps"] <= float(link.bandwidth_GBps)
        else:
            assert link.bandwidth_GBps == was.bandwidth_GBps
        if told is not None:
            assert told["GBps"] <= float(truth)
            if told["limit"]:
                assert told["GBps"] == float(round_down(truth))
    for pair, route in routes.items():
        alone = max_min(true, routes, [pair])[pair]
        predicted = min(believed.capacity_GBps[hop] for hop in route_links(route))
        assert alone / 2 / Fraction(107, 100) <= predicted <= alone / Fraction(81, 100)


@settings(max_examples=count_examples(60))
@given(graphs(switches=4))
def test_a_machine_that_is_as_declared_stays_as_declared(topology: Topology) -> None:
    believed = believe(topology, measured_exactly(topology, topology))
    assert believed.fingerprint == topology.fingerprint
    assert all(x.extra["believed"] == "declared" for x in believed.links)
    assert Topology.loads(believed.dumps()) == believed
    assert not believed.extra["notes"]


@pytest.mark.parametrize("name", ["dgx1", "pcie-2socket", "switch:8", "dgx-a100:2", "torus:4x4"])
def test_one_slow_link_at_a_gpu_is_found_on_every_machine(name: str) -> None:
    declared = preset(name)
    first = next(x for x in declared.links if "gpu3" in x.src)
    true = degrade(declared, Change(scale_links=(f"{first.src}:{first.dst}=0.5",)))
    believed = believe(declared, measured_exactly(true, declared))
    wrong = {
        hop: rate
        for hop, rate in believed.capacity_GBps.items()
        if abs(rate / true.capacity_GBps[hop] - 1) > 0.05
    }
    assert not wrong


def two_hosts(trunk: int) -> Topology:
    """Two GPUs a host, each host with one cable to the network; at most 2 GB/s leave a GPU."""
    devices = [Device(f"gpu{i}") for i in range(6)]
    devices += [Device(f"host{h}", "switch", "pcie") for h in range(3)] + [
        Device("net", "switch", "network")
    ]
    links = [
        x
        for i in range(6)
        for x in both_directions(Link(f"gpu{i}", f"host{i // 2}", Fraction(2), kind="pcie"))
    ]
    for h in range(3):
        links += both_directions(
            Link(f"host{h}", "net", Fraction(trunk if h == 0 else 4), kind="network")
        )
    return Topology("hosts", tuple(devices), tuple(links))


def test_a_slow_trunk_is_seen_only_when_several_send() -> None:
    measured = measured_exactly(two_hosts(3), two_hosts(4))
    found = believe(two_hosts(4), measured).capacity_GBps
    assert found["host0", "net"] == found["net", "host0"] == 3
    assert found["host1", "net"] == 4
    few = Measurements(tuple(e for e in measured.experiments if e.how != "together"))
    assert believe(two_hosts(4), few).capacity_GBps == two_hosts(4).capacity_GBps


def believed_pair(declared: str, measured: str) -> Topology:
    topology = preset(f"path:2@{declared}")
    rates = [Experiment("alone", {pair: Fraction(measured)}) for pair in ((0, 1), (1, 0))]
    return believe(topology, Measurements(tuple(rates), {(0, 1): Fraction(9), (1, 0): Fraction(9)}))


@pytest.mark.parametrize(
    ("measured", "believed", "noted"),
    [
        ("9.7", "10", None),
        ("9", "10", None),
        ("8.9996", "8.99", None),
        ("6.9", "6.9", "69% of the declared 10"),
        ("11.6", "10", "more than the declared 10: measure again"),
        ("20.01", "20", "far above the declared 10"),
    ],
)
def test_which_value_is_believed(measured: str, believed: str, noted: str | None) -> None:
    topology = believed_pair("10", measured)
    assert set(topology.capacity_GBps.values()) == {Fraction(believed)}
    assert all((noted in note) if noted else False for note in topology.extra["notes"])
    assert len(topology.extra["notes"]) == (2 if noted else 0)
    (link, _) = topology.links
    assert link.extra["declared"] == {"GBps": 10, "us": 0.7, "source": "the topology"}
    assert link.extra["measured"]["us"] == 9
    assert link.latency_us == Fraction(7, 10)


def test_what_was_declared_survives_a_second_measurement() -> None:
    once = believed_pair("10", "5")
    again = believe(once, Measurements((Experiment("alone", {(0, 1): Fraction(98, 10)}),)))
    assert again.capacity_GBps["gpu0", "gpu1"] == 10
    assert again.links[0].source == "the topology"


def test_links_that_are_nearly_alike_are_believed_alike() -> None:
    topology = preset("ring:4")
    rates = {(0, 1): "0.512", (1, 0): "0.5", (1, 2): "0.52", (2, 3): "0.6"}
    alone = tuple(Experiment("alone", {pair: Fraction(rate)}) for pair, rate in rates.items())
    found = believe(topology, Measurements(alone)).capacity_GBps
    assert [found[f"gpu{a}", f"gpu{b}"] for a, b in rates] == [Fraction(13, 25)] * 3 + [
        Fraction(3, 5)
    ]


@pytest.mark.parametrize(
    ("measured", "source", "noise", "believed"),
    [
        ("25.1", "datasheet", "0", "25.1"),
        ("25.1", "datasheet", "1/20", "24"),  # a fit may be off by that
        ("26.3", "datasheet", "1/20", "26.3"),
        ("30", "datasheet", "0", "24"),  # another machine, or another route
        ("30", "assumed: Gen4 x16", "0", "30"),
        ("30", "PCIe Gen4 x16, as NCCL counts it", "1/20", "30"),
    ],
)
def test_a_link_that_carried_more_than_is_declared_is_believed_to(
    measured: str, source: str, noise: str, believed: str
) -> None:
    bare = preset("path:2@24")
    topology = replace(bare, links=tuple(replace(x, source=source) for x in bare.links))
    rates = (Experiment("alone", {(0, 1): Fraction(measured)}),)
    corrected = believe(topology, Measurements(rates, noise=Fraction(noise)))
    assert corrected.capacity_GBps["gpu0", "gpu1"] == Fraction(believed)
    again = believe(corrected, Measurements(rates, noise=Fraction(noise)))
    assert again.capacity_GBps == corrected.capacity_GBps


def test_links_that_are_alike_stay_so_where_some_carried_more_than_is_declared() -> None:
    topology = preset("ring:4@24")
    rates = {(0, 1): "24.3", (1, 2): "23.5", (2, 3): "20"}
    alone = tuple(Experiment("alone", {pair: Fraction(rate)}) for pair, rate in rates.items())
    corrected = believe(topology, Measurements(alone, noise=Fraction(0)))
    found = corrected.capacity_GBps
    assert [found[f"gpu{a}", f"gpu{b}"] for a, b in rates] == [Fraction("24.3")] * 2 + [20]
    assert found["gpu3", "gpu0"] == 24
    (raised,) = (x for x in corrected.links if (x.src, x.dst) == ("gpu1", "gpu2"))
    assert raised.extra["believed"] == "measured" and "carried more" in raised.extra["reason"]


def test_a_link_that_once_carried_its_rate_is_not_slow() -> None:
    """A disturbed measurement among good ones changes nothing: the link alone can have limited
    both.
    """
    rates = [Experiment("alone", {(0, 1): Fraction(rate)}) for rate in ("0.89", "0.89", "0.98")]
    (link, _) = believe(preset("path:2"), Measurements(tuple(rates))).links
    assert link.bandwidth_GBps == 1
    assert link.extra["believed"] == "declared"


def test_over_gloo_between_hosts_only_the_network_is_believed() -> None:
    topology = two_hosts(4)
    slow = measured_exactly(
        degrade(topology, Change(scale_links=("host0:net=0.25", "gpu5:host2=0.25"))), topology
    )
    found = believe(
        topology, Measurements(slow.experiments, trusted="network", otherwise="not on this link")
    )
    assert found.capacity_GBps["host0", "net"] == 1
    assert found.capacity_GBps["gpu5", "host2"] == 2
    assert next(x for x in found.links if x.src == "gpu5").extra["reason"] == "not on this link"


def test_a_flow_that_no_link_explains_is_reported() -> None:
    alone = [Experiment("alone", {pair: Fraction(1)}) for pair in ((0, 1), (1, 0))]
    both = Experiment("both", {(0, 1): Fraction(1, 2), (1, 0): Fraction(1, 2)})
    topology = believe(preset("path:2"), Measurements((*alone, both)))
    assert topology.capacity_GBps == preset("path:2").capacity_GBps
    assert "at most 50% of what it carries at other times" in topology.extra["notes"][0]


def test_parallel_links_share_what_was_measured() -> None:
    bare = preset("path:2@3")
    topology = Topology(
        "double", bare.devices, (*bare.links, Link("gpu0", "gpu1", Fraction(1), kind="pcie"))
    )
    found = believe(topology, Measurements((Experiment("alone", {(0, 1): Fraction(2)}),)))
    assert [x.bandwidth_GBps for x in found.links] == [Fraction(3, 2), 3, Fraction(1, 2)]


@settings(max_examples=count_examples(60))
@given(graphs(switches=4))
def test_pairs_of_a_round_share_nothing_and_groups_are_matchings(topology: Topology) -> None:
    routes = find_routes(topology)
    rounds = group_disjoint(list(routes), topology, routes)
    assert sorted(pair for chosen in rounds for pair in chosen) == sorted(routes)
    for chosen in rounds:
        cables = [{frozenset(hop) for hop in route_links(routes[pair])} for pair in chosen]
        assert sum(map(len, cables)) == len(set().union(*cables))
    for group in [*group_contending(routes), *list_shifts(len(topology.ranks))]:
        assert len({a for a, _ in group}) == len({b for _, b in group}) == len(group)


def test_the_largest_group_crosses_a_shared_link() -> None:
    groups = group_contending(find_routes(preset("pcie-2socket")))
    assert {len(group) for group in groups} == {2, 4}
    assert any(
        {a // 4 for a, _ in group} == {0} and {b // 4 for _, b in group} == {1} for group in groups
    )


def test_each_ranks_fans_are_measured() -> None:
    fans = list_fans(find_routes(preset("full:4")))
    assert len(fans) == 8
    assert fans[0] == ("fan-out", ((0, 1), (0, 2), (0, 3)))
    assert fans[1] == ("fan-in", ((1, 0), (2, 0), (3, 0)))
    assert list_fans(find_routes(preset("ring:2"))) == []
    assert len(list_fans(find_routes(preset("switch:32")))) == 32


def test_rates_come_from_the_slope() -> None:
    alone = fit_rate(0, 1, 50e-6, [(s, 1e-4 + s / 2e9) for s in (1000_000, 1500_000, 2000_000)])
    assert alone.GBps == pytest.approx(2)
    assert alone.alpha_us == pytest.approx(100)
    odd = fit_rate(0, 1, 50e-6, [(1000_000, 2e-3), (1500_000, 1e-3), (2000_000, 1e-3)])
    assert odd.GBps == pytest.approx(2)
    quick = Arrivals((0, 1), 1000, tuple(0.01 * (i + 1) for i in range(16)))
    slow = Arrivals((2, 1), 1000, tuple(0.02 * (i + 1) for i in range(16)))
    rates = estimate_rates_GBps([quick, slow])
    assert [float(rates[x.pair]) for x in (quick, slow)] == pytest.approx([1e-4, 5e-5])


def on_loopback(world: int, *args: str) -> list[Ended]:
    """Run the command once a rank, and return how each ended."""
    return run_joined("ranks.measure_command", *args, ranks=world, quiet_s=250)


@pytest.mark.network("quiet")
def test_on_one_host_the_declared_rates_stay(tmp_path: Path) -> None:
    declared = preset("mesh:2x2@25")
    (tmp_path / "declared.json").write_text(declared.dumps())
    ended = on_loopback(4, "2", str(tmp_path / "declared.json"))
    assert [rank.returncode for rank in ended] == [0] * 4, ended
    assert len({rank.stdout for rank in ended}) == 1
    measured = Topology.loads(ended[0].stdout)
    assert measured.capacity_GBps == declared.capacity_GBps
    assert measured.fingerprint == declared.fingerprint
    for link in measured.links:
        assert link.extra["measured"]["GBps"] > 0
        assert link.extra["believed"] == "declared"
        assert "the data was not on this link" in link.extra["reason"]
    assert len(measured.extra["measured"]["pairs"]) == 8
    assert any("4 of 12 pairs" in note for note in measured.extra["notes"])


def test_processes_without_gpus_are_measured(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    ended = on_loopback(2, "2")
    assert [rank.returncode for rank in ended] == [0] * 2, ended
    measured = Topology.loads(ended[0].stdout)
    bare = join_cpu_hosts(measured.extra["hosts"], [0] * 2)
    assert measured.ranks == bare.ranks
    assert all(
        x.extra["believed"] == "measured" and "declared" not in x.extra for x in measured.links
    )
    assert all(x.latency_us > 0 and x.source == "measured over gloo" for x in measured.links)


def test_a_rank_that_dies_ends_the_others_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "declared.json").write_text(preset("full:3").dumps())
    ended = on_loopback(3, "5", str(tmp_path / "declared.json"), "--dying", "2")
    assert [rank.returncode for rank in ended] == [1, 1, 9]
    for rank in (0, 1):
        (line,) = ended[rank].stderr.strip().splitlines()
        assert f"measure: error: rank {rank}, measuring rank" in line
        assert "a rank has died or does not answer" in line


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "declared.json").write_text(preset("ring:3").dumps())
    ended = on_loopback(2, "5", str(tmp_path / "declared.json"))
    assert [rank.returncode for rank in ended] == [2, 2]
    assert "has 3 GPUs, 2 ranks are running" in ended[0].stderr


def test_without_ranks_it_says_how_to_start_them() -> None:
    done = call_command("probe", "dgx1", "--measure")
    assert done.returncode == 2
    assert "start one per GPU with torchrun" in done.stderr and done.stderr.count("\n") == 1


def in_emulation(folder: Path, declared: Topology, change: Change) -> tuple[Topology, Topology]:
    """The true and the believed machine: `declared` at 100 Mbit/s, changed in secret."""
    from emulated import run_emulated

    from topoplan.runtime.extras.emulate import blueprint, emulate

    scaled = blueprint(declared, Fraction(10**8)).topology
    true = degrade(scaled, change)
    (folder / "declared.json").write_text(scaled.dumps())
    slowest = min(true.capacity_GBps.values()) * 8 * 10**9
    with emulate(true, slowest) as network:
        ended = run_emulated(
            network, folder, "ranks.measure_command", "12", str(folder / "declared.json")
        )
    printed = ended[0].stdout
    assert [rank.returncode for rank in ended] == [0] * len(ended), printed
    return true, Topology.loads(printed[printed.index("{") :])


@pytest.mark.network("namespaces")
def test_slow_links_are_found_over_sockets_and_others_stay(tmp_path: Path) -> None:
    """Two hosts: direct cables inside, and a switch each for what leaves. A direct cable, a GPU's
    link and the trunk between the hosts are slow; the trunk only shows when two pairs send.
    """
    devices = (
        *(Device(f"gpu{i}") for i in range(4)),
        *(Device(f"host{h}", "switch", "pcie") for h in range(2)),
    )
    cables = [(f"gpu{i}", f"host{i // 2}", 1) for i in range(4)]
    cables += [("host0", "host1", 2), ("gpu0", "gpu1", 1), ("gpu2", "gpu3", 1)]
    links = tuple(
        link for a, b, rate in cables for link in both_directions(Link(a, b, Fraction(rate)))
    )
    change = Change(scale_links=("gpu3:host1=0.5", "host0:host1=0.6", "gpu0:gpu1=0.5"))
    slow = {frozenset(text.partition("=")[0].split(":")) for text in change.scale_links}
    wrong: list[str] = []
    for attempt in range(
        3
    ):  # what else runs on the machine may hold a link up while it is measured, once or twice
        folder = tmp_path / str(attempt)
        folder.mkdir()
        true, measured = in_emulation(folder, Topology("two hosts", devices, links), change)
        wrong = [
            f"{link.src} -> {link.dst}: {link.extra}"
            for link in measured.links
            if (link.extra["believed"] == "measured") != (frozenset((link.src, link.dst)) in slow)
            or abs(link.bandwidth_GBps / true.capacity_GBps[link.src, link.dst] - 1)
            > Fraction(15, 100)
        ]
        trunk = next(x for x in measured.links if (x.src, x.dst) == ("host0", "host1"))
        if not wrong and trunk.extra["measured"]["how"] == "together":
            return
    raise AssertionError(wrong or trunk.extra)
