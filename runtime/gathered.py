"""The machine under a process group, told by its own ranks through its store: collective over them alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from torch._C._distributed_c10d import Store

from ..topo.errors import InputError
from ..topo.graph import Topology
from ..topo.hosts import join_hosts
from .machine import emulated
from .meet import Place, joined_places, place_of


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
    store.set(f"place/{rank}", json.dumps(asdict(place_of(device))))
    keys = [f"place/{other}" for other in range(len(ranks))]
    store.wait(keys, timeout)
    places = [Place(**json.loads(store.get(key))) for key in keys]
    first = {place.host: number for number, place in reversed(list(enumerate(places)))}
    if device is not None and rank in first.values():
        from ..topo.probe.join import probe_local

        store.set(f"host/{rank}", probe_local().dumps())
    if rank != 0:
        return None
    texts: list[str | None] = [None] * len(ranks)
    if device is not None:
        store.wait([f"host/{number}" for number in first.values()], timeout)
        for number in first.values():
            texts[number] = store.get(f"host/{number}").decode()
    return joined_places(places, texts)[0]


def restricted(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The machine as some of its ranks see it, who become ranks 0, 1, ... in that order. InputError without such ranks."""
    beyond = [rank for rank in ranks if rank >= len(topology.ranks)]
    if beyond:
        raise InputError(f"{topology.name} has {len(topology.ranks)} GPUs, there is none for rank {beyond[0]}")
    if list(ranks) == list(range(len(topology.ranks))):
        return topology
    return join_hosts([topology], [(0, topology.ranks[rank]) for rank in ranks])
