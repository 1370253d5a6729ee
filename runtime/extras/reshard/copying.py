"""Copy between shards' slices, contiguous or not, and flat ranges of elements.

A bundle has the boxes (ranges of indices) of all tensors that the same ranks hold and the same
ranks need; its elements are numbered box by box (bundles.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .bundles import Bundle
from .shards import Shards


class Ends:
    """One rank's local shards, before and after a transfer, by the number of the tensor.

    None stands for the shard of a rank outside the mesh, or an empty one. `tensors` describe the
    shards of all ranks. `sources` and `destinations` are the local shards before and after.
    """

    def __init__(
        self,
        rank: int,
        tensors: Sequence[tuple[Shards, Shards]],
        sources: Sequence[torch.Tensor | None],
        destinations: Sequence[torch.Tensor | None],
    ) -> None:
        self.rank, self._tensors = rank, tensors
        self._sources, self._destinations = sources, destinations

    def gather(self, bundle: Bundle, lo: int, hi: int, into: torch.Tensor) -> None:
        """Copy elements [lo, hi) of the bundle's term that this rank holds into the flat `into`."""
        at = 0
        for part in self._walk(bundle, lo, hi, held=True):
            into[at : at + part.numel()].view(part.shape).copy_(part)
            at += part.numel()

    def scatter(
        self, bundle: Bundle, lo: int, hi: int, values: torch.Tensor, *, adds: bool
    ) -> None:
        """Copy the flat `values` to elements [lo, hi) of the bundle in the destination.

        With `adds`, add them to what is there.
        """
        at = 0
        for part in self._walk(bundle, lo, hi, held=False):
            put = part.add_ if adds else part.copy_
            put(values[at : at + part.numel()].view(part.shape))
            at += part.numel()

    def copy(self, bundle: Bundle, lo: int, hi: int, *, adds: bool) -> None:
        """Copy elements [lo, hi) of the bundle, which this rank holds and needs, to their place.

        With `adds`, add them to what is there.
        """
        held, needed = (self._walk(bundle, lo, hi, held=held) for held in (True, False))
        for source, destination in zip(held, needed, strict=True):
            (destination.add_ if adds else destination.copy_)(source)

    def _walk(self, bundle: Bundle, lo: int, hi: int, *, held: bool) -> Iterator[torch.Tensor]:
        for block, first, end in bundle.walk(lo, hi):
            shards = self._tensors[block.tensor][0 if held else 1]
            tensor = (self._sources if held else self._destinations)[block.tensor]
            assert tensor is not None
            yield from walk_rows(tensor[shards.find(self.rank, block.box)], first, end)


def walk_rows(view: torch.Tensor, lo: int, hi: int) -> Iterator[torch.Tensor]:
    """Yield the fewest slices of `view` that make up its elements [lo, hi) in row-major order."""
    if lo == 0 and hi == view.numel():
        yield view
        return
    row = view.numel() // len(view)
    first, end = -(-lo // row), hi // row
    if first > end:  # within one row
        yield from walk_rows(view[end], lo - end * row, hi - end * row)
        return
    if lo < first * row:
        yield from walk_rows(view[first - 1], lo - (first - 1) * row, row)
    if first < end:
        yield view[first:end]
    if end * row < hi:
        yield from walk_rows(view[end], 0, hi - end * row)
