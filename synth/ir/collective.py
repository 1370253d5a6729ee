"""Collectives: which rank holds what before, and which must have it after.

The buffer of which chunks are shares is: the vector itself for allreduce, broadcast and reduce; the
gathered result for allgather and gather; the vector before it is scattered for reduce-scatter and
scatter; what one rank sends to all (its own part included) for alltoall. `size` always means the
bytes of that buffer, as nccl-tests counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Literal, get_args

from ...topo.errors import InputError, suggest

# The names of the collectives.
CollectiveName = Literal[
    "allreduce",
    "allgather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)
# The collectives as torch, nccl-tests and MPI write them, without blanks, lines and capitals.
_SPELLINGS = {
    **{name.replace("-", ""): name for name in COLLECTIVES},
    "bcast": "broadcast",
    "allgatherintotensor": "allgather",
    "reducescattertensor": "reduce-scatter",
    "alltoallsingle": "alltoall",
}
_REDUCING = {"allreduce", "reduce-scatter", "reduce"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_FROM_EACH = {"allgather", "gather", "alltoall"}
_TO_EACH = {"reduce-scatter", "scatter", "alltoall"}


@dataclass(frozen=True)
class Chunk:
    """An exact share of the buffer.

    `source` is the rank it belongs to where each rank brings its own part (allgather, gather,
    alltoall), `target` the rank it is for where each gets its own part (reduce-scatter, scatter,
    alltoall); None where there is no such rank.
    """

    share: Fraction
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Collective:
    """A collective over `ranks` ranks, with its `root` where it has one."""

    name: str
    ranks: int
    root: int | None = None

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            near = suggest(self.name, COLLECTIVES)
            raise InputError(
                f"unknown collective {self.name!r}{near}; expected one of {', '.join(COLLECTIVES)}"
            )
        if self.ranks < 1:
            raise InputError(f"{self.name} over {self.ranks} ranks; expected at least 1")
        if self.name in _ROOTED:
            if self.root is None or not 0 <= self.root < self.ranks:
                raise InputError(
                    f"{self.name} needs a root between 0 and {self.ranks - 1}, got {self.root}"
                )
        elif self.root is not None:
            raise InputError(f"{self.name} has no root, got {self.root}")

    @classmethod
    def with_default_root(cls, name: str, ranks: int, root: int | None = None) -> Collective:
        """Return a collective whose root, where it has one and none is given, is rank 0; any
        spelling of its name will do.
        """
        name = spell_collective(name)
        return cls(name, ranks, 0 if root is None and name in _ROOTED else root)

    @property
    def reduces(self) -> bool:
        """Whether contributions are added up; otherwise data is only copied."""
        return self.name in _REDUCING

    def holders(self, chunk: Chunk) -> Iterable[int]:
        """Return the ranks that hold the chunk, or their contribution to it, at the start."""
        if self.reduces:
            return range(self.ranks)
        if chunk.source is not None:
            return (chunk.source,)
        assert self.root is not None
        return (self.root,)

    def receivers(self, chunk: Chunk) -> Iterable[int]:
        """Return the ranks that must have the whole chunk at the end."""
        if self.name in ("allreduce", "allgather", "broadcast"):
            return range(self.ranks)
        if chunk.target is not None:
            return (chunk.target,)
        assert self.root is not None
        return (self.root,)

    def contributors(self, chunk: Chunk) -> Iterable[int]:
        """Return the ranks whose contribution the finished chunk must hold, each exactly once."""
        return self.holders(chunk)

    def bus_factor(self) -> Fraction:
        """Return busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
        n = self.ranks
        if self.name in ("broadcast", "reduce"):
            return Fraction(1)
        return Fraction((2 if self.name == "allreduce" else 1) * (n - 1), n)

    def reversed(self) -> Collective:
        """Return the collective that this one becomes when every transfer is reversed, the last
        first.
        """
        pairs = {
            "allgather": "reduce-scatter",
            "broadcast": "reduce",
            "gather": "scatter",
            "alltoall": "alltoall",
        }
        pairs |= {after: before for before, after in pairs.items()} | {"allreduce": "allreduce"}
        return Collective(pairs[self.name], self.ranks, self.root)

    def even_chunks(self, count: int) -> tuple[Chunk, ...]:
        """Return equal chunks, `count` in SCCL's units: in the whole buffer for allreduce,
        broadcast and reduce; for each rank in allgather, reduce-scatter, gather and scatter; for
        each pair of ranks in alltoall.
        """
        parts = self.ranks if self.name in _FROM_EACH | _TO_EACH else 1
        share = Fraction(1, parts * count)
        return tuple(Chunk(share, s, t) for s, t in self._blocks() for _ in range(count))

    def _blocks(self) -> Iterable[tuple[int | None, int | None]]:
        """Return the (source, target) of every part of the buffer."""
        sources: Sequence[int | None] = range(self.ranks) if self.name in _FROM_EACH else (None,)
        targets: Sequence[int | None] = range(self.ranks) if self.name in _TO_EACH else (None,)
        return product(sources, targets)

    def problem_with(self, chunks: Sequence[Chunk]) -> str | None:
        """Return why `chunks` do not make up this collective's buffer, or None where they do."""
        totals: dict[tuple[int | None, int | None], Fraction] = {}
        from_each, to_each = self.name in _FROM_EACH, self.name in _TO_EACH
        for i, chunk in enumerate(chunks):
            if chunk.share.numerator <= 0:
                return f"chunk {i} has share {chunk.share}; expected more than 0"
            for what, rank, wanted in (
                ("source", chunk.source, from_each),
                ("target", chunk.target, to_each),
            ):
                if (rank is not None) != wanted or (
                    rank is not None and not 0 <= rank < self.ranks
                ):
                    return f"chunk {i} has {what} {rank}; {self.name} over {self.ranks} ranks " + (
                        f"needs one from 0 to {self.ranks - 1}" if wanted else f"has no {what}s"
                    )
            key = chunk.source, chunk.target
            totals[key] = totals[key] + chunk.share if key in totals else chunk.share
        share = Fraction(1, self.ranks if from_each or to_each else 1)
        parts = share.numerator, share.denominator
        for key in self._blocks():
            total = totals.get(key)
            # Numerators and denominators are compared a few times as fast as fractions, of which
            # there may be a million.
            if total is None or (total.numerator, total.denominator) != parts:
                what = f"chunks with source {key[0]} and target {key[1]}"
                return f"{what} make up {totals.get(key, 0)} of the buffer; expected {share}"
        return None


def spell_collective(name: str) -> str:
    """Return our name for a collective as others write it: all_reduce, all-reduce, AllReduce,
    all_reduce_perf; else `name`.
    """
    plain = "".join(character for character in name.lower() if character.isalnum()).removesuffix(
        "perf"
    )
    return _SPELLINGS.get(plain, name)
