"""Ranks whose connections are lost while all of them live."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import leave

import topoplan
from ranks.checks import refused
from ranks.topo_backend import end, start
from topoplan import Communicator
from topoplan.cli import run
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.measuring.bench import list_recoveries, run_benchmark
from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.runtime.ranks.transport import Transport

# The connections that a communicator watches have this timeout.
_USER_TIMEOUT, _WATCHED_MS = socket.TCP_USER_TIMEOUT, 3000
_NUMEL = 60_000


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


def lose_a_connection(before: dict[str, int]) -> None:
    """Reset a connection that was not watched before, as the kernel does when a link is cut."""
    name = min(list_watched().keys() - before)
    with socket.socket(fileno=os.dup(list_watched()[name])) as connection:
        assert ctypes.CDLL(None).connect(connection.fileno(), bytes(16), 16) == 0
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def all_collectives_go_on(paths: dict[str, str]) -> dict[str, int]:
    """Check results before, during and after a loss; return the number of recoveries."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = {}
    for name, path in paths.items():
        before = list_watched()
        communicator = Communicator(
            path, timeout=patience.deadline(20), choose="plan", on_fault="replan"
        )
        for number in range(5):
            if number == 2 and rank == 1:
                lose_a_connection(before)
            check_call(communicator, name, rank, size, number)
        communicator.close()
        counts[name] = len(communicator.recoveries)
    return counts


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
    transport = communicator.engine.transport
    rows = run_benchmark(settings, communicator, say, transport)
    recoveries = list_recoveries(communicator)
    communicator.close()
    return [[row.size_bytes, row.wrong] for row in rows], recoveries


def the_backend_goes_on() -> list[list[dict[str, Any]]]:
    """Lose a connection in calls of torch.distributed; return the recoveries of the group."""
    start(plans="full:3", on_fault="replan", quiet_s=patience.seconds(30))
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    histories = []
    for number in range(4):
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
        assert group.planned.guard is not None
        histories.append(list(group.planned.guard.history))
    end()
    return histories


def a_mismatch_and_a_late_end() -> str:
    """Make calls of different lengths, and destroy the group late on one rank."""
    start(plans="full:3", on_fault="replan", quiet_s=patience.seconds(6))
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(_NUMEL))
    try:
        dist.all_reduce(torch.ones(_NUMEL + (rank == 2)))
    except topoplan.ExecutionError as error:
        dist.destroy_process_group()
        start(plans="full:3", on_fault="replan", quiet_s=patience.seconds(30))
        x = torch.ones(_NUMEL)
        dist.all_reduce(x)
        assert (x == 3).all()
        if rank == 1:
            time.sleep(2)
        dist.destroy_process_group()
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


def check_call(communicator: Communicator, name: str, rank: int, size: int, number: int) -> None:
    def part(of: int) -> torch.Tensor:
        return torch.arange(_NUMEL, dtype=torch.float32) + 100 * of + number

    mine, root = part(rank), communicator.plan.collective.root
    every = torch.cat([part(other) for other in range(size)])
    total = every.view(size, -1).sum(0)
    out = torch.empty(_NUMEL)
    if name == "allreduce":
        communicator.allreduce(mine, dist.ReduceOp.AVG)
        assert torch.equal(mine, total / size)
    elif name == "broadcast":
        communicator.broadcast(mine)
        assert root is not None
        assert torch.equal(mine, part(root))
    elif name == "reduce":
        communicator.reduce(mine)
        assert rank != root or torch.equal(mine, total)
    elif name == "allgather":
        gathered = torch.empty(size * _NUMEL)
        communicator.allgather(gathered, mine)
        assert torch.equal(gathered, every)
        assert torch.equal(mine, part(rank))
    elif name == "reduce-scatter":
        given = torch.cat([part(rank)] * size)
        communicator.reduce_scatter(out, given)
        assert torch.equal(out, total)
        assert torch.equal(given, torch.cat([part(rank)] * size))
    else:
        received = torch.empty(size * _NUMEL)
        communicator.alltoall(received, torch.cat([part(rank)] * size))
        assert torch.equal(received, every)


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
    with refused("on_fault='replan': the communicator needs connections of its own"):
        Communicator(path, Transport(None, patience.deadline(20)), on_fault="replan")
    with refused("on_fault='replan': MPI ends the job when a connection is lost"):
        topoplan.backend_options(on_fault="replan", transport="mpi")
    options = topoplan.backend_options(on_fault="replan")
    with refused("on_fault='replan': groups with helpers cannot go on after a fault"):
        topoplan.new_group([0, 1], options=options)
    os.environ["TOPOPLAN_ON_FAULT"] = "sometimes"
    with refused("TOPOPLAN_ON_FAULT='sometimes': expected one of raise, replan"):
        Communicator(path)


def main(arguments: list[str]) -> int:
    """Run topo-run, then make calls until the emulated links do not connect the ranks any more."""
    plan, folder = arguments
    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)
    sizes = ["-b", "512K", "-e", "512K", "-n", "30", "-w", "1", "--choose", "plan"]
    code = run.main([plan, *sizes, "--on-fault", "replan", "--json"])
    if code:
        return code
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=patience.deadline(60),
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    communicator = Communicator(plan, choose="plan", on_fault="replan")
    number = 0
    try:
        while True:
            x = torch.arange(200_000, dtype=torch.float32) + rank * number
            communicator.allreduce(x)
            ranks = size * (size - 1) / 2
            assert torch.equal(x, torch.arange(200_000) * size + number * ranks)
            number += 1
            Path(folder, f"{rank}").write_text(f"{number}")
    except topoplan.ExecutionError as error:
        print(error, flush=True)
        return 3
