"""Accelerate under the backend "topo": the group is made before the Accelerator, which then takes
it.

torchrun --nproc-per-node 4 examples/trainers/train_accelerate.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from problem import BATCH, make_data, make_network, report
from torch.utils.data import DataLoader


def main() -> None:
    """Train one epoch."""
    # gloo: no such line
    dist.init_process_group("topo")
    accelerator = Accelerator(cpu=True)
    network = make_network()
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        DataLoader(make_data(), batch_size=BATCH),
    )
    losses = []
    for features, classes in loader:
        loss = torch.nn.functional.cross_entropy(model(features), classes)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report(losses, network.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
