"""Groups with helpers: of the backend "topo" on members, with a thread that serves on helpers.

A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

import itertools
import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ....synth.groups.ranks import NONE, REST, Helpers
from ....synth.plan import Plan
from ....topo.errors import InputError, TopoplanError
from ...backend import NAME
from ...backend.base_group import BaseGroup
from ...backend.options import BackendOptions, Plans, backend_options
from ...codec import Codec, find_codec
from ...layers import refuse
from ...ranks.groups import PlainGroupMaker, uses_nccl
from ...ranks.store import find_client, take
from ...ranks.transport import Transport
from ...register import register
from .announcer import Announcer
from .around import Helped
from .scope import HelpedScope, Launch
from .service import Service

# Of torch, as long as it names none.
_TIMEOUT = timedelta(minutes=30)
_numbers = itertools.count(1)
# Services live as long as the process: members may need them after a script's last line.
_services: list[Service] = []


def new_group(
    ranks: Sequence[int],
    helpers: Helpers | None = None,
    plans: Plans | None = None,
    timeout: timedelta | None = None,
    options: Any = None,
) -> Any:
    """Return a process group of the backend "topo" over `ranks`, for which other ranks carry bytes.

    All ranks of the launch call it, in the same order as other calls that make groups. On members
    it returns the group, which torch.distributed's functions take; on other ranks what
    torch.distributed.new_group returns there. Helpers get a thread, which serves the members' calls
    until they have destroyed the group; a helper's process ends no earlier. Whether help pays is
    raced at each size against the members' own schedules and the stock collective.

    `helpers` are `rest` (all other ranks), `none`, or ranks (default: those of the options).
    `plans` are as in backend_options: plans for such groups, or a topology
    with a GPU for each rank of the launch, whose numbers they use. `options` come from
    backend_options (default: those of the default group), and must be the same on all ranks, like
    the group's `timeout` (default: 30 minutes). Raise InputError if ranks are wrong.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call init_process_group first")
    register()
    options = _find_options(options, plans)
    world = range(dist.get_world_size())
    members = _check_ranks("ranks", ranks, world)
    if len(members) < 2:
        raise InputError(f"ranks: {list(members)}; expected at least two ranks")
    helping = _choose_helpers(
        options.policy.helpers if helpers is None else helpers, members, world
    )
    if options.policy.keeps_bits or options.off:
        helping = ()
    for layer in options.layers if helping else ():
        why = "groups with helpers: these take part in calls alone; pass helpers='none'"
        refuse(options.policy.spell_layer(layer), why)
    timeout, name = timeout or _TIMEOUT, f"topoplan/help/{next(_numbers)}"
    if not helping:
        return dist.new_group(list(members), timeout=timeout, backend=NAME, pg_options=options)
    own = dist.get_rank()
    on_gpus = (
        torch.cuda.is_available()
        and dist.is_nccl_available()
        and (uses_nccl(None) or dist.get_backend() == NAME)
    )
    store = PrefixStore(name, find_client(dist.distributed_c10d._get_default_store()).store)
    launch = Launch(members, helping, own, len(world), store, "cuda" if on_gpus else "cpu")
    of_group = options
    if own in members:
        of_group = replace(options, scope=HelpedScope(launch))
    else:
        _show_place(launch, timeout)
    group = dist.new_group(list(members), timeout=timeout, backend=NAME, pg_options=of_group)
    if own in members or own in helping:
        _connect(group, launch, name, timeout, options)
    return group


def _find_options(options: Any, plans: Plans | None) -> BackendOptions:
    world = dist.group.WORLD
    if options is None:
        options = world.options if isinstance(world, BaseGroup) else backend_options()
    if not isinstance(options, BackendOptions):
        raise InputError(
            f"options is {type(options).__name__}; expected topoplan.backend_options()"
        )
    return options if plans is None or options.off else replace(options, plans=plans)


def _check_ranks(what: str, ranks: Iterable[int], world: Sequence[int]) -> tuple[int, ...]:
    """Return ranks in ascending order; raise InputError if one does not exist or comes twice."""
    listed = list(ranks)
    for rank in listed:
        if not isinstance(rank, int) or isinstance(rank, bool) or rank not in world:
            raise InputError(f"{what}: no rank {rank!r:.40}; ranks are 0 to {world[-1]}")
        if listed.count(rank) > 1:
            raise InputError(f"{what}: rank {rank} is listed {listed.count(rank)} times")
    return tuple(sorted(listed))


def _choose_helpers(
    helpers: Helpers, members: Sequence[int], world: Sequence[int]
) -> tuple[int, ...]:
    if isinstance(helpers, str):
        if helpers not in (REST, NONE):
            raise InputError(f"helpers={helpers!r:.40}: expected {REST}, {NONE}, or ranks")
        return tuple(rank for rank in world if rank not in members and helpers == REST)
    listed = _check_ranks("helpers", helpers, world)
    both = [rank for rank in listed if rank in members]
    if both:
        raise InputError(f"helpers: rank {both[0]} is a member of the group; helpers are others")
    return listed


def _show_place(launch: Launch, timeout: timedelta) -> None:
    """Take part, in the background, in finding the machine of all ranks, which members plan for."""

    def find() -> None:
        gpu = torch.cuda.current_device() if launch.device == "cuda" else None
        with suppress(TopoplanError, RuntimeError):  # the members say what is wrong
            launch.find_machine(gpu, timeout)

    threading.Thread(target=find, name="topoplan-place", daemon=True).start()


def _connect(
    group: Any, launch: Launch, name: str, timeout: timedelta, options: BackendOptions
) -> None:
    """Connect members and helpers, and begin to serve on a helper. Collective over both."""
    participants = sorted((*launch.members, *launch.helpers))
    kind = "nccl" if launch.device == "cuda" else "gloo"
    make = PlainGroupMaker(name, participants, kind)
    transport = Transport(make, timeout, options.transport, labels=participants)
    if isinstance(group, BaseGroup):
        announcer = Announcer(transport, launch.members, launch.helpers)
        group.planned.around = Helped(launch.device, announcer)
        return
    transport.outlive_default_group()

    def take_plan(number: int) -> tuple[Plan, Codec | None]:
        given = take(transport.faults.store, f"plan/{number}", timeout)
        codec = None if given["compress"] is None else find_codec(given["compress"])
        return Plan.loads(json.dumps(given["plan"]), "the members' plan"), codec

    service = Service(transport, launch.members, take_plan)
    _services.append(service)
    service.start()
