"""Explain a bound: the bottleneck, what each strategy would reach, and which links to improve
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ..topo.exact import parse_fraction
from ..topo.graph import Topology
from ..topo.routes import Router, route_links
from .bounds.certificate import SINGLE_PATH, Bound, join_devices
from .bounds.single_path import find_bounds
from .cost.affine import Cost
from .effort import Effort
from .forest.machine.symmetry import colours
from .ir.collective import Collective
from .ir.schedule import Schedule

# 1 KiB to 1 GiB.
SIZES = tuple(1 << bits for bits in (10, 13, 16, 19, 22, 25, 28, 30))
_TRIED_LINKS = 4
# Work that is allowed for the bound of each wider link.
_WIDER_WORK_S = 10.0
_WIDER = Fraction(11, 10)
# A rise by at most this counts as none.
_NOTHING = Fraction(1, 10**6)


@dataclass(frozen=True)
class Part:
    """Devices on one side of the bottleneck: GPUs and others."""

    gpus: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Lever:
    """A link that the bound depends on.

    `gain_GBps` is how much the bound rises at most for each GB/s added to the link in both
    directions (the dual's price, until other links become the bottleneck); `wider_GBps` is the
    bound with this link a tenth wider, where it was computed; `alike` is the number of links with
    the same price and bandwidth. Where the link alone brings nothing, `together_GBps` is the bound
    with all `peers` links of its role in the machine a tenth wider.
    """

    a: str
    b: str
    bandwidth_GBps: Fraction
    gain_GBps: Fraction
    alike: int
    wider_GBps: Fraction | None = None
    helps_alone: bool = True
    peers: int = 1
    together_GBps: Fraction | None = None


@dataclass(frozen=True)
class Explanation:
    """The bottleneck, the links to improve, and what every strategy reaches.

    `kind` and `parts` are the bottleneck: the two sides of a cut, or the groups of GPUs that are
    left when priced links are taken away. `across_GBps` is what the links between the parts carry
    in one direction; where prices differ by direction (`directed`), what all priced links between
    the parts carry, each in the directions that have a price. `reached[strategy]` are algbw in GB/s
    at SIZES.
    """

    kind: str
    parts: tuple[Part, ...]
    across_GBps: Fraction
    levers: tuple[Lever, ...]
    reached: dict[str, tuple[float, ...]]
    directed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "bottleneck": {
                "kind": self.kind,
                "parts": [{"gpus": list(p.gpus), "others": list(p.others)} for p in self.parts],
                "across_GBps": float(self.across_GBps),
                "directed": self.directed,
            },
            "links": [
                {
                    "src": x.a, "dst": x.b, "bandwidth_GBps": float(x.bandwidth_GBps),
                    "bound_gain_per_GBps": float(x.gain_GBps), "alike": x.alike,
                    "bound_GBps_if_a_tenth_wider": None if x.wider_GBps is None else float(x.wider_GBps),
                    "helps_alone": x.helps_alone, "peers": x.peers,
                    "bound_GBps_if_peers_a_tenth_wider": None if x.together_GBps is None else float(x.together_GBps),
                }
                for x in self.levers
            ],
            "sizes_bytes": list(SIZES),
            "algbw_GBps": {name: list(row) for name, row in self.reached.items()},
        }  # fmt: skip


def explain(
    collective: Collective,
    router: Router,
    limit: Bound,
    candidates: Sequence[tuple[Schedule, Cost]],
    effort: Effort,
) -> Explanation:
    """Explain the bound `limit` by its certificate, and compare `candidates`; wider links are tried
    with the `effort` left.
    """
    topology = router.topology
    # A cut is the special case of prices that are 1 on the links that leave it.
    inside = set(limit.certificate["inside"]) if limit.kind == "cut" else None
    prices = (
        _cut_prices(inside, topology)
        if inside is not None
        else _read_prices(limit, collective, topology)
    )
    directed = inside is None and any(prices.get((b, a)) != p for (a, b), p in prices.items())
    if inside is not None:
        parts = _cut_sides(inside, topology)
        across = sum((topology.capacity_GBps[link] for link in prices), Fraction(0))
    elif limit.kind.startswith(SINGLE_PATH):  # only the system's own routes lead between the parts
        parts = _parts_without_routes(set(prices), router)
        across = sum((topology.capacity_GBps[link] for link in prices), Fraction(0)) / (
            1 if directed else 2
        )
    else:
        parts, part_of = _parts_without(set(prices), topology, directed=directed)
        priced = {link for link, p in prices.items() if p}
        # Where other links lead around all priced ones, these are the bottleneck as they are.
        between = {(a, b) for a, b in priced if part_of[a] != part_of[b]} or priced
        across = sum((topology.capacity_GBps[link] for link in between), Fraction(0)) / (
            1 if directed else 2
        )
    levers = _levers(prices, collective, router, limit, effort)
    return Explanation(limit.kind, parts, across, levers, _best_algbw(candidates), directed)


def _cut_prices(inside: set[str], topology: Topology) -> dict[tuple[str, str], Fraction]:
    return {
        (a, b): Fraction(1) for a, b in topology.capacity_GBps if a in inside and b not in inside
    }


def _read_prices(
    limit: Bound, collective: Collective, topology: Topology
) -> dict[tuple[str, str], Fraction]:
    """Return the price of each directed link; of kind "prices", allreduce's stand for both
    directions.
    """
    both_ways = (limit.kind, collective.name) == ("prices", "allreduce")
    if "joined" in limit.certificate:
        # Links of a device that is taken as one with a GPU have the prices of those of the GPU.
        gpu_of = dict(limit.certificate["joined"])
        alone = {key: value for key, value in limit.certificate.items() if key != "joined"}
        merged = _read_prices(
            replace(limit, certificate=alone), collective, join_devices(topology, gpu_of)
        )
        ends = {(a, b): (gpu_of.get(a, a), gpu_of.get(b, b)) for a, b in topology.capacity_GBps}
        return {link: merged[pair] for link, pair in ends.items() if pair in merged}
    out: dict[tuple[str, str], Fraction] = {}
    for a, b, price in limit.certificate["prices"]:
        for link in ((a, b), (b, a)) if both_ways else ((a, b),):
            if link in topology.capacity_GBps:
                out[link] = out.get(link, Fraction(0)) + parse_fraction(price)
    return out


def _cut_sides(inside: set[str], topology: Topology) -> tuple[Part, ...]:
    return tuple(
        _part([d.id for d in topology.devices if (d.id in inside) == side], topology)
        for side in (True, False)
    )


def _part(members: Sequence[str], topology: Topology) -> Part:
    gpus = tuple(d for d in members if topology.by_id[d].kind == "gpu")
    return Part(gpus, tuple(d for d in members if topology.by_id[d].kind != "gpu"))


def _parts_without(
    priced: set[tuple[str, str]], topology: Topology, *, directed: bool
) -> tuple[tuple[Part, ...], dict[str, int]]:
    """Return the connected groups that contain GPUs when the priced links are taken away, and the
    group of every device.

    `directed`: the groups in which the links that are left lead from each device to each.
    """
    names = [d.id for d in topology.devices]
    index = {name: i for i, name in enumerate(names)}
    free = [(index[a], index[b]) for a, b in topology.capacity_GBps if (a, b) not in priced]
    a, b = (np.array([pair[i] for pair in free], dtype=np.int64) for i in (0, 1))
    graph = coo_matrix((np.ones(len(free)), (a, b)), shape=(len(names), len(names)))
    count, group = connected_components(graph, directed=directed, connection="strong")
    members: list[list[str]] = [[] for _ in range(count)]
    for name in names:
        members[int(group[index[name]])].append(name)
    parts = tuple(part for part in (_part(m, topology) for m in members) if part.gpus)
    return parts, {name: int(group[i]) for name, i in index.items()}


def _parts_without_routes(priced: set[tuple[str, str]], router: Router) -> tuple[Part, ...]:
    """Return the groups of GPUs between which the system's own routes cross no priced link."""
    topology = router.topology
    n = len(topology.ranks)
    joined: nx.utils.UnionFind[int] = nx.utils.UnionFind(range(n))
    for u in range(n):
        for v in range(n):
            route = router.route(u, v) if u != v and joined[u] != joined[v] else None
            if route is not None and priced.isdisjoint(route_links(route)):
                joined.union(u, v)
    return tuple(
        _part([topology.ranks[r] for r in sorted(group)], topology) for group in joined.to_sets()
    )


def _levers(
    prices: dict[tuple[str, str], Fraction],
    collective: Collective,
    router: Router,
    limit: Bound,
    effort: Effort,
) -> tuple[Lever, ...]:
    """Return the priced links, one of each class, by what widening them brings.

    algbw = sum(bandwidth * price) / needed, so each GB/s of a link raises it by algbw times the
    link's share of that sum.
    """
    topology = router.topology
    paid = sum((topology.capacity_GBps[link] * p for link, p in prices.items()), Fraction(0))
    price_of_pair: dict[tuple[str, str], Fraction] = {}
    for (a, b), p in prices.items():
        pair = (a, b) if (b, a) not in price_of_pair else (b, a)
        price_of_pair[pair] = price_of_pair.get(pair, Fraction(0)) + p
    classes: dict[tuple[Fraction, Fraction], list[tuple[str, str]]] = {}
    for (a, b), p in price_of_pair.items():
        if p:
            gain = limit.algbw_GBps * p / paid
            classes.setdefault((gain, topology.capacity_GBps[a, b]), []).append((a, b))
    out = []
    for number, ((gain, width), links) in enumerate(
        sorted(classes.items(), key=lambda item: -item[0][0])
    ):
        a, b = links[0]
        wider_GBps = together_GBps = None
        peers = {(a, b)}
        if number < _TRIED_LINKS and not effort.is_over("wider links"):
            share = 1 / (_TRIED_LINKS - number)
            wider_GBps = _bound_with_wider({(a, b)}, collective, router, effort, share)
            # Where other links are as narrow, only all of them together bring something.
            if wider_GBps <= limit.algbw_GBps * (1 + _NOTHING) and not effort.is_over(
                "wider links"
            ):
                peers = _find_peers((a, b), topology)
                if len(peers) > 1:
                    together_GBps = _bound_with_wider(peers, collective, router, effort, share)
        alone = wider_GBps is None or wider_GBps > limit.algbw_GBps * (1 + _NOTHING)
        out.append(
            Lever(a, b, width, gain, len(links), wider_GBps, alone, len(peers), together_GBps)
        )
    return tuple(out)


def _bound_with_wider(
    pairs: set[tuple[str, str]],
    collective: Collective,
    router: Router,
    effort: Effort,
    share_of_clock: float,
) -> Fraction:
    """Return the bound in GB/s with all links between some pairs of devices a tenth wider."""
    ends = {frozenset(pair) for pair in pairs}
    links = tuple(
        replace(x, bandwidth_GBps=x.bandwidth_GBps * _WIDER)
        if frozenset((x.src, x.dst)) in ends
        else x
        for x in router.topology.links
    )
    widened = router.on(replace(router.topology, links=links))
    return find_bounds(
        collective, widened, effort.grant(_WIDER_WORK_S, share_of_clock)
    ).single_path.algbw_GBps


def _find_peers(pair: tuple[str, str], topology: Topology) -> set[tuple[str, str]]:
    """Return the pairs of devices whose links play the same role in the machine as those of this
    pair.
    """
    colour = dict(zip((d.id for d in topology.devices), colours(topology).tolist(), strict=True))
    capacity = topology.capacity_GBps

    def name_role(a: str, b: str) -> tuple[object, ...]:
        """Return what links of one role have in common, whichever end is named first."""
        ways = [
            (colour[x], colour[y], capacity.get((x, y)), capacity.get((y, x)))
            for x, y in ((a, b), (b, a))
        ]
        return min(ways, key=str)

    role = name_role(*pair)
    out: set[tuple[str, str]] = set()
    for a, b in capacity:
        if (b, a) not in out and name_role(a, b) == role:
            out.add((a, b))
    return out


def _best_algbw(candidates: Sequence[tuple[Schedule, Cost]]) -> dict[str, tuple[float, ...]]:
    """Return the best algbw in GB/s of each strategy's schedules at SIZES."""
    best: dict[str, list[float]] = {}
    for schedule, cost in candidates:
        row = best.setdefault(schedule.strategy, [0.0] * len(SIZES))
        for i, size in enumerate(SIZES):
            time_s = cost.time_s(size)
            row[i] = max(row[i], size / time_s / 1e9 if time_s else 0.0)
    return {name: tuple(row) for name, row in best.items()}
