"""Models that use their layers in unusual ways, as torch's own tests of DDP have them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Linear, Module, ModuleList, Parameter, Sequential
from torch.utils.checkpoint import checkpoint

from ranks.training import network


class Branches(Module):
    """forward(x, which) uses some of the branches, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Linear(33, 40), Linear(40, 3)
        self.branches = ModuleList([Linear(40, 40) for _ in range(3)])

    def forward(self, x: torch.Tensor, which: Iterable[int]) -> torch.Tensor:
        x = self.first(x)
        added = torch.stack([self.branches[i](x).relu() for i in which]).sum(0)
        out: torch.Tensor = self.last(added)
        return out


class Tied(Module):
    """One layer used twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = (
            Linear(33, 33),
            Linear(33, 33),
            Linear(33, 33),
            Linear(33, 3),
        )
        self.c.weight = self.b.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.c(self.a(self.b(self.a(x).relu()).relu()).relu()))
        return out


class Stages(Module):
    """Layers under activation checkpointing."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = Linear(33, 64), Linear(64, 3)
        self.stages = ModuleList([Linear(64, 64) for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for stage in self.stages:
            x = checkpoint(stage, x.relu(), use_reentrant=self.reentrant)
        out: torch.Tensor = self.last(x)
        return out


class Complex(Module):
    """A layer with complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = (
            Parameter(torch.randn(33, 8, dtype=torch.complex64) / 6),
            Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out((x.to(torch.complex64) @ self.weight).abs())
        return out


def half_frozen() -> Sequential:
    """Return the plain network, its first layer without gradients."""
    model = network()
    model[0].requires_grad_(False)
    return model
