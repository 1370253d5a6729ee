"""Collectives through plans: right values, the same bits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from ranks.checks import MEANS, SUMS, always_stock, refused, same_everywhere, total
from topoplan import Communicator, Transport

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int32, torch.int64, torch.uint8, torch.int8)
SHAPES: tuple[tuple[int, ...], ...] = ((0,), (1,), (3,), (1001,), (7, 11))
REFERENCES: dict[dist.ReduceOp.RedOpType, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda parts: parts.sum(0),
    dist.ReduceOp.AVG: lambda parts: parts.mean(0),
    dist.ReduceOp.PRODUCT: lambda parts: parts.prod(0),
    dist.ReduceOp.MAX: lambda parts: parts.amax(0),
    dist.ReduceOp.MIN: lambda parts: parts.amin(0),
}
VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t.t(),
    lambda t: t[:, ::2],
    lambda t: t[1:3],
)


def sample(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    g = torch.Generator().manual_seed(rank)
    x = (
        torch.randn(shape, generator=g)
        if dtype.is_floating_point
        else torch.randint(1, 4, shape, generator=g)
    )
    return x.to(dtype)


def samples(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the samples of all ranks, in float64."""
    return torch.stack(
        [sample(rank, dtype, shape).double() for rank in range(dist.get_world_size())]
    )


def dtypes_and_shapes(path: str) -> None:
    communicator = Communicator(path, choose="plan")
    rank = dist.get_rank()
    for dtype in (*FLOATS, *WHOLE):
        for op, reference in REFERENCES.items():
            if op == MEANS and not dtype.is_floating_point:
                continue
            # Lengths are cut alike whatever the operator is.
            for shape in SHAPES if op == SUMS else SHAPES[-1:]:
                x, parts = sample(rank, dtype, shape), samples(dtype, shape)
                wanted = reference(parts)
                assert communicator.allreduce(x, op) is x
                eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0
                limit = 8 * eps * parts.abs().sum(0).clamp(min=wanted.abs()) + (1e-7 if eps else 0)
                assert ((x.double() - wanted).abs() <= limit).all(), (dtype, op, shape)
    views_of_a_tensor(path)
    parameter = torch.nn.Parameter(sample(rank, torch.float32, (9,)))
    communicator.allreduce(parameter)
    wanted = samples(torch.float32, (9,)).sum(0)
    assert parameter.requires_grad
    assert torch.allclose(parameter.double(), wanted, atol=1e-5)
    what_is_refused(communicator)
    big = torch.full((100_000,), float(rank + 1))
    Communicator(path).allreduce(big)  # whatever wins a race
    assert (big == 1 + 2 + 3).all()


def views_of_a_tensor(path: str) -> None:
    """Views with gaps, through a plan and through the stock collective: what lies between their
    elements stays.
    """
    base = sample(dist.get_rank(), torch.float32, (6, 10))
    wanted = samples(torch.float32, (6, 10)).sum(0)
    planned, stock = Communicator(path, choose="plan"), Communicator(path, choose=always_stock)
    for pick in VIEWS:
        x = base.clone()
        untouched = torch.ones_like(x, dtype=torch.bool)
        pick(untouched)[...] = False
        for communicator in (
            planned,
            planned,
            planned,
            stock,
        ):  # an address that comes back is worked on in place
            x.copy_(base)
            communicator.allreduce(pick(x))
            assert torch.allclose(pick(x).double(), pick(wanted), atol=1e-5)
            assert torch.equal(x[untouched], base[untouched])


def what_is_refused(communicator: Communicator) -> None:
    cases: tuple[tuple[str, torch.Tensor, object], ...] = (
        ("AVG of", torch.ones(4, dtype=torch.int64), MEANS),
        ("cannot be reduced", torch.ones(4, dtype=torch.bool), SUMS),
        ("not supported", torch.ones(4), dist.ReduceOp.BXOR),
        ("not supported", torch.ones(4), ["sum"]),
        ("cannot be reduced", torch.ones(4, dtype=torch.uint16), SUMS),
        ("cannot be reduced", torch.ones(4, dtype=torch.complex64), SUMS),
        ("share memory", torch.ones(1).expand(8), SUMS),
        ("expected a dense one", torch.ones(4).to_sparse(), SUMS),
        ("expected a dense one", torch.ones(2, 2).to_sparse_csr(), SUMS),
        ("the tensor is on meta", torch.ones(4, device="meta"), SUMS),
    )
    for text, tensor, op in cases:
        with refused(text):
            communicator.allreduce(tensor, op)
    with refused("the plan is for allreduce"):
        communicator.broadcast(torch.ones(4))


def same_bits(paths: Sequence[str]) -> None:
    for path in paths:
        communicator = Communicator(path, choose="plan")
        for numel in (5, 999, 70_000):
            x = sample(dist.get_rank(), torch.float32, (numel,)).half()
            communicator.allreduce(x)
            assert same_everywhere(x), (path, numel)


def ramp(rank: int, numel: int) -> torch.Tensor:
    return torch.arange(numel, dtype=torch.float32) + 1000 * rank


def all_others(plans: dict[str, str]) -> None:
    """Every collective but allreduce."""
    by_name = {name: Communicator(path, choose="plan") for name, path in plans.items()}
    rank, world = dist.get_rank(), dist.get_world_size()
    for part in (1, 5, 64):
        n = part * world
        own = slice(rank * part, (rank + 1) * part)
        short, long = [ramp(r, part) for r in range(world)], [ramp(r, n) for r in range(world)]
        out = torch.zeros(n)
        by_name["allgather"].allgather(out, ramp(rank, part))
        assert torch.equal(out, torch.cat(short))
        out, given = torch.zeros(part), ramp(rank, n)
        by_name["reduce-scatter"].reduce_scatter(out, given)
        assert torch.equal(out, total(long)[own])
        assert torch.equal(given, ramp(rank, n))
        x = ramp(rank, n)
        by_name["broadcast"].broadcast(x)
        assert torch.equal(x, ramp(0, n))
        x = ramp(rank, n)
        by_name["reduce"].reduce(x)
        assert rank or torch.equal(x, total(long))
        gathered = torch.zeros(n) if rank == 0 else None
        by_name["gather"].gather(gathered, ramp(rank, part))
        assert gathered is None or torch.equal(gathered, torch.cat(short))
        out = torch.zeros(part)
        by_name["scatter"].scatter(out, ramp(0, n) if rank == 0 else None)
        assert torch.equal(out, ramp(0, n)[own])
        out = torch.zeros(n)
        by_name["alltoall"].alltoall(out, ramp(rank, n))
        assert torch.equal(out, torch.cat([row[own] for row in long]))
    with refused("do not fit together"):
        by_name["allgather"].allgather(torch.zeros(7), torch.zeros(2))


def in_a_group_of_the_users_maker(plan: str) -> None:
    """Run over the group that a function of the user's makes, one with arguments bound to it."""

    def make(name: str, timeout: timedelta) -> dist.ProcessGroup:
        group = dist.new_group(timeout=timeout, group_desc=name)
        assert isinstance(group, dist.ProcessGroup)
        return group

    transport = Transport(partial(make, "mine"), timedelta(seconds=60))
    ones = torch.ones(1000)
    Communicator(plan, transport, choose="plan").allreduce(ones)
    assert transport.group.group_desc == "mine"
    assert (ones == dist.get_world_size()).all()


def sums_of_ranks(path: str) -> None:
    communicator = Communicator(path, choose="plan")
    for numel in (10, 5000, 200_001):
        x = torch.full((numel,), float(dist.get_rank()))
        communicator.allreduce(x)
        assert (x == sum(range(dist.get_world_size()))).all()
