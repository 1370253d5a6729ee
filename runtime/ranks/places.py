"""The ranks of a launch come together: who is on which host, which GPU is whose, and what machine that makes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...topo.derived.hosts import RankLocation, join_cpu_hosts, join_hosts
from ...topo.errors import ExecutionError, InputError
from ...topo.graph import Topology
from ...topo.probe.join import probe_local
from .faults import first_line
from .launch import init_method, inside_a_launch


@dataclass(frozen=True)
class Place:
    """Where a rank is: its host's name, its number there, and its CUDA device's UUID and PCI address, if it has one."""

    host: str
    local_rank: int
    uuid: str | None
    bus_id: str | None
    cuda: bool


@dataclass
class Meeting:
    """All ranks in one default group (gloo). `doing` is what they are at, for messages."""

    rank: int
    ranks: int
    places: list[Place]
    timeout: timedelta
    doing: str = "meeting"

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank. Collective."""
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def at_first(self, value: Any) -> list[Any]:
        """Everybody's values, by rank, on rank 0; nothing elsewhere. Collective."""
        boxes: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(value, boxes, 0)
        return boxes or []


@contextmanager
def meeting(timeout_s: float) -> Iterator[Meeting]:
    """The ranks that torchrun (or topo-emulate) started, in a process group for as long as the context lasts.

    Raises InputError outside a launch, or where a process group is there already, and ExecutionError where a rank does not
    come, dies, or does not answer within `timeout_s`.
    """
    if not inside_a_launch():
        raise InputError(
            "there are no ranks; start one a GPU: torchrun --nproc-per-node 8 -m topoplan.cli.probe --measure "
            "(on several hosts with --nnodes and --rdzv-endpoint)"
        )
    if dist.is_initialized():
        raise InputError("there is a process group already; call this before init_process_group")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    here = Meeting(rank, ranks, [], timedelta(seconds=timeout_s))
    try:
        dist.init_process_group("gloo", init_method=init_method(), rank=rank, world_size=ranks, timeout=here.timeout)
        places: list[Any] = [None] * ranks
        dist.all_gather_object(places, _place())
        here.places = places
        yield here
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {rank}, {here.doing}: a rank has died or does not answer within {timeout_s:g} s ({first_line(error)})"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def join_ranks(timeout_s: float = 60.0) -> Topology:
    """The machine that the ranks of a launch are on: each host probed once, joined by a network where there are several.

    Collective, every rank gets the same; no process group may be there yet, and none is left. Raises as `meeting`, and
    InputError where a rank has no GPU of its own while others have one.
    """
    with meeting(timeout_s) as here:
        return joined(here)[0]


def joined(here: Meeting) -> tuple[Topology, bool]:
    """The machine, and whether it has GPUs (else ranks are stand-ins at rates that nobody declared). Collective."""
    here.doing = "probing each host"
    first = next(r for r, place in enumerate(here.places) if place.host == here.places[here.rank].host)
    texts: list[Any] = [None] * here.ranks
    dist.all_gather_object(texts, probe_local().dumps() if first == here.rank else None)
    return joined_places(here.places, texts)


def joined_places(places: Sequence[Place], texts: Sequence[str | None]) -> tuple[Topology, bool]:
    """As `joined`, from the ranks' places and what was probed, as JSON: by the first rank of each host, or nowhere."""
    names = list(dict.fromkeys(place.host for place in places))
    numbers = [names.index(place.host) for place in places]
    hosts = [Topology.loads(text, place.host) for text, place in zip(texts, places, strict=True) if text is not None]
    if not hosts:
        return join_cpu_hosts(names, numbers), False
    seats = [_seat(rank, place, n, hosts[n]) for rank, (place, n) in enumerate(zip(places, numbers, strict=True))]
    if not any(seats):
        return join_cpu_hosts(names, numbers), False
    missing = [rank for rank, seat in enumerate(seats) if seat is None]
    if missing:
        place = places[missing[0]]
        count = len(hosts[numbers[missing[0]]].ranks)
        raise InputError(
            f"rank {missing[0]} has no GPU of its own: {place.host} has {count}, and this is its process number "
            f"{place.local_rank}; start one process a GPU"
        )
    return join_hosts(hosts, [seat for seat in seats if seat is not None]), True


def _place() -> Place:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local >= count:
        return place_of(None)
    torch.cuda.set_device(local)
    return place_of(local)


def place_of(device: int | None) -> Place:
    """This rank's place, with its CUDA device's number, or as a process without a GPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device is None:
        return Place(socket.gethostname(), local, None, None, False)
    told = torch.cuda.get_device_properties(device)
    uuid, bus, device, domain = (
        getattr(told, key, None) for key in ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")
    )
    bus_id = f"{domain or 0:04x}:{bus:02x}:{device or 0:02x}.0" if isinstance(bus, int) else None
    return Place(socket.gethostname(), local, None if uuid is None else str(uuid), bus_id, True)


def _seat(rank: int, place: Place, number: int, host: Topology) -> RankLocation | None:
    """The rank's GPU in its host's topology: by UUID, by PCI address, else by its number on the host."""
    gpus = [host.by_id[gpu] for gpu in host.ranks]
    if place.uuid is not None:
        for gpu in gpus:
            if str(gpu.extra.get("uuid", "")).removeprefix("GPU-") == place.uuid.removeprefix("GPU-"):
                return number, gpu.id
    if place.bus_id is not None:
        for gpu in gpus:
            if gpu.bus_id is not None and gpu.bus_id.lower() == place.bus_id:
                return number, gpu.id
    return (number, gpus[place.local_rank].id) if place.local_rank < len(gpus) else None
