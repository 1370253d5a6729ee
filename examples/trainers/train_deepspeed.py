"""DeepSpeed, ZeRO stage 3 (or --stage 1, 2) under the backend "topo".

torchrun --nproc-per-node 4 examples/trainers/train_deepspeed.py
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
import torch.distributed as dist
from problem import BATCH, make_data, make_network, report
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train one epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=3)
    stage = parser.parse_args().stage
    # else DeepSpeed compiles an extension for inference first, for a minute
    deepspeed.ops.__compatible_ops__ = {}
    # gloo: deepspeed.init_distributed("gloo")
    deepspeed.init_distributed("topo")
    network = make_network()
    data = make_data()
    model, _, _, _ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    losses = []
    for features, classes in DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)):
        loss = torch.nn.functional.cross_entropy(model(features), classes)
        model.backward(loss)
        model.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(network.parameters()), enabled=stage == 3):
        report(losses, {name: parameter.clone() for name, parameter in network.named_parameters()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
