"""Data parallelism: DDP, with gradients of 4 MiB in buckets of 2 MiB."""

import torch
from loop import Block, Run, compute_square_loss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

run = Run()
model = DistributedDataParallel(nn.Sequential(Block(), Block()), bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.train(compute_square_loss(model), optimizer, rows=4)
run.end(model.parameters())
