"""Put the ranks of a launch in a temporary process group, and find the machine they form.

topo-probe does so when it is started on several hosts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError, InputError, TopoplanError
from ...topo.graph import Topology
from ..ranks.cabled import find_cabling
from ..ranks.faults import first_line
from ..ranks.launch import is_rank, keep_output_clean
from ..ranks.rank_locations import (
    ProcessLocation,
    init_gloo,
    join_processes,
    locate_process,
    probe_host,
)


@dataclass
class Meeting:
    """All ranks of the launch in a temporary default group over gloo.

    `rank` is this one of `ranks`; `locations` say which host and GPU each is on. `timeout` limits
    each wait; `doing` says in errors what the ranks do.
    """

    rank: int
    ranks: int
    locations: list[ProcessLocation]
    timeout: timedelta
    doing: str = "meeting"

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank; it must pickle. Collective."""
        values = [value]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' values, by rank, on rank 0; an empty list elsewhere. Collective."""
        values: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(value, values, 0)
        return values or []

    def join(self) -> tuple[Topology, bool]:
        """Return the topology of all ranks' hosts, and whether they have GPUs. Collective."""
        if (cabling := find_cabling()) is not None:
            return cabling.topology, False
        self.doing = "probing each host"
        hosts = [location.host for location in self.locations]
        first = hosts.index(hosts[self.rank])
        texts: list[Any] = [None] * self.ranks
        dist.all_gather_object(texts, probe_host() if first == self.rank else None)
        return join_processes(self.locations, texts)


@contextmanager
def meeting(
    timeout_s: float, init: Callable[[int, int, timedelta], None] = init_gloo
) -> Iterator[Meeting]:
    """Keep the launch's ranks in a process group for as long as the `with` block lasts.

    For ranks started by torchrun or topo-emulate; `init` makes the group, given this rank, the
    number of ranks and the timeout. Raise InputError outside a launch, or if a process group
    already exists, and ExecutionError if a rank does not come, dies, or does not answer within
    `timeout_s` seconds.
    """
    if not is_rank():
        raise InputError(
            "there are no ranks; start one per GPU with torchrun (on several hosts with --nnodes "
            "and --rdzv-endpoint)",
            parameter="measure",
        )
    if dist.is_initialized():
        raise InputError("there is a process group already; call this before init_process_group")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ranks_met = Meeting(rank, ranks, [], timedelta(seconds=timeout_s))
    try:
        with keep_output_clean():
            init(rank, ranks, ranks_met.timeout)
        locations: list[Any] = [None] * ranks
        dist.all_gather_object(locations, _select_own_gpu())
        ranks_met.locations = locations
        yield ranks_met
    except TopoplanError:
        raise
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {rank}, {ranks_met.doing}: a rank has died or does not answer within "
            f"{timeout_s:g} s ({first_line(error)})"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def join_ranks(timeout_s: float = 60.0) -> Topology:
    """Return the topology of a launch's hosts; several are joined by a network. Collective.

    Each host is probed once; every rank gets the same. There must be no process group yet, and none
    is left. Raise InputError outside a launch, or if a rank has no GPU of its own while others do,
    and ExecutionError if a rank does not answer within `timeout_s` seconds.
    """
    with meeting(timeout_s) as ranks_met:
        return ranks_met.join()[0]


def _select_own_gpu() -> ProcessLocation:
    """Select this rank's GPU on its host, if there is one, and return the rank's location.

    The GPU is the one with the rank's number on the host.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if not torch.cuda.is_available() or local >= torch.cuda.device_count():
        return locate_process(None)
    torch.cuda.set_device(local)
    return locate_process(local)
