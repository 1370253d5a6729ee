"""The training loop of one rank: the same batches, seed and steps whatever averages the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from torch import nn

from .dataset import Dataset
from .settings import Settings

_MOMENTUM = 0.9


def falling_sgd(parameters: Iterable[torch.Tensor], settings: Settings, steps: int, share: int = 1) -> torch.optim.SGD:
    """SGD with momentum whose rate falls to zero over its own `steps`, wherever it is stepped; `share`: it starts from so
    much less, for an optimizer that is stepped so many times as often.
    """
    optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate / share, momentum=_MOMENTUM)
    done = 0

    def slower(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate / share * max(0.0, 1 - done / steps)
        done += 1

    optimizer.register_step_pre_hook(slower)
    return optimizer


class Trainer:
    """A model on one of `world` ranks. `model` may be a wrapper of `net`, and `update` another way than to step an optimizer,
    both put in their place before the first epoch.

    A rank's loss is the sum over its share of a batch, times `world`, over the batch's size: the mean of all ranks'
    gradients is then the gradient of the batch's mean, however unequal the shares are.
    """

    def __init__(self, data: Dataset, settings: Settings, rank: int = 0, world: int = 1) -> None:
        self.data, self.settings, self.rank, self.world = data, settings, rank, world
        self.steps = settings.steps(len(data.train_x))
        torch.manual_seed(settings.seed)
        widths = settings.widths(data.features, data.classes)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])
        self.model: nn.Module = self.net
        self.update: Callable[[], None] = self.stepping(falling_sgd(self.net.parameters(), settings, self.steps))
        self.x, self.y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)

    @staticmethod
    def stepping(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """The usual update."""

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return update

    def batches(self, epoch: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The size of each batch of all ranks, and the numbers of the samples in it that are this rank's."""
        shuffled = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        for batch in torch.randperm(len(self.x), generator=shuffled).split(self.settings.batch):  # type: ignore[no-untyped-call]
            size = len(batch)
            yield size, batch[self.rank * size // self.world : (self.rank + 1) * size // self.world]

    def epoch(self, number: int) -> float:
        """Train for one epoch; this rank's part of the last batch's mean loss."""
        loss = torch.zeros(())
        for size, mine in self.batches(number):
            out = self.model(self.x[mine])
            loss = nn.functional.cross_entropy(out, self.y[mine], reduction="sum") * (self.world / size)
            loss.backward()  # type: ignore[no-untyped-call]
            self.update()
        return float(loss.detach()) / self.world

    def correct(self) -> int:
        """How many of the held-out samples the model gets right."""
        with torch.no_grad():
            found = self.net(torch.from_numpy(self.data.test_x)).argmax(1)
        return int((found == torch.from_numpy(self.data.test_y)).sum())

    def flat(self) -> torch.Tensor:
        """All parameters, one after the other."""
        return torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
