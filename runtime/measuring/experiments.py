"""Who sends to whom and when, so that a measurement is of what it says: alone, both ways, or together.

Pure: worked out on one rank from the topology, before anything is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ...topo.graph import Topology
from ...topo.measured.flows import Pair
from ...topo.routes import Route, Router, route_links

_MOST_GROUPS = 256


def routed(topology: Topology) -> dict[Pair, Route]:
    """The route of every ordered pair of ranks that has one of its own; where only GPUs could forward there is none."""
    router = Router(topology)
    ranks = range(len(topology.ranks))
    found = {(a, b): router.route(a, b) for a in ranks for b in ranks if a != b}
    return {pair: route for pair, route in found.items() if route is not None}


def apart(pairs: Iterable[Pair], topology: Topology, routes: Mapping[Pair, Route]) -> list[list[Pair]]:
    """Rounds of pairs that can be measured at the same time, each as if alone: in a round no two share a rank, a cable
    (either direction, of their routes there and back: answers go back) or a CPU, as far as the topology knows.

    Greedy, pairs with long routes first.
    """

    def taken(pair: Pair) -> set[object]:
        ways = [routes[p] for p in (pair, pair[::-1]) if p in routes]
        cables: set[object] = {frozenset(hop) for way in ways for hop in route_links(way)}
        cpus = {x for way in ways for x in way if topology.by_id[x].kind == "cpu"}
        return cables | cpus | set(pair)

    rounds: list[tuple[list[Pair], set[object]]] = []
    for pair in sorted(pairs, key=lambda p: (-len(routes.get(p, ())), (p[1] - p[0]) % len(topology.ranks), p)):
        wants = taken(pair)
        for chosen, used in rounds:
            if not wants & used:
                chosen.append(pair)
                used |= wants
                break
        else:
            rounds.append(([pair], wants))
    return [chosen for chosen, _ in rounds]


def contending(routes: Mapping[Pair, Route]) -> list[tuple[Pair, ...]]:
    """For each link that routes of several pairs share: as many of these pairs as can send at the same time, each rank
    sending to at most one and receiving from at most one (a maximum matching). Each group once, at most 256.
    """
    crossing: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair, route in sorted(routes.items()):
        for hop in route_links(route):
            crossing[hop].append(pair)
    groups: dict[tuple[Pair, ...], None] = {}
    for pairs in crossing.values():
        group = _matching(pairs)
        if len(group) > 1:
            groups.setdefault(group, None)
    return sorted(groups, key=lambda group: (-len(group), group))[:_MOST_GROUPS]


def _matching(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """A maximum matching of senders and receivers (augmenting paths). Senders look for receivers each from another place on:
    spread out, they meet less on other links than the one that they share.
    """
    receivers: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        receivers[a].append(b)
    for number, (a, every) in enumerate(receivers.items()):
        at = number * len(every) // len(receivers)
        receivers[a] = every[at:] + every[:at]
    sender_to: dict[int, int] = {}

    def place(a: int, tried: set[int]) -> bool:
        for b in receivers[a]:
            if b not in tried:
                tried.add(b)
                if b not in sender_to or place(sender_to[b], tried):
                    sender_to[b] = a
                    return True
        return False

    for a in receivers:
        place(a, set())
    return tuple(sorted((a, b) for b, a in sender_to.items()))


def shifts(ranks: int) -> list[tuple[Pair, ...]]:
    """Every rank sends to the one so many places on, for each number of places: what there is to measure together where
    nothing is known of links.
    """
    return [tuple((r, (r + k) % ranks) for r in range(ranks)) for k in range(1, ranks)] if ranks > 2 else []
