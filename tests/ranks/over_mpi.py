"""Plans over MPI on ranks that mpirun started: bits, who carries messages, and what becomes of a
rank that stays away.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any
from unittest.mock import patch

import patience
import pytest
import torch
import torch.distributed as dist
from rank_process import Events

import topoplan
from ranks.checks import MEANS, always_stock, refused, same_everywhere
from ranks.one_sided import DTYPES, OPS, bits_of, first_difference, values
from ranks.topo_backend import count_planned, end, start
from topoplan import Communicator, ExecutionError, Plan
from topoplan.extras import CODECS, Names
from topoplan.runtime.extras.mpi import player as player_over_mpi
from topoplan.runtime.extras.mpi.links import MpiLinks
from topoplan.runtime.extras.native.library import load_library
from topoplan.runtime.program.contract import ObservedCalls
from topoplan.runtime.program.instructions import Post
from topoplan.runtime.ranks.transport import Transport


class _Stamping:
    """An observer of every message of every call, and its own listener."""

    def __init__(self, stamp: Callable[[Post], object]) -> None:
        self._stamp = stamp

    def listen(self, calls: ObservedCalls) -> _Stamping:
        return self

    def begin_anew(self, size_bytes: int) -> None:
        pass

    def begin(self) -> Callable[[Post], object]:
        return self._stamp

    def end(self, number: int | None) -> None:
        pass


def all_of_it(ring: str, several: list[str]) -> dict[str, Any]:
    """The same bits as over gloo by every schedule, averages, and MPI's own collective."""
    over_gloo, over_mpi = (Transport(None, timedelta(seconds=60), over) for over in ("auto", "mpi"))
    assert isinstance(over_mpi.links, MpiLinks)
    assert over_mpi.links.channel.yields == (
        dist.get_world_size() > len(os.sched_getaffinity(0))
    )  # mpirun bound them to no core
    x = torch.randn(10_007, generator=torch.Generator().manual_seed(dist.get_rank()))
    for path, numel in product((ring, *several), (len(x), 1001)):  # the few go in waves
        plan = Plan.load(path)
        for schedule in plan.schedules:

            def pick(_: object, candidates: Any, label: str = schedule.label) -> Any:
                return next(c for c in candidates if c.label == label)

            results = []
            for transport in (over_gloo, over_mpi):
                communicator = Communicator(plan, transport, choose=pick)
                result = torch.empty(numel)
                for _ in range(
                    4 if transport is over_mpi else 1
                ):  # an address that comes back takes the shortest way
                    communicator.allreduce(result.copy_(x[:numel]))
                results.append(result)
            assert torch.equal(*results), (path, schedule.label)
            assert same_everywhere(results[1])
    # Longer messages have types of their own.
    with patch.object(player_over_mpi, "_MAX_COUNT", 999):
        communicator, result = Communicator(ring, over_mpi, choose="plan"), x.clone()
        communicator.allreduce(result)
    Communicator(ring, over_gloo, choose="plan").allreduce(x_by_gloo := x.clone())
    assert torch.equal(result, x_by_gloo)
    for codec, numel in product(Names(CODECS), (len(x), 301)):  # the few go in waves
        results = [x[:numel].clone(), x[:numel].clone()]
        for transport, result in zip((over_gloo, over_mpi), results, strict=True):
            Communicator(ring, transport, choose="plan", compress=codec).allreduce(result)
        assert torch.equal(*results), codec
    compare_dtypes(ring, over_gloo, over_mpi)
    planned = Communicator(ring, over_mpi, choose="plan")
    kept = torch.empty_like(x)
    for op in (dist.ReduceOp.SUM, MEANS, dist.ReduceOp.MAX):
        for communicator in (
            planned,
            Communicator(ring, over_mpi, choose=always_stock),
            Communicator(ring, over_mpi),
        ):
            for _ in range(4):
                kept.copy_(x)
                communicator.allreduce(kept, op)
            expected = torch.stack(gathered(x))
            wanted = {"SUM": expected.sum(0), "AVG": expected.mean(0), "MAX": expected.amax(0)}[
                op.name
            ]
            assert torch.allclose(kept, wanted, atol=1e-5), (op, communicator)
    links = topoplan.ddp_hook(ring).communicator.dispatcher.transport.links
    assert links.name == "mpi"  # as TOPOPLAN_TRANSPORT says
    with refused("expected one of auto, mpi"):
        Transport(None, timedelta(seconds=60), "smoke signals")
    return {"name": over_mpi.links.name, "sent": planned.wire_bytes}


def compare_dtypes(ring: str, over_gloo: Transport, over_mpi: Transport) -> None:
    """Every dtype and reduction, by both players of MPI: the library in C++, and that of Python,
    which plays the calls that are traced.
    """
    sent, played = (
        Communicator(ring, x, choose="plan", executor="point-to-point")
        for x in (over_gloo, over_mpi)
    )
    for dtype, op in product(DTYPES, OPS):
        if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
            continue
        for numel in (1, 5001):
            x = values(numel, dtype)
            results = [x.clone() for _ in range(3)]
            traced = list[Post]()
            sent.allreduce(results[0], op)
            played.allreduce(results[1], op)
            stamping = _Stamping(traced.append)
            played.dispatcher.observe(stamping)
            played.allreduce(results[2], op)
            played.dispatcher.ignore(stamping)
            assert traced or numel == 1
            for result in results[1:]:
                same = torch.equal(bits_of(results[0]), bits_of(result))
                assert same, (dtype, op, numel, first_difference(results[0], result))


def backend(folder: str) -> None:
    """The backend "topo" over MPI: calls that wait and calls that go on, again and again, by plans
    and by MPI's own.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    for choose in ("plan", "race"):
        planned = count_planned()
        start(plans=folder, choose=choose, transport="mpi")
        for numel in (300, 50_000):
            x, y = torch.empty(numel), torch.empty(numel)
            for turn in range(4):
                x.fill_(rank + turn)
                y.fill_(rank)
                later = dist.all_reduce(y, async_op=True)
                dist.all_reduce(x)
                assert later is not None
                later.wait()
                assert (x == sum(range(world)) + world * turn).all()
                assert (y == sum(range(world))).all()
                dist.broadcast(x.fill_(rank), 1)
                assert (x == 1).all()
        parts = [torch.empty(1000) for _ in range(world)]
        dist.all_gather(parts, torch.full((1000,), float(rank)))
        assert [float(part[0]) for part in parts] == list(range(world))
        assert choose == "race" or {name for name, _ in planned} == {
            "allreduce",
            "allgather",
            "broadcast",
        }
        end()


def gathered(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def one_stays_away(path: str, numels: list[int]) -> list[str]:
    """The last rank comes to no second call of any length; return what the others raise, soon after
    the deadline of each.
    """
    deadline = patience.seconds(1)
    calls = [
        (Communicator(path, choose="plan", timeout=timedelta(seconds=deadline)), torch.ones(numel))
        for numel in numels
    ]
    for communicator, x in calls * 3:  # in the end they take the shortest way
        make_call(communicator, x)
    dist.barrier()
    events, others = Events(), range(dist.get_world_size() - 1)
    if dist.get_rank() not in others:
        for rank in others:
            events.wait(f"rank {rank} made {path} {numels}")
        return []
    said = []
    for communicator, x in calls:
        try:
            make_call(communicator, x)
            said.append("it did not fail")
        except ExecutionError as error:
            said.append(str(error))
            with refused("an earlier call failed", ExecutionError):
                make_call(communicator, x)
    events.tell(f"rank {dist.get_rank()} made {path} {numels}")
    return said


def ctrl_c_ends_a_wait(path: str) -> float:
    """The last rank comes to no second call, and Ctrl-C ends the wait of the others; return how
    many seconds it took. Python's players only see it at the deadline.
    """
    if isinstance(load_library(), str):
        return 0.0
    communicator = Communicator(path, choose="plan", timeout=patience.deadline(60))
    x = torch.ones(1000)
    communicator.allreduce(x)
    dist.barrier()
    took_s = 0.0
    if dist.get_rank() < dist.get_world_size() - 1:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            communicator.allreduce(x)
        took_s = time.monotonic() - began
    dist.barrier()
    return took_s


def one_stays_away_from_mpis_own(path: str) -> None:
    """The last rank does not come to a call of MPI's own collective, which ends the others."""
    communicator = Communicator(path, choose=always_stock, timeout=patience.deadline(1))
    x = torch.ones(1000)
    communicator.allreduce(x)
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        signal.pause()
    communicator.allreduce(x)


def make_call(communicator: Communicator, x: torch.Tensor) -> None:
    """Make the call that the plan is for."""
    (
        communicator.broadcast
        if communicator.plan.collective.name == "broadcast"
        else communicator.allreduce
    )(x)
