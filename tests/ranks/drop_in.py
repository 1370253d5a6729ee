"""What scripts do that were written for another backend, and know nothing of plans."""

from __future__ import annotations

import pickle
from typing import Any

import patience
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rank_process import init
from torch.nn import Embedding, Linear, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import refused, same_everywhere
from ranks.topo_backend import count_planned, start
from ranks.training import flat, network, seeded, wrapped
from topoplan.runtime.runners.programs import ProgramRunner
from topoplan.runtime.works import CpuWork


def tensors_of_other_layouts(folder: str) -> None:
    """Sparse tensors, alone and as gradients; inputs that are expanded, which are only read."""
    start(plans=folder, least_bytes=0)
    sparse_gradients()
    rank, world = dist.get_rank(), dist.get_world_size()
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 7]]), torch.ones(2), (9,))
    dist.all_reduce(sparse)
    wanted = torch.zeros(9)
    wanted[:world] = 1
    wanted[7] = world
    assert torch.equal(sparse.to_dense(), wanted)

    calls = count_planned()
    expanded = torch.full((1,), float(rank)).expand(6)
    whole = torch.empty(6 * world)
    dist.all_gather_into_tensor(whole, expanded)
    assert torch.equal(whole, torch.arange(world).float().repeat_interleave(6))
    parts = [torch.empty(6) for _ in range(world)]
    dist.all_gather(parts, expanded)
    assert torch.equal(torch.cat(parts), whole)
    mine = torch.empty(3)
    dist.reduce_scatter_tensor(mine, torch.ones(1).expand(3 * world))
    assert (mine == world).all()
    assert [name for name, _ in calls] == ["allgather", "allgather", "reduce-scatter"]


def sparse_gradients() -> None:
    model = DDP(seeded(lambda: Sequential(Embedding(10, 4, sparse=True), Linear(4, 2))))
    model(torch.tensor([dist.get_rank(), 3])).sum().backward()
    gradient = model.module[0].weight.grad
    assert gradient.is_sparse and same_everywhere(gradient.to_dense())


class LateFuture:
    """A future that gets its value some time after its work has ended, as on a busy machine."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        self._future = future

    def set_result(self, value: object) -> None:
        patience.be_late(0.2, "whoever takes what is no result yet has taken it by then")
        self._future.set_result(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)


def sparse_gradients_by_late_futures(folder: str) -> None:
    """DDP takes sparse gradients from the future of their allreduce."""
    make = CpuWork.__init__

    def make_late(work: CpuWork, tensors: list[torch.Tensor]) -> None:
        make(work, tensors)
        work.progress.future = LateFuture(work.progress.future)  # type: ignore[assignment]

    CpuWork.__init__ = make_late  # type: ignore[assignment, method-assign]
    start(plans=folder, least_bytes=0)
    sparse_gradients()


def other_ways_to_call(folder: str) -> None:
    """A process group's own methods, what a profile shows of them, and errors that scripts
    catch.
    """
    start(plans=folder, least_bytes=0)
    group, world = dist.distributed_c10d._get_default_group(), dist.get_world_size()
    x = torch.ones(1000)
    group.allreduce(x).wait()
    group.allreduce(x, dist.ReduceOp.MAX).wait()
    assert (x == world).all()
    communicator = topoplan.Communicator(f"{folder}/allreduce.json", choose="plan")
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(torch.empty(1000 * world), x, async_op=True).wait()
        communicator.allreduce(x)  # in this thread, where the schedule's name is seen too
    ranges = {event.key for event in profile.key_averages()}
    assert {"topo:all_reduce", "topo:all_gather"} <= ranges and any(
        key.startswith("topo: ") for key in ranges
    ), ranges
    with refused("complex64", RuntimeError):
        communicator.allreduce(torch.ones(3, dtype=torch.complex64))


def all_to_all_of_every_kind(folder: str) -> None:
    """Sizes spelled out by any of the ranks, equal or not; by plans once equal parts are promised,
    and only then.
    """
    start(plans=folder, least_bytes=0)
    rank, world, calls = dist.get_rank(), dist.get_world_size(), count_planned()

    def swap(rows: list[list[int]], *, spelled_out: int, **more: bool) -> None:
        """Rank i sends row i's parts; the bits of `spelled_out` say which ranks give sizes, for
        input and for output.
        """
        sent, received = rows[rank], [row[rank] for row in rows]
        given = torch.cat([torch.full((n, 3), 10.0 * rank + to) for to, n in enumerate(sent)])
        out = torch.empty(sum(received), 3)
        out_sizes, in_sizes = (
            x if spelled_out >> 2 * rank + i & 1 else None for i, x in enumerate((received, sent))
        )
        work = dist.all_to_all_single(out, given, out_sizes, in_sizes, **more)
        if work is not None:
            work.wait()
        wanted = torch.cat([torch.full((n, 3), 10.0 * of + rank) for of, n in enumerate(received)])
        assert torch.equal(out, wanted), (rows, spelled_out)

    even = [[2] * world for _ in range(world)]
    for who in (0b00000000, 0b00000011, 0b11001100, 0b01011011, 0b10000000, 0b11111111):
        swap(even, spelled_out=who)
        swap(even, spelled_out=who, async_op=True)
    # Rank 3 sees equal parts alone, and need not spell them out; the others have uneven ones.
    uneven = [[1, 4, 5, 2], [3, 1, 2, 2], [7, 0, 1, 2], [2, 2, 2, 2]]
    for who in (0b00111111, 0b11111111, 0b01111111):
        swap(uneven, spelled_out=who)
    assert not calls

    start(plans=folder, least_bytes=0, even_alltoall=True)
    for number, who in enumerate((0b00000000, 0b11001100, 0b01011011, 0b11111111)):
        swap(even, spelled_out=who)
        swap(even, spelled_out=who, async_op=True)
        assert [name for name, _ in calls] == ["alltoall"] * 2 * (number + 1)
    with refused("even_alltoall promised"):
        swap(uneven if rank == 0 else [[1, 2, 3, 2]] * world, spelled_out=0b11111111)


def works_that_are_handed_on(folder: str) -> None:
    """Works of which only C++ keeps hold: DDP's, of the number of ranks that still have inputs, and
    a tensor's own.
    """
    start(plans=folder, least_bytes=0)
    rank, world = dist.get_rank(), dist.get_world_size()
    calls = count_planned()
    model = DDP(seeded(network))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = [torch.full((2, 33), float(step)) for step in range(2 + rank)]
    with model.join(divide_by_initial_world_size=False):
        for x in inputs:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert same_everywhere(flat(model))
    # What stands in the gradients' place: those of the ranks that still have inputs, divided by
    # their number.
    alone = seeded(network)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for step in range(1 + world):
        optimizer.zero_grad()
        alone(torch.full((2, 33), float(step))).sum().backward()
        optimizer.step()
    assert torch.allclose(flat(model), flat(alone), atol=1e-6)

    x = torch.full((1000,), float(rank))
    torch._C._distributed_c10d._register_work(x, dist.all_reduce(x, async_op=True))
    assert (torch.ops._c10d_functional.wait_tensor(x) == sum(range(world))).all()
    assert len(calls) > 10

    def fail(*_: object) -> None:
        raise topoplan.ExecutionError("as asked for")

    ProgramRunner.run = fail  # type: ignore[assignment,method-assign]
    world_group: Any = dist.group.WORLD
    handed_on = dist.all_reduce(x, async_op=True)
    torch._C._distributed_c10d._register_work(x, handed_on)
    del handed_on
    with refused("as asked for", topoplan.ExecutionError):
        torch.ops._c10d_functional.wait_tensor(x)
    with refused("as asked for", topoplan.ExecutionError):
        funcol.all_reduce(x, "sum", world_group).wait()
    with refused("as asked for", topoplan.ExecutionError):
        model(inputs[0]).sum().backward()


def what_torchs_tools_see(folder: str) -> None:
    """Sequence numbers, and counts of calls: as over gloo, whatever is done for a call the first
    time.
    """
    # Imported in these ranks alone: with it comes all of torch's compiler.
    from torch.distributed.tensor.debug import CommDebugMode

    start(plans=folder, least_bytes=0)
    world, planned = dist.get_world_size(), count_planned()
    stock = dist.new_group(backend="gloo")

    def look(group: dist.ProcessGroup) -> tuple[int, dict[object, int], dict[object, int]]:
        x, part = torch.ones(4 * world), torch.empty(4)
        whole = torch.empty(world * len(x))
        before = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        with CommDebugMode() as outer, CommDebugMode() as mode:
            dist.all_reduce(x, group=group)
            dist.all_reduce(x, group=group, async_op=True).wait()
            dist.all_gather_into_tensor(whole, x, group=group)
            dist.all_gather(list(whole.chunk(world)), x, group=group)
            dist.reduce_scatter_tensor(part, x, group=group)
            dist.all_reduce(torch.ones(3, dtype=torch.int64), group=group)
            dist.broadcast(x, 0, group=group)
            dist.barrier(group=group)
            funcol.all_reduce(x, "sum", group).wait()
        number = group._get_sequence_number_for_group() - before  # type: ignore[attr-defined]
        assert outer.get_comm_counts() == mode.get_comm_counts()
        with CommDebugMode() as mode_of_training:
            DDP(seeded(network), process_group=group)(torch.ones(2, 33)).sum().backward()
        return number, dict(mode.get_comm_counts()), dict(mode_of_training.get_comm_counts())

    by_gloo = look(stock)
    assert not planned
    whole = dist.distributed_c10d._get_default_group()
    assert look(whole) == by_gloo
    assert look(whole) == by_gloo
    assert {name for name, _ in planned} == {"allreduce", "allgather", "reduce-scatter"}
    model = wrapped(network, topoplan.ddp_hook(f"{folder}/allreduce.json"))
    with CommDebugMode() as mode:
        model(torch.ones(2, 33)).sum().backward()
    assert mode.get_comm_counts() == {torch.ops.c10d.allreduce_: 1}


def groups_for_some_devices() -> list[str]:
    """Backends named for each type of device. Return what a tensor on a device that is not ours is
    refused with.
    """
    planned = count_planned()
    dist.destroy_process_group()
    said = []
    for number, named in enumerate(
        (
            "cpu:topo",
            "cpu:topo,cuda:gloo",
            "cuda:gloo,cpu:topo",
            "cpu:gloo,cuda:topo",
            "cuda:topo,cpu:nccl",
        )
    ):
        planned.clear()
        init(
            f"-{number}",
            backend=named,
            options=topoplan.backend_options(plans="ring:2", choose="plan", least_bytes=0),
        )
        x = torch.ones(5)
        try:
            dist.all_reduce(x)
            assert (x == 2).all()
        except topoplan.InputError as error:
            said.append(str(error))
        assert bool(planned) == ("cpu:topo" in named), (named, planned)
        subgroup = dist.new_group([0, 1])
        assert ("cpu:topo" not in named) or (dist.all_reduce(x, group=subgroup), (x == 4).all())[1]
        dist.destroy_process_group()
    return said


def a_saved_model(path: str) -> str:
    """A hook that was made before the process group; a model with it, pickled and trained on.
    Return its repr.
    """
    dist.destroy_process_group()
    hook = topoplan.ddp_hook(path, choose="model")
    init("-late")
    model = wrapped(network, hook)

    def train(ddp: DDP) -> torch.Tensor:
        ddp(torch.full((2, 33), float(dist.get_rank()))).sum().backward()
        gradients = torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None])
        ddp.zero_grad()
        return gradients

    first = train(model)
    assert same_everywhere(first)
    copy = pickle.loads(pickle.dumps(hook))
    sent = hook.communicator.wire_bytes
    assert torch.equal(train(wrapped(network, copy)), first)
    assert copy.communicator.wire_bytes > 0 and hook.communicator.wire_bytes == sent
    return repr(hook)
