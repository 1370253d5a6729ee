"""Demands: pieces of data of any size, the ranks that hold each one, and those that need it.

Uneven alltoall and the transfer of weights from one mesh to another are demands. A piece may be
held by several ranks, any of which may send it, and needed by several, which then forward it among
themselves. `Demands` is a collective whose chunks are shares of its pieces; all that handles
schedules handles it, and its buffer is all pieces, each counted once.

Plans of demands are made by an extra, an optional feature that extras.py at the root lists (group
`planners`); their files, checks and execution are the core's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

from msgspec import Meta

from ...topo.errors import InputError
from ...topo.schema import Index
from .collective import Chunk, Collective, DemandName, spell_ranks

# In all: the sum over pieces, which floating point holds exactly.
MAX_SIZE = 1 << 52

Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
# Rows of size, ranks that hold the piece, ranks that need it.
DemandRows = list[tuple[Size, list[Index], list[Index]]]


@dataclass(frozen=True)
class Demand:
    """A piece of `size` bytes (or elements: any unit that all pieces share), which may be divided.

    `holders` have it, and any of them may send it; `receivers` need it. Both are ranks of the whole
    topology, ascending. A rank that is both keeps its copy.
    """

    size: int
    holders: tuple[int, ...]
    receivers: tuple[int, ...]

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """The receivers that do not hold the piece."""
        return tuple(rank for rank in self.receivers if rank not in self.holders)


@dataclass(frozen=True)
class Demands(Collective):
    """Pieces to be delivered: a collective whose chunks are shares of `pieces`.

    Made by `Demands.of`. Members hold or need a piece (in an
    alltoallv all ranks of the matrix are members). `name` is "alltoallv" if pieces are parts of a
    matrix, else "reshard"; `root` is None. The buffer is all pieces, one after the other.
    """

    pieces: tuple[Demand, ...] = ()

    def __post_init__(self) -> None:
        listed = () if isinstance(self.members, range) else tuple(self.members)
        object.__setattr__(self, "members", listed or range(self.ranks))

    @property
    def is_even(self) -> bool:
        """Whether all parts of the buffer are equally large."""
        return False

    def __hash__(self) -> int:
        # Hashing a million pieces would take a second.
        return hash((self.name, self.ranks, len(self.pieces), self.size))

    @classmethod
    def of(
        cls,
        pieces: Iterable[Demand],
        gpus: int,
        *,
        name: DemandName = "reshard",
        members: Iterable[int] = (),
        where: str = "demands",
    ) -> Demands:
        """Return the demands of pieces on a machine of `gpus` GPUs.

        The ranks of `members` make the call even if they hold and need nothing. Raise InputError,
        with `where` in front, if a size is not positive, a piece has no holder or no receiver, a
        rank is out of range or listed twice, or nothing has to move.
        """
        listed = tuple(
            _check_piece(piece, number, gpus, where) for number, piece in enumerate(pieces)
        )
        if sum(piece.size for piece in listed) > MAX_SIZE:
            raise refuse(where, f"more than {MAX_SIZE} bytes in all; give those of one call")
        if not any(piece.missing for piece in listed):
            raise refuse(where, "no rank needs a piece that it does not have; nothing is to move")
        named = {rank for piece in listed for rank in (*piece.holders, *piece.receivers)}
        everyone = tuple(sorted(named.union(members)))
        is_whole = len(everyone) == gpus
        return cls(name, len(everyone), None, () if is_whole else everyone, listed)

    @cached_property
    def size(self) -> int:
        """The size of all pieces together, each counted once: that of the buffer."""
        return sum(piece.size for piece in self.pieces)

    @cached_property
    def classes(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], int]:
        """The size of all pieces with the same holders and missing receivers, keyed by these."""
        out: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        for piece in self.pieces:
            if piece.missing:
                key = piece.holders, piece.missing
                out[key] = out.get(key, 0) + piece.size
        return out

    def share_of(self, number: int) -> Fraction:
        """Return the share of the buffer that piece `number` is."""
        return Fraction(self.pieces[number].size, self.size)

    @property
    def spreads(self) -> bool:
        """Whether some piece has to reach several ranks, so that switches that copy help."""
        return any(len(piece.missing) > 1 for piece in self.pieces)

    def holders(self, chunk: Chunk) -> Sequence[int]:
        """Return the ranks that hold the chunk at the start."""
        assert chunk.piece is not None
        return self.pieces[chunk.piece].holders

    def receivers(self, chunk: Chunk) -> Sequence[int]:
        """Return the ranks that must have the whole chunk at the end."""
        assert chunk.piece is not None
        return self.pieces[chunk.piece].receivers

    def bus_factor(self) -> Fraction:
        """Return the ratio of busbw to algbw: 1, since pieces are counted as they are."""
        return Fraction(1)

    def among(self, ranks: Sequence[int]) -> Demands:
        """Return the same demands on the machine that has only the GPUs `ranks`, ascending."""
        if len(ranks) == self.ranks and self.has_all_gpus:
            return self
        place = {rank: i for i, rank in enumerate(ranks)}
        members = tuple(place[member] for member in self.members)
        return replace(
            self,
            members=() if len(members) == len(ranks) else members,
            pieces=tuple(
                Demand(
                    piece.size,
                    tuple(place[rank] for rank in piece.holders),
                    tuple(place[rank] for rank in piece.receivers),
                )
                for piece in self.pieces
            ),
        )

    def even_chunks(self, count: int) -> tuple[Chunk, ...]:
        """Return `count` equal chunks of each piece."""
        return tuple(
            Chunk(self.share_of(number) / count, piece=number)
            for number in range(len(self.pieces))
            for _ in range(count)
        )

    def problem_with(self, chunks: Sequence[Chunk]) -> str | None:
        """Return why `chunks` do not make up all pieces, None if they do."""
        totals: list[Fraction | None] = [None] * len(self.pieces)
        for i, chunk in enumerate(chunks):
            if chunk.share.numerator <= 0:
                return f"chunk {i} has share {chunk.share}; expected more than 0"
            if chunk.piece is None or not 0 <= chunk.piece < len(totals):
                return f"chunk {i} has piece {chunk.piece}; expected one of {len(totals)}"
            if chunk.source is not None or chunk.target is not None:
                return f"chunk {i} has a source or target; chunks of {self.name} have a piece only"
            total = totals[chunk.piece]
            totals[chunk.piece] = chunk.share if total is None else total + chunk.share
        for number, (total, piece) in enumerate(zip(totals, self.pieces, strict=True)):
            # Comparing integers is several times as fast as making a million fractions.
            if total is None or total.numerator * self.size != piece.size * total.denominator:
                return (
                    f"chunks of piece {number} make up {total or 0} of the buffer; expected "
                    f"{self.share_of(number)}"
                )
        return None

    def list_held(self, rank: int) -> list[int]:
        """Return the numbers of the pieces that a rank holds, ascending."""
        return [number for number, piece in enumerate(self.pieces) if rank in piece.holders]

    def list_needed(self, rank: int) -> list[int]:
        """Return the numbers of the pieces that a rank needs, ascending."""
        return [number for number, piece in enumerate(self.pieces) if rank in piece.receivers]

    def to_rows(self) -> list[list[Any]]:
        """Return the rows that plan files have: size, holders and receivers of each piece."""
        return [[p.size, list(p.holders), list(p.receivers)] for p in self.pieces]

    @classmethod
    def from_rows(
        cls, rows: DemandRows, name: str, members: Sequence[int], ranks: int, where: str
    ) -> Demands:
        """Return the demands of a plan file; `where` names it in errors.

        `rows` are those of `to_rows`; no `members` means all of `ranks` ranks. Raise InputError if
        a row makes no sense, a rank in it is no member, or nothing has to move.
        """
        listed = members or range(ranks)
        if len(listed) != ranks or any(a >= b for a, b in pairwise((-1, *listed))):
            raise refuse(where, f"expected {ranks} different members, ascending")
        pieces = tuple(
            _check_piece(Demand(size, tuple(have), tuple(need)), number, listed[-1] + 1, where)
            for number, (size, have, need) in enumerate(rows)
        )
        others = {r for p in pieces for r in (*p.holders, *p.receivers)}.difference(listed)
        if others or not any(piece.missing for piece in pieces):
            raise refuse(where, f"rank {min(others)} is no member" if others else "nothing to move")
        return cls(name, ranks, None, tuple(members), pieces)


def _check_piece(piece: Demand, number: int, gpus: int, where: str) -> Demand:
    """Return a piece with its ranks ascending; raise InputError if it makes no sense."""
    which = f"piece {number}"
    if type(piece.size) is not int or piece.size < 1:
        raise refuse(where, f"{which} has size {piece.size}; expected a whole number above 0")
    ends: list[tuple[int, ...]] = []
    for ranks, what in ((piece.holders, "has it"), (piece.receivers, "needs it")):
        if not ranks:
            raise refuse(where, f"{which}: no rank {what}; expected at least one")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < gpus:
                raise refuse(where, f"{which}: rank {rank} {what}; ranks are 0 to {gpus - 1}")
        if len(set(ranks)) < len(ranks):
            raise refuse(
                where, f"{which}: ranks {spell_ranks(ranks)}, of which each {what}; list each once"
            )
        ends.append(tuple(sorted(ranks)))
    return Demand(piece.size, *ends)


def refuse(where: str, why: str) -> InputError:
    """Return the InputError for demands that cannot be met.

    `where` names their file, `why` is the reason.
    """
    return InputError(f"{where}: {why}", parameter="demands")
