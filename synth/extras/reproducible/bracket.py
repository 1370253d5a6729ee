"""Make bracketings to try on a machine: binary trees over its ranks in which near ranks add first.

A bracketing says in which order the ranks' values of an element are added, as ((0+1)+(2+3)). A part
of it is a rank or one of its nested pairs. Near ranks are joined by fast routes.
"""

import random
from itertools import combinations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ...machine.links import Floats
from ...machine.routes import OwnRoutes

# A rank, or a pair of bracketings that are added up.
Bracket = int | tuple["Bracket", "Bracket"]


def parse_bracket(text: str) -> Bracket:
    """Return a bracketing, written as bracketing.py writes it, as nested pairs of ranks."""
    done: list[Bracket] = []
    for token in text.replace("(", " ").replace("+", " ").replace(")", " ) ").split():
        if token == ")":
            right, left = done.pop(), done.pop()
            done.append((left, right))
        else:
            done.append(int(token))
    return done[0]


def list_leaves(bracket: Bracket) -> list[int]:
    """Return the ranks of a bracketing in the order in which they occur in it."""
    # Parts are listed from the right.
    return [part for part in reversed(_list_parts(bracket)) if isinstance(part, int)]


def measure_closeness(routes: OwnRoutes) -> Floats:
    """Return, for each pair of ranks, the inverse of the time of both routes between them.

    The time is the sum of the seconds per GB of all links on the two routes. Pairs without a route
    and the diagonal are 0.
    """
    distance = routes.distances(1 / routes.capacity)
    np.fill_diagonal(distance, np.inf)
    return np.asarray(1 / (distance + distance.T))


def match_brackets(close: Floats, seed: int) -> Bracket:
    """Return a bracketing built by matching near groups in rounds.

    `close` is the result of measure_closeness. Each round joins as many pairs of groups as
    possible, near ones first. Ties are broken by `seed`.
    """
    chance = random.Random(seed)
    groups: list[Bracket] = list(range(len(close)))
    while len(groups) > 1:
        graph: nx.Graph[int] = nx.Graph()
        members, order = [list_leaves(group) for group in groups], list(range(len(groups)))
        chance.shuffle(order)
        for i, j in combinations(order, 2):
            near = close[np.ix_(members[i], members[j])]
            # The nearest pair of members counts most; small groups are preferred so that none
            # is left behind for long.
            weight = (
                float(near.max()) * (1 + float((near > 0).mean()) / 8) * (1 + chance.random() / 64)
            )
            if weight > 0:
                graph.add_edge(i, j, weight=weight / (len(members[i]) + len(members[j])))
        pairs = nx.max_weight_matching(graph, maxcardinality=True)
        joined = {i for pair in pairs for i in pair}
        if not joined:  # connected only through other GPUs: any order will do
            groups = [(groups[0], groups[1]), *groups[2:]]
            continue
        groups = [
            *((groups[i], groups[j]) for i, j in sorted(map(sorted, pairs))),
            *[group for i, group in enumerate(groups) if i not in joined],
        ]
    return groups[0]


def grow_bracket(close: Floats, chance: random.Random) -> Bracket:
    """Return a bracketing built by repeatedly joining two random groups with a route between them.

    `close` is the result of measure_closeness.
    """
    groups: list[Bracket] = list(range(len(close)))
    linked = close > 0
    while len(groups) > 1:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        near = [(i, j) for i, j in pairs if _are_linked(groups[i], groups[j], linked)]
        i, j = chance.choice(near or pairs)
        groups = [
            (groups[j], groups[i]),
            *(group for k, group in enumerate(groups) if k not in (i, j)),
        ]
    return groups[0]


def vary_bracket(bracket: Bracket, close: Floats, chance: random.Random) -> Bracket:
    """Return the bracketing with one random part taken out and added to another part.

    The other one is random among those with a route to the moved part, if there is any. `close` is
    the result of measure_closeness. `chance` draws the part and its new place.
    """
    moved = chance.choice([part for part in _list_parts(bracket) if part is not bracket])
    rest = _without(bracket, moved)
    targets = _list_parts(rest)
    near = [part for part in targets if _are_linked(part, moved, close > 0)]
    return _join_at(rest, chance.choice(near or targets), moved)


def _are_linked(a: Bracket, b: Bracket, linked: NDArray[np.bool_]) -> bool:
    return bool(linked[np.ix_(list_leaves(a), list_leaves(b))].any())


def _list_parts(bracket: Bracket) -> list[Bracket]:
    out, rest = [], [bracket]
    while rest:
        item = rest.pop()
        out.append(item)
        if not isinstance(item, int):
            rest += item
    return out


def _without(bracket: Bracket, part: Bracket) -> Bracket:
    """Return the bracketing without one of its parts.

    Equal parts are the same part, because every rank occurs once.
    """
    if isinstance(bracket, int):
        return bracket
    first, second = bracket
    if first == part:
        return second
    if second == part:
        return first
    return _without(first, part), _without(second, part)


def _join_at(bracket: Bracket, target: Bracket, part: Bracket) -> Bracket:
    """Return the bracketing with `part` added to its part `target`."""
    if bracket == target:
        return bracket, part
    if isinstance(bracket, int):
        return bracket
    return _join_at(bracket[0], target, part), _join_at(bracket[1], target, part)
