"""Allreduce of 8-bit gradients as in Bagua's ByteGrad: scatter, add in full precision, gather."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..base import Averaging
from ..buckets import Flats
from ..quantization import dequantize, quantize, quantized_bytes


class ByteGrad(Averaging):
    """Allreduce with 8 bits per value on the wire.

    Every worker quantizes its bucket, a part for each worker, and sends each part to its owner
    (alltoall). The owner adds the parts in float32 and quantizes the mean; all workers gather the
    means (allgather) and dequantize the same bytes. Each gradient is rounded once and the mean
    once: the error is at most half a level of either, 1/510 of the range of values in a block of
    256.
    """

    name = "bytegrad"
    promise = (
        "replicas bitwise equal after every step; each gradient and the mean are off by at most "
        "1/510 of a block's range"
    )
    source = "Gan et al., Bagua, VLDB 2022, centralised low-precision synchronous (ByteGrad)"

    def average(self, flats: Flats) -> None:
        """Average each bucket."""
        for number, flat in enumerate(flats):
            with self.faults.stock(f"{self.name}, step {self.steps}, bucket {number}"):
                self._average(flat)

    def _average(self, flat: torch.Tensor) -> None:
        ranks, group = len(self.workers), self.setting.group
        part_numel = -(-len(flat) // ranks)
        parts = flat.new_zeros(ranks * part_numel)
        parts[: len(flat)] = flat
        sent = quantize(parts.view(ranks, part_numel))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=group)
        mean = quantize(dequantize(received, part_numel).sum(0).div_(ranks)[None])
        gathered = torch.empty_like(sent)
        dist.all_gather(list(gathered), mean[0], group=group)
        flat.copy_(dequantize(gathered, part_numel).reshape(-1)[: len(flat)])
        self.p2p.bytes_sent += 2 * (ranks - 1) * quantized_bytes(part_numel)
