"""ZeRO stage 1: DDP, with the state of Adam divided among the ranks."""

import torch
from loop import Block, Run, compute_square_loss
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

run = Run()
model = DistributedDataParallel(nn.Sequential(Block(), Block()), bucket_cap_mb=2)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4)
run.train(compute_square_loss(model), optimizer, rows=4)
run.end(model.parameters())
