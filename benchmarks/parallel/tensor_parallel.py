"""Tensor parallelism over all ranks: activations of 256 KiB are summed after each block."""

import torch
from loop import Block, Run, compute_square_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

run = Run()
mesh = init_device_mesh("cpu", (run.world,))
model = nn.Sequential(Block(2048), Block(2048))
for block in model:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.train(compute_square_loss(model), optimizer, rows=128, same_data=True)
run.end(model.parameters())
