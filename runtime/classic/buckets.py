"""Divide a model's trainable parameters into flat buckets, which the systems send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from ...topo.errors import InputError

# Largest bucket, unless one parameter alone is larger (as in DDP).
BUCKET_BYTES = 25 << 20
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Flats = list[torch.Tensor]


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def average_in_order(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Write the mean of tensors to `out` (maybe one of them), added in order, rounded once."""
    total = parts[0].to(sum_dtype(out.dtype), copy=True)
    for part in parts[1:]:
        total += part
    out.copy_(total.div_(len(parts)))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values are added: float32 for half precision, else their own."""
    # A sum in half precision loses addends that are small compared with it.
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class Buckets:
    """A model's trainable parameters in buckets of one dtype each, in the model's order.

    Raise InputError if nothing is trainable, or for unsupported dtypes and devices.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, dtypes: Sequence[torch.dtype] = DTYPES
    ) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters that require gradients; nothing to train")
        for name, p in model.named_parameters():
            if p.requires_grad and p.dtype not in dtypes:
                raise InputError(
                    f"parameter {name} is of {name_of(p.dtype)}; this system takes "
                    f"{', '.join(map(name_of, dtypes))}"
                )
            if p.device.type != device.type:
                raise InputError(
                    f"parameter {name} is on {p.device}; the process group works on {device.type}"
                )
        self.members = _divide(self.parameters)
        self.layout = [
            (sum(p.numel() for p in members), name_of(members[0].dtype)) for members in self.members
        ]
        """(elements, dtype) of each bucket."""

    def allocate(self) -> Flats:
        """Return uninitialized flat tensors of the buckets' sizes."""
        return [
            m[0].new_empty(n, requires_grad=False)
            for m, (n, _) in zip(self.members, self.layout, strict=True)
        ]

    def copy_gradients(self, into: Flats) -> None:
        """Copy the gradients to flat tensors; a parameter without a gradient counts as zeros."""
        for p, view in self._views(into):
            if p.grad is None:
                view.zero_()
            elif p.grad.layout != torch.strided:
                raise InputError(
                    "a gradient is sparse; the classic systems take dense ones (sparse=False)"
                )
            else:
                view.copy_(p.grad)

    def set_gradients(self, flats: Flats) -> None:
        """Copy `flats` to the gradients."""
        for p, view in self._views(flats):
            if p.grad is None:
                p.grad = view.clone()
            else:
                p.grad.copy_(view)

    def clear_gradients(self) -> None:
        """Drop all gradients, as zero_grad does."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def copy_values(self, into: Flats) -> None:
        """Copy the parameters to flat tensors."""
        for p, view in self._views(into):
            view.copy_(p)

    @torch.no_grad()
    def set_values(self, flats: Flats) -> None:
        """Copy `flats` to the parameters, rounding if these have a smaller dtype."""
        for p, view in self._views(flats):
            p.copy_(view)

    def _views(self, flats: Flats) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Yield each parameter with the view of `flats` that has its elements and shape."""
        for members, flat in zip(self.members, flats, strict=True):
            parts = torch.split(flat, [p.numel() for p in members])
            yield from ((p, part.view(p.shape)) for p, part in zip(members, parts, strict=True))


def _divide(parameters: Iterable[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    out: list[list[torch.nn.Parameter]] = []
    # A bucket stays open while parameters of other dtypes come between.
    last_of_dtype: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}
    for p in parameters:
        members, size = last_of_dtype.get(p.dtype, ([], 0))
        if not members or size + p.nbytes > BUCKET_BYTES:
            members, size = [], 0
            out.append(members)
        members.append(p)
        last_of_dtype[p.dtype] = members, size + p.nbytes
    return out
