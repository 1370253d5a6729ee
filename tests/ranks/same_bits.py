"""One tensor reduced whole, in pieces, in buckets and at other addresses, by plans that promise the
same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import topoplan
from ranks.checks import refused
from ranks.topo_backend import start
from topoplan import Communicator
from topoplan.extras import BY_NAME

NUMEL = 6000
PIECES = ((0, 1), (1, 8), (8, 1000), (1000, 1003), (1003, 5000), (5000, NUMEL))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
Reduce = Callable[[torch.Tensor], object]


def own(dtype: torch.dtype) -> torch.Tensor:
    """Return this rank's values, of very different sizes."""
    chance = torch.Generator().manual_seed(17 + dist.get_rank())
    sizes = torch.randint(-3, 4, (NUMEL,), generator=chance)
    return (torch.randn(NUMEL, generator=chance) * 2.0**sizes).to(dtype)


def reduced_in_ways(values: torch.Tensor, reduce: Reduce) -> Iterator[torch.Tensor]:
    """Yield the reduction of the whole tensor, of it in pieces, at an odd place in a larger one,
    and turned round.
    """
    whole = values.clone()
    reduce(whole)
    yield whole
    pieces = values.clone()
    for low, high in PIECES:
        reduce(pieces[low:high])
    yield pieces
    larger = torch.cat([values[:37], values, values[:501]])
    reduce(larger)
    yield larger[37 : 37 + NUMEL]
    turned = values.flip(0).contiguous()
    reduce(turned)
    yield turned.flip(0)
    twice = values.clone()
    for _ in range(3):  # a call on the caller's own memory, once its address is known
        twice.copy_(values)
        reduce(twice)
    yield twice


def count_differing(reduce: Reduce) -> int:
    """Return the elements whose bits are not the same in all ways."""
    out = 0
    for dtype in DTYPES:
        first, *others = (
            way.clone().view(INTS[dtype.itemsize]) for way in reduced_in_ways(own(dtype), reduce)
        )
        out += sum(int((other != first).sum()) for other in others)
    return out


def everywhere(folder: str) -> dict[str, int]:
    """Return the differing elements through a communicator and through the backend."""
    files = Path(folder)
    path = str(files / "same.json")
    with refused("the plan for allreduce is not reproducible"):
        Communicator(str(files / "usual.json"), choose="same-bits")
    with refused("leave one of them out"):
        Communicator(path, choose="same-bits", compress="int8")
    with refused("gloo and NCCL do not guarantee the same bits"):
        topoplan.backend_options(choose="same-bits", plans="off")
    communicator = Communicator(path, choose="same-bits")
    found = {"communicator": count_differing(communicator.allreduce)}
    for size in (4, 4 * NUMEL):
        choice = communicator.choice(size)
        assert choice is not None and choice.schedule is not None and "stock" not in choice.raced
    means = own(torch.float32)
    communicator.allreduce(means, dist.ReduceOp.AVG)
    sums = own(torch.float32)
    communicator.allreduce(sums)
    assert torch.equal(means, sums / 4)
    assert torch.equal(gradients(path, 0.004), gradients(path, 25))
    start(plans="switch:4", choose="same-bits", cache=files / f"cache{dist.get_rank()}")
    found["backend"] = count_differing(dist.all_reduce)
    through_the_backend(files, sums)
    return found


def gradients(path: str, bucket_cap_mb: float) -> torch.Tensor:
    """Return the gradients of a small model, averaged in buckets of a size, after a step in which
    DDP rebuilds them.
    """
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(48, 48) for _ in range(5)))
    model = DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb)
    hook = topoplan.ddp_hook(path, choose="same-bits")
    model.register_comm_hook(None, hook)
    for step in range(2):
        model.zero_grad()
        chance = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(16, 48, generator=chance)).square().sum().backward()
    return torch.cat(
        [parameter.grad.reshape(-1) for parameter in net.parameters() if parameter.grad is not None]
    )


def through_the_backend(files: Path, sums: torch.Tensor) -> None:
    """The other reductions have the same bits, and what has no reproducible plan is refused."""
    values = own(torch.float32)
    part = torch.empty(NUMEL // 4)
    dist.reduce_scatter_tensor(part, values.clone())
    assert torch.equal(part, sums.chunk(4)[dist.get_rank()])
    several = [values[:1].clone(), values[1:].clone()]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor)
    assert torch.equal(torch.cat(several), sums)
    at_root, in_pieces = values.clone(), values.clone()
    dist.reduce(at_root, 1)
    for low, high in PIECES:
        dist.reduce(in_pieces[low:high], 1)
    assert torch.equal(in_pieces, at_root)
    counts = torch.ones(3, dtype=torch.int64)
    dist.all_reduce(counts)  # whole numbers are exact in any order: small ones stay with gloo
    assert counts.tolist() == [4, 4, 4]
    with refused("choose='same-bits': there is no reproducible plan"):
        dist.all_reduce(torch.ones(4).to_sparse())
    if BY_NAME["cache"].is_here:
        names = [file.name for file in (files / "cache0").glob("*.json")]
        assert names and all("-same-bits-" in name for name in names)
