"""What carries the messages of communicators: a plain process group of their own, with its deadlines and faults; or MPI."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ...topo.errors import InputError
from ..mpi.lane import Lane, find_own_seat
from ..mpi.library import describe_mpi, takes_gpu_memory
from .addresses import publish_address
from .faults import Faults, grace_s
from .groups import GroupMaker, destroy_group, device_of, make_private_group, uses_nccl
from .launch import TRANSPORT
from .machine import are_crowded, find_cores_of_hosts, find_own_cores
from .timing import find_slowest_s

TRANSPORTS = ("auto", "mpi")


def check_transport(name: str | None) -> str:
    """Return what is to carry messages: `name`, else what TOPOPLAN_TRANSPORT says. Raises InputError."""
    chosen = name or os.environ.get(TRANSPORT) or "auto"
    if chosen not in TRANSPORTS:
        where = "transport" if name else TRANSPORT
        raise InputError(f"{where}={chosen!r}: expected one of {', '.join(TRANSPORTS)}")
    return chosen


class Transport:
    """A plain group over the ranks of `group` (None: all), for topoplan's messages alone; one communicator, or several.

    Those that share it must be called in one order on all ranks, and after a failure none of them works any more. Making
    it is collective over the ranks of the default group, as new_group is; with a GroupMaker, over those that the maker is
    for. `timeout` is the deadline of a call. With `over` mpi (None: as TOPOPLAN_TRANSPORT says) plans are played, and stock
    collectives made, over MPI, on the communicator `lane`; the group is left what ranks have to agree on. Raises InputError
    on ranks that are not in the group, and where MPI is not there, or cannot reach the device's memory.
    """

    def __init__(
        self, group: dist.ProcessGroup | GroupMaker | None, timeout: timedelta, over: str | None = None
    ) -> None:
        is_mpi = check_transport(over) == "mpi"
        publish_address()  # before the ranks wait for each other: whoever never comes has none
        self.group = make_private_group(group, timeout - timedelta(seconds=grace_s(timeout)))
        self.device = device_of(self.group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.timeout_s = timeout.total_seconds()
        self.lane = self._open_lane() if is_mpi else None
        self.batched = self.lane is None and uses_nccl(self.group)
        store = PrefixStore(f"topoplan/{self.group.group_name}", dist.distributed_c10d._get_default_store())
        self.faults = Faults(self.group, timeout, store)

    def _open_lane(self) -> Lane:
        """Return MPI's communicator over the group's ranks. Collective; what one rank refuses all refuse."""
        mine: Any
        try:
            mine = find_own_seat(*find_own_cores())
            if self.device.type == "cuda" and not takes_gpu_memory():
                mine = (
                    f"transport mpi: {describe_mpi()} does not say that it takes GPU memory; load a CUDA-aware "
                    f"build, or leave {TRANSPORT} out"
                )
        except InputError as error:
            mine = str(error)
        seats: list[Any] = [None] * self.size
        dist.all_gather_object(seats, mine, group=self.group)
        refused = [f"rank {rank}: {seat}" for rank, seat in enumerate(seats) if isinstance(seat, str)]
        if refused:
            raise InputError(mine if isinstance(mine, str) else refused[0])
        yields = are_crowded([(seat.host, seat.cores) for seat in seats])
        return Lane(seats, self.rank, self.group.group_name, yields=yields)

    @cached_property
    def cores_of_hosts(self) -> dict[str, int]:
        """The hosts of the ranks, with the cores that a rank there may use. Collective the first time."""
        return find_cores_of_hosts(self.group)

    @property
    def name(self) -> str:
        """What carries the messages: "gloo", "nccl" or "mpi"."""
        return "mpi" if self.lane is not None else "nccl" if self.batched else "gloo"

    def find_slowest_s(self, seconds: list[float]) -> list[float]:
        """Return, for each of the times, the longest of any rank. Collective, alike on all ranks; raises as `meet`."""
        if self.lane is not None:
            return self.lane.find_largest(seconds, time.monotonic() + self.timeout_s)
        return find_slowest_s(seconds, self.group, self.device)

    def meet(self) -> None:
        """Wait for all ranks, as nearly at once as the transport can. Raises RuntimeError where one does not come."""
        if self.lane is None:
            dist.barrier(self.group)
        else:
            self.lane.barrier(time.monotonic() + self.timeout_s)

    def close(self) -> None:
        """Destroy the group; a later call over it raises ExecutionError."""
        if self.lane is not None:
            self.lane.close()
        destroy_group(self.group)
