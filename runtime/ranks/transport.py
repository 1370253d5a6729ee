"""What carries the messages of communicators: a plain process group of their own, with its deadlines and faults."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from .faults import Faults, grace_s
from .groups import GroupMaker, destroy_group, device_of, make_private_group, uses_nccl
from .machine import find_cores_of_hosts


class Transport:
    """A plain group over the ranks of `group` (None: all), for topoplan's messages alone; one communicator, or several.

    Those that share it must be called in one order on all ranks, and after a failure none of them works any more. Making
    it is collective over the ranks of the default group, as new_group is; with a GroupMaker, over those that the maker is
    for. `timeout` is the deadline of a call. Raises InputError on ranks that are not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | GroupMaker | None, timeout: timedelta) -> None:
        self.group = make_private_group(group, timeout - timedelta(seconds=grace_s(timeout)))
        self.device = device_of(self.group)
        self.batched = uses_nccl(self.group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        store = PrefixStore(f"topoplan/{self.group.group_name}", dist.distributed_c10d._get_default_store())
        self.faults = Faults(self.group, timeout, store)

    @cached_property
    def cores_of_hosts(self) -> dict[str, int]:
        """The hosts of the ranks, with the cores that a rank there may use. Collective the first time."""
        return find_cores_of_hosts(self.group)

    def close(self) -> None:
        """Destroy the group; a later call over it raises ExecutionError."""
        destroy_group(self.group)
