"""One size of a benchmark on one rank: buffers, random data that every rank can make for every other, and the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...synth.ir.collective import Collective
from ..codecs import Codec
from ..program.layout import IN_PLACE, ends_numel

_TILE = 1_048_573
"""Random data repeats after this many elements, a prime, so that no chunk boundary falls together with it."""
OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
       "min": dist.ReduceOp.MIN}  # fmt: skip
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    )
}


@dataclass(frozen=True)
class Job:
    """What to measure: sizes from `min_bytes` to `max_bytes` by `factor`, `iterations` counted after `warmup`."""

    collective: Collective
    min_bytes: int
    max_bytes: int
    factor: int
    iterations: int
    warmup: int
    dtype: torch.dtype = torch.float32
    op: str = "sum"

    def sizes(self) -> list[int]:
        """Bytes of the buffer for each row."""
        out = [self.min_bytes]
        while out[-1] * self.factor <= self.max_bytes:
            out.append(out[-1] * self.factor)
        return out


@dataclass(frozen=True)
class Judged:
    """How many elements are wrong, and the sums of squares of what all are off by, and of what they should be."""

    wrong: int
    off2: float
    reference2: float


class Case:
    """Buffers, data and reference of one size on one rank."""

    def __init__(self, job: Job, rank: int, size_bytes: int, device: torch.device) -> None:
        self.job, self.rank, self.ranks, self.device = job, rank, job.collective.ranks, device
        numel = size_bytes // torch.empty(0, dtype=job.dtype).element_size()
        self.parted = job.collective.name not in IN_PLACE
        self.numel = numel // self.ranks * self.ranks if self.parted else numel
        self.name, self.root = job.collective.name, job.collective.root
        self.part = self.numel // self.ranks
        sent, got = ends_numel(job.collective, rank, self.numel)
        self.input = self.data(rank, sent)
        self.output = torch.zeros(got, dtype=job.dtype, device=device)

    @property
    def bytes(self) -> int:
        """Of the collective's whole buffer."""
        return self.numel * self.output.element_size()

    def data(self, rank: int, numel: int) -> torch.Tensor:
        """The random input of a rank."""
        generator = torch.Generator().manual_seed(1000 + rank)
        length = max(1, min(numel, _TILE))
        if self.job.dtype.is_floating_point:
            tile = torch.randn(length, generator=generator).to(self.job.dtype)
        else:
            tile = torch.randint(0, 4, (length,), generator=generator).to(self.job.dtype)
        return tile.repeat(-(-numel // length))[:numel].to(self.device)

    def reset(self) -> None:
        """Bring the buffers back to where they were before the collective."""
        if not self.parted:
            self.output.copy_(self.input)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor | float] | None:
        """What this rank must hold in the end and how far off an element may be, or None if it holds nothing.

        Without compression: for sums the rounding that any order of them may have, for the rest nothing.
        """
        name, part = self.name, self.part
        if self.root is not None and self.rank != self.root and name in ("reduce", "gather"):
            return None
        if self.job.collective.reduces:
            total, slack = self._reduced()
            if name == "reduce-scatter":
                lo, hi = self.rank * part, (self.rank + 1) * part
                return total[lo:hi], slack[lo:hi] if isinstance(slack, torch.Tensor) else slack
            return total, slack
        if name == "broadcast":
            return self.data(self.root or 0, self.numel).double(), 0.0
        if name == "scatter":
            return self.data(self.root or 0, self.numel)[self.rank * part : (self.rank + 1) * part].double(), 0.0
        if name == "alltoall":
            mine = slice(self.rank * part, (self.rank + 1) * part)
            return torch.cat([self.data(r, self.numel)[mine] for r in range(self.ranks)]).double(), 0.0
        return torch.cat([self.data(r, part) for r in range(self.ranks)]).double(), 0.0

    def _reduced(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The reduction in float64, and the rounding that any order of it may have: (n + 1) eps sum |x|.

        Whole numbers are reduced in 64 bits and wrap as the dtype does.
        """
        op, n = self.job.op, self.ranks
        wide = torch.float64 if self.job.dtype.is_floating_point else torch.int64
        total = self.data(0, self.numel).to(wide)
        size = total.abs()
        for rank in range(1, n):
            other = self.data(rank, self.numel).to(wide)
            if op in ("sum", "avg"):
                total += other
                size += other.abs()
            elif op == "prod":
                total *= other
                size = total.abs()
            else:
                total = torch.maximum(total, other) if op == "max" else torch.minimum(total, other)
        if op == "avg":
            total, size = total / n, size / n
        if op in ("max", "min") or not self.job.dtype.is_floating_point:
            return total.to(self.job.dtype).double(), 0.0
        info = torch.finfo(self.job.dtype)
        return total, (n + 1) * info.eps * size + n * info.smallest_normal

    def judged(self, codec: Codec | None = None, roundings: int = 0) -> Judged:
        """How the output compares; with a codec values may have been rounded so many times on their way."""
        wanted = self.expected()
        if wanted is None:
            return Judged(0, 0.0, 0.0)
        reference, slack = wanted
        off = (self.output.double() - reference).abs()
        if codec is not None:
            slack = slack + self._lost(codec, roundings)
        return Judged(int((~(off <= slack)).sum()), float(off.square().sum()), float(reference.square().sum()))

    def _lost(self, codec: Codec, roundings: int) -> torch.Tensor:
        """How far off compression may bring each element: every contribution is part of at most so many rounded values, each
        off by at most the codec's part of the largest in its block, wherever that begins.
        """
        size = sum(self.data(rank, self.numel).double().abs() for rank in range(self.ranks))
        assert isinstance(size, torch.Tensor)
        if codec.block > 1:
            window = 2 * codec.block - 1
            size = torch.nn.functional.max_pool1d(size.view(1, 1, -1), window, 1, window // 2).view(-1)
        lost = size * roundings * codec.relative_error * (1 + codec.relative_error) ** roundings
        if self.parted:  # which part of the inputs an element comes from is another matter for each collective
            return lost.max().expand(self.output.numel())
        return lost + roundings * self.ranks * 2.0**-24
