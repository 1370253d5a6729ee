"""PyTorch-Ignite under the backend "topo": the group is made before Ignite looks for one, and the
model is wrapped by hand.

torchrun --nproc-per-node 4 examples/trainers/train_ignite.py
"""

from __future__ import annotations

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine
from problem import BATCH, make_data, make_network, report
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train one epoch."""
    # gloo: idist.initialize("gloo")
    dist.init_process_group("topo")
    # gloo: model = idist.auto_model(make_network())
    model = DistributedDataParallel(make_network())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = idist.auto_dataloader(make_data(), batch_size=BATCH * idist.get_world_size())
    losses = []

    def step(_: Engine, batch: list[torch.Tensor]) -> None:
        features, classes = batch
        loss = torch.nn.functional.cross_entropy(model(features), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    Engine(step).run(loader)
    report(losses, model.module.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
