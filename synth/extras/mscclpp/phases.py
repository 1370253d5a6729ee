"""List what each rank does with each piece: phases, whose operations stay in one thread block.

A piece is a part of a chunk of the schedule, in whole units: the equal parts into which the
executor divides every buffer (pieces.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...ir.blocks import find_blocks
from ...ir.schedule import Schedule
from .limits import MAX_PEERS
from .pieces import ChunkPart, Grid

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
MEMORY, PORT = "memory", "port"
# Kinds of phases, in their order in a step: what is sent is what was there before the step.
LOCAL, SEND, RECEIVE = range(3)
# A buffer of a rank, and a place in it, in units.
BufferOffset = tuple[str, int]
# The type of the channels between two ranks, the lower first.
ChannelTypes = Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class BlockPhase:
    """Operations of a rank on one piece in one step of the schedule.

    A phase of `kind` SEND sends `source` to the ranks `peers`, where it lands at `places` (in
    units) of their scratch buffers. One of kind RECEIVE waits for `peers`, whose data lands at
    `places` of the rank's own, adds `terms` up into `target` if there are any, and makes `copies`
    (from, to). One of kind LOCAL, in step -1, only makes `copies`. `channel` is the type of its
    channels, MEMORY or PORT.
    """

    piece: ChunkPart
    step: int
    kind: int
    channel: str = MEMORY
    peers: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    source: BufferOffset | None = None
    target: BufferOffset | None = None
    terms: tuple[BufferOffset, ...] = ()
    copies: tuple[tuple[BufferOffset, BufferOffset], ...] = ()

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key of phases of different pieces in a block: step, kind, piece.

        Whatever a phase waits for comes before it in this order, so blocks cannot block each other.
        """
        return self.step, self.kind, self.piece.number


# For each rank and each piece, its phases in order.
Programs = Sequence[Sequence[Sequence[BlockPhase]]]


class PhaseLister:
    """Lists the phases of all ranks and pieces; `scratch` counts each rank's scratch units.

    Every message has a place of its own in the scratch buffer of its receiver. `grid` has the
    pieces; `channel_types` says how each two ranks are connected.
    """

    def __init__(self, schedule: Schedule, grid: Grid, channel_types: ChannelTypes) -> None:
        self._collective, self._grid = schedule.collective, grid
        self._channel_types = channel_types
        self.scratch: Counter[int] = Counter()
        # Where each message lands: by piece, step, source and destination.
        self._landing: dict[tuple[int, int, int, int], int] = {}
        for piece in grid.pieces:
            for step, moves in piece.steps:
                for src, dst, _ in moves:
                    self._landing[piece.number, step, src, dst] = self.scratch[dst]
                    self.scratch[dst] += piece.units

    def list_programs(self) -> Programs:
        """Return the phases in order, indexed by rank and piece."""
        ranks = range(self._collective.ranks)
        return [[list(self._list(piece, rank)) for piece in self._grid.pieces] for rank in ranks]

    def _list(self, piece: ChunkPart, rank: int) -> Iterator[BlockPhase]:
        collective, chunk = self._collective, piece.chunk
        from_block, to_block = find_blocks(chunk)
        units = self._grid.units
        output = (OUTPUT, to_block * units + piece.start)
        value: BufferOffset | None = None
        if rank in collective.holders(chunk):
            value = (INPUT, from_block * units + piece.start)
        is_receiver = rank in collective.receivers(chunk)
        last = max(
            (s for s, moves in piece.steps for _, dst, _ in moves if dst == rank), default=-1
        )
        if is_receiver and last < 0 and value is not None:
            yield BlockPhase(piece, -1, LOCAL, copies=((value, output),))
        for step, moves in piece.steps:
            receivers = sorted(dst for src, dst, _ in moves if src == rank)
            for channel, peers in self._group(rank, receivers):
                places = tuple(self._landing[piece.number, step, rank, peer] for peer in peers)
                yield BlockPhase(piece, step, SEND, channel, peers, places, source=value)
            senders = sorted(src for src, dst, _ in moves if dst == rank)
            if not senders:
                continue
            adds = any(adds for _, dst, adds in moves if dst == rank)
            copied_to = output if is_receiver and step == last else None
            sum_at = output if is_receiver else None
            own = value if adds else None
            phases, value = self._receive(piece, step, rank, senders, own, sum_at, copied_to)
            yield from phases

    def _receive(
        self,
        piece: ChunkPart,
        step: int,
        rank: int,
        senders: Sequence[int],
        own: BufferOffset | None,
        sum_at: BufferOffset | None,
        copied_to: BufferOffset | None,
    ) -> tuple[list[BlockPhase], BufferOffset | None]:
        """Return the phases that wait for the senders of a step, and the value that they leave.

        Values are added in the order of ranks, `own` among them, and the whole sum is at `sum_at`
        if it is not None. Whatever is not there yet is copied to `copied_to`.
        """
        so_far: BufferOffset | None = None
        phases: list[BlockPhase] = []
        groups = list(self._group(rank, senders))
        for number, (channel, peers) in enumerate(groups):
            is_last = number == len(groups) - 1
            places = [self._landing[piece.number, step, peer, rank] for peer in peers]
            terms: dict[int, BufferOffset] = {
                peer: (SCRATCH, at) for peer, at in zip(peers, places, strict=True)
            }
            if own is not None and (is_last or rank < peers[-1]):
                terms[rank], own = own, None
            listed = [terms[peer] for peer in sorted(terms)]
            if so_far is not None:
                listed.insert(0, so_far)
            if len(listed) == 1:
                # A copy, or the first value at a helper, is used where it landed.
                target, so_far = None, listed[0]
            else:
                target = sum_at if is_last and sum_at is not None else (SCRATCH, places[0])
                so_far = target
            copies: tuple[tuple[BufferOffset, BufferOffset], ...] = ()
            if is_last and copied_to not in (None, so_far):
                copies = ((so_far, copied_to),)
            phases.append(
                BlockPhase(
                    piece,
                    step,
                    RECEIVE,
                    channel,
                    peers,
                    tuple(places),
                    target=target,
                    terms=tuple(listed) if target is not None else (),
                    copies=copies,
                )
            )
        return phases, so_far

    def _group(self, rank: int, peers: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield peers in order, in groups that one operation can signal to."""
        for channel, alike in groupby(
            peers, lambda peer: self._channel_types[min(rank, peer), max(rank, peer)]
        ):
            listed = tuple(alike)
            for start in range(0, len(listed), MAX_PEERS):
                yield channel, listed[start : start + MAX_PEERS]
