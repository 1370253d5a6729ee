"""Cut the chunks of a schedule into pieces on a grid of equal units.

The executor divides every buffer into equal units; a piece is a part of a chunk that has a whole
number of them. A block is the whole buffer, or the part of one rank (for alltoall, of a pair of
ranks). Where a message, as MSCCL++ calls the buffer of a call, has no multiple of the exact grid,
the ends of pieces are rounded to a finer one.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt, lcm

from ....topo.errors import InfeasibleError
from ...ir.blocks import count_parts, place_chunks
from ...ir.collective import Chunk
from ...ir.schedule import Schedule
from ...ir.transfers import REDUCE
from .limits import ALIGNMENT_bytes

# Units of a piece on a rounded grid, so that rounding changes its size by at most 1/256.
_UNITS_OF_PIECE = 256
# A transfer of a step: source rank, destination rank, whether the receiver adds it.
Move = tuple[int, int, bool]


@dataclass(frozen=True)
class ChunkPart:
    """A piece: a part of a chunk, with the transfers that move it.

    `number` is its index; it begins at unit `start` of its block and has `units` units. `steps` are
    (step, transfers) for each step of the schedule that moves it.
    """

    number: int
    chunk: Chunk
    start: int
    units: int
    steps: tuple[tuple[int, tuple[Move, ...]], ...]


@dataclass(frozen=True)
class Grid:
    """A buffer divided into equal units: `units` per block, of `unit_bytes` bytes each.

    `is_rounded` says whether the ends of `pieces` were rounded to units.
    """

    units: int
    unit_bytes: int
    is_rounded: bool
    pieces: tuple[ChunkPart, ...]


def cut_chunks(schedule: Schedule, size_bytes: int, parts: int) -> Grid:
    """Cut each chunk into `parts` pieces, for a message of `size_bytes`; return the grid.

    Raise InfeasibleError if such a message has no grid on which every piece has a unit.
    """
    ends = [
        [low + (high - low) * Fraction(i, parts) for i in range(parts + 1)]
        for low, high in place_chunks(schedule)
    ]
    blocks = count_parts(schedule.collective)
    exact = lcm(*{end.denominator for listed in ends for end in listed})
    # In multiples of the alignment.
    length, rest = divmod(size_bytes, blocks * ALIGNMENT_bytes)
    if rest or not length:
        raise _refuse(schedule, size_bytes, blocks * exact)
    is_rounded = length % exact > 0
    units = exact
    if is_rounded:
        in_block = Counter((chunk.source, chunk.target) for chunk in schedule.chunks)
        units = _find_divisor(length, max(in_block.values()) * parts * _UNITS_OF_PIECE)
    steps = _list_steps(schedule)
    pieces: list[ChunkPart] = []
    for chunk, listed, moves in zip(schedule.chunks, ends, steps, strict=True):
        places = [round(end * units) for end in listed]
        for low, high in pairwise(places):
            if low == high:
                raise _refuse(schedule, size_bytes, blocks * exact)
            pieces.append(ChunkPart(len(pieces), chunk, low, high - low, moves))
    unit_bytes = length // units * ALIGNMENT_bytes
    return Grid(units, unit_bytes, is_rounded, tuple(pieces))


def _refuse(schedule: Schedule, size_bytes: int, units: int) -> InfeasibleError:
    return InfeasibleError(
        f"a message of {size_bytes} bytes cannot be divided into the {len(schedule.chunks)} chunks "
        f"of the {schedule.label} schedule; MSCCL++ needs multiples of {ALIGNMENT_bytes} bytes for "
        f"each: try a multiple of {units * ALIGNMENT_bytes} bytes",
        parameter="size",
    )


def _find_divisor(number: int, minimum: int) -> int:
    """Return the smallest divisor of a number that is at least `minimum`, else the number."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    divisors = (*small, *(number // d for d in reversed(small)))
    return next((d for d in divisors if d >= minimum), number)


def _list_steps(schedule: Schedule) -> Sequence[tuple[tuple[int, tuple[Move, ...]], ...]]:
    """Return the moves of each chunk by step."""
    t = schedule.transfers
    rows: list[dict[int, list[Move]]] = [defaultdict(list) for _ in schedule.chunks]
    for step, src, dst, chunk, op in zip(
        *(column.tolist() for column in (t.step, t.src, t.dst, t.chunk, t.op)), strict=True
    ):
        rows[chunk][step].append((src, dst, op == REDUCE))
    return [tuple((step, tuple(moves)) for step, moves in sorted(row.items())) for row in rows]
