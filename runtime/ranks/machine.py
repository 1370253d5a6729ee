"""What the ranks really run on: the links at hand, if there are any, and what sending costs the hosts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...synth.cost.host_costs import HostCosts, host_of
from ...topo.errors import InputError
from ...topo.graph import Topology
from .launch import EMULATED


@dataclass(frozen=True)
class Machine:
    """`topology` is None where ranks share a host and talk through its memory; `rounds`: messages go in batches."""

    topology: Topology | None
    host: HostCosts
    rounds: bool
    what: str


def emulated() -> Topology | None:
    """The emulated machine that this process is in, or None."""
    path = os.environ.get(EMULATED)
    if path is None:
        return None
    if not Path(path).is_file():
        raise InputError(
            f"{EMULATED} names {path}, which is not there; was it left over from an emulation that has ended?"
        )
    return Topology.load(path)


def machine(topology: Topology | None, group: dist.ProcessGroup) -> Machine:
    """The machine of a group, for a plan's topology. Collective: the ranks tell each other their hosts."""
    batched = "nccl" in dist.get_backend(group)
    here: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(here, (socket.gethostname(), _cores()), group=group)
    hosts: dict[str, int] = dict(here)
    cores = sum(hosts.values())
    measured = host_of(topology) if topology is not None else None
    inside = emulated()
    if inside is not None:
        built = host_of(inside) or HostCosts()
        host = replace(measured, burst_bytes=built.burst_bytes, wire=built.wire) if measured is not None else built
        return Machine(inside, replace(host, cores=cores), batched, "emulated")
    host = replace(measured or HostCosts(), cores=cores)
    if batched or topology is None or len(hosts) > 1:
        return Machine(topology, host, batched, "as in the topology")
    return Machine(None, host, False, "one host's memory")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
