"""What the training scripts of this folder share: joining, the loop, and what a rank reports."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 512


class Run:
    """One rank's training: steps on random data with the seed `--seed`, the same on any backend."""

    def __init__(self) -> None:
        """Join the other ranks; the variable BACKEND names the backend."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=26)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--save", type=Path, help="folder for each rank's parameters")
        self.args = parser.parse_args()
        torch.set_num_threads(1)
        dist.init_process_group(os.environ.get("BACKEND", "gloo"))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.args.seed)

    def train(
        self,
        compute_loss: Callable[[torch.Tensor], torch.Tensor],
        optimizer: torch.optim.Optimizer,
        rows: int,
        *,
        same_data: bool = False,
        average: Callable[[], None] = lambda: None,
    ) -> None:
        """Train on batches of `rows` rows; `average` is called between backward pass and update."""
        seed = self.args.seed * self.world + (0 if same_data else self.rank)
        numbers = torch.Generator().manual_seed(seed)
        self.step_s: list[float] = []
        for _ in range(self.args.steps):
            began = time.monotonic()
            optimizer.zero_grad()
            compute_loss(torch.randn(rows, WIDTH, generator=numbers)).backward()
            average()
            optimizer.step()
            self.step_s.append(time.monotonic() - began)

    def end(self, parameters: Iterable[torch.Tensor]) -> None:
        """Save this rank's parameters, or its shards of them, print its times, and leave."""
        if self.args.save is not None:
            local = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
            flat = torch.cat([p.detach().flatten() for p in local])
            torch.save(flat, self.args.save / f"{self.rank}.pt")
        sys.stdout.write(json.dumps({"step_s": self.step_s}) + "\n")  # at once: ranks share a pipe
        sys.stdout.flush()
        dist.barrier()
        dist.destroy_process_group()


class Block(nn.Sequential):
    """A feed-forward network of two layers."""

    def __init__(self, inner: int = WIDTH) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, inner), nn.ReLU(), nn.Linear(inner, WIDTH)


def compute_square_loss(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the loss of a model as a function of a batch: the mean square of what it returns."""
    return lambda batch: model(batch).square().mean()
