"""Explain a bound: the bottleneck, the algbw of each strategy, and the links to improve first.

A bound's certificate is a cut between devices, or prices of links: the duals of the linear program
that it comes from. The bottleneck is that cut, or the links that have a price. A lever is a link
whose bandwidth limits the bound.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ....topo.exact import parse_fraction
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.pictures.cables import format_rate
from ....topo.routes import Router, route_links
from ...bounds.certificate import SINGLE_PATH, Bound, join_helpers, keep_crossed
from ...bounds.single_path import find_bounds
from ...cost.affine import Cost, affine_s
from ...ir.collective import Collective
from ...ir.schedule import Schedule
from ...machine.symmetry import colours
from ...numeric.effort import Effort

# Sizes in bytes at which strategies are compared: 1 KiB to 1 GiB.
SIZES = tuple(1 << bits for bits in (10, 13, 16, 19, 22, 25, 28, 30))
# Classes of links for which the bound is recomputed: those with the greatest gain first.
_TRIED_LINKS = 4
# Work allowed for the bound of each wider link, in seconds of an idle core.
_WIDER_WORK_S = 10.0
# A tenth wider: chosen, not measured.
_WIDER = Fraction(11, 10)
# Most parts of the bottleneck, and devices of a part, to name in words: about a screenful.
_MAX_NAMED = 8
# A relative rise of at most this counts as none.
_NOTHING = Fraction(1, 10**6)

_Link = tuple[str, str]


@dataclass(frozen=True)
class BottleneckPart:
    """One side of the bottleneck: ids of its GPUs, and of its `others`, the remaining devices."""

    gpus: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        members = self.gpus or self.others
        more = f", ... {len(members)} in all" if len(members) > _MAX_NAMED else ""
        return f"{{{', '.join(members[:_MAX_NAMED])}{more}}}"


@dataclass(frozen=True)
class Lever:
    """A link from device `a` to device `b` whose bandwidth limits the bound.

    `gain_GBps` is the most that the bound can rise per GB/s added to the link in both directions
    (the link's price in the dual, valid until other links become the bottleneck). `wider_GBps` is
    the bound in GB/s with this link 10 % faster, None if it was not computed to the end. `alike` is
    the number of links with the same price and bandwidth. If the link alone does not raise the
    bound (`helps_alone` is False), `together_GBps` is the bound with all `peers` links of its role
    in the machine 10 % faster.
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
    """The bottleneck, the links to improve, and the algbw of every strategy.

    `kind` and `parts` describe the bottleneck: the two sides of a cut, or the groups of GPUs that
    remain without the priced links. `across_GBps` is the bandwidth of the links between the parts
    in one direction. If prices differ by direction (`directed`), it is the bandwidth of all priced
    links between the parts, each in the directions that have a price. `reached[strategy]` are algbw
    in GB/s at SIZES. If the search for the bound was cut short (`is_cut_short`), other links may be
    the true bottleneck, and there are no levers.
    """

    kind: str
    parts: tuple[BottleneckPart, ...]
    across_GBps: Fraction
    levers: tuple[Lever, ...]
    reached: dict[str, tuple[float, ...]]
    directed: bool = False
    is_cut_short: bool = False

    @property
    def bottleneck(self) -> str:
        """The bottleneck and its bandwidth in words."""
        if self.is_cut_short:
            return "not known: the time limit stopped the search for the bound; a longer one helps"
        parts = self.parts
        if self.kind.endswith("cut"):
            what = f"the cut from {parts[0]} to {parts[1]}"
        elif len(parts) > 1 and all(len(part.gpus) == 1 for part in parts):
            what = f"the links between all {len(parts)} GPUs, each of which must be reached"
        elif len(parts) < 2:
            what = "the priced links"
        else:
            listed = ", ".join(map(str, parts[:_MAX_NAMED]))
            what = f"the links between {listed}{' ...' * (len(parts) > _MAX_NAMED)}"
        directions = "the directions that have a price" if self.directed else "one direction"
        return f"{what}; together they carry {format_rate(self.across_GBps)} GB/s in {directions}"

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            **({"cut_short": True} if self.is_cut_short else {}),
            "bottleneck": {
                "kind": self.kind,
                "parts": [{"gpus": list(p.gpus), "others": list(p.others)} for p in self.parts],
                "across_GBps": float(self.across_GBps),
                "directed": self.directed,
            },
            "links": [
                {
                    "src": x.a,
                    "dst": x.b,
                    "bandwidth_GBps": float(x.bandwidth_GBps),
                    "bound_gain_per_GBps": float(x.gain_GBps),
                    "alike": x.alike,
                    "bound_GBps_if_a_tenth_wider": (
                        None if x.wider_GBps is None else float(x.wider_GBps)
                    ),
                    "helps_alone": x.helps_alone,
                    "peers": x.peers,
                    "bound_GBps_if_peers_a_tenth_wider": (
                        None if x.together_GBps is None else float(x.together_GBps)
                    ),
                }
                for x in self.levers
            ],
            "sizes_bytes": list(SIZES),
            "algbw_GBps": {name: list(row) for name, row in self.reached.items()},
        }


def explain(
    collective: Collective,
    router: Router,
    limit: Bound,
    candidates: Sequence[tuple[Schedule, Cost]],
    effort: Effort,
) -> Explanation:
    """Explain what limits the bound `limit`, from its certificate, and compare `candidates`.

    `router` has the topology and its routes. `candidates` are schedules with their costs, of any
    strategies. The remaining `effort` is spent on the bounds with wider links. Nothing is advised
    by a bound whose search was cut short.
    """
    topology = router.topology
    parts: tuple[BottleneckPart, ...]
    if limit.kind.endswith("cut"):
        # A cut is the special case of prices that are 1 on the links that leave it.
        inside = set(limit.certificate["inside"])
        counted = keep_crossed(router) if limit.kind.startswith(SINGLE_PATH) else topology
        crossing = [link for link in counted.capacity_GBps if link[0] in inside]
        prices = {link: Fraction(1) for link in crossing if link[1] not in inside}
        sides = ([d.id for d in topology.devices if (d.id in inside) == s] for s in (True, False))
        parts = tuple(_make_part(side, topology) for side in sides)
        directed, between = False, set(prices)
    else:
        prices = _read_prices(limit, collective, topology)
        directed = any(prices.get((b, a)) != p for (a, b), p in prices.items())
        if limit.kind.startswith(SINGLE_PATH):
            # Only the hardware's routes lead between the parts.
            parts, between = _part_without_routes(set(prices), router), set(prices)
        else:
            parts, part_of = _part_without(set(prices), topology, directed=directed)
            priced = {link for link, p in prices.items() if p}
            # If other links lead around all priced ones, the priced links themselves are the
            # bottleneck.
            between = {(a, b) for a, b in priced if part_of[a] != part_of[b]} or priced
    across = sum((topology.capacity_GBps[link] for link in between), Fraction(0))
    if not limit.kind.endswith("cut") and not directed:
        across /= 2  # each link is priced in both directions
    return Explanation(
        limit.kind,
        parts,
        across,
        () if limit.is_cut_short else _find_levers(prices, collective, router, limit, effort),
        _best_algbw(candidates),
        directed,
        limit.is_cut_short,
    )


def _read_prices(limit: Bound, collective: Collective, topology: Topology) -> dict[_Link, Fraction]:
    """Return the price of each directed link.

    An allreduce's prices of kind "prices" hold for both directions.
    """
    if "joined" in limit.certificate:
        # Links of a device that is joined with a GPU have the prices of the GPU's links.
        gpu_of = dict(limit.certificate["joined"])
        alone = {key: value for key, value in limit.certificate.items() if key != "joined"}
        whole, machine = join_helpers(collective, topology, gpu_of)
        merged = _read_prices(replace(limit, certificate=alone), whole, machine)
        ends = {(a, b): (gpu_of.get(a, a), gpu_of.get(b, b)) for a, b in topology.capacity_GBps}
        return {link: merged[pair] for link, pair in ends.items() if pair in merged}
    both = (limit.kind, collective.name) == ("prices", "allreduce")
    prices: dict[_Link, Fraction] = defaultdict(Fraction)
    for a, b, price in limit.certificate["prices"]:
        for link in ((a, b), (b, a)) if both else ((a, b),):
            if link in topology.capacity_GBps:
                prices[link] += parse_fraction(price)
    return dict(prices)


def _make_part(members: Sequence[str], topology: Topology) -> BottleneckPart:
    return BottleneckPart(
        tuple(d for d in members if topology.by_id[d].kind == "gpu"),
        tuple(d for d in members if topology.by_id[d].kind != "gpu"),
    )


def _part_without(
    priced: set[_Link], topology: Topology, *, directed: bool
) -> tuple[tuple[BottleneckPart, ...], dict[str, int]]:
    """Return the connected groups of GPUs without the priced links, and the group of every device.

    Only groups that contain GPUs are returned. With `directed`, a group is strongly connected: the
    remaining links lead from each device of it to each other.
    """
    index = {device.id: i for i, device in enumerate(topology.devices)}
    free = [(index[a], index[b]) for a, b in topology.capacity_GBps if (a, b) not in priced]
    ends = np.array(free, dtype=np.int64).reshape(-1, 2).T
    graph = coo_matrix((np.ones(len(free)), tuple(ends)), shape=(len(index), len(index)))
    _, labels = connected_components(graph, directed=directed, connection="strong")
    part_of = dict(zip(index, labels.tolist(), strict=True))
    members = group_by_key((group, device) for device, group in part_of.items())
    parts = (_make_part(members[group], topology) for group in sorted(members))
    return tuple(part for part in parts if part.gpus), part_of


def _part_without_routes(priced: set[_Link], router: Router) -> tuple[BottleneckPart, ...]:
    """Return the groups of GPUs between which the hardware's routes cross no priced link."""
    gpus = router.topology.ranks
    joined: nx.utils.UnionFind[int] = nx.utils.UnionFind(range(len(gpus)))
    for u, v in permutations(range(len(gpus)), 2):
        route = router.route(u, v) if joined[u] != joined[v] else None
        if route is not None and priced.isdisjoint(route_links(route)):
            joined.union(u, v)
    return tuple(
        BottleneckPart(tuple(gpus[r] for r in sorted(group)), ()) for group in joined.to_sets()
    )


def _find_levers(
    prices: dict[_Link, Fraction],
    collective: Collective,
    router: Router,
    limit: Bound,
    effort: Effort,
) -> tuple[Lever, ...]:
    """Return the priced links, one of each class, by the rise of the bound if they were wider.

    algbw = sum(bandwidth * price) / needed, so each GB/s of a link raises algbw by algbw times the
    link's share of that sum.
    """
    capacity = router.topology.capacity_GBps
    paid = sum((capacity[link] * p for link, p in prices.items()), Fraction(0))
    price_of_pair: dict[_Link, Fraction] = defaultdict(Fraction)
    for (a, b), p in prices.items():
        price_of_pair[(a, b) if (b, a) not in price_of_pair else (b, a)] += p
    classes = group_by_key(
        ((limit.algbw_GBps * p / paid, capacity[pair]), pair)
        for pair, p in price_of_pair.items()
        if p
    )
    levers = []
    for number, ((gain, width), links) in enumerate(
        sorted(classes.items(), key=lambda item: -item[0][0])
    ):
        wider = together = None
        peers, alone = {frozenset(links[0])}, True
        if number < _TRIED_LINKS and not effort.is_over("wider links"):
            share = 1 / (_TRIED_LINKS - number)
            wider = _bound_with_wider(peers, collective, router, effort, share)
            alone = wider is None or wider > limit.algbw_GBps * (1 + _NOTHING)
            # If other links are as narrow, only all of them together raise the bound.
            if not alone and not effort.is_over("wider links"):
                peers = _find_peers(links[0], router.topology)
                if len(peers) > 1:
                    together = _bound_with_wider(peers, collective, router, effort, share)
        levers.append(Lever(*links[0], width, gain, len(links), wider, alone, len(peers), together))
    return tuple(levers)


def _bound_with_wider(
    pairs: set[frozenset[str]],
    collective: Collective,
    router: Router,
    effort: Effort,
    share_of_clock: float,
) -> Fraction | None:
    """Return the bound in GB/s with all links between some pairs of devices a tenth wider.

    It is None if the clock stopped the search: what was found until then may be far too high.
    """
    links = tuple(
        replace(x, bandwidth_GBps=x.bandwidth_GBps * _WIDER) if {x.src, x.dst} in pairs else x
        for x in router.topology.links
    )
    wider = find_bounds(
        collective,
        router.on(replace(router.topology, links=links)),
        effort.grant(_WIDER_WORK_S, share_of_clock),
    ).single_path
    return None if wider.is_cut_short else wider.algbw_GBps


def _find_peers(pair: _Link, topology: Topology) -> set[frozenset[str]]:
    """Return the pairs of devices whose links play the same role as those of `pair`."""
    colour = dict(zip((d.id for d in topology.devices), colours(topology).tolist(), strict=True))
    capacity = topology.capacity_GBps

    def name_role(a: str, b: str) -> tuple[object, ...]:
        """Return the properties that links of one role share."""
        return colour[a], colour[b], capacity.get((a, b)), capacity.get((b, a))

    # A link has two roles, one for each order of its ends.
    roles = {name_role(*pair), name_role(*reversed(pair))}
    return {frozenset(link) for link in capacity if name_role(*link) in roles}


def _best_algbw(candidates: Sequence[tuple[Schedule, Cost]]) -> dict[str, tuple[float, ...]]:
    """Return the best algbw in GB/s of each strategy's schedules at SIZES.

    The best is chosen as a plan's is, by the affine time.
    """
    of_strategy = group_by_key((schedule.strategy, cost) for schedule, cost in candidates)

    def reach_GBps(costs: Sequence[Cost], size: int) -> float:
        time_s = min(costs, key=lambda cost: affine_s(cost, size)).time_s(size)
        return size / time_s / 1e9 if time_s else 0.0

    return {
        strategy: tuple(reach_GBps(costs, size) for size in SIZES)
        for strategy, costs in of_strategy.items()
    }
