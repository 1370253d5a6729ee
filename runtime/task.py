"""One call of a collective, checked and laid flat: it can be carried out later, or begun by the stock collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .engine import Engine
from .ranks.stock import StartedStock
from .reductions import ReduceOp


@dataclass
class Task:
    """A collective on a buffer of `numel` elements, from flat `source` to flat `target` (the same one where it is in place).

    `residual` is error feedback. `then` are called in turn once the result is in `target`: division, and the way back into
    tensors that are not contiguous.
    """

    engine: Engine
    numel: int
    source: torch.Tensor
    target: torch.Tensor
    op: ReduceOp = dist.ReduceOp.SUM
    residual: torch.Tensor | None = None
    then: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether it is settled what is used; if not, this call settles it, by a race."""
        return self.engine.is_settled(self.numel, self.target.dtype)

    @property
    def uses_stock(self) -> bool:
        """Whether the stock collective is used. Collective the first time for a dtype and reduction."""
        return bool(self.numel) and self.engine.uses_stock(self.numel, self.target.dtype, self.op)

    def run(self, number: int | None = None) -> None:
        """Carry it out; `number` is the call's, where it was drawn before."""
        if self.numel:
            self.engine.run(self.numel, self.source, self.target, self.op, self.residual, number)
            self._finish()

    def start_stock(self) -> StartedStock:
        """Start the stock collective; see Engine.start_stock."""
        return self.engine.start_stock(self.numel, self.source, self.target, self.op, self._finish)

    def _finish(self) -> None:
        for step in self.then:
            step()
