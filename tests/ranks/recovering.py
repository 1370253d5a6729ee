"""Ranks whose connections are lost while all of them live."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import Events, leave
from reports import tell

import topoplan
from ranks.checks import CHECKED_NUMEL as _NUMEL
from ranks.checks import check_call, refused
from ranks.topo_backend import end, start
from topoplan import Communicator
from topoplan.cli import run
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.extras.layered_groups.layers import GroupLayers
from topoplan.runtime.extras.recovery.agreement import RankStatus, Recovery
from topoplan.runtime.extras.recovery.worker import Worker
from topoplan.runtime.measuring.bench import list_recoveries, run_benchmark
from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.runtime.race import Outcome, Race
from topoplan.runtime.ranks.transport import Transport

# The connections that a communicator watches have this timeout.
_USER_TIMEOUT, _WATCHED_MS = socket.TCP_USER_TIMEOUT, 3000


def list_watched() -> dict[str, int]:
    """Return the connections that communicators watch: file descriptors by the socket's name."""
    watched = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or a socket of another kind
            name = str(link.readlink())
            if name.startswith("socket:") and is_watched(int(link.name)):
                watched[name] = int(link.name)
    return watched


def is_watched(number: int) -> bool:
    with socket.socket(fileno=os.dup(number)) as copy:
        return copy.getsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT) == _WATCHED_MS


def lose_a_connection(before: Collection[str]) -> None:
    """Reset a connection that was not watched before, as the kernel does when a link is cut."""
    name = min(list_watched().keys() - set(before))
    with socket.socket(fileno=os.dup(list_watched()[name])) as connection:
        assert ctypes.CDLL(None).connect(connection.fileno(), bytes(16), 16) == 0
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def lose_at_end(before: Collection[str], events: Events, call: str) -> threading.Event:
    """Lose a connection when this rank's next call has ended, but not the thread that runs it: that
    ends at the event that this returns.

    The other ranks, which have told of the end of `call` then, have ended it, so this one gets what
    they have.
    """
    begin, has_gone_on = Worker.begin, threading.Event()

    def begin_once(worker: Worker, function: Callable[[], object]) -> int:
        Worker.begin = begin  # type: ignore[method-assign]

        def run() -> None:
            function()
            for other in {*range(dist.get_world_size())} - {dist.get_rank()}:
                events.wait(f"{other} ended {call}")
            lose_a_connection(before)
            has_gone_on.wait()

        return begin(worker, run)

    Worker.begin = begin_once  # type: ignore[assignment,method-assign]
    return has_gone_on


def all_collectives_go_on(paths: dict[str, str]) -> dict[str, int]:
    """Check results before, during and after a loss; return the number of recoveries.

    The others make calls of other communicators when one rank has lost a connection of one.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    communicators, own, events = {}, {}, Events()
    for name, path in paths.items():
        before = list_watched()
        communicators[name] = Communicator(
            path, timeout=patience.deadline(20), choose="plan", on_fault="replan"
        )
        own[name] = list_watched().keys() - before
    for number in range(4):
        for name, communicator in communicators.items():
            gone_on = threading.Event()
            if number == 2 and rank == 1:
                gone_on = lose_at_end(list_watched().keys() - own[name], events, name)
            check_call(communicator, name, rank, size, number)
            if number == 2:
                events.tell(f"{rank} ended {name}")
            gone_on.set()
    for communicator in communicators.values():
        communicator.close()
    return {name: len(communicators[name].recoveries) for name in paths}


def what_was_rounded_off_is_added_once(path: str) -> float:
    """Lose a connection in a call with error feedback; return the largest error of the sum."""
    rank, size, given = dist.get_rank(), dist.get_world_size(), 5.0
    before, events = list_watched(), Events()
    communicator = Communicator(
        path, timeout=patience.deadline(20), choose="plan", compress="int8", on_fault="replan"
    )
    x, residual = torch.arange(_NUMEL) % 7 / 7 + rank, torch.full((_NUMEL,), given)
    total = x.clone()
    dist.all_reduce(total)
    gone_on = lose_at_end(before, events, "it") if rank == 1 else threading.Event()
    communicator.allreduce(x, residual=residual)
    events.tell(f"{rank} ended it")
    gone_on.set()
    communicator.close()
    assert len(communicator.recoveries) == 1
    dist.all_reduce(residual)
    return float((x + residual - total - size * given).abs().max())


def a_race_ends_on_some_ranks(path: str) -> list[int]:
    """Lose a connection when all ranks but one know who won a race; return the recoveries."""
    rank, size = dist.get_rank(), dist.get_world_size()
    before, decide, has_gone_on = list_watched(), Race.decide, threading.Event()
    communicator = Communicator(
        path, timeout=patience.deadline(20), executor="point-to-point", on_fault="replan"
    )

    def decide_for_most_segments(race: Race[Any], times: dict[Any, float]) -> Outcome[Any]:
        if rank == 1:
            lose_a_connection(before)
            has_gone_on.wait()
        return decide(race, {x: 1 / (x.segments if x else 0.1) for x in times})

    Race.decide = decide_for_most_segments  # type: ignore[assignment,method-assign]
    check_call(communicator, "allreduce", rank, size, 0)
    has_gone_on.set()
    Race.decide = decide  # type: ignore[method-assign]
    for number in range(1, 12):  # as many as a trial takes
        check_call(communicator, "allreduce", rank, size, number)
    communicator.close()
    return [row["call"] for row in communicator.recoveries]


def a_benchmark_goes_on(path: str) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Lose a connection between two sizes; return the rows and the recoveries."""
    before = list_watched()
    communicator = Communicator(
        path, timeout=patience.deadline(20), choose="plan", on_fault="replan"
    )
    options = BenchOptions(
        min_bytes=4096, max_bytes=65536, iterations=3, warmup=1, on_fault="replan"
    )

    def say(text: str) -> None:
        if text.startswith("16384") and dist.get_rank() == 1:
            lose_a_connection(before)

    settings = options.settings_for(communicator.plan.collective)
    transport = communicator.dispatcher.transport
    rows = run_benchmark(settings, communicator, say, transport)
    recoveries = list_recoveries(communicator)
    communicator.close()
    return [[row.size_bytes, row.wrong] for row in rows], recoveries


def the_backend_goes_on() -> list[list[dict[str, Any]]]:
    """Lose a connection in calls of torch.distributed; return the recoveries of the group."""
    start(plans="full:3", on_fault="replan", quiet_s=30)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    histories = []
    for number in range(3):
        before = {} if number else list_watched()
        futures, works = [], []
        for call in range(4):
            if (number, call) == (1, 2) and rank == 1:
                lose_a_connection(before)
            x = torch.arange(_NUMEL, dtype=torch.float32) + 100 * rank + number * call
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            works.append((work, x, call))
            futures.append(work.get_future().then(lambda future: future.value()[0].sum()))
        for (work, x, call), future in zip(works, futures, strict=True):
            work.wait()
            wanted = size * (torch.arange(_NUMEL) + number * call) + 100 * sum(range(size))
            assert torch.equal(x, wanted.float())
            assert future.wait() == wanted.float().sum()
        check_others(rank, size, number)
        assert isinstance(group.planned.around, GroupLayers)
        histories.append(group.planned.around.recoveries)
    end()
    return histories


def a_mismatch_and_a_late_end() -> str:
    """Make different calls, then begin with two groups at once, and end late on one rank."""
    events = Events()
    start(plans="full:3", on_fault="replan", quiet_s=6)
    rank, hooks = dist.get_rank(), list[int]()
    with refused("rank 2 calls broadcast", topoplan.ExecutionError):
        if rank == 2:
            dist.broadcast(torch.ones(_NUMEL), 0)
        else:
            dist.all_reduce(torch.ones(_NUMEL))
    dist.destroy_process_group()
    start(plans="full:3", on_fault="replan", quiet_s=6)
    dist.all_reduce(torch.ones(_NUMEL))
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    group.register_abort_hook(1, lambda: hooks.append(rank))
    try:
        dist.all_reduce(torch.ones(_NUMEL + (rank == 2)))
    except topoplan.ExecutionError as error:
        assert hooks == [rank]
        assert group.get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
        dist.destroy_process_group()
        start(plans="full:3", on_fault="replan", quiet_s=30)
        groups = [dist.group.WORLD, dist.new_group(range(3))]
        works = []
        for one in groups if rank else groups[::-1]:  # set up at once, in another order
            works.append(dist.all_reduce(torch.ones(_NUMEL), group=one, async_op=True))
            events.meet(f"begun {len(works)}")
        for work in works:
            assert work is not None
            work.wait()
        if rank == 1:
            events.wait("0 has destroyed it")
        dist.destroy_process_group()
        events.tell(f"{rank} has destroyed it")
        return str(error)
    raise AssertionError("different calls were added up")


def check_others(rank: int, size: int, number: int) -> None:
    """Check collectives that a training script makes besides; some are new after the fault."""
    loss = torch.tensor(float(rank))
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    assert loss == sum(range(size)) / size
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, f"rank {rank}")
    assert objects == [f"rank {other}" for other in range(size)]
    dist.gather_object(rank, objects if rank == 1 else None, 1)
    assert rank != 1 or objects == list(range(size))
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    if number:
        x = torch.full((1000,), float(rank), dtype=torch.float64)
        dist.broadcast(x, 2)
        assert torch.equal(x, torch.full_like(x, 2))
        part = torch.empty(500)
        dist.reduce_scatter_tensor(part, torch.arange(500.0 * size))
        assert torch.equal(part, size * (torch.arange(500.0) + 500 * rank))
    dist.barrier()


def a_rank_ends(path: str) -> str:
    """Return the error of a rank when another one has ended."""
    communicator = Communicator(
        path, timeout=patience.deadline(20), choose="plan", on_fault="replan"
    )
    x = torch.ones(_NUMEL)
    communicator.allreduce(x)
    if dist.get_rank() == 1:
        leave()
    try:
        communicator.allreduce(x)
    except topoplan.ExecutionError as error:
        with refused(str(error), topoplan.ExecutionError):
            communicator.allreduce(x)
        leave(str(error))
    raise AssertionError("went on with a rank that is gone")


def what_cannot_go_on_is_refused(path: str) -> None:
    with refused("on_fault='later': expected one of raise, replan"):
        Communicator(path, on_fault="later")
    with refused("on_fault='replan' excludes a Transport that others share: calls need conn"):
        Communicator(path, Transport(None, patience.deadline(20)), on_fault="replan")
    options = topoplan.backend_options(on_fault="replan")
    with refused("on_fault='replan' excludes groups with helpers: these take part in calls alone"):
        topoplan.new_group([0, 1], options=options)
    os.environ["TOPOPLAN_ON_FAULT"] = "sometimes"
    with refused("TOPOPLAN_ON_FAULT='sometimes': expected one of raise, replan"):
        Communicator(path)


def main(arguments: list[str]) -> int:
    """Run topo-run, then make calls until the emulated links do not connect the ranks any more.

    Tell a pipe of the end of topo-run, after which links are mended, of the third call, and when
    this rank has told others what it does not reach any more.
    """
    plan, folder, pipe = arguments
    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)
    sizes = ["-b", "512K", "-e", "512K", "-n", "30", "-w", "1", "--choose", "plan"]
    code = run.main([plan, *sizes, "--on-fault", "replan", "--json"])
    if code:
        return code
    tell(pipe, "topo-run")
    Events(f"{folder}/events").wait("mended")
    number, report = 0, Recovery.report

    def report_and_tell(recovery: Recovery, part: RankStatus) -> None:
        report(recovery, part)
        if number >= 3:
            tell(pipe, "reported")

    Recovery.report = report_and_tell  # type: ignore[assignment,method-assign]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=patience.deadline(60),
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    communicator = Communicator(plan, choose="plan", on_fault="replan")
    try:
        while True:
            x = torch.arange(200_000, dtype=torch.float32) + rank * number
            communicator.allreduce(x)
            ranks = size * (size - 1) / 2
            assert torch.equal(x, torch.arange(200_000) * size + number * ranks)
            number += 1
            if number == 3:
                tell(pipe, "three calls")
    except topoplan.ExecutionError as error:
        print(error, flush=True)
        return 3
