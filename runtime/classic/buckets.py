"""A model's trainable parameters as flat buckets: what the systems send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from ...topo.errors import InputError

BUCKET_BYTES = 25 << 20
"""What a bucket holds at most, unless one parameter alone is larger (as in DDP)."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Flats = list[torch.Tensor]


def plain(dtype: torch.dtype) -> str:
    """A dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def mean_of(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """The mean of tensors, added in their order in `sums_in` and rounded once, to `out` (which may be one of them)."""
    total = parts[0].to(sums_in(out.dtype), copy=True)
    for part in parts[1:]:
        total += part
    out.copy_(total.div_(len(parts)))


def sums_in(dtype: torch.dtype) -> torch.dtype:
    """What values of a dtype are added up in: half precision in float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class Buckets:
    """Buckets of one dtype each, in the order in which the model lists its parameters. InputError for a model that has
    nothing to train, or parameters of a dtype or on a device that is not supported.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters that require gradients; nothing to train")
        for name, p in model.named_parameters():
            if p.requires_grad and p.dtype not in dtypes:
                allowed = ", ".join(map(plain, dtypes))
                raise InputError(f"parameter {name} is of {plain(p.dtype)}; this system takes {allowed}")
            if p.device.type != device.type:
                raise InputError(f"parameter {name} is on {p.device}; the process group works on {device.type}")
        self.members = _divided(self.parameters)
        self.layout = [(sum(p.numel() for p in members), plain(members[0].dtype)) for members in self.members]
        """(elements, dtype) of each bucket."""

    def empty(self) -> Flats:
        """Flat tensors of the buckets' sizes."""
        return [m[0].new_empty(n, requires_grad=False) for m, (n, _) in zip(self.members, self.layout, strict=True)]

    def gradients(self, into: Flats) -> None:
        """Copy out the gradients; a parameter without one counts as having zeros."""
        for p, view in self._views(into):
            if p.grad is None:
                view.zero_()
            elif p.grad.layout != torch.strided:
                raise InputError("a gradient is sparse; the classic systems take dense ones (sparse=False)")
            else:
                view.copy_(p.grad)

    def set_gradients(self, flats: Flats) -> None:
        """Make what `flats` hold the gradients."""
        for p, view in self._views(flats):
            if p.grad is None:
                p.grad = view.clone()
            else:
                p.grad.copy_(view)

    def clear_gradients(self) -> None:
        """As zero_grad does."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def values(self, into: Flats) -> None:
        """Copy out the parameters."""
        for p, view in self._views(into):
            view.copy_(p)

    @torch.no_grad()
    def set_values(self, flats: Flats) -> None:
        """Copy `flats` into the parameters, rounding where these are of a smaller dtype."""
        for p, view in self._views(flats):
            p.copy_(view)

    def _views(self, flats: Flats) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each parameter with its part of the buckets `flats`, in its shape."""
        for members, flat in zip(self.members, flats, strict=True):
            parts = torch.split(flat, [p.numel() for p in members])
            for p, part in zip(members, parts, strict=True):
                yield p, part.view(p.shape)


def _divided(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Buckets, a dtype each, none over BUCKET_BYTES unless one parameter is."""
    out: list[list[nn.Parameter]] = []
    open_ones: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
    for p in parameters:
        members, size = open_ones.get(p.dtype, ([], 0))
        if not members or size + p.nbytes > BUCKET_BYTES:
            members, size = [], 0
            out.append(members)
        members.append(p)
        open_ones[p.dtype] = members, size + p.nbytes
    return out
