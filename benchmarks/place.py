"""Hold topo-place against brute force and its bounds.

    python -m benchmarks place              50 random machines of 8 GPUs against all 40,320 orders,
                                            known gains, jobs of known kinds, 1,024 ranks
    python -m benchmarks place --machines 5 fewer random machines
    python -m benchmarks place --emulate    stock gloo on emulated machines, given order beside the
                                            best (needs root and iproute2)
    python -m benchmarks place --emulate dgx1 -b 4M -e 4M

The brute force counts message by message, with routes looked up one by one, and knows nothing of
how orders are found.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from math import lcm
from pathlib import Path

from harness import Table, make_parser
from wire_speed import run, topo

from topoplan.synth.extras.place.job import read_job
from topoplan.synth.extras.place.placement import Placement
from topoplan.synth.extras.place.placing import place
from topoplan.synth.extras.place.proof.bound import find_bound
from topoplan.synth.extras.place.proof.check import check_place_bound
from topoplan.synth.extras.place.route_table import RouteTable
from topoplan.synth.extras.place.tiers import find_tiers
from topoplan.topo.derived.forwarding import Forwarding
from topoplan.topo.derived.hosts import group_by_host
from topoplan.topo.derived.stripes import merge_switches
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router, route_links

Sends = list[tuple[int, int, Fraction]]
Routes = dict[tuple[int, int], tuple[tuple[str, str], ...]]
# The number of a dimension, a collective, the bytes of a call, and the number of calls, each.
Traffics = Sequence[tuple[int, str, int, int]]
# The rounds of a call, and the routes that follow each other (a ring) or are taken at once.
Waits = tuple[Fraction, bool, list[Sends]]
_KINDS = ("allreduce", "allgather", "alltoall", "sendrecv")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "only", nargs="*", help="emulated machines whose names begin so (default: all)"
    )
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("-b", default="1M")
    parser.add_argument("-e", default="4M")
    parser.add_argument("--rate", default="50Mbit", help="of the slowest emulated link")
    args = parser.parse_args()
    if args.emulate:
        measure_all(args)
        return
    table = Table(
        [
            ("machine", "machine", "<47s"),
            ("job", "job", "<27s"),
            ("traffic", "traffic", "<54s"),
            ("ms", "ms", ">7.1f"),
            ("latency_ms", "latency", ">7.2f"),
            ("gain", "gain", ">5.2f"),
            ("gap", "gap", ">5.1%"),
            ("seconds", "s", ">5.1f"),
            ("inside", "inside hosts", "s"),
        ],
        as_json=args.json,
    )
    compared = compare_on_random(args.machines)
    note = (
        "the best of 40,320 orders on {machines:.0f} machines; gains {least_gain:.2f} to "
        "{most_gain:.2f}, bound of tiers {least_bound_share:.2f} to {most_bound_share:.2f}, median "
        "{median_bound_share:.2f}, of the best"
    )
    row = {"machine": "random, 8 GPUs", "gain": compared["median_gain"]}
    table.add(row, note.format(**compared))
    for name, (machine, given) in known_machines().items():
        placed = place(machine, target="stock", order=given)
        table.add({"machine": name, "gain": float(placed.gain), "gap": float(placed.gap)})
    add_jobs(table)
    add_large(table)
    table.end(random=compared)


def measure_all(args: argparse.Namespace) -> None:
    """Measure on the emulated machines that are asked for."""
    table = Table(
        [
            ("machine", "machine", "<12s"),
            ("size_bytes", "bytes", ">9d"),
            ("given_us", "given us", ">9.0f"),
            ("best_us", "best us", ">9.0f"),
            ("gain", "gain", ">5.2f"),
            ("predicted_gain", "predicted", ">9.3f"),
            ("order", "best order", "s"),
        ],
        as_json=args.json,
    )
    sizes = ["-b", args.b, "-e", args.e, "-f", "4", "-n", "5", "-w", "1", "--json"]
    for name, (machine, given) in known_machines().items():
        if not args.only or name.startswith(tuple(args.only)):
            measure(table, name, machine, given, args.rate, sizes)
    table.end()


def routes_of(topology: Topology) -> Routes:
    """Return the links between all GPUs, one by one: own routes, or over other GPUs where there is
    none.
    """
    router, forwarding = Router(topology), Forwarding(topology)
    out = {}
    for u, gpu in enumerate(topology.ranks):
        other_ways = forwarding.routes_from(gpu)
        for v, other in enumerate(topology.ranks):
            if u != v:
                out[u, v] = route_links(router.route(u, v) or other_ways[other])
    return out


def sends_of(
    sizes: Sequence[int], dimension: int, collective: str, size_bytes: int, calls: int = 1
) -> Sends:
    """Return who sends how much to whom for rings in the order of ranks, by coordinates in the
    mesh, in all calls.
    """
    size_bytes *= calls
    n = sizes[dimension]
    coordinates = list(product(*map(range, sizes)))
    out: Sends = []
    for rank, at in enumerate(coordinates):
        for j in range(n):
            other = coordinates.index((*at[:dimension], j, *at[dimension + 1 :]))
            distance = j - at[dimension]
            if collective == "alltoall" and distance:
                out.append((rank, other, Fraction(size_bytes, n)))
            if collective == "sendrecv" and abs(distance) == 1:
                out.append((rank, other, Fraction(size_bytes)))
            if collective in ("allreduce", "allgather") and distance % n == 1 % n and n > 1:
                out.append(
                    (
                        rank,
                        other,
                        Fraction((n - 1) * size_bytes, n) * (2 if collective == "allreduce" else 1),
                    )
                )
    return out


def waits_of(
    sizes: Sequence[int], dimension: int, collective: str, size_bytes: int, calls: int
) -> Waits:
    """Return the routes for which the calls of each group wait, and how often."""
    groups: dict[tuple[int, ...], Sends] = {}
    coordinates = list(product(*map(range, sizes)))
    for src, dst, size in sends_of(sizes, dimension, collective, size_bytes):
        at = coordinates[src]
        groups.setdefault((*at[:dimension], *at[dimension + 1 :]), []).append((src, dst, size))
    around = collective in ("allreduce", "allgather")
    each = Fraction(sizes[dimension] - 1, sizes[dimension]) if around else 1
    times = calls * each * (2 if collective == "allreduce" else 1)
    return Fraction(times), around, list(groups.values())


def seconds_of_all(
    phases: Sequence[Sends], topology: Topology, objective: str, waits: Sequence[Waits] = ()
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Return every order and its objective, counted message by message, in whole numbers."""
    routes = routes_of(topology)
    links = sorted(topology.capacity_GBps)
    number = {link: i for i, link in enumerate(links)}
    crossed = {pair: [number[link] for link in way] for pair, way in routes.items()}
    rates = [topology.capacity_GBps[link] * 10**9 for link in links]
    late_us = {
        pair: sum((topology.latency_us[link] for link in way), Fraction(0))
        for pair, way in routes.items()
    }
    scale = lcm(
        *((size / rate).denominator for sends in phases for _, _, size in sends for rate in rates)
    )
    costs = [
        [(src, dst, [int(size * scale / rate) for rate in rates]) for src, dst, size in sends]
        for sends in phases
    ]
    for order in permutations(range(len(topology.ranks))):
        each = []
        for sends in costs:
            busy = [0] * len(links)
            for src, dst, cost in sends:
                for link in crossed[order[src], order[dst]]:
                    busy[link] += cost[link]
            each.append(busy)
        value = (
            sum(map(max, each)) if objective == "time" else max(map(sum, zip(*each, strict=True)))
        )
        seconds = Fraction(value, scale)
        for times, around, groups in waits if objective == "time" else ():
            late = ([late_us[order[src], order[dst]] for src, dst, _ in sends] for sends in groups)
            seconds += times * max(map(sum if around else max, late), default=0) / 10**6
        yield order, seconds


def write_job(sizes: Sequence[int], traffics: Traffics) -> tuple[str, str]:
    """Return a job as --job and --traffic take it."""
    names = "abc"
    return (
        ",".join(f"{names[i]}={size}" for i, size in enumerate(sizes)),
        ",".join(f"{names[i]}={calls}x{kind}:{size}" for i, kind, size, calls in traffics),
    )


def check_against_all(
    topology: Topology, sizes: Sequence[int], traffics: Traffics, objective: str
) -> Placement:
    """Place a job, hold the answer against all orders and the bound of tiers against the best;
    return the placement.
    """
    topology = merge_switches(topology)
    job, traffic = write_job(sizes, traffics)
    placed = place(topology, job, traffic, objective=objective)
    sends = [sends_of(sizes, *row) for row in traffics]
    waits = [waits_of(sizes, *row) for row in traffics]
    seconds = dict(seconds_of_all(sends, topology, objective, waits))
    best = min(seconds.values())
    assert placed.seconds == best == seconds[placed.order], (placed, best)
    assert placed.given_seconds == seconds[tuple(range(len(placed.order)))]
    assert placed.is_optimal
    gpus = range(len(topology.ranks))
    read = read_job(job, traffic, len(gpus))
    phases = read.list_phases("ring")
    tiers = find_tiers(
        topology, gpus, group_by_host([topology.by_id[gpu] for gpu in topology.ranks])
    )
    bound = find_bound(RouteTable(topology), gpus, tiers, read, phases, objective, best)
    assert bound.seconds <= best, (bound.seconds, best)
    check_place_bound(bound, topology, gpus, read, phases, objective)
    return replace(placed, bound=bound)


def draw_machine(chance: random.Random, gpus: int = 8) -> Topology:
    """Return a random connected machine: GPUs and up to four switches, with uneven links."""
    nodes = [f"g{i}" for i in range(gpus)] + [f"s{i}" for i in range(chance.randint(0, 4))]
    order = chance.sample(range(len(nodes)), len(nodes))
    joined = {(order[chance.randrange(i)], order[i]) for i in range(1, len(nodes))}
    for _ in range(chance.randint(0, 2 * gpus)):
        a, b = chance.sample(range(len(nodes)), 2)
        joined.add((a, b))
    links = []
    for a, b in sorted({(min(pair), max(pair)) for pair in joined}):
        there = chance.randint(1, 4)
        back = there if chance.random() < 0.7 else chance.randint(1, 4)
        # Such that latencies of a few calls matter as much as a few bytes at these rates.
        late_us = Fraction(chance.randint(0, 4), 2000)
        links += [
            Link(nodes[a], nodes[b], Fraction(there), late_us),
            Link(nodes[b], nodes[a], Fraction(back), late_us),
        ]
    return Topology(
        "random", tuple(Device(x, "gpu" if x[0] == "g" else "switch") for x in nodes), tuple(links)
    )


def compare_on_random(machines: int) -> dict[str, float]:
    """Compare with all 40,320 orders on random machines, a random job each.

    Return gains, and what the bound of tiers alone is of the best.
    """
    chance = random.Random(8)
    gains, shares = [], []
    for _ in range(machines):
        topology = draw_machine(chance)
        sizes = chance.choice([(8,), (8,), (2, 4), (4, 2), (2, 2, 2)])
        traffics = [
            (i, chance.choice(_KINDS), chance.randint(1, 5), chance.randint(1, 3))
            for i in range(len(sizes))
        ]
        placed = check_against_all(topology, sizes, traffics, chance.choice(["time", "bottleneck"]))
        gains.append(float(placed.gain))
        shares.append(float(placed.bound.seconds / placed.seconds))
    return {
        "machines": machines,
        "least_gain": min(gains),
        "median_gain": sorted(gains)[machines // 2],
        "most_gain": max(gains),
        "least_bound_share": min(shares),
        "median_bound_share": sorted(shares)[machines // 2],
        "most_bound_share": max(shares),
    }


def build_boxes(
    count: int,
    per_box: int,
    per_leaf: int,
    spines: int = 1,
    leaf_GBps: int = 400,
    box_GBps: int = 450,
) -> Topology:
    """Return boxes of GPUs on a switch each, with a port of 50 GB/s a GPU to a leaf, and leaves
    joined by spines.
    """
    gpus = [
        Device(f"h{b}g{i}", extra={"host": f"h{b}"}) for b in range(count) for i in range(per_box)
    ]
    leaves = count // per_leaf
    switches = (
        [Device(f"h{b}nv", "switch", "nvswitch") for b in range(count)] if per_box > 1 else []
    )
    switches += [Device(f"leaf{i}", "switch", "network") for i in range(leaves)]
    switches += [Device(f"spine{i}", "switch", "network") for i in range(spines)]
    inside = [
        (f"h{b}g{i}", f"h{b}nv", box_GBps, Fraction(7, 10))
        for b in range(count)
        for i in range(per_box)
        if per_box > 1
    ]
    ports = [
        (f"h{b}g{i}", f"leaf{b // per_leaf}", 50, Fraction(5))
        for b in range(count)
        for i in range(per_box)
    ]
    uplinks = [
        (f"leaf{leaf}", f"spine{s}", leaf_GBps, Fraction(5))
        for leaf in range(leaves)
        for s in range(spines)
    ]
    links = (
        x
        for a, b, rate, us in (*inside, *ports, *uplinks)
        for x in both_directions(Link(a, b, Fraction(rate), us))
    )
    return Topology(
        f"{count} boxes of {per_box}, {leaves} leaves, {spines} spines",
        (*gpus, *switches),
        tuple(links),
    )


def build_two_hosts() -> Topology:
    """Return two hosts of four GPUs, with one link between the hosts of a quarter of a GPU's
    rate.
    """
    devices = [Device(f"gpu{i}") for i in range(8)] + [
        Device(f"host{i}", "switch", "network") for i in range(2)
    ]
    links = [
        x for i in range(8) for x in both_directions(Link(f"gpu{i}", f"host{i // 4}", Fraction(4)))
    ]
    return Topology(
        "two-hosts", tuple(devices), (*links, *both_directions(Link("host0", "host1", Fraction(1))))
    )


def known_machines() -> dict[str, tuple[Topology, list[int] | None]]:
    """Return machines, each with the order that is given: the DGX-1's, scattered ranks, ranks dealt
    round-robin.
    """
    return {
        "dgx1": (preset("dgx1"), None),
        "two-hosts": (build_two_hosts(), [0, 4, 1, 5, 2, 6, 3, 7]),
        "leaf-spine": (
            build_boxes(16, 1, 4, leaf_GBps=50),
            [leaf * 4 + i for i in range(4) for leaf in range(4)],
        ),
    }


# Jobs as people run them, and the dimensions that stay inside a host or NVLink domain.
_JOBS = (
    ("dgx-a100:4", "dp=4,tp=8", "dp=1G,tp=64M", "tp"),
    ("dgx-a100:8", "dp=2,pp=4,tp=8", "dp=4G,pp=8M,tp=64M", "tp"),
    ("dgx-h100:8", "dp_replicate=8,dp_shard=8", "dp_replicate=2G,dp_shard=14G", "dp_shard"),
    ("dgx-h100:8", "fsdp=64", "fsdp=14G", ""),
    ("dgx-h100:4", "dp=4,ep=8", "dp=1G,ep=64M", "ep"),
    ("gb200-nvl72", "ep=72", "ep=64M", ""),
    ("gb200-nvl72:2", "dp=2,ep=72", "dp=4G,ep=256M", "ep"),
    ("gb200-nvl72:2", "dp=18,tp=8", "dp=4G,tp=64M", "tp"),
)


def add_jobs(table: Table) -> None:
    """Place jobs of known kinds of parallelism, and say which dimensions stay inside hosts."""
    for machine, job, traffic, expected in _JOBS:
        placed = place(machine, job, traffic)
        inside = ",".join(stay.dimension for stay in placed.stays if stay.parts == 1)
        late = sum((step.latency_seconds for step in placed.steps), Fraction(0))
        table.add(
            {
                "machine": machine,
                "job": job,
                "traffic": traffic,
                "ms": float(placed.seconds) * 1e3,
                "latency_ms": float(late) * 1e3,
                "gap": float(placed.gap),
                "inside": inside or "none",
            }
        )
        assert inside == expected, (inside, expected)


def add_large(table: Table) -> None:
    """Place 1,024 ranks on 128 boxes behind 16 leaves and 4 spines, for several traffics; and with
    uplinks of a quarter, as if flows were not spread over the spines.
    """
    job = "dp=16,tp=8,pp=8"
    for spines, leaf_GBps in ((4, 400), (4, 800), (1, 400), (1, 800)):
        machine = build_boxes(128, 8, 8, spines, leaf_GBps)
        for traffic in (
            "dp=1x1G,tp=1x4G,pp=1x64M",
            "dp=1x1G,tp=1x64M,pp=1x16M",
            "dp=1x256M,tp=1x1G,pp=1x256M",
            "dp=allgather:2G,dp=reduce-scatter:2G,tp=1x8G,pp=1x128M",
            "dp=1G,tp=96x64M,pp=32x8M",
            "dp=4G,tp=96x1M,pp=32x1M",
        ):
            began, core = time.monotonic(), time.process_time()
            placed = place(machine, job, traffic)
            table.add(
                {
                    "machine": f"{machine.name} of {leaf_GBps} GB/s",
                    "job": job,
                    "traffic": traffic,
                    "gain": float(placed.gain),
                    "gap": float(placed.gap),
                    "seconds": time.monotonic() - began,
                    "core_s": time.process_time() - core,
                }
            )


def measure(
    table: Table,
    name: str,
    machine: Topology,
    given: list[int] | None,
    rate: str,
    sizes: list[str],
) -> None:
    """Run stock gloo's allreduce in the given and in the best order on the emulated machine."""
    placed = place(machine, target="stock", order=given)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        path.write_text(json.dumps(machine.to_json()), encoding="utf-8")
        rows = []
        for order in (placed.given, placed.order):
            listed = ",".join(map(str, order))
            command = [
                *topo("emulate"),
                str(path),
                "--slowest",
                rate,
                "--order",
                listed,
                "--",
                *topo("run"),
                "--stock",
            ]
            rows.append(run([*command, *sizes]))
    best = ",".join(map(str, placed.order))
    for before, after in zip(*rows, strict=True):
        table.add(
            {
                "machine": name,
                "size_bytes": before["size_bytes"],
                "given_us": before["stock_us"],
                "best_us": after["stock_us"],
                "gain": before["stock_us"] / after["stock_us"],
                "predicted_gain": float(placed.gain),
                "order": best,
            }
        )


if __name__ == "__main__":
    main()
