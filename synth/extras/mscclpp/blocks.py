"""Assign each rank's work to thread blocks, within the executor's limits, and connect the blocks.

A piece is a part of a chunk of the schedule (pieces.py). A phase is what a rank does with a piece
in one step: send it, or wait for it and add or copy it (phases.py). Pieces do not depend on each
other, so each has a strand: a block on each rank that it crosses. Pieces share strands if there are
more of them than blocks. In a pipeline, whose iterations follow each other through the ranks, a
strand has a block for each set of receives and the sends after them. A block with too many
operations or channels is divided. Blocks of a rank with phases of one piece run one after another,
by semaphores.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .phases import LOCAL, RECEIVE, SEND, BlockPhase, Programs

# A thread block: its phases in the order in which it runs them.
Block = list[BlockPhase]
# A rank and the number of one of its blocks.
End = tuple[int, int]
# A channel between two blocks: its type (MEMORY or PORT of phases.py), and its ends in order.
Channel = tuple[str, End, End]


@dataclass(frozen=True)
class Wiring:
    """The thread blocks of each rank, and the channels and semaphores between them.

    `blocks[r]` are the blocks of rank r. `sends` and `receives` have, for each block, its channels
    by (piece, step, peer rank); `acquires` and `releases` have, by (block, piece), the number of
    the rank's semaphore that the block waits for before, or signals after, its phases of the piece;
    `semaphores[r]` is how many rank r has.
    """

    blocks: Sequence[Sequence[Block]]
    sends: dict[End, dict[tuple[int, int, int], Channel]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    receives: dict[End, dict[tuple[int, int, int], Channel]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    acquires: dict[tuple[End, int], int] = field(default_factory=dict)
    releases: dict[tuple[End, int], int] = field(default_factory=dict)
    semaphores: list[int] = field(default_factory=list)

    @property
    def most_blocks(self) -> int:
        """The largest number of blocks that a rank has."""
        return max(map(len, self.blocks))

    def list_channels(self, end: End, channel: str) -> list[Channel]:
        """Return the channels of type `channel` that a block, `end`, uses, sorted."""
        used = {*self.sends[end].values(), *self.receives[end].values()}
        return sorted(each for each in used if each[0] == channel)


def assign_blocks(programs: Programs, strands: int, is_pipeline: bool) -> list[list[Block]]:
    """Return the blocks of each rank if pieces share this many strands, ignoring blocks' limits.

    `programs` has the phases by rank and piece. A strand is a block on each rank that its pieces
    cross; in a pipeline it has several.
    """
    return [
        [
            block
            for strand in range(strands)
            for block in _fill_strand(pieces[strand::strands], is_pipeline)
        ]
        for pieces in programs
    ]


def _fill_strand(pieces: Sequence[Sequence[BlockPhase]], is_pipeline: bool) -> Iterator[Block]:
    if not is_pipeline:
        block = sorted((phase for phases in pieces for phase in phases), key=lambda p: p.order)
        if block:
            yield block
        return
    stages = [_list_stages(phases) for phases in pieces]
    for number in range(max(map(len, stages), default=0)):
        yield [phase for each in stages if number < len(each) for phase in each[number]]


def _list_stages(phases: Sequence[BlockPhase]) -> list[Block]:
    """Return the phases of a piece in parts, each with receives and the sends after them."""
    stages: list[Block] = []
    before = RECEIVE
    for phase in phases:
        begins = phase.kind == RECEIVE and before == SEND
        if not stages or begins:
            stages.append([])
        stages[-1].append(phase)
        before = phase.kind if phase.kind != LOCAL else before
    return stages


def connect(blocks: Sequence[Sequence[Block]]) -> Wiring:
    """Connect blocks, given by rank, by channels and semaphores.

    Two blocks that exchange messages share a channel. Both see its signals in one order, since both
    go through steps and pieces in the same order.
    """
    wiring = Wiring(blocks, semaphores=[0] * len(blocks))
    block_of: dict[tuple[int, int, int, int, int], int] = {}
    for rank, listed in enumerate(blocks):
        last_of: dict[int, int] = {}
        for number, block in enumerate(listed):
            for phase in block:
                piece = phase.piece.number
                for peer in phase.peers:
                    block_of[phase.kind, piece, phase.step, rank, peer] = number
                before = last_of.setdefault(piece, number)
                if before != number:
                    semaphore = wiring.semaphores[rank]
                    wiring.semaphores[rank] += 1
                    wiring.releases[(rank, before), piece] = semaphore
                    wiring.acquires[(rank, number), piece] = semaphore
                    last_of[piece] = number
    for rank, listed in enumerate(blocks):
        for number, block in enumerate(listed):
            for phase in block:
                if phase.kind != SEND:
                    continue
                piece, step = phase.piece.number, phase.step
                for peer in phase.peers:
                    sender = rank, number
                    receiver = peer, block_of[RECEIVE, piece, step, peer, rank]
                    channel = (phase.channel, min(sender, receiver), max(sender, receiver))
                    wiring.sends[sender][piece, step, peer] = channel
                    wiring.receives[receiver][piece, step, rank] = channel
    return wiring
