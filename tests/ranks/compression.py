"""Compressed collectives: near the sum, the same bits on all ranks, bytes counted, errors fed
back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ranks.checks import MEANS, normal, refused, same_everywhere, total
from topoplan import Communicator
from topoplan.runtime.codec import Codec, find_codec
from topoplan.runtime.extras.codecs.codecs import INT8, ScaledCodec


def all_normal(numel: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return what `normal` gives on each rank, in float64."""
    return [normal(rank, numel, dtype).double() for rank in range(dist.get_world_size())]


def summed(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks, in float64, by gloo."""
    x = x.double()
    dist.all_reduce(x)
    return x


def sums_and_feedback(path: str, codecs: Sequence[str]) -> None:
    for name in codecs:
        communicator = Communicator(path, choose="plan", compress=name)
        for numel in (1, 33, 70_001):
            sum_is_near(communicator, find_codec(name), numel)
            nothing_is_lost(communicator, numel)
        what_is_not_finite(communicator)
    other_dtypes_and_shapes(path)


def sum_is_near(communicator: Communicator, codec: Codec, numel: int) -> None:
    x, parts = normal(dist.get_rank(), numel), all_normal(numel)
    scale = torch.stack(parts).abs().sum(0).max()
    communicator.allreduce(x)
    case = codec.name, communicator.plan.topology.name, numel
    assert same_everywhere(x), case
    limit = (
        communicator.dispatcher.messages.count_roundings(communicator.plan)
        * codec.relative_error
        * scale
        * 1.1
    )
    assert (x - total(parts)).abs().max() <= limit, case


def nothing_is_lost(communicator: Communicator, numel: int) -> None:
    """Over all ranks, what came out and what stays for the next call is what went in."""
    rank = dist.get_rank()
    residual = normal(100 + rank, numel) * 0.01
    x = normal(rank, numel)
    put_in = summed(x) + summed(residual)
    communicator.allreduce(x, residual=residual)
    assert same_everywhere(x)
    assert (x + summed(residual) - put_in).abs().max() <= 1e-5, numel
    if numel == 70_001:
        assert summed(residual).abs().sum() > 0


def what_is_not_finite(communicator: Communicator) -> None:
    """It is seen once, and is gone with the next call."""
    rank, codec = dist.get_rank(), communicator.dispatcher.messages.codec
    residual = torch.zeros(3000)
    x = normal(rank, 3000)
    x[700 * rank] = float("inf")
    communicator.allreduce(x, residual=residual)
    assert not torch.isfinite(x[700 * rank]), codec
    assert torch.isfinite(residual).all(), codec
    x = normal(rank, 3000)
    communicator.allreduce(x, residual=residual)
    assert torch.isfinite(x).all(), codec


def other_dtypes_and_shapes(path: str) -> None:
    rank = dist.get_rank()
    communicator = Communicator(path, choose="model", compress="int8")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x, wanted = (
            normal(rank, 3000, dtype),
            total(all_normal(3000, dtype)) / dist.get_world_size(),
        )
        communicator.allreduce(x, MEANS)
        assert same_everywhere(x)
        assert (x.double() - wanted).abs().max() < 0.15
    x = normal(rank, 64)
    x[5] = float("inf") if rank == 1 else 0
    communicator.allreduce(x)
    assert not torch.isfinite(x[5])
    assert same_everywhere(torch.isfinite(x).int())
    x = normal(rank, 60).view(6, 10).t()  # not contiguous
    communicator.allreduce(x)
    assert (x - total(all_normal(60)).view(6, 10).t()).abs().max() < 0.3
    with refused("is not compressed"):
        communicator.allreduce(torch.ones(4, dtype=torch.int32))
    with refused("expected 4 of torch.float32"):
        communicator.allreduce(torch.ones(4), residual=torch.ones(3))
    with refused("for sums and averages"):
        communicator.allreduce(torch.ones(4), dist.ReduceOp.MAX, torch.ones(4))
    with refused("without compression"):
        Communicator(path).allreduce(torch.ones(4), residual=torch.ones(4))
    with refused("expected one of fp16"):
        Communicator(path, compress="zip")
    with refused("without compress"):
        Communicator(path, reduction="once")


def bytes_fall(direct: str) -> None:
    """A direct schedule sends 2 (n - 1) / n of the buffer a rank, exactly."""
    world = dist.get_world_size()
    numel = world * 25_600

    def bytes_sent(codec: str | None) -> int:
        communicator = Communicator(direct, choose="plan", compress=codec)
        communicator.allreduce(normal(dist.get_rank(), numel))
        return communicator.wire_bytes

    whole = bytes_sent(None)
    assert whole == 2 * (world - 1) * numel // world * 4, whole
    assert bytes_sent("fp16") * 2 == bytes_sent("bf16") * 2 == whole
    for name in ("fp8", "fp8-e5m2", "int8"):
        assert bytes_sent(name) <= 0.27 * whole


def rounded(x: torch.Tensor, codec: ScaledCodec) -> torch.Tensor:
    """Return what is left of a tensor that was sent."""
    wire, out = torch.empty(codec.nbytes(len(x)), dtype=torch.uint8), torch.empty_like(x)
    codec.encode(x.clone(), wire, torch.empty_like(x))
    codec.decode(wire, out)
    return out


def reduced_once(direct: str, ring: str) -> None:
    """The result is the rounded sum of rounded contributions, which can be computed beside it."""
    with refused("adds up partial sums"):
        Communicator(ring, compress="int8", reduction="once")
    communicator = Communicator(direct, choose="plan", compress="int8", reduction="once")
    world, codec, part = dist.get_world_size(), INT8, 320
    tensors, wanted = [normal(rank, part * world) for rank in range(world)], []
    for owner in range(world):
        own = slice(owner * part, (owner + 1) * part)
        terms = [
            x[own] if rank == owner else rounded(x[own], codec) for rank, x in enumerate(tensors)
        ]
        added = terms[0].clone()
        for term in terms[1:]:
            added += term
        wanted.append(rounded(added, codec))
    x = tensors[dist.get_rank()].clone()
    communicator.allreduce(x)
    assert torch.equal(x, torch.cat(wanted))


def other_collectives(plans: dict[str, str]) -> None:
    by_name = {
        name: Communicator(path, compress="fp16", choose="plan") for name, path in plans.items()
    }
    rank, world = dist.get_rank(), dist.get_world_size()
    part, n = 96, 96 * world
    own = slice(rank * part, (rank + 1) * part)
    long = [normal(r, n) for r in range(world)]

    def is_near(x: torch.Tensor, wanted: torch.Tensor) -> bool:
        return bool((x.double() - wanted.double()).abs().max() < 0.01)

    out = torch.zeros(n)
    by_name["allgather"].allgather(out, normal(rank, part))
    assert is_near(out, torch.cat([normal(r, part) for r in range(world)]))
    assert same_everywhere(out)
    out = torch.zeros(part)
    by_name["reduce-scatter"].reduce_scatter(out, long[rank])
    assert is_near(out, total(long)[own])
    x = long[rank].clone()
    by_name["broadcast"].broadcast(x)
    assert is_near(x, long[0])
    assert same_everywhere(x)
    out = torch.zeros(n)
    by_name["alltoall"].alltoall(out, long[rank])
    assert is_near(out, torch.cat([row[own] for row in long]))
