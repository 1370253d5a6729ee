"""Put together what the ranks of a communicator say in a log, and leave out what is not whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ..found import Communicator, Order, Parents, Pattern, Place


@dataclass
class Draft:
    """What a thread says while it makes one communicator."""

    ranks: int | None = None
    nodes: int | None = None
    id: str | None = None
    places: dict[int, Place] = field(default_factory=dict)
    rings: dict[int, Order] = field(default_factory=dict)
    promised: int | None = None
    hops: dict[int, dict[int, int]] = field(default_factory=dict)
    """The next rank of each in each ring."""
    parents: dict[int, dict[int, int]] = field(default_factory=dict)
    connections: dict[int, dict[int, int]] = field(default_factory=dict)
    """The next rank of each in each ring, from its connections."""
    transports: Counter[str] = field(default_factory=Counter)
    patterns: dict[int, Pattern] = field(default_factory=dict)
    complete: bool = False
    started: bool = False
    rings_connected: bool = False
    cut_lines: bool = False
    nvls: bool = False


def finish(drafts: list[Draft], notes: list[str]) -> Communicator:
    """Return the communicator that drafts of its ranks describe; what is not whole is noted and
    left out.
    """
    ranks = max((d.ranks or 0 for d in drafts), default=0)
    rings: dict[int, Order] = {}
    hops: dict[int, dict[int, int]] = {}
    connections: dict[int, dict[int, int]] = {}
    parents: dict[int, dict[int, int]] = {}
    patterns: dict[int, Pattern] = {}
    places: dict[int, Place] = {}
    transports: Counter[str] = Counter()
    for draft in drafts:
        rings |= {c: order for c, order in draft.rings.items() if c not in rings}
        for source, target in (
            (draft.hops, hops),
            (draft.connections, connections),
            (draft.parents, parents),
        ):
            for channel, of_rank in source.items():
                target.setdefault(channel, {}).update(of_rank)
        patterns |= {n: p for n, p in draft.patterns.items() if n not in patterns}
        for rank, place in draft.places.items():
            places[rank] = _join_places(places.get(rank), place)
        transports.update(draft.transports)
    if not ranks:
        seen = [
            rank
            for of_channel in (hops, parents, connections)
            for c in of_channel.values()
            for rank in c
        ]
        ranks = max([*seen, *places], default=-1) + 1
    whole = {c: order for c, order in rings.items() if _is_order(order, ranks)}
    for source in (hops, {} if whole else connections):
        for channel, after in source.items():
            ring = _follow(after, ranks)
            if channel not in whole and ring is not None:
                whole[channel] = ring
    trees = {
        c: tree
        for c, of_rank in parents.items()
        if (tree := _make_tree(of_rank, ranks)) is not None
    }
    promised = max((d.promised or 0 for d in drafts), default=0) or None
    if any(d.cut_lines for d in drafts) and not whole:
        notes.append(
            f"NCCL itself cuts its lines of rings of {ranks} ranks; with NCCL_DEBUG_SUBSYS=GRAPH "
            "it prints 'Ring' lines"
        )
    for what, listed, all_listed in (
        ("rings", whole, {**rings, **hops}),
        ("trees", trees, parents),
    ):
        if len(listed) < max(len(all_listed), (promised or 0) if what == "rings" and listed else 0):
            total = max(len(all_listed), promised or 0)
            notes.append(
                f"{what} of {ranks} ranks: {len(listed)} of {total} channels are whole in the "
                "log; these are judged"
                if listed
                else f"{what} of {ranks} ranks: none of {total} is whole in the log, as not all "
                "ranks' lines are there"
            )
    return Communicator(
        ranks=ranks,
        nodes=next((d.nodes for d in drafts if d.nodes), None) or _count_hosts(places, ranks),
        places=dict(sorted(places.items())),
        rings=tuple(whole[c] for c in sorted(whole)),
        trees=tuple(trees[c] for c in sorted(trees)),
        promised=promised,
        patterns=tuple(patterns[n] for n in sorted(patterns)),
        transports=dict(transports),
        uses_nvls=any(d.nvls for d in drafts),
    )


def _count_hosts(places: dict[int, Place], ranks: int) -> int | None:
    """Return how many hosts the ranks are on, where all of them are known."""
    hosts = {place.host for place in places.values()}
    return len(hosts) if len(places) == ranks and None not in hosts else None


def _join_places(known: Place | None, also: Place) -> Place:
    """Return what two lines say of a rank's place; NVML's number counts more than CUDA's."""
    if known is None:
        return also
    better = (
        also
        if also.dev is not None and (known.dev is None or (also.physical and not known.physical))
        else known
    )
    return replace(better, host=known.host or also.host, bus=known.bus or also.bus)


def _is_order(order: Order, ranks: int) -> bool:
    return len(order) == ranks and set(order) == set(range(ranks))


def _follow(after: dict[int, int], ranks: int) -> Order | None:
    """Return the ring in which each rank is followed by the one given, from rank 0; None where it
    is not whole.
    """
    order = [0]
    while len(order) < ranks and after.get(order[-1]) is not None:
        order.append(after[order[-1]])
    return (
        tuple(order)
        if ranks > 1 and _is_order(tuple(order), ranks) and after.get(order[-1]) == 0
        else None
    )


def _make_tree(parent_of: dict[int, int], ranks: int) -> Parents | None:
    """Return the tree in which every rank has the parent given, None where it is not whole."""
    if ranks < 2 or set(parent_of) != set(range(ranks)):
        return None
    parents = tuple(parent_of[rank] for rank in range(ranks))
    if sum(p == -1 for p in parents) != 1 or any(not -1 <= p < ranks for p in parents):
        return None
    children: list[list[int]] = [[] for _ in range(ranks)]
    for rank, parent in enumerate(parents):
        if parent != -1:
            children[parent].append(rank)
    reached = [parents.index(-1)]
    for rank in reached:
        reached.extend(children[rank])
    if len(reached) < ranks:
        return None
    return parents


def count_alike(communicators: list[Communicator]) -> list[Communicator]:
    """Return each communicator once, with how many there are of the same ranks, places and
    channels.
    """
    seen: dict[object, int] = {}
    kept: list[Communicator] = []
    for c in communicators:
        key = (
            c.ranks,
            c.rings,
            c.trees,
            tuple((r, p.host, p.dev, p.bus) for r, p in c.places.items()),
        )
        if key in seen:
            kept[seen[key]] = replace(kept[seen[key]], alike=kept[seen[key]].alike + 1)
        else:
            seen[key] = len(kept)
            kept.append(c)
    return kept
