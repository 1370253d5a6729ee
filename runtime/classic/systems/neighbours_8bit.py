"""Decentralized training with 8-bit differences on the wire."""

from __future__ import annotations

import torch

from ..base import Setting
from ..quantization import dequantize, quantize, quantized_bytes
from .neighbours import Neighbours


class Neighbours8Bit(Neighbours):
    """Neighbours that send 8-bit differences and track replicas of each other's parameters.

    Every worker has a replica of each neighbour's parameters x and moves it by what the neighbour
    sends: the quantized difference between its parameters after and before a step. The neighbour
    moves its own x by the same rounded difference, so all replicas of x have the same bits.
    Rounding is random and unbiased, and each block of 256 values has its own levels: the smaller
    the steps, the smaller the error, so replicas converge as without compression.

    Only float32: rounding the replicas to half precision would lose small differences.
    """

    name = "neighbours-8bit"
    promise = (
        "as neighbours with 0.258 of the bytes; the mean is kept up to an unbiased error of "
        "1/255 of a step's range"
    )
    source = (
        "Tang et al., Communication Compression for Decentralized Training (DCD-PSGD), NeurIPS "
        "2018, algorithm 1; "
        "Gan et al., Bagua, VLDB 2022, low-precision decentralised"
    )
    dtypes = (torch.float32,)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for flats in (self._own, *self._received.values()):
            self.buckets.copy_values(flats)  # all workers begin alike
        self._noise = torch.Generator(setting.device).manual_seed(self.rank)
        self._arrived = {
            j: [flat.new_empty(quantized_bytes(len(flat)), dtype=torch.uint8) for flat in self._own]
            for j in self._neighbours
        }

    def _advance(self) -> None:
        self._mix()
        self._update()
        target = [torch.empty_like(flat) for flat in self._own]
        self.buckets.copy_values(target)
        differences = [
            quantize((b - a)[None], self._noise)[0] for a, b in zip(self._own, target, strict=True)
        ]
        sends = [(j, quantized) for j in self._neighbours for quantized in differences]
        self.p2p.exchange(
            sends, [(j, quantized) for j, arrived in self._arrived.items() for quantized in arrived]
        )
        for flats, moves in (
            (self._own, differences),
            *((self._received[j], self._arrived[j]) for j in self._neighbours),
        ):
            for flat, move in zip(flats, moves, strict=True):
                flat += dequantize(move[None], len(flat))[0]
        self.buckets.set_values(self._own)
