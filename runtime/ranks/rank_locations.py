"""Find the location of each rank (host, number on it, GPU), and the machine that they form.

Ranks of a group that is being set up use its store for that.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from .cabled import find_cabling, find_networks
from .launch import EMULATED, init_method
from .machine import emulated, name_host
from .store import put, take

if TYPE_CHECKING:
    from ...topo.derived.hosts import RankLocation


@dataclass(frozen=True)
class ProcessLocation:
    """The location of a rank: its host, its number there (LOCAL_RANK), and its GPU, if any.

    The GPU is given by its `uuid` and its PCI address `bus_id`; `cuda` says whether there is one.
    """

    host: str
    local_rank: int
    uuid: str | None
    bus_id: str | None
    cuda: bool


def init_gloo(rank: int, ranks: int, timeout: timedelta) -> None:
    """Make torch's default group over gloo, of `ranks` ranks; this is `rank`. Collective."""
    dist.init_process_group(
        "gloo", init_method=init_method(), rank=rank, world_size=ranks, timeout=timeout
    )


def init_gloo_by_network(rank: int, ranks: int, timeout: timedelta) -> None:
    """Make the default group over gloo, on the network or cables that an extra finds.

    Collective.
    """
    networks = [] if EMULATED in os.environ else find_networks()
    init = networks[0].init_gloo if networks else init_gloo
    init(rank, ranks, timeout)


def find_machine(
    store: Store,
    rank: int,
    ranks: Sequence[int],
    device: int | None,
    timeout: timedelta,
    stop: threading.Event | None = None,
    wanted_by: int = 0,
) -> Topology | None:
    """Return, on the rank `wanted_by`, the machine that a group's ranks form; None on the others.

    Collective over the group alone, through its `store`. `ranks` are its global ranks, in the order
    of the machine's GPUs; `rank` is this process's index in them, `wanted_by` another index.
    `device` is the number of this rank's CUDA device, None if data is in host memory.

    Raise InputError if ranks share a GPU, only some have one, or a host cannot be probed, and
    RuntimeError if a rank does not answer within `timeout`, or `stop` is set.
    """
    cabling = find_cabling()
    emulated_machine = emulated() if cabling is None else cabling.topology
    if emulated_machine is not None:
        return restrict(emulated_machine, ranks) if rank == wanted_by else None
    put(store, f"place/{rank}", asdict(locate_process(device)))
    processes = [
        ProcessLocation(**take(store, f"place/{other}", timeout, stop))
        for other in range(len(ranks))
    ]
    first_on_host = {
        process.host: number for number, process in reversed(list(enumerate(processes)))
    }
    if device is not None and rank in first_on_host.values():
        try:
            probed = {"topology": probe_host()}
        except TopoplanError as error:  # that rank waits for either
            probed = {"error": str(error)}
        put(store, f"host/{rank}", probed)
    if rank != wanted_by:
        return None
    texts: list[str | None] = [None] * len(ranks)
    if device is not None:
        for number in first_on_host.values():
            answer = take(store, f"host/{number}", timeout, stop)
            if "error" in answer:
                raise InputError(f"host {processes[number].host}: {answer['error']}")
            texts[number] = answer["topology"]
    return join_processes(processes, texts)[0]


def restrict(topology: Topology, ranks: Sequence[int]) -> Topology:
    """Return the machine with only some of its ranks: `ranks[i]` becomes rank i.

    Raise InputError if there is no such rank.
    """
    beyond = [rank for rank in ranks if rank >= len(topology.ranks)]
    if beyond:
        raise InputError(
            f"{topology.name} has {len(topology.ranks)} GPUs, there is none for rank {beyond[0]}"
        )
    if list(ranks) == list(range(len(topology.ranks))):
        return topology
    from ...topo.derived.hosts import join_hosts

    return join_hosts([topology], [(0, topology.ranks[rank]) for rank in ranks])


def join_processes(
    processes: Sequence[ProcessLocation], texts: Sequence[str | None]
) -> tuple[Topology, bool]:
    """Return the machine of ranks at the locations `processes`, and whether it has GPUs.

    `texts` has one item per rank: each host's topology as JSON for the first rank on the host, None
    for all others. If all are None, or list no GPU, there are no GPUs: the machine's ranks are then
    processes on the CPUs of their hosts, and all rates are assumed.

    Raise InputError if ranks share a GPU, or if only some of them have one.
    """
    # Of a group that is being set up, only the rank that plans joins hosts.
    from ...topo.derived.hosts import join_cpu_hosts, join_hosts

    names = list(dict.fromkeys(process.host for process in processes))
    numbers = [names.index(process.host) for process in processes]
    hosts = [
        Topology.loads(text, process.host)
        for text, process in zip(texts, processes, strict=True)
        if text is not None
    ]
    seats = [
        _locate(process, n, hosts[n])
        for process, n in zip(processes, numbers, strict=True)
        if hosts
    ]
    if not any(seats):
        return join_cpu_hosts(names, numbers), False
    missing = [rank for rank, seat in enumerate(seats) if seat is None]
    if missing:
        process = processes[missing[0]]
        raise InputError(
            f"rank {missing[0]} has no GPU of its own: {process.host} has "
            f"{len(hosts[numbers[missing[0]]].ranks)}, and this is its process number "
            f"{process.local_rank}; start one process a GPU"
        )
    return join_hosts(hosts, [seat for seat in seats if seat is not None]), True


def probe_host() -> str:
    """Return this host's topology (GPUs, links, switches) as JSON text."""
    from ...topo.probe.join import probe_local  # its readers are not needed in groups on CPUs

    return probe_local().dumps()


def locate_process(device: int | None) -> ProcessLocation:
    """Return the location of this process, which uses CUDA device `device`, or no GPU if None.

    Its number on the host is torchrun's LOCAL_RANK, 0 if that is not set.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device is None:
        return ProcessLocation(name_host(), local, None, None, False)
    properties = torch.cuda.get_device_properties(device)
    uuid, bus, slot, domain = (
        getattr(properties, key, None)
        for key in ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")
    )
    bus_id = f"{domain or 0:04x}:{bus:02x}:{slot or 0:02x}.0" if isinstance(bus, int) else None
    return ProcessLocation(name_host(), local, None if uuid is None else str(uuid), bus_id, True)


def _locate(process: ProcessLocation, number: int, host: Topology) -> "RankLocation | None":
    """Return the rank's GPU in its host's topology: by UUID, PCI address, or number on the host."""
    gpus = [host.by_id[gpu] for gpu in host.ranks]
    uuid = None if process.uuid is None else process.uuid.removeprefix("GPU-")
    matches = [
        *(x for x in gpus if str(x.extra.get("uuid", "")).removeprefix("GPU-") == uuid),
        *(x for x in gpus if x.bus_id is not None and x.bus_id.lower() == process.bus_id),
        *gpus[process.local_rank : process.local_rank + 1],
    ]
    return (number, matches[0].id) if matches else None
