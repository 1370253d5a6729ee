"""Where each rank of a placement sits: its host, its number among the host's ranks, and the GPU by
the host's own count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from ....topo.derived.hosts import group_by_host
from ....topo.devices import Device
from ....topo.graph import Topology
from ..placement import Placement

LOCALHOST = "localhost"


@dataclass(frozen=True)
class Seat:
    """A rank's place: `local_rank` counts the ranks of its host, `gpu` is the GPU's number among
    all of its host's.
    """

    rank: int
    host: str
    local_rank: int
    gpu: int
    gpu_id: str


@dataclass(frozen=True)
class Seats:
    """Every rank's seat, rank by rank, with the placement that they are of.

    `named` says whether the topology names the hosts; else names are made up (box0), or there is
    one host only (localhost).
    """

    placement: Placement
    seats: tuple[Seat, ...]
    named: bool

    @cached_property
    def by_host(self) -> dict[str, list[Seat]]:
        """The seats of each host, hosts in the order of their first ranks, seats in that of
        theirs.
        """
        hosts: dict[str, list[Seat]] = {}
        for seat in self.seats:
            hosts.setdefault(seat.host, []).append(seat)
        return hosts

    def find_interleaved(self) -> tuple[Seat, Seat] | None:
        """Return two ranks that follow each other on one host, with ranks of other hosts between
        them; None where there are none: each host's ranks stand together.
        """
        for seats in self.by_host.values():
            for before, after in pairwise(seats):
                if after.rank != before.rank + 1:
                    return before, after
        return None


def list_seats(topology: Topology, placement: Placement) -> Seats:
    """Return where each rank sits; `topology` is the one that ranks were placed on."""
    devices = [topology.by_id[gpu] for gpu in topology.ranks]
    blocks = group_by_host(devices)
    names = [_name_host(devices[members[0]]) for members in blocks]
    named = all(name is not None for name in names) or len(blocks) == 1
    host_of = {number: block for block, members in enumerate(blocks) for number in members}
    seats: list[Seat] = []
    taken = [0] * len(blocks)
    for rank, number in enumerate(placement.order):
        block = host_of[number]
        host = names[block] or (LOCALHOST if len(blocks) == 1 else f"box{block}")
        seats.append(
            Seat(rank, host, taken[block], blocks[block].index(number), topology.ranks[number])
        )
        taken[block] += 1
    return Seats(placement, tuple(seats), named)


def _name_host(gpu: Device) -> str | None:
    """Return the name of a GPU's host, None where the topology does not say it."""
    host = gpu.extra.get("host")
    return str(host) if host is not None else None


def show_ranks(ranks: Sequence[int]) -> str:
    """Return ranks for people: 0-3,8."""
    runs = [
        [x for _, x in run] for _, run in groupby(enumerate(ranks), lambda item: item[1] - item[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
