"""The training loop of one rank, with the same batches, seed and steps for every system."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import nn

from ..settings import Settings
from .dataset import Dataset


def make_falling_sgd(
    parameters: Iterable[torch.Tensor], settings: Settings, steps: int, updates_a_step: int = 1
) -> torch.optim.SGD:
    """Create SGD with momentum whose rate falls to zero over `steps` of its own updates.

    An optimizer that makes `updates_a_step` updates while others make one starts from a rate lower
    by that factor.
    """
    optimizer = torch.optim.SGD(
        parameters,
        lr=settings.learning_rate / updates_a_step,
        momentum=0.9,  # as in torch's ImageNet example
    )
    done = 0

    def lower_rate(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate / updates_a_step * max(0.0, 1 - done / steps)
        done += 1

    optimizer.register_step_pre_hook(lower_rate)
    return optimizer


class Trainer:
    """A model on one of `world` ranks.

    Before the first epoch, `model` may be replaced by a wrapper of `net`, and `update` by something
    else than a step of the optimizer. A rank's loss is the sum over its share of a batch, times
    `world`, over the batch's size: the mean of all ranks' gradients is then the gradient of the
    batch's mean, however unequal the shares are.
    """

    def __init__(self, data: Dataset, settings: Settings, rank: int = 0, world: int = 1) -> None:
        self.data, self.settings, self.rank, self.world = data, settings, rank, world
        self.steps = settings.steps(len(data.train_x))
        # All ranks and systems begin with the same parameters.
        torch.manual_seed(settings.seed)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(settings.widths(data.features, data.classes)):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])
        self.model: nn.Module = self.net
        self.optimizer = make_falling_sgd(self.net.parameters(), settings, self.steps)
        self.update = self.update_stepwise
        self.x, self.y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)

    def update_stepwise(self) -> None:
        """Step the optimizer and clear the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def batches(self, epoch: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each batch's size over all ranks and the indices of this rank's samples."""
        # Trainings have fewer epochs than the factor, so no two seeds share an epoch's order.
        order = torch.randperm(
            len(self.x),
            generator=torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch),
        )
        for batch in order.split(self.settings.batch):  # type: ignore[no-untyped-call]
            size = len(batch)
            yield size, batch[self.rank * size // self.world : (self.rank + 1) * size // self.world]

    def train_epoch(self, number: int) -> float:
        """Train for epoch `number`; return this rank's part of the last batch's mean loss."""
        loss = torch.zeros(())
        for size, samples in self.batches(number):
            loss = nn.functional.cross_entropy(
                self.model(self.x[samples]), self.y[samples], reduction="sum"
            ) * (self.world / size)
            loss.backward()  # type: ignore[no-untyped-call]
            self.update()
        return float(loss.detach()) / self.world

    @torch.no_grad()
    def count_correct(self) -> int:
        """Return how many held-out samples the model classifies correctly."""
        predicted = self.net(torch.from_numpy(self.data.test_x)).argmax(1)
        return int((predicted == torch.from_numpy(self.data.test_y)).sum())

    def flat(self) -> torch.Tensor:
        """Return all parameters in one flat tensor."""
        return torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
