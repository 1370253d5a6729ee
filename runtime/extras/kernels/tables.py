"""One-sided programs as tables of numbers of 64 bits, as the kernel reads them.

A window is memory of a rank that the others see, divided into slots, each for one piece of a
message; consecutive runs use its two halves in turns. A run is the program played on one slice of
the buffer (one_sided/instructions.py).

A table has a header, a row for each instruction, and then the operands that rows refer to by their
positions in the table:

- Header: number of rows, slices, bytes of half a window, ranks.
- `MOVE`: length of the whole piece, flags, then position and number of its terms and of its
  targets. Each of these is a kind of buffer and a place in bytes: an address for slots, else the
  place in the buffer.
- `SIGNAL`: the signal's number, 0, then position and number of the addresses of peers' counters.
- `WAIT`: 0, 0, then position and number of what is awaited: address of the counter, value without
  the run's part, peer, and step of the schedule.

A piece of the work buffer is read from the input until it is first written, and written directly to
the output if that is where it ends. So the work buffer is only needed for what a rank relays.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...program.layout import Move
from ..one_sided.instructions import (
    ALIGNMENT,
    END,
    Fold,
    OneSidedProgram,
    Part,
    Put,
    Signal,
    Slot,
    Wait,
)

MOVE, SIGNAL, WAIT = range(3)
# Kinds of buffers.
INPUT, OUTPUT, WORK, SLOT = range(4)
# Flags of MOVE: each operand begins at a multiple of 16 bytes; the result is divided.
ALIGNED, DIVIDES = 1, 2
VECTOR_BYTES: Final = 16
# Lengths, in numbers.
HEADER, ROW, TERM, AWAITED = 4, 7, 2, 4
# A counter is (run << RUN_BITS) + number.
RUN_BITS: Final = END.bit_length()
# Counters begin at 0, so memory that is all zeros is ready: in run 1 no rank waits for free slots.
FIRST_RUN: Final = 1
# Pieces are cut into slices at multiples of this, in elements, so that vectors of 16 bytes stay
# whole. As slots begin at its multiples, too, no slice is longer than a slot has room for.
SLICE_NUMEL: Final = ALIGNMENT
# The state of a rank: whether a program of the grid failed, how long one waits (nanoseconds; polls
# where kernels are interpreted), and from RUNS on the current run of each program.
FAILED, LIMIT, RUNS = 0, 1, 8
# The length of a program's error: 1, the peer, the step, the counter awaited, that seen, and the
# address of the table.
ERROR: Final = 8

_Location = tuple[int, int]
"""A kind of buffer and an element; a slot's is counted in its owner's window."""


@dataclass(frozen=True)
class Addresses:
    """The memory of all ranks, as one of them sees it: windows and counters by rank.

    Each program of the grid has two halves of a window, of `half_bytes` each, and a counter for
    each rank.
    """

    rank: int
    windows: tuple[int, ...]
    counters: tuple[int, ...]
    half_bytes: int


@dataclass(frozen=True)
class Table:
    """A rank's program as the array of 64-bit numbers that the kernel reads.

    `slices` is how many parts the buffer is cut into; `work_numel` is the length of the work buffer
    in elements.
    """

    numbers: NDArray[np.int64]
    slices: int
    work_numel: int


@dataclass
class _Step:
    """A row with its operands, before it has a position."""

    operation: int
    number: int = 0
    divides: bool = False
    terms: list[tuple[int, ...]] = field(default_factory=list)
    targets: list[tuple[int, ...]] = field(default_factory=list)


def encode(
    programs: Sequence[OneSidedProgram], addresses: Addresses, itemsize: int, *, in_place: bool
) -> Table:
    """Return the table of the rank that `addresses` is for; `programs` are those of all ranks.

    `itemsize` is the bytes of an element. With `in_place`, the tensor itself is passed as the work
    buffer of a collective whose input is its output; without it input and output are two tensors.
    """
    program = programs[addresses.rank]
    pieces = _PiecePlaces(program, in_place=in_place)
    steps = _merge(_write(programs, addresses, pieces))
    return Table(
        _lay_out(program, steps, addresses, itemsize),
        program.slices,
        program.work_numel if pieces.use_work and not in_place else 0,
    )


class _PiecePlaces:
    """Where the current value of each piece of the work buffer is."""

    def __init__(self, program: OneSidedProgram, *, in_place: bool) -> None:
        fills, drains = program.fills, program.drains
        if not in_place and not fills and not drains:
            # The input and output of an allreduce, a broadcast or a reduce, as two tensors.
            fills = drains = (Move(0, program.work_numel, 0),)
        self.use_work = False
        named = set(_list_pieces(program))
        bounds = {x for piece in named for x in (piece.start, piece.start + piece.length)}
        bounds |= {x for move in fills for x in (move.to, move.to + move.hi - move.lo)}
        bounds |= {x for move in drains for x in (move.lo, move.hi)}
        ordered = sorted(bounds)
        atoms = {Part(lo, hi - lo) for lo, hi in pairwise(ordered)}
        if torn := named - atoms:
            raise ValueError(f"{min(torn, key=lambda x: x.start)} overlaps another piece in part")
        self._inputs = _map_places(atoms, [(x.to, x.lo, x.hi - x.lo) for x in fills], INPUT)
        self._homes = _map_places(atoms, [(x.lo, x.to, x.hi - x.lo) for x in drains], OUTPUT)
        self._places = dict(self._inputs)

    def locate(self, piece: Part) -> _Location:
        """Return where the value of a piece is; take note if that is the work buffer."""
        place = self._places.get(piece, (WORK, piece.start))
        self.use_work |= place[0] == WORK
        return place

    def write(self, piece: Part) -> _Location:
        """Return where the new value of a piece goes; it is there from now on."""
        self._places[piece] = self._homes.get(piece, (WORK, piece.start))
        return self.locate(piece)

    def list_copies(self) -> list[tuple[Part, _Location, _Location]]:
        """Return what has to be copied to the output at the end, whence and whither."""
        return [
            (piece, self.locate(piece), home)
            for piece, home in sorted(self._homes.items(), key=lambda item: item[1])
            if self._places.get(piece) != home
        ]


def _list_pieces(program: OneSidedProgram) -> Iterable[Part]:
    for x in program.instructions:
        if isinstance(x, Put):
            yield x.piece
        elif isinstance(x, Fold):
            yield x.into
            yield from (term for term in x.terms if isinstance(term, Part))


def _map_places(
    pieces: set[Part], moves: list[tuple[int, int, int]], kind: int
) -> dict[Part, _Location]:
    """Return the places of pieces in another buffer; a move is (start, start there, length)."""
    ordered = sorted(moves)
    starts = [start for start, _, _ in ordered]
    places = {}
    for piece in pieces:
        number = bisect_right(starts, piece.start) - 1
        if number >= 0:
            start, there, length = ordered[number]
            if piece.start < start + length:
                places[piece] = kind, there + piece.start - start
    return places


def _write(
    programs: Sequence[OneSidedProgram], addresses: Addresses, pieces: _PiecePlaces
) -> list[_Step]:
    rank = addresses.rank
    own = 8 * rank
    waited = _list_waits(programs, rank)

    def place(term: Part | Slot) -> tuple[int, int, int]:
        if isinstance(term, Part):
            return (*pieces.locate(term), -1)
        return SLOT, term.start, term.owner

    steps = []
    for x in programs[rank].instructions:
        match x:
            case Put():
                steps.append(
                    _Step(MOVE, x.piece.length, terms=[place(x.piece)], targets=[place(x.slot)])
                )
            case Fold():
                step = _Step(MOVE, x.into.length, x.divides, [place(term) for term in x.terms])
                step.targets.append((*pieces.write(x.into), -1))
                if x.also is not None:
                    step.targets.append(place(x.also))
                steps.append(step)
            case Signal():
                to = [(addresses.counters[peer] + own,) for peer in waited[x.number]]
                if to:
                    steps.append(_Step(SIGNAL, x.number, terms=[*to]))
            case Wait():
                value = x.number - (x.behind << RUN_BITS)
                counter = addresses.counters[rank] + 8 * x.peer
                steps.append(_Step(WAIT, terms=[(counter, value, x.peer, x.step)]))
    for piece, source, target in pieces.list_copies():
        steps.append(_Step(MOVE, piece.length, terms=[(*source, -1)], targets=[(*target, -1)]))
    return steps


def _list_waits(programs: Sequence[OneSidedProgram], rank: int) -> dict[int, list[int]]:
    """Return, by the number of a signal of `rank`, the peers that wait for it.

    All peers wait for the end of a run, if not in this call then in one two runs later.
    """
    waited: dict[int, list[int]] = defaultdict(list)
    for peer, program in enumerate(programs):
        if peer != rank:
            numbers = {
                x.number for x in program.instructions if isinstance(x, Wait) and x.peer == rank
            }
            for number in numbers | {END}:
                waited[number].append(peer)
    return waited


def _merge(steps: list[_Step]) -> list[_Step]:
    """Join waits that follow each other, and puts of one piece."""
    merged: list[_Step] = []
    for key, group in groupby(steps, key=_find_kind):
        if key == "wait":
            merged.append(_Step(WAIT, terms=[term for step in group for term in step.terms]))
        elif key == "put":
            puts: dict[tuple[object, ...], _Step] = {}
            for step in group:
                first = puts.setdefault((step.number, *step.terms), step)
                if first is not step:
                    first.targets += step.targets
            merged += puts.values()
        else:
            merged += group
    return merged


def _find_kind(step: _Step) -> str:
    if step.operation == WAIT:
        return "wait"
    is_put = step.operation == MOVE and all(kind == SLOT for kind, *_ in step.targets)
    return "put" if is_put and len(step.terms) == 1 and step.terms[0][0] != SLOT else "other"


def _lay_out(
    program: OneSidedProgram, steps: list[_Step], addresses: Addresses, itemsize: int
) -> NDArray[np.int64]:
    rows: list[int] = [len(steps), program.slices, addresses.half_bytes, program.ranks]
    operands: list[int] = []
    base = HEADER + ROW * len(steps)
    for step in steps:
        if step.operation == MOVE:
            terms = [_encode_place(x, addresses, itemsize) for x in step.terms]
            targets = [_encode_place(x, addresses, itemsize) for x in step.targets]
            is_aligned = all(at % VECTOR_BYTES == 0 for _, at in [*terms, *targets])
            flags = ALIGNED * is_aligned + DIVIDES * step.divides
        else:
            terms, targets, flags = step.terms, [], 0  # type: ignore[assignment]
        row = [step.operation, step.number, flags]
        for entries in (terms, targets):
            row += [base + len(operands), len(entries)]
            operands += (number for entry in entries for number in entry)
        rows += row
    return np.array(rows + operands, np.int64)


def _encode_place(place: tuple[int, ...], addresses: Addresses, itemsize: int) -> tuple[int, int]:
    kind, start, owner = place
    at = start * itemsize
    return kind, addresses.windows[owner] + at if kind == SLOT else at
