"""One-sided programs: what a rank puts, signals, waits for, adds and copies, in one fixed order.

Each rank has a *window*: memory that the other ranks of its host see. A window is divided into
*slots*, each with one piece of a message, and exists twice: consecutive runs use the two halves in
turns. Each rank has one *counter*, which it alone writes: the number of the current run, and how
far in that run the rank is. Counters only grow, so nothing is ever reset, and there is no barrier
between calls:

- `Signal(n)` stores (run, n) in the rank's counter, with release semantics: whoever sees it also
  sees the puts before it.
- `Wait(peer, n)` waits until the peer's counter is at least (run, n), with acquire semantics.
- A slot is written again two runs later. By then each rank must have read it, which
  `Wait(peer, END, behind=2)` at the beginning of a run ensures: the peer has ended the run before
  the last one. It seldom waits, since that run is long over.

A call of a large buffer is played in *slices*: slice s of S is the s-th of S parts of each piece,
and a run is the program on one slice. So a window needs room for one slice only, and stays in the
processor's cache. The slices of a GPU's grid run at the same time instead, each with counters of
its own: no slice ever waits for another.

No run can deadlock: order all instructions of all ranks by run, step, and (in a step) puts and
signals before waits. Each wait is for a signal that is earlier in this order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ...program.layout import Move

# The signal number that ends a run: larger than any other.
END: Final = (1 << 20) - 1
# Slots begin at multiples of this number of elements: at least a cache line of 64 bytes, so that no
# two ranks write to one line.
ALIGNMENT: Final = 64


def align(numel: int) -> int:
    """Return the number of elements rounded up to ALIGNMENT."""
    return -(-numel // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Part:
    """Elements of a rank's own work buffer, `length` from `start` on."""

    start: int
    length: int


@dataclass(frozen=True)
class Slot:
    """Room for one piece, from element `start` of either half of the window of rank `owner` on.

    `length` is that of the whole piece; the slot has room for one slice of it.
    """

    owner: int
    start: int
    length: int


@dataclass(frozen=True)
class Put:
    """Copy a piece of the work buffer to a slot."""

    piece: Part
    slot: Slot


@dataclass(frozen=True)
class Signal:
    """Store (run, `number`) in this rank's counter, after all earlier puts have landed."""

    number: int


@dataclass(frozen=True)
class Wait:
    """Wait until the counter of rank `peer` is at least (run - `behind`, `number`).

    `step` is the schedule's, for errors; -1 if the wait is for a slot to be free.
    """

    peer: int
    number: int
    behind: int = 0
    step: int = -1


@dataclass(frozen=True)
class Fold:
    """Reduce `terms` from the first to the last, and store the result in the work buffer at `into`.

    One term alone is copied. With `also` the result is put to that slot, too. With `divides` it is
    divided by the number of ranks before it is stored.
    """

    terms: tuple[Part | Slot, ...]
    into: Part
    also: Slot | None = None
    divides: bool = False


Instruction = Put | Signal | Wait | Fold
# Who owns the slot of a message: its sender, from which the receivers read (pull), or its receiver,
# to which the sender writes (push).
Mode = Literal["pull", "push"]


@dataclass(frozen=True)
class OneSidedProgram:
    """The instructions of one rank for each slice of a buffer, of which there are `slices`.

    `fills` copy the input to the work buffer before the first slice, `drains` copy from it to the
    output after the last; collectives in place have neither. `work_numel` is the length of the work
    buffer, `window_numel` that of half a window, the same on all ranks.
    """

    rank: int
    ranks: int
    work_numel: int
    window_numel: int
    slices: int
    fills: tuple[Move, ...]
    drains: tuple[Move, ...]
    instructions: tuple[Instruction, ...]

    def cut(self, length: int, part: int) -> tuple[int, int]:
        """Return (begin, end) of slice number `part` within a piece of `length` elements."""
        return length * part // self.slices, length * (part + 1) // self.slices

    @property
    def puts(self) -> Iterator[Slot]:
        """The slots of other ranks' windows that this program writes to."""
        for x in self.instructions:
            slot = x.slot if isinstance(x, Put) else x.also if isinstance(x, Fold) else None
            if slot is not None:
                yield slot
