"""Compute which boxes of a tensor each rank of a mesh holds, without torch.

A tensor is distributed over a mesh like a DTensor: each dimension of the mesh splits a dimension of
the tensor, has copies of it, or terms of a sum. Along each of the tensor's dimensions a rank then
holds some intervals, and its shard is their product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....topo.errors import InputError

# From the first position to that after the last, along one dimension.
Interval = tuple[int, int]
# An interval for each dimension of a tensor.
Box = tuple[Interval, ...]


@dataclass(frozen=True)
class Split:
    """A mesh dimension that splits dimension `dim` of the tensor, like torch's Shard.

    With `strides` above 1 the dimension was first split into that many parts, each of which is
    split again: torch's _StridedShard, which FSDP2 makes of tensors that are split already.
    """

    dim: int
    strides: int = 1


@dataclass(frozen=True)
class Copied:
    """A mesh dimension whose ranks have the same values, like torch's Replicate."""


@dataclass(frozen=True)
class Term:
    """A mesh dimension whose ranks each have a term of a sum, or with `averages` of an average."""

    averages: bool = False


Laid = Split | Copied | Term


@dataclass(frozen=True, eq=False)
class Shards:
    """A tensor of `shape` distributed over `mesh`, an array of rank numbers.

    laid[d] says what mesh dimension d does: Split, Copied or Term. `where` names the tensor in
    errors. Raise InputError if `laid` does not fit the mesh or the shape.
    """

    mesh: NDArray[np.int64]
    laid: tuple[Laid, ...]
    shape: tuple[int, ...]
    where: str
    _parts: dict[tuple[int, ...], list[Interval]] = field(default_factory=dict, init=False)
    _slices: dict[tuple[int, Box], tuple[slice, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        ranks = self.mesh.ravel().tolist()
        if not ranks or len(set(ranks)) < len(ranks) or min(ranks) < 0:
            raise InputError(f"{self.where}: mesh {ranks}: expected ranks, each once")
        if len(self.laid) != self.mesh.ndim:
            raise InputError(
                f"{self.where}: {len(self.laid)} placements on a mesh of {self.mesh.ndim} "
                "dimensions; give one for each"
            )
        for split in self.laid:
            if isinstance(split, Split) and not 0 <= split.dim < len(self.shape):
                raise InputError(
                    f"{self.where}: Shard({split.dim}) of a tensor of {len(self.shape)} dimensions "
                    f"{self.shape}; expected one of its dimensions"
                )

    @cached_property
    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """The coordinates of each rank in the mesh."""
        return {int(self.mesh[place]): place for place in np.ndindex(self.mesh.shape)}

    @property
    def terms(self) -> int:
        """The number of terms of the sum that each element is; 1 if nothing is to be added."""
        sizes = zip(self.laid, self.mesh.shape, strict=True)
        return prod(size for laid, size in sizes if isinstance(laid, Term))

    @property
    def averaged(self) -> int:
        """The number by which sums must be divided for averages; 1 if none."""
        sizes = zip(self.laid, self.mesh.shape, strict=True)
        return prod(size for laid, size in sizes if isinstance(laid, Term) and laid.averages)

    def term_of(self, rank: int) -> int:
        """Return the index of the sum's term that a rank holds."""
        number, place = 0, self.coordinates[rank]
        for laid, size, at in zip(self.laid, self.mesh.shape, place, strict=True):
            if isinstance(laid, Term):
                number = number * size + at
        return number

    def intervals(self, rank: int, dim: int) -> list[Interval]:
        """Return the intervals of tensor dimension `dim` that a rank holds, in shard order."""
        steps = [
            (laid, size, at)
            for laid, size, at in zip(
                self.laid, self.mesh.shape, self.coordinates[rank], strict=True
            )
            if isinstance(laid, Split) and laid.dim == dim
        ]
        key = dim, *(at for *_, at in steps)
        if key not in self._parts:
            held: list[Interval] = [(0, self.shape[dim])]
            for laid, size, at in steps:
                held = [
                    interval
                    for part in _cut(held, laid.strides)
                    for interval in _cut(part, size)[at]
                ]
            self._parts[key] = _join(held)
        return self._parts[key]

    def shape_of(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's shard; (0,) for a rank outside the mesh, as in torch."""
        if rank not in self.coordinates:
            return (0,)
        return tuple(
            sum(hi - lo for lo, hi in self.intervals(rank, dim)) for dim in range(len(self.shape))
        )

    def numel_of(self, rank: int) -> int:
        """Return the number of elements of a rank's shard."""
        return prod(self.shape_of(rank))

    def holds_as(self, other: Shards, rank: int) -> bool:
        """Return whether a rank holds the same elements as in `other`, whole values not terms."""
        return self.terms == 1 and all(
            self.intervals(rank, dim) == other.intervals(rank, dim)
            for dim in range(len(self.shape))
        )

    def find(self, rank: int, box: Box) -> tuple[slice, ...]:
        """Return the slices of a rank's shard that contain `box`, in the tensor's indices.

        The box must lie within one of the rank's boxes.
        """
        if (rank, box) not in self._slices:  # each call of a plan asks again
            self._slices[rank, box] = tuple(
                _find_slice(self.intervals(rank, dim), *part) for dim, part in enumerate(box)
            )
        return self._slices[rank, box]


def _join(held: Sequence[Interval]) -> list[Interval]:
    """Return ascending intervals without empty ones, and joined where one ends as the next begins.

    So adjacent positions of a shard's boxes are adjacent in the shard.
    """
    out: list[Interval] = []
    for lo, hi in held:
        if lo < hi and out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        elif lo < hi:
            out.append((lo, hi))
    return out


def _cut(held: Sequence[Interval], parts: int) -> list[list[Interval]]:
    """Cut intervals, one after the other, into parts of equal length, like torch.chunk.

    The last parts are shorter, or empty.
    """
    total = sum(hi - lo for lo, hi in held)
    length = -(-total // parts)
    out: list[list[Interval]] = [[] for _ in range(parts)]
    starts = accumulate((hi - lo for lo, hi in held), initial=0)
    for (lo, hi), start in zip(held, starts, strict=False):
        while lo < hi:
            number = start // length
            size = min(hi - lo, (number + 1) * length - start)
            out[number].append((lo, lo + size))
            lo, start = lo + size, start + size
    return out


def _find_slice(held: Sequence[Interval], lo: int, hi: int) -> slice:
    starts = accumulate((end - first for first, end in held), initial=0)
    return next(
        slice(at + lo - first, at + hi - first)
        for (first, end), at in zip(held, starts, strict=False)
        if first <= lo and hi <= end
    )
