"""Find what has to move from one mesh to another: boxes with the same holders and receivers.

A box is the intersection of a shard of the source and one of the destination. Boxes of all tensors
that the same ranks hold and need are one bundle, so that small tensors travel together. If the
source is a sum that is not added up yet (torch's Partial), a holder has one of its terms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise, product
from math import prod

from ....synth.ir.demands import Demand
from ....topo.errors import InputError
from .shards import Box, Interval, Shards

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class TensorBox:
    """A box (ranges of indices along each dimension) of the tensor with the number `tensor`."""

    tensor: int
    box: Box

    @property
    def numel(self) -> int:
        """The number of elements of the box."""
        return prod(hi - lo for lo, hi in self.box)


@dataclass
class Bundle:
    """Boxes that the same ranks hold and the same `receivers` need.

    holders[k] are the ranks that have term k of the sum (one term if nothing is added). Elements
    are numbered box by box through `blocks`, each in row-major order; piece_of[k] is the index of
    term k among the pieces of `Demands`, None if no other rank needs it.
    """

    holders: tuple[Ranks, ...]
    receivers: Ranks
    blocks: list[TensorBox] = field(default_factory=list)
    piece_of: list[int | None] = field(default_factory=list)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(block.numel for block in self.blocks))

    @property
    def numel(self) -> int:
        """The number of elements of one term, over all boxes."""
        return self._ends[-1]

    def walk(self, lo: int, hi: int) -> Iterator[tuple[TensorBox, int, int]]:
        """Yield the boxes that contain elements [lo, hi), with the range of a box's own ones."""
        at = bisect_right(self._ends, lo)
        while lo < hi:
            block, end = self.blocks[at], self._ends[at]
            start = end - block.numel
            yield block, lo - start, min(hi, end) - start
            lo, at = end, at + 1


def find_bundles(tensors: Sequence[tuple[Shards, Shards]]) -> list[Bundle]:
    """Return the bundles of tensors, each given as (source, destination).

    Raise InputError if shapes differ, the destination is an unadded sum, or no rank holds a box.
    """
    bundles: dict[tuple[tuple[Ranks, ...], Ranks], Bundle] = {}
    for number, (source, destination) in enumerate(tensors):
        if source.shape != destination.shape:
            raise InputError(
                f"{source.where} has the shape {source.shape}, {destination.where} "
                f"{destination.shape}; expected the same"
            )
        if destination.terms > 1:
            raise InputError(
                f"{destination.where}: Partial; a destination has whole values, Shard or Replicate"
            )
        last: Bundle | None = None
        for box, holders, receivers in _list_boxes(source, destination):
            key = holders, receivers
            bundle = bundles.setdefault(key, Bundle(*key))
            before = bundle.blocks[-1].box if last is bundle else ()
            if before and before[:-1] == box[:-1] and before[-1][1] == box[-1][0]:
                bundle.blocks.pop()
                box = *box[:-1], (before[-1][0], box[-1][1])
            bundle.blocks.append(TensorBox(number, box))
            last = bundle
    return list(bundles.values())


def list_demands(bundles: Sequence[Bundle]) -> list[Demand]:
    """Return the pieces that ranks need from others, and set the bundles' `piece_of`."""
    pieces: list[Demand] = []
    for bundle in bundles:
        for holders in bundle.holders:
            missing = tuple(rank for rank in bundle.receivers if rank not in holders)
            bundle.piece_of.append(len(pieces) if missing else None)
            if missing:
                pieces.append(Demand(bundle.numel, holders, missing))
    return pieces


def _list_boxes(
    source: Shards, destination: Shards
) -> Iterator[tuple[Box, tuple[Ranks, ...], Ranks]]:
    """Yield the boxes in which shards intersect, with the holders of each term and the receivers.

    Sets of ranks are bits of integers: the ranks that hold a box are those that hold its interval
    of each dimension.
    """
    if not prod(source.shape):
        return
    cuts = [_list_intervals((source, destination), dim) for dim in range(len(source.shape))]
    of_source, of_destination = (
        [_find_owners(shards, dim, listed) for dim, listed in enumerate(cuts)]
        for shards in (source, destination)
    )
    terms = [0] * source.terms
    for rank in source.coordinates:
        terms[source.term_of(rank)] |= 1 << rank
    everyone = sum(1 << rank for rank in destination.coordinates)

    @cache
    def spell(ranks: int) -> Ranks:
        return tuple(r for r in range(ranks.bit_length()) if ranks >> r & 1)

    for place in product(*(range(len(listed)) for listed in cuts)):
        have = need = -1
        for dim, i in enumerate(place):
            have, need = have & of_source[dim][i], need & of_destination[dim][i]
        holders, need = [have & term for term in terms], need & everyone
        box = tuple(cuts[dim][i] for dim, i in enumerate(place))
        if not all(holders) or not need:
            at = ", ".join(f"{lo}:{hi}" for lo, hi in box)
            raise InputError(f"{source.where}: no rank has [{at}], which {destination.where} needs")
        yield box, tuple(map(spell, holders)), spell(need)


def _list_intervals(both: Sequence[Shards], dim: int) -> list[Interval]:
    """Return the intervals into which the shards of source and destination cut a dimension."""
    edges = {
        edge
        for shards in both
        for rank in shards.coordinates
        for interval in shards.intervals(rank, dim)
        for edge in interval
    }
    return list(pairwise(sorted(edges)))


def _find_owners(shards: Shards, dim: int, listed: Sequence[Interval]) -> list[int]:
    """Return the ranks that hold each interval of a dimension, as bits."""
    numbers = {lo: i for i, (lo, _) in enumerate(listed)}
    ends = {hi: i + 1 for i, (_, hi) in enumerate(listed)}
    owners = [0] * len(listed)
    for rank in shards.coordinates:
        for lo, hi in shards.intervals(rank, dim):
            for i in range(numbers[lo], ends[hi]):
                owners[i] |= 1 << rank
    return owners
