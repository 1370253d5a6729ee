"""Where a chunk lies in the blocks of input and output, for files that name places in buffers.

A chunk is the part of a collective's buffer that a schedule moves as one. A block is the whole
buffer, or the part of one rank (for alltoall, of a pair of ranks).
"""

from fractions import Fraction

from .collective import Chunk, Collective
from .schedule import Schedule


def count_parts(collective: Collective) -> int:
    """Return how many blocks make up the collective's buffer."""
    return (1 / collective.even_chunks(1)[0].share).numerator


def count_blocks(collective: Collective) -> tuple[int, int]:
    """Return the number of blocks in the input and in the output of a rank."""
    chunk, parts = collective.even_chunks(1)[0], count_parts(collective)
    return (
        1 if chunk.target is None else parts,
        1 if chunk.source is None else parts,
    )


def place_chunks(schedule: Schedule) -> list[tuple[Fraction, Fraction]]:
    """Return where each chunk begins and ends in its block, as shares of the block."""
    parts = count_parts(schedule.collective)
    return [
        (start * parts, (start + chunk.share) * parts)
        for start, chunk in zip(schedule.offsets(), schedule.chunks, strict=True)
    ]


def find_blocks(chunk: Chunk) -> tuple[int, int]:
    """Return the numbers of a chunk's block in a rank's input and in a rank's output, from 0."""
    return chunk.target or 0, chunk.source or 0
