"""Groups of the backend "topo" that get other members: ranks die, leave, or join."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import Events, init, leave
from torch._C._distributed_c10d import HashStore

import topoplan
from ranks.checks import refused
from topoplan.extras import BY_NAME
from topoplan.runtime.backend.process_group import TopoGroup

N = 4096


def after_an_abort(plans: str, on_fault: str = "raise") -> None:
    """All ranks stay: a call in flight fails, the ranks get other numbers, and groups are made."""
    handles = begin(3, plans, on_fault)
    first = dist.get_rank()
    world = group()
    work = world.allreduce([torch.ones(N)], async_options()) if first == 0 else None
    topoplan.reconfigure(handles[::-1], patience.deadline(20))
    if work is not None:
        with refused("the process group was made anew", topoplan.ExecutionError):
            work.wait()
    assert dist.get_rank() == 2 - first
    add_up()
    world.abort()
    topoplan.reconfigure(handles, patience.deadline(20))
    assert dist.get_rank() == first and dist.get_process_group_ranks(None) == [0, 1, 2]
    add_up()
    two = dist.new_group([0, 2])
    if first != 1:
        x = torch.ones(N)
        dist.all_reduce(x, group=two)
        assert (x == 2).all()


def without_a_rank(dead: int, plans: str, on_fault: str = "raise") -> list[Any] | None:
    """Rank `dead` dies; return the seconds until the rest has a sum, and the hash of its plan."""
    handles = begin(3, plans, on_fault)
    own, events = dist.get_rank(), Events()
    if own == dead:
        events.store.set("died", str(time.time()))
        leave()
    fail()
    topoplan.reconfigure(drop(handles, dead), patience.deadline(20))
    add_up()
    seconds = time.time() - float(events.store.get("died"))
    assert dist.get_rank() == drop(range(3), dead).index(own)
    return [seconds, use_a_plan()]


def with_a_rank_more(plans: str) -> str | None:
    """Three ranks run, and a fourth process joins them, as rank 1; return the plan's machine."""
    events = Events()
    launched = dist.get_rank()
    if launched == 3:
        end()
        options = topoplan.backend_options(plans, choose="plan")
        dist.init_process_group("topo", store=HashStore(), rank=0, world_size=1, pg_options=options)
        add_up()
        events.store.set("handles/3", topoplan.reconfigure_handle())
        handles = [events.store.get(f"handles/{rank}").decode() for rank in range(4)]
    else:
        handles = begin(3, plans)
        events.store.set(f"handles/{launched}", handles[launched])
        handles.append(events.store.get("handles/3").decode())
    handles.insert(1, handles.pop())
    topoplan.reconfigure(handles, patience.deadline(20))
    assert dist.get_rank() == [0, 2, 3, 1][launched]
    add_up()
    return use_a_plan()


def a_second_failure(plans: str) -> None:
    """A rank dies while the others wait for it in reconfigure; without it they go on."""
    handles, events = begin(3, plans), Events()
    if dist.get_rank() == 2:
        for rank in range(2):
            events.wait(f"rank {rank} is about to reconfigure")
        patience.be_late(0.2, "no event says that they wait in it")
        leave()
    events.tell(f"rank {dist.get_rank()} is about to reconfigure")
    with refused("handles[2]: the process has ended", topoplan.ExecutionError):
        topoplan.reconfigure(handles, patience.deadline(30))
    with refused("call reconfigure", topoplan.ExecutionError):
        dist.all_reduce(torch.ones(N))
    topoplan.reconfigure(handles[:2], patience.deadline(20))
    add_up()


def begin(world: int, plans: str, on_fault: str = "raise") -> list[str]:
    """Make the default group one of the backend, use it once, and return all ranks' handles."""
    end()
    options = topoplan.backend_options(plans, choose="plan", on_fault=on_fault)
    init("-topo", world=world, backend="topo", quiet_s=15, options=options)
    add_up()
    handles: list[Any] = [None] * world
    dist.all_gather_object(handles, topoplan.reconfigure_handle())
    return handles


def end() -> None:
    """End the group that ranks start with."""
    dist.barrier()
    dist.destroy_process_group()


def group() -> TopoGroup:
    world = dist.group.WORLD
    assert isinstance(world, TopoGroup)
    return world


def async_options() -> Any:
    options = torch._C._distributed_c10d.AllreduceOptions()
    options.asyncOp = True
    return options


def add_up() -> None:
    """Assert that a sum over all ranks is right."""
    x = torch.full((N,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    size = dist.get_world_size()
    assert (x == size * (size + 1) / 2).all()


def fail() -> None:
    """Call until a call fails, as a rank has died; the error says so where the extra is here."""
    with refused("ended" if BY_NAME["culprits"].is_here else "rank", topoplan.ExecutionError):
        while True:
            dist.all_reduce(torch.ones(N))


def use_a_plan() -> str | None:
    """Add up until a plan is used; return its topology's GPUs, None if there is none."""

    def is_used_after_a_call() -> bool:
        add_up()
        return bool(group().communicators)

    patience.wait_until(is_used_after_a_call, "a plan")
    (communicator,) = group().communicators.values()
    add_up()
    return None if communicator is None else " ".join(communicator.plan.topology.ranks)


def drop(items: Sequence[Any], place: int) -> list[Any]:
    return [*items[:place], *items[place + 1 :]]
