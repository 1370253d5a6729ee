"""Divide the ranks of a run into workers and helpers, and exchange values among them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Workers:
    """All ranks but the last `helpers`, which hold no model.

    Construction is collective; a single process needs no process group.
    """

    def __init__(self, rank: int, world: int, helpers: int) -> None:
        self.rank, self.count = rank, world - helpers
        self.helpers = tuple(range(self.count, world))
        self.group: Any = None
        if helpers:
            self.group = dist.new_group(list(range(self.count)))

    @property
    def is_helper(self) -> bool:
        """Whether this rank does not train."""
        return self.rank in self.helpers

    def barrier(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            dist.barrier(self.group)

    def gather(self, value: float) -> list[float]:
        """Return every worker's value, by rank. Collective among workers."""
        if self.count == 1:
            return [value]
        values = [torch.zeros(1, dtype=torch.float64) for _ in range(self.count)]
        dist.all_gather(values, torch.tensor([value], dtype=torch.float64), self.group)
        return [float(x) for x in values]

    def have_same(self, text: str) -> bool:
        """Return whether all workers passed the same text. Collective among workers."""
        if self.count == 1:
            return True
        texts: list[Any] = [None] * self.count
        dist.all_gather_object(texts, text, self.group)
        return len(set(texts)) == 1

    def add_over_all(self, value: float) -> float:
        """Return the sum over all ranks, including helpers. Collective among all."""
        if self.count + len(self.helpers) == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)
