"""The ranks of a run: those that train, and what they tell each other about it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Crew:
    """All ranks but the last `helpers` train. Making it is collective; a single process needs no process group."""

    def __init__(self, rank: int, world: int, helpers: int) -> None:
        self.rank, self.workers = rank, world - helpers
        self.helpers = tuple(range(self.workers, world))
        self.group: Any = None
        if helpers:
            self.group = dist.new_group(list(range(self.workers)))

    @property
    def is_helper(self) -> bool:
        """Whether this rank does not train."""
        return self.rank in self.helpers

    def barrier(self) -> None:
        """Of those that train."""
        if self.workers > 1:
            dist.barrier(self.group)

    def told(self, value: float) -> list[float]:
        """What each of those that train brought; collective among them."""
        if self.workers == 1:
            return [value]
        boxes = [torch.zeros(1, dtype=torch.float64) for _ in range(self.workers)]
        dist.all_gather(boxes, torch.tensor([value], dtype=torch.float64), self.group)
        return [float(box) for box in boxes]

    def alike(self, text: str) -> bool:
        """Whether all that train brought the same."""
        if self.workers == 1:
            return True
        there: list[Any] = [None] * self.workers
        dist.all_gather_object(there, text, self.group)
        return len(set(there)) == 1

    def total(self, value: float) -> float:
        """The sum over all ranks, helpers too; collective among all."""
        if self.workers + len(self.helpers) == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box)
        return float(box)
