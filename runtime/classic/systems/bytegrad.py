"""Allreduce of 8-bit gradients, as Bagua's ByteGrad does it: scattered, added in full precision, gathered."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..base import Averaging
from ..buckets import Flats
from ..minmax import pack, packed_bytes, unpack


class ByteGrad(Averaging):
    """Every worker packs its bucket in 8 bits, a part for each worker; parts go to their owners (alltoall), which unpack them,
    add in float32, and pack the mean once more; all gather the means (allgather) and unpack the same bytes.

    Each gradient is rounded once and the mean once: the error is at most half a level of either, 1/510 of the range of values
    in a block of 256.
    """

    name = "bytegrad"
    promise = "replicas bitwise equal after every step; each gradient and the mean are off by at most 1/510 of a block's range"
    source = "Gan et al., Bagua, VLDB 2022, centralised low-precision synchronous (ByteGrad)"

    def average(self, flats: Flats) -> None:
        """See Averaging."""
        for number, flat in enumerate(flats):
            with self.faults.stock(f"{self.name}, step {self.steps}, bucket {number}"):
                self._average(flat)

    def _average(self, flat: torch.Tensor) -> None:
        ranks, group = len(self.workers), self.setting.group
        each = -(-len(flat) // ranks)
        parts = flat.new_zeros(ranks * each)
        parts[: len(flat)] = flat
        mine = pack(parts.view(ranks, each))
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs.view(-1), mine.view(-1), group=group)
        mean = pack(unpack(theirs, each).sum(0).div_(ranks)[None])
        gathered = torch.empty_like(mine)
        dist.all_gather(list(gathered), mean[0], group=group)
        flat.copy_(unpack(gathered, each).reshape(-1)[: len(flat)])
        self.mail.bytes_sent += 2 * (ranks - 1) * packed_bytes(each)
