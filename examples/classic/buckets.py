"""Divide a model's trainable parameters into flat buckets, which the systems send.

Some send them quantized to 8 bits in blocks: 256 levels from the smallest to the largest value of a
block. A row of `numel` values becomes two float32 per block (its smallest and largest value), then
a byte per value.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from topoplan import InputError

# Largest bucket, unless one parameter alone is larger (as in DDP).
BUCKET_BYTES = 25 << 20
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Flats = list[torch.Tensor]
BLOCK = 256  # values that share a smallest and largest one, which add 8 bytes: 3 %
_LEVELS = 255
_ENDS_BYTES = 8  # two float32


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def average_in_order(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Write the mean of `parts`, added in their order and rounded once, to `out`.

    `out` may be one of them.
    """
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

    `layout` is (elements, dtype) of each bucket. Methods take and return one flat tensor per
    bucket. Raise InputError if nothing is trainable, or for unsupported dtypes and devices.
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

    def allocate(self) -> Flats:
        """Return an uninitialized flat tensor for each bucket."""
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


def quantized_bytes(numel: int) -> int:
    """Return the bytes that `numel` quantized values take, the scales of their blocks included.

    That is .2579 of float32's bytes for whole blocks.
    """
    return _ENDS_BYTES * count_blocks(numel) + numel


def count_blocks(numel: int) -> int:
    """Return the number of blocks of `numel` values; the last block may be shorter."""
    return -(-numel // BLOCK)


def quantize(rows: torch.Tensor, noise: torch.Generator | None = None) -> torch.Tensor:
    """Quantize [r, numel] values of any float dtype to [r, quantized_bytes(numel)] of uint8.

    Every row is cut into blocks. Values are rounded to the nearest level, or with `noise` up or
    down at random with the value as the mean. The error is at most half a level (one level with
    noise); a level is 1/255 of the block's range. A block with a non-finite value is dequantized to
    nan.
    """
    count, numel = rows.shape
    values = rows.new_empty((count, count_blocks(numel) * BLOCK), dtype=torch.float32)
    values[:, :numel] = rows
    values[:, numel:] = rows[:, -1:]  # so that the last block's ends are those of its values
    values = values.view(count, -1, BLOCK)
    low, high = values.amin(2), values.amax(2)
    width = (high - low)[..., None]
    # A block of equal values has no width: all of them are its smallest value.
    levels = (values - low[..., None]).mul_(torch.where(width > 0, _LEVELS / width, 0.0))
    if noise is None:
        levels.round_()
    else:
        levels.add_(torch.rand(levels.shape, generator=noise, device=levels.device)).floor_()
    levels = levels.clamp_(0, _LEVELS).nan_to_num_(0.0)
    ends = torch.stack([low, high], dim=2).view(count, -1)
    # The padding of the last block is not sent.
    return torch.cat(
        [ends.view(torch.uint8), levels.to(torch.uint8).view(count, -1)[:, :numel]], dim=1
    )


def dequantize(quantized: torch.Tensor, numel: int) -> torch.Tensor:
    """Return the values that `quantize` rounded to, as float32 [r, numel]."""
    count = quantized.shape[0]
    heads = _ENDS_BYTES * count_blocks(numel)
    ends = quantized[:, :heads].reshape(-1).clone().view(torch.float32).view(count, -1, 2)
    low, high = ends[..., :1], ends[..., 1:]
    # Whole blocks: zeros fill the last one if it is shorter.
    levels = quantized.new_zeros((count, count_blocks(numel) * BLOCK), dtype=torch.float32)
    levels[:, :numel] = quantized[:, heads:]
    levels.view(count, -1, BLOCK).mul_((high - low) / _LEVELS).add_(low)
    return levels[:, :numel]
