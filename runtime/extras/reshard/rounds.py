"""Divide a transfer into rounds: a schedule run several times, each time on part of the elements.

So scratch memory only holds what a rank sends, relays and receives in one round. A bundle has the
boxes (ranges of indices) of all tensors that the same ranks hold and the same ranks need; where
values are sums, a holder has one of their terms (bundles.py). A piece of demands, which are the
collective of the schedule, is a term of a bundle that moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import torch

from ....synth.ir.demands import Demands
from ....synth.ir.schedule import Schedule
from ...compiled import Buffers
from ...program.layout import Move
from .bundles import Bundle
from .copying import Ends

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Round:
    """One run of `schedule`, on elements [lo, hi) = ranges[b] of each bundle b.

    `numel` is the number of elements in all pieces that move.
    """

    schedule: Schedule
    ranges: tuple[Range, ...]
    numel: int


def list_rounds(schedule: Schedule, bundles: Sequence[Bundle], count: int) -> list[Round]:
    """Return up to `count` rounds that together move all elements of the bundles.

    All terms of an element, which are added, move in one round. Rounds of equal lengths share a
    schedule, which is then compiled once.
    """
    of_lengths: dict[tuple[int, ...], Schedule] = {}
    rounds = []
    lengths = [-(-bundle.numel // count) for bundle in bundles]
    for number in range(count):
        ranges = tuple(
            (min(number * length, bundle.numel), min((number + 1) * length, bundle.numel))
            for bundle, length in zip(bundles, lengths, strict=True)
        )
        of_pieces = tuple(
            hi - lo
            for bundle, (lo, hi) in zip(bundles, ranges, strict=True)
            for piece in bundle.piece_of
            if piece is not None
        )
        if any(of_pieces):
            if of_pieces not in of_lengths:
                of_lengths[of_pieces] = resize(schedule, of_pieces)
            rounds.append(Round(of_lengths[of_pieces], ranges, sum(of_pieces)))
    return rounds


def resize(schedule: Schedule, sizes: Sequence[int]) -> Schedule:
    """Return the schedule for pieces of other `sizes` (elements); chunks keep their shares."""
    demands = schedule.collective
    assert isinstance(demands, Demands)
    pieces = tuple(
        replace(piece, size=size) for piece, size in zip(demands.pieces, sizes, strict=True)
    )
    resized = replace(demands, pieces=pieces)
    ratios = [
        Fraction(after.size * demands.size, before.size * resized.size)
        for before, after in zip(demands.pieces, pieces, strict=True)
    ]
    chunks = tuple(
        replace(chunk, share=chunk.share * ratios[chunk.piece])
        for chunk in schedule.chunks
        if chunk.piece is not None
    )
    return replace(schedule, collective=resized, chunks=chunks)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundBuffers(Buffers):
    """The memory of one round: `ranges` of elements of the `bundles` in the shards of `ends`.

    `target` only has their dtype and device.
    """

    ends: Ends
    bundles: Sequence[Bundle]
    ranges: Sequence[Range]

    @property
    def _held(self) -> list[tuple[int, Bundle, int]]:
        """Where each piece begins among those that the rank holds: place, bundle, first element."""
        return self._places[0]

    @property
    def _needed(self) -> list[tuple[int, int, int]]:
        """The same among those that it needs, with the number of the piece for the bundle."""
        return self._places[1]

    @cached_property
    def _places(self) -> tuple[list[tuple[int, Bundle, int]], list[tuple[int, int, int]]]:
        of_held, of_needed = list[tuple[int, Bundle, int]](), list[tuple[int, int, int]]()
        held = needed = 0
        for bundle, (lo, hi) in zip(self.bundles, self.ranges, strict=True):
            for holders, piece in zip(bundle.holders, bundle.piece_of, strict=True):
                if piece is None:
                    continue
                if self.ends.rank in holders:
                    of_held.append((held, bundle, lo))
                    held += hi - lo
                elif self.ends.rank in bundle.receivers:
                    of_needed.append((needed, piece, lo))
                    needed += hi - lo
        return of_held, of_needed

    def fill(self, work: torch.Tensor, fills: Sequence[Move]) -> None:
        """Copy from the source shards into the work buffer of a program, as `fills` say."""
        for move in fills:
            if move.lo < move.hi:
                start, bundle, first = self._held[_find(self._held, move.lo)]
                lo, hi = move.lo - start + first, move.hi - start + first
                self.ends.gather(bundle, lo, hi, work[move.to : move.to + hi - lo])

    def drain(self, work: torch.Tensor, drains: Sequence[Move]) -> None:
        """Copy what arrived in the work buffer into the destination shards, as `drains` say.

        Terms of sums are added in rank order, so that all receivers get the same bits.
        """
        arrived = defaultdict[int, list[tuple[int, torch.Tensor]]](list)
        for move in drains:
            if move.lo < move.hi:
                start, number, first = self._needed[_find(self._needed, move.to)]
                arrived[number].append((move.to - start + first, work[move.lo : move.hi]))
        for bundle, (lo, hi) in zip(self.bundles, self.ranges, strict=True):
            if self.ends.rank not in bundle.receivers or lo == hi:
                continue
            for term, (holders, piece) in enumerate(
                zip(bundle.holders, bundle.piece_of, strict=True)
            ):
                if self.ends.rank in holders:
                    if len(bundle.holders) > 1:
                        self.ends.copy(bundle, lo, hi, adds=term > 0)
                elif piece is not None:
                    for first, values in arrived[piece]:
                        end = first + len(values)
                        self.ends.scatter(bundle, first, end, values, adds=term > 0)


def _find(places: Sequence[tuple[int, object, int]], at: int) -> int:
    """Return the number of the last place that begins at `at` or before."""
    return bisect_right(places, at, key=lambda place: place[0]) - 1
