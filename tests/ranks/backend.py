"""The backend "topo": each collective through plans, all else by gloo as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from needs import has_extra

from ranks.checks import MEANS, SUMS, all_gather_single, reduce_scatter_single, same_everywhere
from ranks.topo_backend import Calls, count_planned, end, start
from topoplan.runtime.backend.process_group import TopoGroup

N = 4 * 1003
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}
REFERENCES: dict[dist.ReduceOp.RedOpType, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda x: x.sum(0),
    dist.ReduceOp.AVG: lambda x: x.mean(0),
    dist.ReduceOp.PRODUCT: lambda x: x.prod(0),
    dist.ReduceOp.MIN: lambda x: x.amin(0),
    dist.ReduceOp.MAX: lambda x: x.amax(0),
}


def of_rank(rank: int, numel: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(rank)
    return (torch.randn(numel, generator=g, dtype=torch.float64) * 4).to(dtype)


def own(numel: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return of_rank(dist.get_rank(), numel, dtype)


def of_all(numel: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the tensors of all ranks as rows, in float64."""
    return torch.stack(
        [of_rank(rank, numel, dtype).double() for rank in range(dist.get_world_size())]
    )


def assert_close(values: torch.Tensor, wanted: torch.Tensor) -> None:
    bound = PRECISION.get(values.dtype, 0)
    wanted = wanted.to(values.dtype).double()
    off = (values.double() - wanted).abs().max()
    assert off <= bound * (1 + wanted.abs().max()), (values[:4], wanted[:4])


def wait_for(work: Any) -> None:
    """Wait for an asynchronous call; a synchronous one has none."""
    if work is not None:
        work.wait()


def every_collective(folder: str) -> None:
    planned = count_planned()
    start(plans=folder)
    assert type(dist.group.WORLD) is TopoGroup
    assert dist.get_backend() == "topo"
    reductions(planned)
    order_of_calls()
    one_by_one(planned)
    roots(planned)
    memory()
    by_gloo(planned)
    end()
    if has_extra("codecs"):
        start(plans=folder, compress="int8", choose="model")
        compressed()


def reductions(planned: Calls) -> None:
    for dtype in PRECISION:
        for op, reference in REFERENCES.items():
            if op == dist.ReduceOp.PRODUCT and dtype.itemsize == 2:
                continue
            for asynchronous in (False, True):
                tensor = own(dtype=dtype)
                work = dist.all_reduce(tensor, op, async_op=asynchronous)
                if asynchronous:
                    assert work.wait()
                    assert work.is_completed()
                    assert work.is_success()
                    assert work.exception() is None
                    assert work.result()[0] is tensor
                    assert work.get_future().wait()[0] is tensor
                assert_close(tensor, reference(of_all(dtype=dtype)))
                assert same_everywhere(tensor)
    assert {name for name, _ in planned} == {"allreduce", "allgather"}


def order_of_calls() -> None:
    tensors = [own() + i for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.all_reduce(own())
    assert all(work.is_completed() for work in works), "a sync call overtook async ones"
    for i, tensor in enumerate(tensors):
        assert_close(tensor, of_all().sum(0) + 4 * i)
    strided = own(2 * N)[::2]
    dist.all_reduce(strided)
    assert_close(strided, of_all(2 * N).sum(0)[::2])
    with torch.inference_mode():
        for asynchronous in (False, True):
            tensor = own()
            wait_for(dist.all_reduce(tensor, async_op=asynchronous))
            assert_close(tensor, of_all().sum(0))


def one_by_one(planned: Calls) -> None:
    """Allgather and reduce-scatter, sync and async, each through its plan alone."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def check(
        name: str, call: Callable[[bool], Any], result: torch.Tensor, wanted: torch.Tensor
    ) -> None:
        for asynchronous in (False, True):
            planned.clear()
            result.fill_(7)
            wait_for(call(asynchronous))
            assert {collective for collective, _ in planned} == {name}
            assert_close(result, wanted)

    given, parts = own(), of_all().sum(0).chunk(world)
    whole, part = torch.empty(world * N), torch.empty(N // world)
    rows = list(given.chunk(world))
    check(
        "allgather",
        lambda a: all_gather_single(whole, given, async_op=a),
        whole,
        of_all().reshape(-1),
    )
    check(
        "reduce-scatter",
        lambda a: reduce_scatter_single(part, given, async_op=a),
        part,
        parts[rank],
    )
    check(
        "reduce-scatter", lambda a: dist.reduce_scatter(part, rows, async_op=a), part, parts[rank]
    )
    means = parts[rank] / world
    check(
        "reduce-scatter",
        lambda a: reduce_scatter_single(part, given, op=MEANS, async_op=a),
        part,
        means,
    )


def roots(planned: Calls) -> None:
    """Broadcast and reduce have plans for one root each, 1 and 2; other roots are gloo's."""
    planned.clear()
    rank = dist.get_rank()
    for root in range(dist.get_world_size()):
        for asynchronous in (False, True):
            tensor = own()
            wait_for(dist.broadcast(tensor, root, async_op=asynchronous))
            assert_close(tensor, of_rank(root))
            for op, wanted in ((SUMS, of_all().sum(0)), (MEANS, of_all().mean(0))):
                tensor = own()
                wait_for(dist.reduce(tensor, root, op, async_op=asynchronous))
                if rank == root:
                    assert_close(tensor, wanted)
                elif root == 2:
                    assert_close(tensor, own())
    names = [name for name, _ in planned]
    assert names.count("broadcast") == 2
    assert names.count("reduce") == 4


def memory() -> None:
    """The memory of a call is its own until it is through, also where the caller holds none of it,
    and calls come again.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    whole, part, parts = (
        torch.empty(world * N),
        torch.empty(N // world),
        of_all().sum(0).chunk(world),
    )
    mine = own()
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(own(), async_op=True),
        lambda: dist.broadcast(own(), 1, async_op=True),
        lambda: dist.reduce(mine, 2, async_op=True),
        lambda: all_gather_single(whole, own(), async_op=True),
        lambda: reduce_scatter_single(part, own(), async_op=True),
        lambda: dist.reduce_scatter(part, list(own().chunk(world)), async_op=True),
    ]
    for call in calls:
        for _ in range(6):
            mine.copy_(own())
            work = call()
            others = [torch.full((numel,), 7.0) for numel in (N, N // world) for _ in range(40)]
            work.wait()
            assert all((other == 7).all() for other in others)
            assert_close(mine, of_all().sum(0) if rank == 2 and call is calls[2] else own())
    assert_close(whole, of_all().reshape(-1))
    assert_close(part, parts[rank])


def by_gloo(planned: Calls) -> None:
    """What is small, of other dtypes, uneven, between two ranks or no tensor at all goes through no
    plan.
    """
    planned.clear()
    rank, world = dist.get_rank(), dist.get_world_size()
    few = torch.tensor([rank + 1.0, 2.0])
    dist.all_reduce(few, MEANS)
    assert_close(few, torch.tensor([2.5, 2.0]))
    wait_for(dist.all_reduce(few, MEANS, async_op=True))
    counts = torch.full((1000,), rank)
    dist.all_reduce(counts)
    assert (counts == 6).all()
    flags = torch.tensor([rank == 1])
    dist.broadcast(flags, 1)
    assert flags.item()
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert [x["rank"] for x in objects] == list(range(world))
    dist.barrier()
    uneven = torch.empty(world * (rank + 1))
    sizes = [other + 1 for other in range(world)]
    dist.all_to_all_single(
        uneven, torch.full((sum(sizes),), float(rank)), [rank + 1] * world, sizes
    )
    assert torch.equal(uneven, torch.arange(4.0).repeat_interleave(rank + 1))
    if rank == 0:
        dist.send(own(), 3)
    elif rank == 3:
        received = torch.empty(N)
        dist.recv(received, 0)
        assert_close(received, of_rank(0))
    assert not planned
    large = torch.full((1 << 17,), rank)
    dist.all_reduce(large)
    assert (large == 6).all()
    assert planned == [("allreduce", 4)]


def compressed() -> None:
    tensor, wanted = own(40_000), of_all(40_000).sum(0)
    dist.all_reduce(tensor)
    assert 0 < (tensor - wanted).abs().max() < 0.05 * wanted.abs().max()
    world: Any = dist.group.WORLD
    sent = world.communicators["allreduce", None, "cpu"].wire_bytes
    assert sent <= 2 * 0.27 * tensor.nbytes, sent  # the schedule sends the vector twice
    tensor = own(40_000)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)  # by gloo, exact
    assert_close(tensor, of_all(40_000).amax(0))
