"""The classic systems with a worker that dies, and wrong use: one line, the same on every rank."""

from __future__ import annotations

import time
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import Events, leave
from torch.nn import Linear, Module, ReLU
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from examples import classic
from ranks.checks import refused
from ranks.classic_training import backward, model, sgd
from topoplan import (
    Device,
    ExecutionError,
    InfeasibleError,
    InputError,
    Link,
    Topology,
    TopoplanError,
)


def assert_refused_by_all(
    kind: type[TopoplanError],
    text: str,
    name: str,
    net: Module | None,
    optimizer: Any = sgd,
    **options: Any,
) -> None:
    try:
        classic.make(name, net, optimizer, **options)
    except kind as error:
        raised = str(error)
    else:
        raised = "no error"
    assert text in raised, (name, raised)
    assert "\n" not in raised
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, raised)
    assert len(set(by_rank)) == 1, by_rank


def wrong_arguments() -> None:
    """Rank 2, the last, is the one that differs from the others."""
    last = dist.get_rank() == 2
    check = assert_refused_by_all
    net_or_none = None if last else model()
    check(InputError, "rank 0: unknown system 'rings'", "rings", model())
    check(InputError, "rank 2: unknown system", "rings" if last else "ring", model())
    check(InputError, "rank 2 for gather", "gather" if last else "stock", model())
    check(InputError, "helper, but it brought a model", "parameter-server", model(), helpers=(2,))
    check(InputError, "rank 2: this rank brought NoneType", "parameter-server", net_or_none)
    check(InputError, "needs helpers", "async-parameter-server", model())
    check(InputError, "no use for helpers", "ring", net_or_none, helpers=(2,))
    check(
        InputError,
        "expected different ranks of the group, 0 to 2",
        "parameter-server",
        model(),
        helpers=(3,),
    )
    check(InputError, "all 3 ranks are helpers", "parameter-server", None, helpers=(0, 1, 2))
    check(
        InputError, "named helpers", "parameter-server", net_or_none, helpers=(2,) if last else ()
    )
    differ = "models of rank 0 and rank 2 differ"
    check(InputError, differ, "stock", Linear(3, 4) if last else Linear(3, 3))
    check(InputError, differ, "stock", Linear(3, 3).to(torch.bfloat16 if last else torch.float32))
    takes = "is of bfloat16; this system takes float32"
    check(InputError, takes, "neighbours-8bit", model(dtype=torch.bfloat16))
    check(InputError, "no parameters that require gradients", "stock", ReLU())
    check(
        InputError,
        "expected a function of the parameters",
        "stock",
        model(),
        sgd(model().parameters()),
    )
    check(InputError, "wrapped in DDP", "stock", DDP(model()))


def wrong_topologies_and_plans() -> None:
    last = dist.get_rank() == 2
    check = assert_refused_by_all
    net_or_none = None if last else model()
    ring3, ring4 = topoplan.load("ring:3"), topoplan.load("ring:4")
    check(InputError, "does not follow a plan", "gather", model(), plan="plan.json")
    check(InputError, "needs a plan, or a topology", "hierarchical", model())
    check(InfeasibleError, "is one box", "hierarchical", model(), topology=ring3)
    check(InputError, "has 4 GPUs, there are 3 workers", "ring", model(), topology=ring4)
    check(InputError, "has 4 GPUs, there are 3 workers", "neighbours", model(), topology=ring4)
    too_many = "has 4 GPUs, for 2 workers and 1 helpers"
    check(InputError, too_many, "parameter-server", net_or_none, topology=ring4, helpers=(2,))
    pair = (Link("gpu0", "gpu1"), Link("gpu1", "gpu0"))
    two = Topology("parts", tuple(Device(f"gpu{i}") for i in range(3)), pair)
    check(InfeasibleError, "rank 2 and rank 0 are not joined", "neighbours", model(), topology=two)
    packing = topoplan.synthesize("allreduce", ring3, "packing", time_limit_s=5)
    check(InputError, "this one has packing, too", "ring", model(), plan=packing)
    allgather = topoplan.synthesize("allgather", ring3, "ring", time_limit_s=5)
    check(InputError, "this one is for allgather", "plan", model(), plan=allgather)


def wrong_calls() -> None:
    """Helpers and workers call what is not theirs, and go on after the end."""
    last = dist.get_rank() == 2
    system = classic.make("parameter-server", None if last else model(), sgd, helpers=(2,))
    if last:
        with refused("is a helper and holds no model"):
            system.step()
        with refused("is a helper and holds no model"):
            system.finish()
        system.serve()
        with refused("serve() has ended"):
            system.serve()
    else:
        with refused("serve() is for helpers"):
            system.serve()
        system.finish()
        with refused("after finish()"):
            system.step()


def wrong_use() -> None:
    wrong_arguments()
    wrong_topologies_and_plans()
    wrong_calls()


def a_worker_dies() -> None:
    """Rank 1 dies between steps; rank 0 works on, rank 2 helps."""
    rank, events = dist.get_rank(), Events()
    helping = rank == 2
    nets = [None if helping else model() for _ in range(2)]
    synchronous = classic.make("parameter-server", nets[0], sgd, helpers=(2,))
    asynchronous = classic.make("async-parameter-server", nets[1], sgd, helpers=(2,))
    if helping:
        asynchronous.serve()
        report: Any = asynchronous.report()
        assert report["lost"] == (1,), report
        assert report["updates"] == 7, report
        last_call = synchronous.serve
    else:
        assert nets[0] is not None
        assert nets[1] is not None
        for step in range(2 if rank == 1 else 5):
            backward(nets[1], rank, step)
            asynchronous.step()
        if rank == 1:
            events.tell("dead")
            leave()
        events.wait("dead")
        asynchronous.finish()
        backward(nets[0], rank, 0)
        last_call = synchronous.step
    begun = time.monotonic()
    with refused("rank 1 failed", ExecutionError):
        last_call()
    assert time.monotonic() - begun < patience.seconds(60)
    events.tell(f"done {rank}")
    events.wait(f"done {2 - rank}")
    leave()
