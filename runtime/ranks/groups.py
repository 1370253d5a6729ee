"""Process groups for topoplan's own messages: plain gloo or NCCL groups that nothing else uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import InputError
from ..torch_version import check_torch

check_torch()  # here, as all that needs torch.distributed imports this module

GroupMaker = Callable[[timedelta], dist.ProcessGroup]
"""Makes a process group whose operations have a timeout; all ranks that are to be in it call it."""


def uses_nccl(group: dist.ProcessGroup | None) -> bool:
    """Return whether NCCL moves the data of a group (None: of all ranks)."""
    return "nccl" in dist.get_backend(group)


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device whose tensors a group works on: the current GPU over NCCL, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if uses_nccl(group) else torch.device("cpu")


def make_private_group(group: dist.ProcessGroup | GroupMaker | None, timeout: timedelta) -> dist.ProcessGroup:
    """Make a plain group over the ranks of `group` (None: all), for one communicator alone.

    Collective over the ranks of the default group, as new_group is; with a GroupMaker, over those that the maker is for.
    Raises InputError on ranks that are not in the group.
    """
    if callable(group):
        return group(timeout)
    members = group or dist.group.WORLD
    assert members is not None
    if _attempt():
        return make_group_maker(members)(timeout)
    ranks = dist.get_process_group_ranks(members)
    private = dist.new_group(ranks, timeout=timeout, backend=_transport(group))
    if not isinstance(private, dist.ProcessGroup):
        raise InputError("this rank is not in the group that the communicator is for")
    return private


def list_members(group: dist.ProcessGroup | GroupMaker | None) -> list[int]:
    """Return the global ranks of a group; of a maker those that it is said to be for, else all."""
    if isinstance(group, partial):
        return list(group.args[1])  # one of make_group_maker
    return dist.get_process_group_ranks(group if isinstance(group, dist.ProcessGroup) else None)


def make_group(name: str, ranks: Sequence[int], transport: str, timeout: timedelta) -> dist.ProcessGroup:
    """Make a plain group over `ranks`, in their order. No other rank takes part: `name` is all that its ranks share.

    torch's own way to that (new_group with use_local_synchronization) names a group by how many groups a rank is in
    already, which differs between ranks.
    """
    c10d = dist.distributed_c10d
    own_number, store = list(ranks).index(dist.get_rank()), c10d._get_default_store()
    group: dist.ProcessGroup
    called: Any = name  # for the type checker torch's GroupName, which is a str, and older torch does not have it
    group, _ = c10d._new_process_group_helper(
        len(ranks), own_number, list(ranks), c10d.Backend(transport), store, called, timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    return group


def make_group_maker(group: dist.ProcessGroup) -> GroupMaker:
    """Return a function that makes a plain group over the ranks of `group`, called by these alone, in the same order.

    So subgroups can make theirs side by side. Raises InputError where this rank is not in the group.
    """
    try:
        ranks = dist.get_process_group_ranks(group)
    except (KeyError, TypeError):
        raise InputError("this rank is not in the group that the communicator is for") from None
    store, name = dist.distributed_c10d._get_default_store(), f"topoplan/{_attempt()}/{group.group_name}"
    number = store.add(f"{name}/groups/{dist.get_rank(group)}", 1)  # each member's own count
    return partial(make_group, f"{name}/{number}", ranks, _transport(group))


def _attempt() -> str:
    """Return the name of this attempt of the launch, as the backend "topo" knows it; torch's own groups cannot be made
    again in a store that outlives their ranks.
    """
    return getattr(dist.group.WORLD, "attempt", "")


def destroy_group(group: dist.ProcessGroup) -> None:
    """Destroy a group, unless it is destroyed already."""
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def _transport(group: dist.ProcessGroup | None) -> str:
    """Return what moves the data under a group: gloo or nccl."""
    backend_has_nccl = dist.get_backend(group) == "topo" and torch.cuda.is_available() and dist.is_nccl_available()
    return "nccl" if uses_nccl(group) or backend_has_nccl else "gloo"
