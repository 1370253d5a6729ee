"""The places of chunks: element ranges in each rank's work buffer, and copies in and out of it.

A schedule moves chunks, which are parts of the collective's buffer; members are the ranks that make
the call, helpers others that pass on chunks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...synth.ir.collective import Collective
from ...synth.ir.demands import Demands
from ...synth.ir.schedule import Schedule

Range = tuple[int, int]
# Collectives whose input and output are one tensor.
IN_PLACE = ("allreduce", "broadcast", "reduce")
# Collectives that a rank ends only when all ranks have begun them; in others some may end first.
MEETING = ("allreduce", "allgather", "reduce-scatter", "alltoall")


def ends_numel(collective: Collective, rank: int, numel: int) -> tuple[int, int]:
    """Return the number of elements of the input and of the output that `rank` has.

    The collective's buffer has `numel` elements: the whole tensor, or the concatenation of all
    ranks' parts. 0 for an input or output that the rank does not have; helpers have neither. For
    demands (pieces that ranks hold and need), the input is the pieces that the rank holds, the
    output those that it needs, each in the order of their numbers.
    """
    if rank not in collective.members:
        return 0, 0
    if isinstance(collective, Demands):
        held, needed = collective.list_held(rank), collective.list_needed(rank)
        return _place(collective, held, numel)[1], _place(collective, needed, numel)[1]
    part, name = numel // collective.ranks, collective.name
    at_root = numel if rank == collective.root else 0
    return (
        {"allgather": part, "gather": part, "scatter": at_root}.get(name, numel),
        {"reduce-scatter": part, "scatter": part, "gather": at_root}.get(name, numel),
    )


def _place(demands: Demands, numbers: Iterable[int], numel: int) -> tuple[dict[int, int], int]:
    """Return where pieces begin that follow each other, and the number of their elements.

    All pieces of the demands together have `numel` elements.
    """
    starts, size = dict[int, int](), 0
    for number in numbers:
        starts[number] = size * numel // demands.size
        size += demands.pieces[number].size
    return starts, size * numel // demands.size


def ends_with_result(collective: Collective, rank: int) -> bool:
    """Return whether `rank` ends with a result: only the root, or if there is none, all members."""
    return rank in collective.members and collective.root in (None, rank)


@dataclass(frozen=True)
class Move:
    """A copy of elements [lo, hi) of one buffer to another, from element `to` on."""

    lo: int
    hi: int
    to: int


class Layout:
    """The places of a schedule's chunks in each rank's work buffer, in elements.

    `numel` is the number of elements of the collective's buffer. Chunks are given by their numbers.
    A chunk is in a block: the whole buffer, or where each member has a part of its own, that part
    (for alltoall, a pair's part; for demands, one piece). `in_block` has each chunk's range of
    elements in its block, `block` is the number of elements of a member's or pair's part. The i-th
    part of a buffer is the i-th member's.
    """

    def __init__(self, schedule: Schedule, numel: int) -> None:
        self.schedule, self.numel = schedule, numel
        self.collective = schedule.collective
        self.in_block = [
            (int(offset * numel), int((offset + chunk.share) * numel))
            for offset, chunk in zip(schedule.offsets(), schedule.chunks, strict=True)
        ]
        self.block = numel // self.collective.ranks
        self._demands = self.collective if isinstance(self.collective, Demands) else None
        self._places = {rank: place for place, rank in enumerate(self.collective.members)}
        self._compact: dict[int, tuple[dict[int, int], int]] = {}

    def work_numel(self, rank: int) -> int:
        """Return the number of elements in the work buffer of `rank`."""
        return self._lay_out(rank)[1] if self._is_compact(rank) else self.numel

    def chunk(self, rank: int, c: int) -> Range:
        """Return the range [lo, hi), in elements, of chunk `c` in the work buffer of `rank`."""
        if self._is_compact(rank):
            start = self._lay_out(rank)[0].get(c, 0)
        else:
            chunk = self.schedule.chunks[c]
            owner = chunk.source if chunk.source is not None else chunk.target
            start = 0 if owner is None else self._places[owner] * self.block
        lo, hi = self.in_block[c]
        return start + lo, start + hi

    def _is_compact(self, rank: int) -> bool:
        """Return whether the work buffer has only chunks that the rank ever holds."""
        return (
            self.collective.name == "alltoall"
            or self._demands is not None
            or rank not in self._places
        )

    def _lay_out(self, rank: int) -> tuple[dict[int, int], int]:
        """Lay out the chunks that a rank ever holds, one after the other.

        Return the start of each chunk's block, and the number of elements of all of them. Of
        demands, chunks that a rank holds and does not send are left out.
        """
        if rank not in self._compact:
            chunks, t = self.schedule.chunks, self.schedule.transfers
            held = {c for c, chunk in enumerate(chunks) if rank in (chunk.source, chunk.target)}
            held |= set(t.chunk[(t.src == rank) | (t.dst == rank)].tolist())
            starts, at = {}, 0
            for c in sorted(held):
                lo, hi = self.in_block[c]
                starts[c] = at - lo
                at += hi - lo
            self._compact[rank] = starts, at
        return self._compact[rank]

    def segment(self, rank: int, c: int, part: int) -> Range:
        """Return the range [lo, hi) of a chunk's segment `part` in the work buffer of `rank`.

        Segments are the equal parts of a chunk that the schedule sends one after the other, counted
        from 0; the range is in elements.
        """
        lo, hi = self.chunk(rank, c)
        m = self.schedule.segments
        return lo + (hi - lo) * part // m, lo + (hi - lo) * (part + 1) // m

    def fills(self, rank: int) -> Iterator[Move]:
        """Yield the copies from a rank's input to its work buffer.

        There are none for collectives that work in place, and for helpers.
        """
        name, block, root = self.collective.name, self.block, self.collective.root
        if rank not in self._places:
            return
        if self._demands is not None:
            yield from self._fill_pieces(self._demands, rank)
        elif name in ("allgather", "gather"):
            yield Move(0, block, self._places[rank] * block)
        elif name == "reduce-scatter" or (name == "scatter" and rank == root):
            yield Move(0, self.numel, 0)
        elif name == "alltoall":
            for c, chunk in enumerate(self.schedule.chunks):
                if chunk.source == rank and chunk.target is not None:
                    lo, hi = self.in_block[c]
                    start = self._places[chunk.target] * block
                    yield Move(start + lo, start + hi, self.chunk(rank, c)[0])

    def drains(self, rank: int) -> Iterator[Move]:
        """Yield the copies from a rank's work buffer to its output.

        There are none for collectives that work in place, and for helpers. Pieces that a rank both
        holds and needs stay in its input.
        """
        name, block, root = self.collective.name, self.block, self.collective.root
        if rank not in self._places:
            return
        if self._demands is not None:
            yield from self._drain_pieces(self._demands, rank)
        elif name == "allgather" or (name == "gather" and rank == root):
            yield Move(0, self.numel, 0)
        elif name in ("reduce-scatter", "scatter"):
            place = self._places[rank]
            yield Move(place * block, (place + 1) * block, 0)
        elif name == "alltoall":
            for c, chunk in enumerate(self.schedule.chunks):
                if chunk.target == rank and chunk.source is not None:
                    lo, hi = self.chunk(rank, c)
                    yield Move(lo, hi, self._places[chunk.source] * block + self.in_block[c][0])

    def _fill_pieces(self, demands: Demands, rank: int) -> Iterator[Move]:
        starts, _ = _place(demands, demands.list_held(rank), self.numel)
        for c in self._lay_out(rank)[0]:
            piece = self.schedule.chunks[c].piece
            if piece in starts:
                lo, hi = self.in_block[c]
                yield Move(starts[piece] + lo, starts[piece] + hi, self.chunk(rank, c)[0])

    def _drain_pieces(self, demands: Demands, rank: int) -> Iterator[Move]:
        starts, _ = _place(demands, demands.list_needed(rank), self.numel)
        for c in self._lay_out(rank)[0]:
            piece = self.schedule.chunks[c].piece
            if piece in starts and rank not in demands.pieces[piece].holders:
                yield Move(*self.chunk(rank, c), starts[piece] + self.in_block[c][0])
