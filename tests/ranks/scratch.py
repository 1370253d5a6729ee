"""Scratch memory of programs: what they share, what moves, and what is given back."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ranks.checks import refused, same_everywhere
from ranks.choices import make_up_times
from ranks.topo_backend import start
from topoplan import Communicator
from topoplan.runtime.scratch import process_budget

MIB = 1 << 20


def _held_bytes() -> int:
    with process_budget.lock:
        return sum(arena.nbytes for arena in process_budget.arenas)


def sums(communicator: Communicator, numel: int, times: int = 1) -> None:
    """Check allreduces of a tensor, at one address."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.empty(numel)
    for turn in range(times):
        x.fill_(rank + turn)
        communicator.allreduce(x)
        assert (x == sum(other + turn for other in range(world))).all(), (numel, turn)


def programs_share_it(path: str) -> int:
    """Return the bytes that are held after many sizes, up and down; small calls in between are
    repeated right.
    """
    communicator = Communicator(path, choose="plan")
    small = torch.empty(500)
    sizes = [1000 * k for k in (1, 300, 7, 900, 40, 901, 905, 2)]
    for numel in [*sizes, *reversed(sizes)]:
        sums(communicator, numel, times=3)
        for _ in range(3):  # by the shortest route, though the memory of the program has moved
            communicator.allreduce(small.fill_(dist.get_rank()))
            assert (small == sum(range(dist.get_world_size()))).all()
        strided = torch.ones(300, 7)[:, ::2]
        communicator.allreduce(strided)
        assert (strided == dist.get_world_size()).all()
    return _held_bytes()


def it_is_given_back(path: str) -> None:
    """With a budget of nothing no call leaves anything behind, and with one for a single arena the
    idle one goes.
    """
    first, second = Communicator(path, choose="plan"), Communicator(path, choose="plan")
    numel = 2 * MIB // 4
    sums(first, numel, times=2)
    one = _held_bytes()
    assert one > 0
    sums(second, numel, times=2)
    assert _held_bytes() == 2 * one
    process_budget.given_bytes = one
    for communicator in (first, second, first):
        sums(communicator, 2 * numel)  # an arena that grows looks for room
        assert _held_bytes() == 0  # each takes more than there may be
        sums(communicator, numel, times=3)
        assert _held_bytes() == one
    process_budget.given_bytes = 0
    sums(first, 2 * numel, times=3)
    sums(first, 300, times=3)
    assert _held_bytes() == 0


def races_share_it(paths: dict[str, str], cache: str) -> int:
    """Return what is held after races: results are right, also where input and output overlap, and
    inputs stay.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    numel = MIB // 16
    process_budget.given_bytes = MIB
    make_up_times()
    communicators = {
        name: Communicator(path, cache=f"{cache}/{name}") for name, path in paths.items()
    }
    sums(communicators["allreduce"], numel)
    mine, row = (
        torch.full((numel,), float(rank)),
        torch.arange(world).float().repeat_interleave(numel),
    )
    every, out = torch.empty(numel * world), torch.empty(numel)
    communicators["allgather"].allgather(every, mine)
    assert torch.equal(every, row) and (mine == rank).all()
    in_place = torch.full((world, numel), float(rank))
    Communicator(paths["allgather"], cache=f"{cache}/in-place").allgather(in_place, in_place[rank])
    assert torch.equal(in_place.view(-1), row)
    communicators["reduce-scatter"].reduce_scatter(out, row)
    assert (out == rank * world).all() and torch.equal(row, every)
    in_place = row.clone()
    Communicator(paths["reduce-scatter"], cache=f"{cache}/in-place").reduce_scatter(
        in_place.view(world, -1)[rank], in_place
    )
    assert (in_place.view(world, -1)[rank] == rank * world).all()
    x = mine.clone()
    communicators["broadcast"].broadcast(x)
    assert (x == 0).all()
    for name, communicator in communicators.items():
        choice = communicator.choice(
            numel * 4 * (1 if name in ("allreduce", "broadcast") else world)
        )
        assert choice is not None
        assert len(choice.raced) > 1, name
    return _held_bytes()


def codecs_share_it(path: str) -> None:
    """Encoding works in the same memory, with error feedback and without, whatever came between."""
    coded = Communicator(path, choose="plan", compress="int8")
    rank, world = dist.get_rank(), dist.get_world_size()
    residual = torch.zeros(5000)
    for numel in (5000, 700_000, 5000):
        for _ in range(3):
            x = torch.full((numel,), float(rank + 1))
            coded.allreduce(x, residual=residual if numel == 5000 else None)
            assert same_everywhere(x)
            assert torch.allclose(x, torch.full((numel,), world * (world + 1) / 2), rtol=0.05)


def options_name_it(folder: str) -> None:
    """By backend_options, by the environment; what is no size is refused."""
    os.environ["TOPOPLAN_SCRATCH"] = "64M"
    Communicator(f"{folder}/ring_2-allreduce-auto-None.json", choose="plan")
    assert process_budget.limit_bytes == 64 * MIB
    start(plans=folder, least_bytes=0, scratch="3M")
    dist.all_reduce(torch.ones(300))
    assert process_budget.limit_bytes == 3 * MIB
    os.environ["TOPOPLAN_SCRATCH"] = "a lot"
    with refused("TOPOPLAN_SCRATCH='a lot': expected the bytes of scratch memory"):
        Communicator(f"{folder}/ring_2-allreduce-auto-None.json", choose="plan")
