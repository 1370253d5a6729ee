"""Quantize to 8 bits in blocks: 256 levels from the smallest to the largest value of a block.

A row of `numel` values becomes two float32 per block (its smallest and largest value), then a byte
per value.
"""

from __future__ import annotations

import torch

BLOCK = 256  # values that share a smallest and largest one: 3 % overhead
_LEVELS = 255
_ENDS_BYTES = 8  # two float32


def quantized_bytes(numel: int) -> int:
    """Return the bytes of `numel` quantized values: 0.2579 of float32's for whole blocks."""
    return _ENDS_BYTES * count_blocks(numel) + numel


def count_blocks(numel: int) -> int:
    """Return the number of blocks; the last one may be shorter."""
    return -(-numel // BLOCK)


def quantize(rows: torch.Tensor, noise: torch.Generator | None = None) -> torch.Tensor:
    """Quantize [r, numel] values of any float dtype to [r, quantized_bytes(numel)] of uint8.

    Values are rounded to the nearest level, or with `noise` up or down at random with the value as
    the mean. The error is at most half a level (one level with noise); a level is 1/255 of the
    block's range. A block with a non-finite value is dequantized to nan.
    """
    count, numel = rows.shape
    values = rows.new_empty((count, count_blocks(numel) * BLOCK), dtype=torch.float32)
    values[:, :numel] = rows
    values[:, numel:] = rows[:, -1:]  # so that the last block's ends are those of its values
    values = values.view(count, -1, BLOCK)
    low, high = values.amin(2), values.amax(2)
    width = high - low
    # A block of equal values has no width: all of them are its smallest value.
    scale = torch.where(width > 0, _LEVELS / width, 0.0)
    levels = (values - low[..., None]).mul_(scale[..., None])
    if noise is None:
        levels.round_()
    else:
        levels.add_(torch.rand(levels.shape, generator=noise, device=levels.device)).floor_()
    levels = levels.clamp_(0, _LEVELS).nan_to_num_(0.0)
    ends = torch.stack([low, high], dim=2).view(count, -1)
    # The padding of the last block is not sent.
    body = levels.to(torch.uint8).view(count, -1)[:, :numel]
    return torch.cat([ends.view(torch.uint8), body], dim=1)


def dequantize(quantized: torch.Tensor, numel: int) -> torch.Tensor:
    """Return the values that `quantize` rounded to, as float32 [r, numel]."""
    count = quantized.shape[0]
    heads = _ENDS_BYTES * count_blocks(numel)
    ends = quantized[:, :heads].reshape(-1).clone().view(torch.float32).view(count, -1, 2)
    low, high = ends[..., 0], ends[..., 1]
    step = (high - low) / _LEVELS
    # Whole blocks: zeros fill the last one if it is shorter.
    levels = quantized.new_zeros((count, count_blocks(numel) * BLOCK), dtype=torch.float32)
    levels[:, :numel] = quantized[:, heads:]
    levels.view(count, -1, BLOCK).mul_(step[..., None]).add_(low[..., None])
    return levels[:, :numel]
