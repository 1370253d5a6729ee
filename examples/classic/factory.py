"""Create a system with `make`, after all ranks have compared their arguments.

Wrong use is thus the same error on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from topoplan import InputError, Plan, Topology, TopoplanError

from .base import MakeOptimizer, Setting, System
from .buckets import Buckets
from .point_to_point import explain_failure
from .systems.allreduce import ByteGrad, Hierarchical, Planned, Ring, Stock
from .systems.neighbours import Neighbours, Neighbours8Bit
from .systems.parameter_server import AsyncParameterServer, Gather, ParameterServer

_SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        Gather,
        Ring,
        Hierarchical,
        Planned,
        Stock,
        ParameterServer,
        AsyncParameterServer,
        Neighbours,
        Neighbours8Bit,
        ByteGrad,
    )
}
NAMES = tuple(_SYSTEMS)
DEFAULT_TIMEOUT = timedelta(seconds=300)  # a Communicator's


def system_of(name: str) -> type[System]:
    """Return the class of the system `name`; its `promise` and `source` describe it.

    Raise InputError if the name is unknown.
    """
    if name not in _SYSTEMS:
        raise InputError(f"unknown system {name!r}; expected one of {', '.join(NAMES)}")
    return _SYSTEMS[name]


@dataclass(frozen=True)
class _Arguments:
    """One rank's arguments of `make`; `problem` describes an error in them, if any."""

    problem: str | None
    name: str
    helpers: tuple[int, ...]
    layout: tuple[tuple[int, str], ...] | None


def make(
    name: str,
    model: torch.nn.Module | None,
    optimizer: MakeOptimizer,
    *,
    group: dist.ProcessGroup | None = None,
    plan: Plan | str | Path | None = None,
    topology: Topology | None = None,
    helpers: Sequence[int] = (),
    helper_devices: Sequence[str] = (),
    choose: str = "race",
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> System:
    """Create this rank's part in the system `name`; see the package's docstring.

    Collective over the default group. `helpers` are ranks of `group` without a model. `topology`
    has a GPU for each rank, or only for each worker; then `helper_devices` names the helpers'
    devices in it. `choose` is Communicator's, for "plan". Wrong use on any rank is an InputError on
    all. Raise InfeasibleError if the topology does not allow the system, ExecutionError if ranks do
    not answer.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call init_process_group first")
    try:
        own_group = _make_group(group, timeout)
        device = _device_of(own_group)
        helper_ranks = tuple(helpers)
        problem, buckets = _check_arguments(
            name, model, optimizer, own_group, device, helper_ranks, plan
        )
        own = _Arguments(
            problem, name, helper_ranks, None if buckets is None else tuple(buckets.layout)
        )
        arguments = [own] * dist.get_world_size(own_group)
        dist.all_gather_object(arguments, own, own_group)
        _check_same(arguments)
        # From here on the ranks agree on name and helpers, and so on who works.
        workers = tuple(r for r in range(len(arguments)) if r not in helper_ranks)
        return system_of(name)(
            Setting(
                group=own_group,
                rank=dist.get_rank(own_group),
                workers=workers,
                helpers=helper_ranks,
                device=device,
                timeout=timeout,
                model=model,
                buckets=buckets,
                layout=arguments[workers[0]].layout or (),
                make_optimizer=optimizer,
                plan=plan,
                topology=topology,
                helper_devices=tuple(helper_devices),
                choose=choose,
            )
        )
    except TopoplanError:
        raise
    except RuntimeError as error:
        what = f"setting up {name} (did all ranks call make, and can they reach each other?)"
        raise explain_failure(dist.get_rank(), what, error) from error


def _make_group(group: dist.ProcessGroup | None, timeout: timedelta) -> dist.ProcessGroup:
    """Make a group over the ranks of `group` (None: all), so that messages mix with no others'."""
    made = dist.new_group(dist.get_process_group_ranks(group), timeout)
    if not isinstance(made, dist.ProcessGroup):
        raise InputError(f"rank {dist.get_rank()} is not in the group that the system is for")
    return made


def _device_of(group: dist.ProcessGroup) -> torch.device:
    if dist.get_backend(group) == dist.Backend.NCCL:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _check_arguments(
    name: str,
    model: torch.nn.Module | None,
    optimizer: MakeOptimizer,
    group: dist.ProcessGroup,
    device: torch.device,
    helpers: tuple[int, ...],
    plan: object,
) -> tuple[str | None, Buckets | None]:
    """Return a one-line problem with this rank's arguments, and the buckets of its model.

    The problem is None if there is none; the buckets are None with a problem or without a model.
    """
    # Nothing is raised before the ranks have compared, or the others would wait for this one.
    try:
        system = system_of(name)
        _check_helpers(system, dist.get_world_size(group), helpers)
        if plan is not None and not system.takes_plan:
            raise InputError(
                f"{name} does not follow a plan; leave it out, or use the system 'plan'"
            )
        if device.type == "cuda" and system.only_cpu:
            raise InputError(f"{name} does not run over NCCL: {system.only_cpu}; use gloo")
        if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
            raise InputError(
                "optimizer: expected a function of the parameters, such as lambda p: "
                "torch.optim.SGD(p, lr=0.1)"
            )
        if dist.get_rank(group) in helpers:
            if model is not None:
                raise InputError("this rank is a helper, but it brought a model; helpers give None")
            return None, None
        if not isinstance(model, torch.nn.Module):
            raise InputError(
                f"this rank brought {type(model).__name__} as its model; expected a module (None "
                "is for helpers)"
            )
        if isinstance(model, DistributedDataParallel):
            raise InputError(
                "the model is wrapped in DDP, which averages gradients itself; give model.module"
            )
        return None, Buckets(model, device, system.dtypes)
    except InputError as error:
        return str(error), None


def _check_helpers(system: type[System], ranks: int, helpers: tuple[int, ...]) -> None:
    if helpers and not system.takes_helpers:
        raise InputError(
            f"{system.name} has no use for helpers; leave them out, or use parameter-server"
        )
    if not helpers and system.needs_helpers:
        raise InputError(
            f"{system.name} needs helpers, ranks without a model that hold the parameters; give "
            "helpers=(rank, ...)"
        )
    if len(set(helpers)) < len(helpers) or not all(
        isinstance(helper, int) and 0 <= helper < ranks for helper in helpers
    ):
        raise InputError(
            f"helpers {helpers}: expected different ranks of the group, 0 to {ranks - 1}"
        )
    if len(helpers) == ranks:
        raise InputError(f"all {ranks} ranks are helpers; at least one must bring a model")


def _check_same(arguments: Sequence[_Arguments]) -> None:
    """Raise the same InputError on every rank if one has a problem, or two differ."""
    # Problems first: a rank with one has no layout to compare.
    for rank, argued in enumerate(arguments):
        if argued.problem is not None:
            raise InputError(f"rank {rank}: {argued.problem}")
    for rank, argued in enumerate(arguments):
        if argued.name != arguments[0].name:
            raise InputError(
                f"rank 0 asked for the system {arguments[0].name}, rank {rank} for {argued.name}; "
                "they must be alike"
            )
        if argued.helpers != arguments[0].helpers:
            raise InputError(
                f"rank 0 named helpers {arguments[0].helpers}, rank {rank} {argued.helpers}; they "
                "must be alike"
            )
    layouts = {rank: x.layout for rank, x in enumerate(arguments) if x.layout is not None}
    first = min(layouts)
    for rank, layout in layouts.items():
        if layout != layouts[first]:
            raise InputError(
                f"the models of rank {first} and rank {rank} differ in the sizes or dtypes of "
                "their parameters; every worker must bring the same model"
            )
