"""Hold a benchmark's settings and, per size, its buffers, random data and the check of results."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...synth.ir.collective import Collective
from ...topo.errors import InputError
from ..codec import Codec
from ..program.layout import IN_PLACE, ends_numel
from .bench_options import DTYPE_NAMES, BenchOptions

# Random data repeats after this many elements: a prime, so that no chunk boundary coincides.
_TILE = 1_048_573
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


@dataclass(frozen=True)
class BenchSettings:
    """A collective with the options for it; `dtype` and `op` are checked and resolved from them."""

    collective: Collective
    options: BenchOptions
    dtype: torch.dtype = torch.float32
    op: str = "sum"

    def __post_init__(self) -> None:
        if self.options.place == "in" and self.collective.name == "alltoall":
            raise InputError(
                "place 'in': alltoall has no call in place, neither here nor in NCCL; leave it out",
                parameter="place",
            )

    def list_places(self) -> list[bool]:
        """Return whether results replace the input, once for each row that a size has."""
        name, place = self.collective.name, self.options.place
        if place == "both" and name != "alltoall":
            return [False, True]
        return [name in IN_PLACE if place is None else place == "in"]


class BenchBuffers:
    """Input and output of one size on one rank, with random data that every rank can compute.

    `size_bytes` is the size of the collective's whole buffer. `in_place` (default: as torch has the
    collective) makes results replace the input. For a collective on a tensor in parts (`in_parts`),
    the shorter of input and output is this rank's part of the longer one: `part` elements, at the
    slice `own` of all `numel`. Out of place, a collective that takes one tensor gets `input` copied
    to `output` before each call.
    """

    def __init__(
        self,
        settings: BenchSettings,
        rank: int,
        size_bytes: int,
        device: torch.device,
        in_place: bool | None = None,
    ) -> None:
        self.settings, self.rank, self.device = settings, rank, device
        collective = settings.collective
        self.name, self.root, self.ranks = collective.name, collective.root, collective.ranks
        numel = size_bytes // settings.dtype.itemsize
        self.in_parts = self.name not in IN_PLACE
        self.numel = numel // self.ranks * self.ranks if self.in_parts else numel
        self.part = self.numel // self.ranks
        self.own = slice(rank * self.part, (rank + 1) * self.part)
        sent, got = ends_numel(collective, rank, self.numel)
        self.input = self.make_input(rank, sent)
        self.output = torch.zeros(got, dtype=settings.dtype, device=device)
        self.in_place = not self.in_parts if in_place is None else in_place
        # The input's contents, if a call overwrites it.
        self._unsent: torch.Tensor | None = None
        if self.in_parts and self.in_place and sent and got:
            self._unsent = self.input.clone()
            if sent < got:
                self.input = self.output[self.own]
            else:
                self.output = self.input[self.own]

    @property
    def bytes(self) -> int:
        """The size of the collective's whole buffer, in bytes."""
        return self.numel * self.output.element_size()

    def make_input(self, rank: int, numel: int) -> torch.Tensor:
        """Return `numel` random elements as the input of `rank`, the same wherever computed."""
        generator = torch.Generator().manual_seed(1000 + rank)
        length = max(1, min(numel, _TILE))
        tile = (
            torch.randn(length, generator=generator)
            if self.settings.dtype.is_floating_point
            else torch.randint(0, 4, (length,), generator=generator)
        ).to(self.settings.dtype)
        return tile.repeat(-(-numel // length))[:numel].to(self.device)

    def reset(self) -> None:
        """Restore the buffers to their contents before the collective."""
        if not self.in_parts:
            self.output.copy_(self.input)
        elif self._unsent is not None:
            self.input.copy_(self._unsent)

    def call_in_its_place(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a function that makes `call`, out of place after copying the input to the output.

        Only collectives that take one tensor need the copy.
        """
        if self.in_parts or self.in_place:
            return call

        def copy_and_call() -> None:
            self.output.copy_(self.input)
            call()

        return copy_and_call

    def compute_expected(self) -> tuple[torch.Tensor, torch.Tensor | float] | None:
        """Return this rank's expected result and each element's largest allowed error.

        Return None if the rank has no result. Without compression, the error is the rounding that
        any order of additions may cause; it is 0 for collectives that only move data.
        """
        if self.rank != self.root and self.name in ("reduce", "gather"):
            return None
        if self.settings.collective.reduces:
            total, slack = self._reduce()
            if self.name == "reduce-scatter":
                return total[self.own], slack if isinstance(slack, float) else slack[self.own]
            return total, slack
        if self.name in ("broadcast", "scatter"):
            whole = self.make_input(self.root or 0, self.numel).double()
            return whole if self.name == "broadcast" else whole[self.own], 0.0
        numel, part = (
            (self.numel, self.own) if self.name == "alltoall" else (self.part, slice(None))
        )
        return torch.cat(
            [self.make_input(rank, numel)[part] for rank in range(self.ranks)]
        ).double(), 0.0

    def _reduce(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Return the float64 reduction and the rounding error of any order: (n + 1) eps sum |x|.

        Integers are reduced in 64 bits and wrap like the dtype.
        """
        op, n = self.settings.op, self.ranks
        wide = torch.float64 if self.settings.dtype.is_floating_point else torch.int64
        total = self.make_input(0, self.numel).to(wide)
        size = total.abs()
        reduction = {"prod": torch.mul, "max": torch.maximum, "min": torch.minimum}.get(
            op, torch.add
        )
        for rank in range(1, n):
            other = self.make_input(rank, self.numel).to(wide)
            total = reduction(total, other)
            size = size + other.abs() if op in ("sum", "avg") else total.abs()
        if op == "avg":
            total, size = total / n, size / n
        if op in ("max", "min") or not self.settings.dtype.is_floating_point:
            return total.to(self.settings.dtype).double(), 0.0
        info = torch.finfo(self.settings.dtype)
        return total, (n + 1) * info.eps * size + n * info.smallest_normal

    def count_errors(
        self, codec: Codec | None = None, roundings: int = 0
    ) -> tuple[int, float, float]:
        """Compare the output with the expected one, after `roundings` by a codec, if given.

        Return the number of wrong elements, and the sums of squares of all errors and of expected
        elements.
        """
        expected = self.compute_expected()
        if expected is None:
            return 0, 0.0, 0.0
        reference, slack = expected
        error = (self.output.double() - reference).abs()
        if codec is not None:
            slack = slack + self._bound_compression_error(codec, roundings)
        return (
            int((~(error <= slack)).sum()),
            float(error.square().sum()),
            float(reference.square().sum()),
        )

    def _bound_compression_error(self, codec: Codec, roundings: int) -> torch.Tensor:
        """Return the largest error that compression may cause in each element.

        Every contribution is part of at most `roundings` rounded values, each off by at most the
        codec's relative error times the largest value in its block, wherever the block begins.
        """
        size = sum(self.make_input(rank, self.numel).double().abs() for rank in range(self.ranks))
        assert isinstance(size, torch.Tensor)
        if codec.block > 1:
            window = 2 * codec.block - 1
            size = torch.nn.functional.max_pool1d(size[None, None], window, 1, window // 2)[0, 0]
        bound = size * roundings * codec.relative_error * (1 + codec.relative_error) ** roundings
        if self.in_parts:  # collectives differ in which input element becomes which output element
            return bound.max().expand(self.output.numel())
        # 2^-24 is fp16's smallest number: tinier values are rounded to multiples of it.
        return bound + roundings * self.ranks * 2.0**-24
