"""Re-form a group of the backend "topo" over other ranks, after a death, a leave or a join.

torch has functions for this from 2.14 on (`torch.distributed._reconfigure`); `reconfigure_handle`
and `reconfigure` do the same with older versions.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ....topo.errors import ExecutionError, InputError, TopoplanError
from ...ranks.faults import first_line
from ...ranks.groups import describe_place, leave_tables
from ...ranks.links import find_kind
from ...ranks.store import agree_on_name
from .group import MemberGroup
from .handles import Handle, check_alive, open_store, parse_handles

log = logging.getLogger("topoplan")


def reconfigure_handle() -> str:
    """Return what other ranks need to find this rank: an opaque text, for `reconfigure`.

    The default group's backend must be "topo". The text stays the same as long as the process group
    lives, so ranks can exchange their handles before anything fails. A process that joins a running
    job first makes a group of its own:

        dist.init_process_group("topo", store=dist.HashStore(), rank=0, world_size=1)

    Raise InputError without a default group, or if its backend is another one.
    """
    return _find_default_group("reconfigure_handle").get_reconfigure_handle()


def reconfigure(handles: Sequence[str], timeout: timedelta | None = None) -> None:
    """Re-form the default process group over the ranks whose handles are given.

    All of them, and no others, call it with the same list: the rank of the i-th handle becomes rank
    i. It serves after a failed call, an abort or a timeout, without ranks that have died, and with
    ranks that join. Calls in flight fail; all other process groups are aborted and have to be made
    anew, and so have objects that are made of them (a DeviceMesh, a Communicator, a hook). What
    holds the default group itself, such as DistributedDataParallel, goes on with it. Plans for the
    new membership are found or synthesized in the background; until then the stock collectives
    serve.

    The first rank of the list hosts the store where they meet. `timeout` is the time for all ranks
    to come, by default the process group's own. Raise InputError, and leave the group as it is, if
    the list is wrong; and ExecutionError if a rank has ended or does not come in time: then the
    group has no members until another `reconfigure` succeeds.
    """
    reconfigure_group(_find_default_group("reconfigure"), handles, timeout=timeout)


def _find_default_group(name: str) -> MemberGroup:
    if not dist.is_initialized():
        raise InputError(
            f"{name}: there is no process group; call init_process_group('topo') first (to join a "
            "job: with store=HashStore(), rank=0, world_size=1)"
        )
    world = dist.group.WORLD
    if not isinstance(world, MemberGroup):
        raise InputError(
            f"{name}: the default group's backend is {dist.get_backend()}; expected topo"
        )
    return world


def reconfigure_group(
    group: MemberGroup,
    texts: Iterable[str],
    identity: int | None = None,
    timeout: timedelta | None = None,
) -> None:
    """Re-form `group` over the ranks of the handles `texts`, as `reconfigure` does.

    `identity` is torch's uuid of this call, the same on all ranks and new. A set of handles is
    sorted; `timeout` is the time for all ranks to come. Raise InputError for a wrong list,
    ExecutionError if a rank has ended or does not come.
    """
    ordered = sorted(texts) if isinstance(texts, (set, frozenset)) else texts
    handles, number = parse_handles(ordered, group.nonce)
    _check(group, identity)
    timeout = timeout or group.timeout
    ends = time.monotonic() + timeout.total_seconds()
    group.leave("made anew: calls in flight were dropped")
    if group is dist.group.WORLD:
        _abort_other_groups(group)
    try:
        store, name = _rendezvous(handles, number, identity, timeout)
        left = timedelta(seconds=max(1.0, ends - time.monotonic()))
        place = describe_place(store, number, len(handles), left, group.name_in_launch)
        store.set(f"groups/{number}", str(dist.distributed_c10d._world.group_count))
        group.join(place, name)
    except RuntimeError as error:
        group.leave("not made")
        raise _explain(handles, number, error) from error
    if group is dist.group.WORLD:
        _update_tables(group, store)
    log.info("rank %d of %d: the process group was made anew", number, len(handles))


def _check(group: MemberGroup, identity: int | None) -> None:
    """Raise InputError if a group cannot have another membership."""
    if identity is not None:
        if identity in group.identities:
            raise InputError(f"uuid {identity} was already used; expected a new one for each call")
        group.identities.add(identity)
    transport = group.options.transport
    why_fixed = find_kind(transport).why_fixed
    if why_fixed is not None:
        raise InputError(f"reconfigure with transport={transport}: {why_fixed}")
    if group is not dist.group.WORLD and group in dist.distributed_c10d._world.pg_map:
        raise InputError("reconfigure: expected the default group; make other groups anew after it")


def _rendezvous(
    handles: list[Handle], number: int, identity: int | None, timeout: timedelta
) -> tuple[Store, str]:
    """Return the new membership's part of the first rank's store, and its new name.

    Raise RuntimeError if not all ranks come in time.
    """
    inputs = " ".join([str(identity), *map(str, handles)])
    original = open_store(handles[0], is_own=number == 0, timeout_s=timeout.total_seconds())
    met = PrefixStore(f"reconfigure/{hashlib.sha256(inputs.encode()).hexdigest()}", original)
    name = agree_on_name(
        met, number, len(handles), timeout, lambda absent: check_alive(handles, absent)
    )
    return PrefixStore(name, met), name


def _explain(handles: list[Handle], number: int, error: RuntimeError) -> ExecutionError:
    """Return the error of a failed `reconfigure`, which names the ranks that have ended."""
    symptom = str(error) if isinstance(error, TopoplanError) else first_line(error)
    if "ended" not in symptom:
        try:
            check_alive(handles, range(len(handles)))
        except ExecutionError as ended:
            symptom = f"{ended} (here {symptom})"
    return ExecutionError(f"reconfigure, rank {number} of {len(handles)}: {symptom}")


def _abort_other_groups(group: MemberGroup) -> None:
    """Abort all process groups but the default one: their members have other numbers now."""
    for other in list(dist.distributed_c10d._world.pg_map):
        if other is not group:
            with suppress(RuntimeError):  # a connection that is closed already
                other.abort()
            leave_tables(other)


def _update_tables(group: MemberGroup, store: Store) -> None:
    """Enter the default group's new membership in torch's tables."""
    world: Any = dist.distributed_c10d._world
    backend, _ = world.pg_map[group]
    world.pg_map[group] = (backend, PrefixStore("default_pg", store))
    world.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}
    # torch names new groups by this count, which differs between ranks that joined at other times.
    counts = [int(store.get(f"groups/{rank}")) for rank in range(group.size())]
    world.group_count = max(counts)
