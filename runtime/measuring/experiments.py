"""Choose which pairs of ranks send at the same time: disjoint pairs, or pairs that share a link.

One rank computes this from the topology before anything is sent; nothing here communicates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from ...topo.graph import Topology
from ...topo.measured.flows import Pair
from ...topo.routes import Route, Router, route_links

# Contention groups, each run several times: more would exceed the time budget on meshes.
_MAX_GROUPS = 256


def find_routes(topology: Topology) -> dict[Pair, Route]:
    """Return the route of every ordered pair of ranks that the hardware connects.

    Pairs that are connected only through other GPUs are left out.
    """
    router = Router(topology)
    return {
        pair: route
        for pair in permutations(range(len(topology.ranks)), 2)
        if (route := router.route(*pair)) is not None
    }


def group_disjoint(
    pairs: Iterable[Pair], topology: Topology, routes: Mapping[Pair, Route]
) -> list[list[Pair]]:
    """Divide pairs into groups that can be measured at once, each pair as if alone.

    No two pairs of a group share a rank, a CPU, or a cable in either direction of their routes
    there and back (answers go back), as far as the topology knows. Greedy, pairs with long routes
    first.
    """

    def resources(pair: Pair) -> set[object]:
        both_routes = [routes[p] for p in (pair, pair[::-1]) if p in routes]
        return {
            *pair,
            *(frozenset(hop) for route in both_routes for hop in route_links(route)),
            *(x for route in both_routes for x in route if topology.by_id[x].kind == "cpu"),
        }

    groups: list[tuple[list[Pair], set[object]]] = []
    for pair in sorted(
        pairs, key=lambda p: (-len(routes.get(p, ())), (p[1] - p[0]) % len(topology.ranks), p)
    ):
        needed = resources(pair)
        for group, used in groups:
            if not needed & used:
                group.append(pair)
                used |= needed
                break
        else:
            groups.append(([pair], needed))
    return [group for group, _ in groups]


def group_contending(routes: Mapping[Pair, Route]) -> list[tuple[Pair, ...]]:
    """Return, for each shared link, a largest set of its pairs that can send at once.

    Each rank sends to at most one and receives from at most one (a maximum matching). Groups are
    distinct; the 256 largest are returned.
    """
    crossing: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair, route in sorted(routes.items()):
        for hop in route_links(route):
            crossing[hop].append(pair)
    groups = {group for pairs in crossing.values() if len(group := _match(pairs)) > 1}
    return sorted(groups, key=lambda group: (-len(group), group))[:_MAX_GROUPS]


def _match(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return a maximum matching of senders and receivers (augmenting paths).

    Each sender starts at a different receiver: spread out, the pairs share fewer other links.
    """
    receivers: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        receivers[a].append(b)
    for number, (a, every) in enumerate(receivers.items()):
        at = number * len(every) // len(receivers)
        receivers[a] = every[at:] + every[:at]
    sender_to: dict[int, int] = {}

    def assign(a: int, tried: set[int]) -> bool:
        for b in receivers[a]:
            if b not in tried:
                tried.add(b)
                if b not in sender_to or assign(sender_to[b], tried):
                    sender_to[b] = a
                    return True
        return False

    for a in receivers:
        assign(a, set())
    return tuple(sorted((a, b) for b, a in sender_to.items()))


def list_shifts(ranks: int) -> list[tuple[Pair, ...]]:
    """Return groups in which every rank r sends to rank r + k, for machines without known links."""
    if ranks <= 2:  # two ranks have no contention beyond both directions, measured anyway
        return []
    return [tuple((r, (r + k) % ranks) for r in range(ranks)) for k in range(1, ranks)]
