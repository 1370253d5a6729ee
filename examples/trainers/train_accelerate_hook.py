"""Accelerate with DDP's communication hook, on stock gloo: registered after prepare().

topo-synth allreduce full:4 -o plan.json
torchrun --nproc-per-node 4 examples/trainers/train_accelerate_hook.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from problem import BATCH, make_data, make_network, report
from torch.utils.data import DataLoader

# gloo: no such line
import topoplan


def main() -> None:
    """Train one epoch."""
    accelerator = Accelerator(cpu=True)
    network = make_network()
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        DataLoader(make_data(), batch_size=BATCH),
    )
    # gloo: no such line
    model.register_comm_hook(None, topoplan.ddp_hook("plan.json", choose="plan"))
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
