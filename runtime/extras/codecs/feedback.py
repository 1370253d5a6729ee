"""Error feedback for compressed gradients: add each step's rounding errors to the next step."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class _Share:
    """A parameter's part of a bucket's residual, from `start` on.

    `layout` has the ids of the bucket's parameters.
    """

    residual: torch.Tensor
    start: int
    layout: tuple[int, ...]


class Residuals:
    """A model's rounding errors of the last step: a flat float32 tensor per DDP bucket.

    DDP moves parameters to other buckets after the first step; their residuals move with them, and
    are freed with the parameters.
    """

    def __init__(self) -> None:
        self._shares = WeakTensorKeyDictionary()

    def of(self, bucket: dist.GradBucket) -> torch.Tensor:  # type: ignore[name-defined]
        """Return the rounding errors of a DDP bucket: the same tensor each step, zeros at first."""
        parameters = bucket.parameters()
        layout = tuple(map(id, parameters))
        first = self._share_of(parameters[0])
        if first is not None and first.layout == layout:
            return first.residual
        buffer = bucket.buffer()
        residual = torch.zeros(buffer.numel(), dtype=torch.float32, device=buffer.device)
        start = 0
        for parameter in parameters:
            old = self._share_of(parameter)
            numel = parameter.numel()
            if old is not None:
                residual[start : start + numel].copy_(old.residual[old.start : old.start + numel])
            self._shares[parameter] = _Share(residual, start, layout)
            start += numel
        return residual

    def _share_of(self, parameter: torch.Tensor) -> _Share | None:
        share: _Share | None = self._shares.get(parameter)  # type: ignore[no-untyped-call]
        return share
