"""Make schedules over levels of groups, all in one bracketing, from the innermost groups outwards.

A bracketing is the order in which the ranks' values of an element are added. Ranks form a grid with
one dimension per level, the innermost first. At each level the ranks that differ only in its
dimension exchange their partial sums of each other's parts and add them up, from the lowest rank to
the highest. One level gives a direct exchange, and two ranks per level give recursive halving; with
one level inside hosts and one across them, each byte crosses the network no more often than it
must. The same bracketing serves whole vectors: at each level all ranks of a group exchange
everything they have (few steps), or send it to one of them (a tree).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from ....topo.errors import InfeasibleError
from ...ir.schedule import Schedule
from ...packing.survey import survey
from ...request import MAX_TRANSFERS, Request, Send, build_schedule, segment_counts
from ...strategies.placement import place

# Message size for which ranks are placed: 64 MiB, dominated by bandwidth rather than latency.
LARGE_BYTES = 1 << 26
# Above this, ranks are not placed, and the ranks of a box form a single level.
_PLACED_RANKS = 64
# Above this, levels that ignore the machine's boxes are not tried.
_FEW_RANKS = 16
NAME = "levels"


@dataclass(frozen=True)
class Levels:
    """Ranks arranged in a grid with one dimension per level of groups.

    `sizes` are the sizes of its dimensions, the innermost first; `order` lists the ranks, with the
    innermost dimension varying fastest.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]

    def strides(self) -> list[tuple[int, int]]:
        """Return the stride and the group size of each level.

        The stride is the distance in `order` between neighbours in a group.
        """
        return [(prod(self.sizes[:level]), size) for level, size in enumerate(self.sizes)]

    def peers(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (level, place, digit, peer) for each level and each pair of members of a group.

        `place` and `peer` are indices into `order`; `digit` is the coordinate of `peer` at the
        level.
        """
        for level, (stride, size) in enumerate(self.strides()):
            for p in range(len(self.order)):
                own = p // stride % size
                for digit in range(size):
                    if digit != own:
                        yield level, p, digit, p + (digit - own) * stride


def build_levels(request: Request) -> list[Schedule]:
    """Return schedules over the levels of groups that suit the machine.

    Levels without routes are left out, which `request.say` reports. The result is empty for
    collectives that do not add.
    """
    only_adding = request.collective.name in ("allreduce", "reduce-scatter", "reduce")
    out: list[Schedule] = []
    for levels in _list_levels(request) if only_adding else ():
        for draw in _DRAWN[request.collective.name]:
            try:
                out += draw(request, levels)
            except InfeasibleError as error:
                request.say(f"{NAME}: {error}")
    return out


def _list_levels(request: Request) -> list[Levels]:
    """Return the arrangements of ranks in levels to try.

    They are all ranks at once, or in fours or twos. If the machine has boxes, there are also the
    levels inside them followed by those across them.
    """
    n = request.collective.ranks
    boxes = survey(request.topology).boxes
    out: list[Levels] = []
    if boxes is not None and len({len(members) for members in boxes.ranks}) == 1:
        order = tuple(rank for members in boxes.ranks for rank in members)
        insides = list(_factor(boxes.rails)) if n <= _PLACED_RANKS else [(boxes.rails,)]
        out += [
            Levels(order, inside + across) for inside in insides for across in _factor(boxes.count)
        ]
        if n > _FEW_RANKS:
            return out
    out += [Levels(tuple(range(n)), sizes) for sizes in _factor(n)]
    pairs = next((sizes for sizes in _factor(n) if set(sizes) == {2}), None)
    if pairs is not None and n <= _PLACED_RANKS:
        out += _place_pairs(request, pairs)
    return list(dict.fromkeys(out))


def _factor(count: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to split `count` into levels: a single one, levels of four, levels of two."""
    yield (count,)
    for base in (4, 2):
        rest, levels = count, 0
        while rest % base == 0 and rest > base:
            rest, levels = rest // base, levels + 1
        if levels:
            yield (base,) * levels + (rest,)


def _place_pairs(request: Request, sizes: tuple[int, ...]) -> list[Levels]:
    """Return levels of two with the ranks placed for a large message.

    There are none if every order leaves some partners without a route.
    """
    orders: dict[Schedule, tuple[int, ...]] = {}

    def draw(order: Sequence[int]) -> Schedule:
        schedule = _scatter(request, Levels(tuple(order), sizes))[0]
        orders[schedule] = tuple(order)
        return schedule

    def pairs(order: Sequence[int]) -> set[tuple[int, int]]:
        return {
            (order[p], order[p ^ 1 << level])
            for p in range(len(order))
            for level in range(len(sizes))
        }

    with suppress(InfeasibleError):
        return [Levels(orders[place(request, draw, pairs, LARGE_BYTES)], sizes)]
    return []


def _scatter(request: Request, levels: Levels) -> list[Schedule]:
    """Return the schedules in which every rank completes one part of the sum.

    For allreduce all ranks then gather the parts; for reduce the root does. There is one schedule
    per number of segments.
    """
    n, name = request.collective.ranks, request.collective.name
    if 2 * n * n > MAX_TRANSFERS:
        raise InfeasibleError(f"{n} ranks take {2 * n * n} transfers, more than are planned for")
    order, strides, top = levels.order, levels.strides(), len(levels.sizes)
    sends: list[Send] = []
    # Chunk c is completed by the rank at place c: at each level it goes to the place whose
    # coordinate there is that of c.
    for level, p, digit, peer in levels.peers():
        stride, size = strides[level]
        sends += [
            (level, order[p], order[peer], order[c], "reduce")
            for c in range(p % stride + digit * stride, n, stride * size)
        ]
        if name == "allreduce":
            sends += [
                (2 * top - 1 - level, order[p], order[peer], order[c], "copy")
                for c in range(p % (stride * size), n, stride * size)
            ]
    if name == "reduce":
        root = request.collective.root or 0
        sends += [(top, rank, root, rank, "copy") for rank in range(n) if rank != root]
    chunks = request.collective.even_chunks(1 if name == "reduce-scatter" else n)
    schedule = build_schedule(request, NAME, chunks, sends)
    return [replace(schedule, segments=m) for m in segment_counts(n)]


def _exchange(request: Request, levels: Levels) -> list[Schedule]:
    """Return the allreduce in which, at each level, all ranks of a group exchange all they have."""
    n, order = request.collective.ranks, levels.order
    if n * sum(size - 1 for size in levels.sizes) > MAX_TRANSFERS:
        raise InfeasibleError(f"{n} ranks send each other more than is planned for")
    sends: list[Send] = [
        (level, order[p], order[peer], 0, "reduce") for level, p, _, peer in levels.peers()
    ]
    return [build_schedule(request, NAME, request.collective.even_chunks(1), sends)]


def _tree(request: Request, levels: Levels) -> list[Schedule]:
    """Return the schedules in which, at each level, one rank of a group adds up for the others.

    For allreduce the sum goes back the same way. There is one schedule per number of segments.
    """
    order, top, sends = levels.order, len(levels.sizes), list[Send]()
    root = order.index(request.collective.root or 0)
    for level, (stride, size) in enumerate(levels.strides()):
        for p in range(root % stride, len(order), stride):
            into = p + (root // stride % size - p // stride % size) * stride
            if p != into:
                sends.append((level, order[p], order[into], 0, "reduce"))
                if request.collective.name == "allreduce":
                    sends.append((2 * top - 1 - level, order[into], order[p], 0, "copy"))
    schedule = build_schedule(request, NAME, request.collective.even_chunks(1), sends)
    return [replace(schedule, segments=m) for m in segment_counts(1)]


_DRAWN = {
    "allreduce": (_scatter, _exchange, _tree),
    "reduce-scatter": (_scatter,),
    "reduce": (_tree, _scatter),
}
