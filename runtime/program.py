"""A schedule lowered to one rank's program: which ranges it sends, receives and adds, tick by tick.

All chunks that a rank holds lie in its work buffer. For allreduce, broadcast and reduce that is the tensor itself; for
allgather, gather, reduce-scatter and scatter it has a block for every rank; for alltoall it holds just the chunks that
the rank ever has, relayed ones too. Element boundaries are floor(exact share * elements), the same on every rank, so
any length works: a piece without elements is skipped on both sides.

A tick is a step of one or more segments. Everything sent in a tick is what was held when it began: what arrives to be
added, or would overwrite something being sent, lands in a staging buffer first. Sums are taken from the lowest source
rank to the highest, the rank's own value in its place (see synth/order.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..synth.schedule import Schedule, Transfer

Range = tuple[int, int]


@dataclass(frozen=True)
class Message:
    """Elements [lo, hi) of the work buffer to or from rank `peer`; received into the staging buffer at `staged` if set."""

    peer: int
    lo: int
    hi: int
    staged: int | None = None


@dataclass(frozen=True)
class Combine:
    """work[lo:hi] becomes the sum of `terms` in order: staging offsets, None for what work held."""

    lo: int
    hi: int
    terms: tuple[int | None, ...]


@dataclass(frozen=True)
class Move:
    """Elements [lo, hi) of one buffer go to `to` in another."""

    lo: int
    hi: int
    to: int


@dataclass(frozen=True)
class Tick:
    """Post `receives` and `sends`, await all, then add up (`combines`) and take over (`places`, staging to work)."""

    number: int
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    combines: tuple[Combine, ...]
    places: tuple[Move, ...]


@dataclass(frozen=True)
class Program:
    """What one rank does. `fills` go from the input to the work buffer before, `drains` from work to output after."""

    rank: int
    work_numel: int
    staging_numel: int
    fills: tuple[Move, ...]
    drains: tuple[Move, ...]
    ticks: tuple[Tick, ...]


class _Layout:
    """Where chunks lie: in elements, in the work buffer of each rank."""

    def __init__(self, schedule: Schedule, numel: int) -> None:
        self.schedule, self.numel = schedule, numel
        self.collective = schedule.collective
        self.in_block = [
            (int(offset * numel), int((offset + chunk.share) * numel))
            for offset, chunk in zip(schedule.offsets(), schedule.chunks, strict=True)
        ]
        self.block = numel // self.collective.ranks
        self.compact: dict[int, dict[int, int]] = {}
        self.compact_numel: dict[int, int] = {}

    def work_numel(self, rank: int) -> int:
        if self.collective.name != "alltoall":
            return self.numel
        self._start_of(rank, -1)
        return self.compact_numel[rank]

    def chunk(self, rank: int, c: int) -> Range:
        """Elements of chunk `c` in the work buffer of `rank`."""
        lo, hi = self.in_block[c]
        start = self._start_of(rank, c)
        return start + lo, start + hi

    def _start_of(self, rank: int, c: int) -> int:
        if self.collective.name != "alltoall":
            chunk = self.schedule.chunks[c]
            owner = chunk.source if chunk.source is not None else chunk.target
            return 0 if owner is None else owner * self.block
        if rank not in self.compact:
            self._lay_out(rank)
        return self.compact[rank].get(c, 0)

    def _lay_out(self, rank: int) -> None:
        """Alltoall: the chunks that a rank ever holds, one after the other."""
        touched = {c for c, chunk in enumerate(self.schedule.chunks) if rank in (chunk.source, chunk.target)}
        t = self.schedule.transfers
        touched |= set(t.chunk[(t.src == rank) | (t.dst == rank)].tolist())
        starts, at = {}, 0
        for c in sorted(touched):
            lo, hi = self.in_block[c]
            starts[c] = at - lo
            at += hi - lo
        self.compact[rank], self.compact_numel[rank] = starts, at

    def segment(self, rank: int, c: int, part: int) -> Range:
        """Elements of part `part` of chunk `c`, cut in the schedule's number of segments."""
        lo, hi = self.chunk(rank, c)
        m = self.schedule.segments
        return lo + (hi - lo) * part // m, lo + (hi - lo) * (part + 1) // m


def lower(schedule: Schedule, rank: int, numel: int) -> Program:
    """The program of `rank` for a buffer of `numel` elements (see synth/collective.py for which buffer).

    Where each rank has a part of its own, `numel` must be a multiple of the number of ranks.
    """
    layout = _Layout(schedule, numel)
    numbers = range(schedule.steps + schedule.segments - 1)
    mine = _steps_of(schedule, rank)
    ticks = [tick for tick in (_tick(layout, rank, mine, number) for number in numbers) if tick]
    staging = max((m.staged + m.hi - m.lo for t in ticks for m in t.receives if m.staged is not None), default=0)
    return Program(
        rank=rank,
        work_numel=layout.work_numel(rank),
        staging_numel=staging,
        fills=tuple(_fills(layout, rank)),
        drains=tuple(_drains(layout, rank)),
        ticks=tuple(ticks),
    )


def _steps_of(schedule: Schedule, rank: int) -> list[list[Transfer]]:
    """A rank's transfers, by step."""
    rows: list[list[Transfer]] = [[] for _ in range(schedule.steps)]
    t = schedule.transfers
    for transfer in t.taken((t.src == rank) | (t.dst == rank)):
        rows[transfer.step].append(transfer)
    return rows


def _active(mine: list[list[Transfer]], segments: int, number: int) -> Iterator[tuple[Transfer, int]]:
    """Transfers of a tick with the segment that each carries: segment j does step s at tick s + j."""
    for step in range(max(0, number - segments + 1), min(len(mine), number + 1)):
        for transfer in mine[step]:
            yield transfer, number - step


def _tick(layout: _Layout, rank: int, mine: list[list[Transfer]], number: int) -> Tick | None:
    sending: dict[int, list[Range]] = defaultdict(list)
    arriving: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for t, part in _active(mine, layout.schedule.segments, number):
        lo, hi = layout.segment(rank, t.chunk, part)
        if lo == hi:
            continue
        # Sender and receiver cut messages alike: the key and the order of pieces come from the schedule alone.
        if t.src == rank:
            sending[t.dst, t.op].append((lo, hi))  # type: ignore[index]
        else:
            arriving[t.src, t.op].append((lo, hi))
    merge = layout.collective.name != "alltoall"
    sends = [Message(key[0], lo, hi) for key, ranges in sending.items() for lo, hi in _joined(ranges, merge)]  # type: ignore[index]
    receives: list[Message] = []
    places: list[Move] = []
    adds: list[Message] = []
    staged = 0
    for (peer, op), ranges in arriving.items():
        for lo, hi in _joined(ranges, merge):
            direct = op == "copy" and not any(lo < s.hi and s.lo < hi for s in sends)
            message = Message(peer, lo, hi, None if direct else staged)
            receives.append(message)
            if not direct:
                staged += hi - lo
                if op == "copy":
                    places.append(Move(staged - (hi - lo), staged, lo))
                else:
                    adds.append(message)
    if not sends and not receives:
        return None
    return Tick(number, tuple(sends), tuple(receives), tuple(_combines(rank, adds)), tuple(places))


def _joined(ranges: list[Range], merge: bool) -> list[Range]:
    """Ranges one after the other in the buffer become one message."""
    out: list[Range] = []
    for lo, hi in ranges:
        if merge and out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        else:
            out.append((lo, hi))
    return out


def _combines(rank: int, adds: list[Message]) -> Iterable[Combine]:
    """Sums over the pieces between all boundaries of the messages to be added."""
    edges = sorted({edge for m in adds for edge in (m.lo, m.hi)})
    for lo, hi in pairwise(edges):
        over = sorted((m for m in adds if m.lo <= lo and hi <= m.hi), key=lambda m: m.peer)
        if over:
            terms: list[tuple[int, int | None]] = [(m.peer, (m.staged or 0) + lo - m.lo) for m in over]
            yield Combine(lo, hi, tuple(term for _, term in sorted([*terms, (rank, None)], key=lambda x: x[0])))


def _fills(layout: _Layout, rank: int) -> Iterator[Move]:
    """What a rank brings, from its input."""
    name, block, root = layout.collective.name, layout.block, layout.collective.root
    if name in ("allgather", "gather"):
        yield Move(0, block, rank * block)
    elif name == "reduce-scatter" or (name == "scatter" and rank == root):
        yield Move(0, layout.numel, 0)
    elif name == "alltoall":
        for c, chunk in enumerate(layout.schedule.chunks):
            if chunk.source == rank and chunk.target is not None:
                lo, hi = layout.in_block[c]
                yield Move(chunk.target * block + lo, chunk.target * block + hi, layout.chunk(rank, c)[0])


def _drains(layout: _Layout, rank: int) -> Iterator[Move]:
    """What a rank gets, to its output."""
    name, block, root = layout.collective.name, layout.block, layout.collective.root
    if name == "allgather" or (name == "gather" and rank == root):
        yield Move(0, layout.numel, 0)
    elif name in ("reduce-scatter", "scatter"):
        yield Move(rank * block, (rank + 1) * block, 0)
    elif name == "alltoall":
        for c, chunk in enumerate(layout.schedule.chunks):
            if chunk.target == rank and chunk.source is not None:
                lo, hi = layout.chunk(rank, c)
                yield Move(lo, hi, chunk.source * block + layout.in_block[c][0])
