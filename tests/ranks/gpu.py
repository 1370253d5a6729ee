"""DDP on a GPU, by the hook and by the backend; the ranks share the GPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.training import Hook


def gradients(hook: Hook | None = None, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the gradients of the third step."""
    torch.manual_seed(0)
    net = Sequential(Linear(64, 512), ReLU(), Linear(512, 8)).cuda()
    model = DDP(net, process_group=group, bucket_cap_mb=0.02)
    if hook is not None:
        model.register_comm_hook(None, hook)
    for _ in range(3):
        model.zero_grad()
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        model(x.cuda()).square().mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def hook(path: str) -> None:
    stock, planned = gradients(), gradients(topoplan.ddp_hook(path))
    assert torch.allclose(stock, planned, rtol=1e-5, atol=1e-8)
    assert planned.abs().sum() > 0
    compressed = gradients(topoplan.ddp_hook(path, compress="int8", error_feedback=True))
    assert (stock - compressed).abs().max() <= 0.05 * stock.abs().max()


def backend(cache: str) -> None:
    topo = dist.new_group(
        backend="topo", pg_options=topoplan.backend_options("ring:2", "model", cache=cache)
    )
    stock, planned = gradients(), gradients(group=topo)
    assert torch.allclose(stock, planned, rtol=1e-5, atol=1e-8)
    assert planned.abs().sum() > 0
    assert topo.communicators["allreduce", None, "cuda"].wire_bytes > 0
