"""Sharded data parallelism: FSDP2 over all ranks."""

import torch
from loop import Block, Run, compute_square_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

run = Run()
mesh = init_device_mesh("cpu", (run.world,))
model = nn.Sequential(Block(), Block())
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.train(compute_square_loss(model), optimizer, rows=4)
run.end(model.parameters())
