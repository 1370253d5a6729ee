"""Process groups of topoplan's own: plain gloo or NCCL ones, over which nobody else sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from ...topo.errors import InputError

Maker = Callable[[timedelta], dist.ProcessGroup]
"""Makes a group of its own whose operations wait so long; all ranks that are to be in it call it."""


def own_group(group: dist.ProcessGroup | Maker | None, timeout: timedelta) -> dist.ProcessGroup:
    """A plain group over the ranks of `group` (None: all), for one communicator alone.

    Collective over the ranks of the default group, as new_group is; with a Maker, over those that the maker is for.
    Raises InputError on ranks that are not in the group.
    """
    if callable(group):
        return group(timeout)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    made = dist.new_group(ranks, timeout=timeout, backend=_transport(group))
    if not isinstance(made, dist.ProcessGroup):
        raise InputError("this rank is not in the group that the communicator is for")
    return made


def named_group(name: str, ranks: Sequence[int], transport: str, timeout: timedelta) -> dist.ProcessGroup:
    """A plain group over `ranks` alone, in their order: no other rank need know of it, as `name` is all that they share.

    torch's own way to that (new_group with use_local_synchronization) names a group by how many groups a rank is in
    already, which differs between ranks.
    """
    c10d = dist.distributed_c10d
    here, store = list(ranks).index(dist.get_rank()), c10d._get_default_store()
    made: dist.ProcessGroup
    made, _ = c10d._new_process_group_helper(
        len(ranks), here, list(ranks), c10d.Backend(transport), store, c10d.GroupName(name), timeout=timeout
    )
    c10d._world.pg_group_ranks[made] = {rank: number for number, rank in enumerate(ranks)}
    return made


def among_members(group: dist.ProcessGroup) -> Maker:
    """Makes a plain group over the ranks of `group`; these alone call it, all in the same order, so that subgroups can make
    theirs side by side. Raises InputError where this rank is in no such group.
    """
    try:
        ranks = dist.get_process_group_ranks(group)
    except (KeyError, TypeError):
        raise InputError("this rank is not in the group that the communicator is for") from None
    store = dist.distributed_c10d._get_default_store()
    number = store.add(f"topoplan/groups/{group.group_name}/{dist.get_rank(group)}", 1)  # each member's own count
    return partial(named_group, f"topoplan/{group.group_name}/{number}", ranks, _transport(group))


def let_go(group: dist.ProcessGroup) -> None:
    """Destroy a group, unless that was done already."""
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def _transport(group: dist.ProcessGroup | None) -> str:
    """gloo or nccl: what moves the data under whatever the group is."""
    name = dist.get_backend(group)
    on_gpus = "nccl" in name or (name == "topo" and torch.cuda.is_available() and dist.is_nccl_available())
    return "nccl" if on_gpus else "gloo"
