"""Decentralised training with 8-bit differences on the wire."""

from __future__ import annotations

import torch

from ..base import Setting
from ..minmax import pack, packed_bytes, unpack
from .neighbours import Neighbours


class Neighbours8Bit(Neighbours):
    """Every worker keeps a replica of each neighbour's parameters and moves it by what the neighbour sends: the 8-bit
    difference C(z) between where a step leads from x and x itself. The worker moves by the rounded difference as well, so all
    replicas of x are the same bits. Rounding is random and unbiased, blocks of 256 values have levels of their own;
    the smaller the steps, the smaller the error, so replicas draw together as without compression.

    Takes float32 only: rounding the replicas to half precision would lose small differences.
    """

    name = "neighbours-8bit"
    promise = (
        "as neighbours with 0.258 of the bytes; the mean is kept up to an unbiased error of 1/255 of a step's range"
    )
    source = (
        "Tang et al., Communication Compression for Decentralized Training (DCD-PSGD), NeurIPS 2018, algorithm 1; "
        "Gan et al., Bagua, VLDB 2022, low-precision decentralised"
    )
    dtypes = (torch.float32,)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for flats in (self._own, *self._theirs.values()):
            self.buckets.values(flats)  # all workers begin alike
        self._noise = torch.Generator(setting.device).manual_seed(self.rank)
        self._inbox = {
            j: [flat.new_empty(packed_bytes(len(flat)), dtype=torch.uint8) for flat in self._own] for j in self._near
        }

    def _advance(self) -> None:
        self._mix()
        self._update()
        there = [torch.empty_like(flat) for flat in self._own]
        self.buckets.values(there)
        news = [pack((b - a)[None], self._noise)[0] for a, b in zip(self._own, there, strict=True)]
        sends = [(j, packed) for j in self._near for packed in news]
        self.mail.exchange(sends, [(j, packed) for j, inbox in self._inbox.items() for packed in inbox])
        for flats, packed in ((self._own, news), *((self._theirs[j], self._inbox[j]) for j in self._near)):
            for flat, moved in zip(flats, packed, strict=True):
                flat += unpack(moved[None], len(flat))[0]
        self.buckets.set_values(self._own)
