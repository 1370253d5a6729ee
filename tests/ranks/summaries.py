"""What a run says of itself: lines from its first rank, and the same as data."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import topoplan
from ranks.checks import refused
from ranks.topo_backend import start
from ranks.training import flat, network, wrapped
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.ranks.race_timing import MAX_CALLS

CALLS = 45


def _log_of(body: Callable[[], Any]) -> tuple[list[str], Any]:
    os.environ["TOPOPLAN_LOG"] = "info"
    with redirect_stderr(StringIO()) as printed:
        result = body()
    return printed.getvalue().splitlines(), result


def train(folder: str) -> dict[str, Any]:
    """Train with the hook beside a group of the backend; return the log, and the summaries."""

    def run() -> list[Any]:
        start(plans=folder, least_bytes=64, choose="race")
        hook = topoplan.ddp_hook(f"{folder}/allreduce.json")
        model = wrapped(network, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(CALLS):
            dist.all_reduce(torch.ones(3000))
            model(torch.ones(2, 33)).sum().backward()
            optimizer.step()
        dist.all_reduce(torch.ones(2))
        world = dist.group.WORLD
        assert isinstance(world, TopoGroup)
        whole = topoplan.summary()
        parts = [hook.summary(), world.summary()]
        del model, hook, optimizer
        dist.destroy_process_group()
        assert {group.name for group in topoplan.summary().groups} == {"ddp_hook", "group 0"}
        return [str(whole), *(part.to_json() for part in (whole, *parts))]

    lines, (text, whole, by_hook, by_group) = _log_of(run)
    return {"log": lines, "text": text, "whole": whole, "hook": by_hook, "group": by_group}


def train_one_model_after_another(plan: str) -> list[list[str]]:
    """Train three models with hooks, and ask for no log; return what is printed after each.

    The second and the third one are trained until their races are over.
    """
    os.environ.pop("TOPOPLAN_LOG", None)

    def run() -> None:
        model = wrapped(network, topoplan.ddp_hook(plan))
        for _ in range(MAX_CALLS if printed else 3):
            model(torch.ones(2, 33)).sum().backward()
        group = dist.group.WORLD  # not freed with the model: DDP would hold the GIL meanwhile
        if len(printed) == 2:  # the last model ends after its group
            dist.destroy_process_group()
        del model
        gc.collect()
        del group

    printed: list[list[str]] = []
    for _ in range(3):
        with redirect_stderr(StringIO()) as errors:
            run()
        printed.append(errors.getvalue().splitlines())
    return printed


def turned_off(folder: str) -> list[str]:
    """With TOPOPLAN_PLANS=off plans that Python names are not even read; DDP averages all the same.

    Return the log.
    """
    os.environ["TOPOPLAN_PLANS"] = "off"

    def run() -> None:
        start(plans=folder, choose="race")
        hook = topoplan.ddp_hook("there is no such plan.json")
        model, stock = wrapped(network, hook), wrapped(network, None)
        for one in (model, stock):
            one(torch.full((2, 33), float(dist.get_rank()))).sum().backward()
        assert torch.equal(flat(model), flat(stock))
        (group,) = hook.summary().groups
        assert group.is_off and topoplan.summary().saved is None
        with refused("TOPOPLAN_PLANS=off: the hook has no communicator"):
            assert hook.communicator
        with refused("choose='same-bits' with plans off"):
            topoplan.ddp_hook("no plan", choose="same-bits")
        # Before its group: DDP frees the group of a model that outlives it while it holds the GIL,
        # which gloo's thread, awaited there, may want for what backward has left in a work.
        del one, model, stock, hook
        dist.destroy_process_group()

    return _log_of(run)[0]


def cached_races_that_do_not_hold(plan: str, cache: str) -> list[str]:
    """Race at two sizes, then again with cached times that are far off; return the log."""

    def run() -> None:
        communicator = topoplan.Communicator(plan, cache=cache)
        for numel in (300, 3000):
            communicator.allreduce(torch.ones(numel))

    run()
    dist.barrier()
    if dist.get_rank() == 0:
        for file in Path(cache, "races").iterdir():
            race = json.loads(file.read_text(encoding="utf-8"))
            race["time_us"] *= 1000
            file.write_text(json.dumps(race), encoding="utf-8")
    dist.barrier()

    def again() -> None:
        topoplan.backend_options()  # heeds the log's level, as the backend and the hook do
        run()

    return _log_of(again)[0]


def lines_of_the_log(folder: str, level: str) -> list[str]:
    """A group with a race, one without a plan, and a hook. Return what comes to standard error."""
    os.environ["TOPOPLAN_LOG"] = level
    with redirect_stderr(StringIO()) as printed:
        start(plans=folder, least_bytes=64, choose="race")
        for _ in range(MAX_CALLS + 2):  # the last ones are after the race, whenever it ends
            dist.all_reduce(torch.ones(3000))
        for _ in range(2):
            dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3000, dtype=torch.int64))
        dist.broadcast(torch.ones(3000), 1)
        dist.new_group([0, 2])
        model = wrapped(network, topoplan.ddp_hook(f"{folder}/allreduce.json", choose="plan"))
        model(torch.ones(2, 33)).sum().backward()
        del model
        dist.destroy_process_group()
    return printed.getvalue().splitlines()
