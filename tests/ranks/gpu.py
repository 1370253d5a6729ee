"""DDP on a GPU, by the hook and by the backend; the ranks share the GPU."""

from __future__ import annotations

from datetime import timedelta

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


def backend(cache: str, executor: str = "point-to-point") -> None:
    topo = dist.new_group(
        backend="topo",
        pg_options=topoplan.backend_options("ring:2", "model", cache=cache, executor=executor),
    )
    stock, planned = gradients(), gradients(group=topo)
    assert torch.allclose(stock, planned, rtol=1e-5, atol=1e-8)
    assert planned.abs().sum() > 0
    assert topo.communicators["allreduce", None, "cuda"].wire_bytes > 0


def collectives(cache: str, executor: str) -> None:
    """Collectives of torch.distributed by the backend are those of NCCL, one after the other."""
    options = topoplan.backend_options("ring:2", cache=cache, executor=executor, least_bytes=1)
    topo, rank = dist.new_group(backend="topo", pg_options=options), dist.get_rank()
    for numel in (2, 1000, 100_002):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for call in range(3):
                own = torch.arange(numel, device="cuda").remainder(31).add(rank + call).to(dtype)
                results = [run_all(own, group) for group in (None, topo)]
                for stock, planned in zip(*results, strict=True):
                    assert torch.equal(stock, planned), (numel, dtype, call)


def run_all(own: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Return the results of several collectives."""
    total, largest, first = own.clone(), own.clone(), own.clone()
    dist.all_reduce(total, group=group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    dist.broadcast(first, 0, group=group)
    gathered = own.new_empty(2 * len(own))
    dist.all_gather_into_tensor(gathered, own, group=group)
    part = own.new_empty(len(own) // 2)
    work = dist.reduce_scatter_tensor(part, own.clone(), group=group, async_op=True)
    swapped = torch.empty_like(own)
    dist.all_to_all_single(swapped, own, group=group)
    assert work is not None
    work.wait()
    listed = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(listed, own, group=group)
    return [total, largest, first, gathered, part, swapped, *listed]


def by_kernels(paths: dict[str, str]) -> list[str]:
    """Communicators that play by kernels: eager calls, then one from a CUDA graph; the labels."""
    rank, labels = dist.get_rank(), []
    for collective, path in paths.items():
        communicator = topoplan.Communicator(path, choose="plan", executor="one-sided")
        for numel in (2, 1000, 300_002):
            for dtype in (torch.float32, torch.float16, torch.int32):
                own = torch.arange(numel, device="cuda").remainder(31).add(rank).to(dtype)
                both = torch.stack([own - rank, own - rank + 1])
                if collective == "allreduce":
                    communicator.allreduce(own)
                    assert torch.equal(own, both.sum(0, dtype=dtype)), (numel, dtype)
                else:
                    gathered = own.new_empty(2 * numel)
                    communicator.allgather(gathered, own)
                    assert torch.equal(gathered, both.view(-1)), (numel, dtype)
        choice = communicator.choice(4000)
        assert choice is not None and choice.schedule is not None
        labels.append(choice.schedule.label)
        if collective == "allreduce":
            play_captured(communicator, rank)
    return labels


def absent(path: str) -> str:
    """Rank 1 makes one call fewer: the next call of rank 0 names it."""
    communicator = topoplan.Communicator(
        path, choose="plan", executor="one-sided", timeout=timedelta(seconds=4)
    )
    x, error = torch.ones(1000, device="cuda"), ""
    communicator.allreduce(x)
    if dist.get_rank() == 0:
        communicator.allreduce(x)
        torch.cuda.synchronize()
        try:
            communicator.allreduce(x)
        except topoplan.ExecutionError as raised:
            error = str(raised)
    dist.barrier()
    return error


def play_captured(communicator: topoplan.Communicator, rank: int) -> None:
    """Replay a graph that holds an allreduce."""
    x = torch.zeros(1000, device="cuda")
    for _ in range(3):
        communicator.allreduce(x)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        communicator.allreduce(x)
    for number in range(10):
        x.fill_(number + rank)
        graph.replay()
        assert torch.equal(x, torch.full_like(x, 2 * number + 1))
