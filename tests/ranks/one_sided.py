"""Plans played in memory that the ranks share: results, faults, and what may not be shared."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Mapping

import patience
import pytest
import torch
import torch.distributed as dist
from needs import has_extra
from rank_process import Events, leave

import topoplan
from ranks.checks import normal, refused
from ranks.choices import make_up_times
from ranks.faults import die
from topoplan import Communicator, backend_options
from topoplan.runtime.extras.shared_memory import memory
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.request import Request, Send, build_schedule

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
OPS = (
    dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX,
    dist.ReduceOp.MIN,
)  # fmt: skip


def make(path: str, executor: str, seconds: float = 60) -> Communicator:
    return Communicator(path, None, patience.deadline(seconds), "plan", executor=executor)


def values(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Return other values on each rank; floating-point ones with what is special about them."""
    rank = dist.get_rank()
    if not dtype.is_floating_point:
        return (normal(rank, numel) * 50).clamp(-120, 120).abs().to(dtype)
    data = normal(rank, numel) * 10.0 ** torch.randint(
        -6, 5, (numel,), generator=torch.Generator().manual_seed(rank + 100)
    )
    data = data.to(dtype)
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 65504.0, 6e-8, 1e-41]
    for at, value in enumerate(special[rank:] + special[:rank]):
        if 3 * at < numel:
            data[3 * at] = value
    return data


def the_bits_are_those_of_messages(path: str) -> None:
    """Every dtype and reduction, by the same schedule as messages and one-sided."""
    sent, played = make(path, "point-to-point"), make(path, "one-sided")
    for dtype in DTYPES:
        for op in OPS:
            if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                continue
            for numel in (1, 5001) if op == dist.ReduceOp.SUM else (5001,):
                one, other = values(numel, dtype), values(numel, dtype)
                sent.allreduce(one, op)
                played.allreduce(other, op)
                same = torch.equal(bits_of(one), bits_of(other))
                assert same, (dtype, op, numel, first_difference(one, other))
    # Sums of subnormal numbers of 16 bits are not subnormal as float32, in which they are made.
    torch.set_flush_denormal(True)
    tiny = torch.full((5001,), 6e-8, dtype=torch.float16)
    assert torch.equal(played.allreduce(tiny.clone()), tiny * dist.get_world_size())


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in which all NaN are one, and 0 has one sign: which of two
    zeros is the smaller one is left open.
    """
    if tensor.is_floating_point():
        tensor = tensor + 0.0
        tensor = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return tensor.view(torch.uint8)


def first_difference(one: torch.Tensor, other: torch.Tensor) -> tuple[int, float, float]:
    for at, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True)):
        if a != b and not (a != a and b != b):
            return at, a, b
    return -1, 0.0, 0.0


def all_collectives(paths: Mapping[str, str]) -> None:
    """Random sizes of all collectives one after the other, without waiting for each other between
    calls.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    by_name = {name: make(path, "one-sided") for name, path in paths.items()}
    order = random.Random(7)
    for _ in range(90):
        name, part = order.choice(sorted(paths)), order.choice((1, 3, 100, 5000, 60_000))
        numel, root = part * world, rank == 0
        mine = torch.arange(part) + 1000 * rank
        whole = torch.arange(world).repeat_interleave(part)
        every, out, row = torch.empty(numel), torch.empty(part), (whole + 10 * rank).float()
        x, total = (torch.arange(numel) % 97 + rank).float(), sum(range(world))
        base = (torch.arange(numel) % 97).float()
        c = by_name[name]
        if name == "allreduce":
            assert torch.equal(c.allreduce(x), base * world + total)
        elif name == "reduce":
            c.reduce(x)
            assert not root or torch.equal(x, base * world + total)
        elif name == "broadcast":
            assert torch.equal(c.broadcast(x), base)
        elif name == "allgather":
            c.allgather(every, mine.float())
            assert torch.equal(every, (whole * 1000 + torch.arange(part).repeat(world)).float())
        elif name == "gather":
            c.gather(every if root else None, mine.float())
            wanted = (whole * 1000 + torch.arange(part).repeat(world)).float()
            assert not root or torch.equal(every, wanted)
        elif name == "reduce-scatter":
            c.reduce_scatter(out, row)
            assert (out == world * rank + 10 * total).all()
        elif name == "scatter":
            c.scatter(out, whole.float() if root else None)
            assert (out == rank).all()
        else:
            c.alltoall(every, row)
            wanted = torch.cat([torch.full((part,), 10.0 * of + rank) for of in range(world)])
            assert torch.equal(every, wanted)


def a_rank_is_killed(path: str) -> str:
    communicator = make(path, "one-sided", 20)
    x = torch.ones(50_000)
    communicator.allreduce(x)
    began = time.monotonic()
    try:
        for call in range(10_000):
            if dist.get_rank() == 1 and call == 30:
                die()
            communicator.allreduce(x.fill_(1))
    except topoplan.ExecutionError as error:
        assert time.monotonic() - began < patience.seconds(30)
        leave(str(error))
    raise AssertionError("went on with a rank that is gone")


def a_member_is_killed(path: str) -> str:
    """The last member of a plan over some of the ranks ends before a call."""
    communicator = make(path, "one-sided", 20)
    members = communicator.plan.collective.members
    if communicator.rank in members:
        communicator.allreduce(torch.ones(1000))
        if communicator.rank == members[-1]:
            die()
        try:
            communicator.allreduce(torch.ones(1000))
        except topoplan.ExecutionError as error:
            leave(str(error))
    leave("")


def a_rank_does_not_come(path: str) -> str:
    communicator, events = make(path, "one-sided", 3), Events()
    x = torch.ones(1000)
    communicator.allreduce(x)
    if dist.get_rank() == 2:
        for rank in (0, 1):
            events.wait(f"rank {rank} gave up")
        leave("late")
    try:
        communicator.allreduce(x)
    except topoplan.ExecutionError as error:
        events.tell(f"rank {dist.get_rank()} gave up")
        leave(str(error))
    raise AssertionError("went on without a rank")


def ranks_make_other_calls(path: str) -> str:
    communicator = make(path, "one-sided", 10)
    x = torch.ones(1000)
    communicator.allreduce(x)
    try:
        communicator.allreduce(torch.ones(1000 if dist.get_rank() else 2000))
        communicator.allreduce(x)
    except topoplan.ExecutionError as error:
        leave(str(error))
    raise AssertionError("ranks with other calls were not noticed")


def a_call_is_interrupted(path: str) -> str:
    """Ctrl-C in a call, after which another program must not go on in its place."""
    communicator, events = make(path, "one-sided", 10), Events()
    rank = dist.get_rank()
    for numel in (1000, 2000):
        communicator.allreduce(torch.ones(numel))
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)  # surely in the call by then
            communicator.allreduce(torch.ones(1000))
        except KeyboardInterrupt:
            events.tell("interrupted")
    events.wait("interrupted")
    try:
        communicator.allreduce(torch.ones(2000))
    except topoplan.ExecutionError as error:
        leave(str(error))
    raise AssertionError("went on after an interrupted call")


def a_forked_child_ends(path: str) -> None:
    """A child that drops a communicator, as any process does at its end, and is no rank."""
    communicator = make(path, "one-sided")
    x = torch.ones(1000)
    communicator.allreduce(x)
    # A child must not wait for locks that gloo's threads held when it was made, nor free what only
    # its parent's threads can.
    gc.collect()
    gc.freeze()
    patience.be_late(0.1, "gloo's threads hold locks for a moment after a call")
    child = os.fork()
    if not child:
        del communicator
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()
    assert torch.equal(communicator.allreduce(torch.ones(1000)), x)


def groups_are_aborted(path: str, executors: list[str]) -> None:
    """A group of each executor, one after the other."""
    for executor in executors:
        a_group_is_aborted(path, executor)
    leave()


def a_group_is_aborted(path: str, executor: str) -> None:
    """Another thread aborts the group during a call, which then ends before its deadline."""
    options = backend_options(plans=path, choose="plan", executor=executor, least_bytes=0)
    group = dist.new_group(backend="topo", pg_options=options, timeout=patience.deadline(60))
    assert group is not None
    events, x = Events(), torch.ones(1000)
    for _ in range(3):
        dist.all_reduce(x, group=group)
    others = [rank for rank in range(dist.get_world_size()) if rank != 1]
    if dist.get_rank() == 1:
        for rank in others:
            events.wait(f"{executor} ended on {rank}")
        return
    began = time.monotonic()
    threading.Timer(0.3, group.abort).start()
    with pytest.raises(topoplan.ExecutionError, match=r"aborted|destroyed"):
        dist.all_reduce(x, group=group)
    assert time.monotonic() - began < patience.seconds(10)
    events.tell(f"{executor} ended on {dist.get_rank()}")


def what_cannot_share(path: str) -> None:
    with refused("executor='shared': expected one of auto, one-sided, point-to-point"):
        Communicator(path, executor="shared")
    if has_extra("codecs"):
        with refused("are sent as messages"):
            Communicator(path, compress="fp16", executor="one-sided")


def one_rank_lacks_the_library(path: str) -> None:
    """All ranks send messages, or all say which one cannot do else."""
    lacking = dist.get_world_size() - 1
    if dist.get_rank() == lacking:
        pytest.MonkeyPatch().setattr(memory, "load_library", lambda: "it was not built")
    with refused(f"executor='one-sided': rank {lacking}: it was not built"):
        Communicator(path, executor="one-sided")
    communicator = Communicator(path)
    x = torch.ones(1000)
    communicator.allreduce(x)
    assert torch.equal(x, torch.full_like(x, dist.get_world_size()))
    choice = communicator.choice(x.nbytes)
    assert choice is not None and not any("one-sided" in label for label in choice.raced)


def a_schedule_too_fine_for_the_memory() -> None:
    """Chunks that fit as float32, but not as float64, whose slots take twice the room."""
    world = dist.get_world_size()

    @topoplan.strategy("fine")
    def build(request: Request) -> list[Schedule]:
        chunks = request.collective.even_chunks(600)
        sends: list[Send] = [
            (0, src, dst, chunk, "reduce")
            for src in range(world)
            for dst in range(world)
            for chunk in range(600)
            if src != dst
        ]
        return [build_schedule(request, "fine", chunks, sends)]

    plan = topoplan.synthesize("allreduce", f"switch:{world}", strategy="fine")
    communicator = Communicator(plan, choose="plan", executor="one-sided")
    for dtype in (torch.float32, torch.float64):
        for _ in range(3):
            x = torch.arange(6000, dtype=dtype)
            communicator.allreduce(x)
            assert torch.equal(x, world * torch.arange(6000, dtype=dtype))


def the_race_is_between_messages_shared_memory_and_stock(path: str) -> None:
    """Both the default race and `one-sided` play within hosts; `point-to-point` does not."""
    x = torch.ones(5000)
    labels = {}
    make_up_times()
    for executor in ("auto", "one-sided", "point-to-point"):
        communicator = Communicator(path, executor=executor)
        communicator.allreduce(x)
        choice = communicator.choice(x.nbytes)
        assert choice is not None
        labels[executor] = [label for label in choice.raced if label != "stock"]
        assert ("stock" in choice.raced) == (len(choice.raced) > 1), choice.raced
    shared = {
        executor: [label.endswith(", one-sided within hosts") for label in raced]
        for executor, raced in labels.items()
    }
    assert any(shared["auto"]), labels
    assert not all(shared["auto"]), labels
    assert all(shared["one-sided"]), labels
    assert not any(shared["point-to-point"]), labels


def each_rank_is_on_a_host_of_its_own(path: str) -> None:
    with refused("each rank is on a host of its own"):
        Communicator(path, executor="one-sided")
    x = torch.ones(1000)
    assert (Communicator(path).allreduce(x) == dist.get_world_size()).all()
