"""The machine under a process group, told by its own ranks through its store: collective over them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from torch._C._distributed_c10d import Store

from ...topo.derived.hosts import join_hosts
from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from .machine import emulated
from .places import Place, joined_places, place_of
from .store import put, take


def machine_of(
    store: Store, rank: int, ranks: Sequence[int], device: int | None, timeout: timedelta
) -> Topology | None:
    """What the group of the global `ranks` runs on, in their order, on its rank 0; None elsewhere.

    `device` is this rank's CUDA device, None where data lies in the hosts' memory. Raises InputError where ranks cannot be
    told apart, RuntimeError where one does not answer in time.
    """
    inside = emulated()
    if inside is not None:
        return restricted(inside, ranks) if rank == 0 else None
    put(store, f"place/{rank}", asdict(place_of(device)))
    places = [Place(**take(store, f"place/{other}", timeout)) for other in range(len(ranks))]
    first = {place.host: number for number, place in reversed(list(enumerate(places)))}
    if device is not None and rank in first.values():
        put(store, f"host/{rank}", _probed())
    if rank != 0:
        return None
    texts: list[str | None] = [None] * len(ranks)
    if device is not None:
        for number in first.values():
            told = take(store, f"host/{number}", timeout)
            if "error" in told:
                raise InputError(f"host {places[number].host}: {told['error']}")
            texts[number] = told["topology"]
    return joined_places(places, texts)[0]


def _probed() -> dict[str, str]:
    """This host's topology, or why there is none: rank 0 waits for either."""
    from ...topo.probe.join import probe_local

    try:
        return {"topology": probe_local().dumps()}
    except TopoplanError as error:
        return {"error": str(error)}


def restricted(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The machine as some of its ranks see it, who become ranks 0, 1, ... in that order. InputError without such ranks."""
    beyond = [rank for rank in ranks if rank >= len(topology.ranks)]
    if beyond:
        raise InputError(f"{topology.name} has {len(topology.ranks)} GPUs, there is none for rank {beyond[0]}")
    if list(ranks) == list(range(len(topology.ranks))):
        return topology
    return join_hosts([topology], [(0, topology.ranks[rank]) for rank in ranks])
