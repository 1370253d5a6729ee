"""What compression took away from the gradients of a model, kept for its next step, across the buckets that DDP makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class _Share:
    """A parameter's part of a bucket's residual, from `at` on; `layout` are the ids of the bucket's parameters."""

    residual: torch.Tensor
    at: int
    layout: tuple[int, ...]


class Residuals:
    """A residual for each bucket: flat float32, laid out as the bucket. DDP puts parameters into other buckets after the
    first step; what is kept goes with them. Parameters that are gone are forgotten.
    """

    def __init__(self) -> None:
        self._of = WeakTensorKeyDictionary()

    def of(self, bucket: dist.GradBucket) -> torch.Tensor:  # type: ignore[name-defined]
        """The residual of a bucket, zeros at first."""
        parameters = bucket.parameters()
        layout = tuple(map(id, parameters))
        known = self._share(parameters[0])
        if known is not None and known.layout == layout:
            return known.residual
        buffer = bucket.buffer()
        residual = torch.zeros(buffer.numel(), dtype=torch.float32, device=buffer.device)
        at = 0
        for parameter in parameters:
            old = self._share(parameter)
            numel = parameter.numel()
            if old is not None:
                residual[at : at + numel].copy_(old.residual[old.at : old.at + numel])
            self._of[parameter] = _Share(residual, at, layout)
            at += numel
        return residual

    def _share(self, parameter: torch.Tensor) -> _Share | None:
        share: _Share | None = self._of[parameter] if parameter in self._of else None  # noqa: SIM401  (its get is not typed)
        return share
