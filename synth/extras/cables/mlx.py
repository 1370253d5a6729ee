"""Write the host file of mlx.launch for Macs that Thunderbolt cables join.

MLX has three backends for them (ml-explore/mlx, August 2026: mlx/distributed/jaccl, python/mlx/
_distributed_utils): "jaccl" sends by RDMA over a cable between every two Macs, "jaccl-ring" over a
ring in both directions, with all cables of two neighbours, and "ring" the same over TCP.

The single-path bound holds for plans in which two GPUs use one route, the hardware's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ....topo.errors import InfeasibleError
from ....topo.pictures.cables import format_rate
from ...bounds.single_path import Bounds
from ...ir.collective import Collective
from .hosts import CabledHosts
from .rings import RING_SHARES, Order, list_edges, list_rings

# The most ranks of JACCL's mesh, and cables between two neighbours of its ring (mesh_impl.h,
# ring_impl.h).
_MAX_MESH, _MAX_CABLES = 8, 4
MESH, RING, TCP_RING = "jaccl", "jaccl-ring", "ring"
# The share of the buffer that each rank sends, by the number of ranks.
COLLECTIVES = {name: RING_SHARES[name] for name in ("allreduce", "allgather", "reduce-scatter")}


@dataclass(frozen=True)
class MlxHostfile:
    """A host file for a backend of MLX, and the rate that it reaches.

    `order` has the hosts in the order of ranks. `cables` is how many cables are used between two
    neighbours, and `algbw_GBps` the most that the collective can reach at the rates of the links.
    Both are None for the backend over TCP, which is not modelled.
    """

    hosts: CabledHosts = field(repr=False)
    bounds: Bounds = field(repr=False)
    collective: str
    backend: str
    order: Order
    algbw_GBps: Fraction | None
    cables: int | None = None

    @property
    def fraction(self) -> float | None:
        """The rate as a fraction of the single-path bound; None if it is not known."""
        bound = self.bounds.single_path.algbw_GBps
        return None if self.algbw_GBps is None else float(self.algbw_GBps / bound)

    def write(self) -> str:
        """Return the file, as mlx.launch reads it."""
        rows = [self._write_host(rank) for rank in range(self.hosts.count)]
        listed = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        return f'{{"backend": "{self.backend}", "envs": [], "hosts": [\n{listed}\n]}}\n'

    def _write_host(self, rank: int) -> dict[str, Any]:
        host = self.order[rank]
        name, address = self.hosts.names[host], self.hosts.addresses[host]
        if self.backend == TCP_RING:
            before = self.order[rank - 1]
            ips = [x.find_end(host).address for x in self.hosts.between[host, before]]
            return {"ssh": name, "ips": ips, "rdma": []}
        # Rank 0 is the coordinator, whose name serves if the address is unknown.
        ips = [address or name] if rank == 0 else []
        return {"ssh": name, "ips": ips, "rdma": [self._list_rdma(host, x) for x in self.order]}

    def _list_rdma(self, host: int, other: int) -> str | list[str] | None:
        """Return the devices that lead to another host, None if none are used.

        Cables are in one order at both ends: JACCL joins the k-th device of one end with the k-th
        of the other, and waits forever if these are not on one cable (exo-explore/exo#2160).
        """
        neighbours = map(set, list_edges(self.order))
        if other == host or (self.backend == RING and {host, other} not in neighbours):
            return None
        cables = self.hosts.between[host, other][: self.cables]
        names = [cable.find_end(host).rdma[0] for cable in cables]
        return names[0] if len(names) == 1 else names

    def list_lines(self) -> list[str]:
        """Return the lines to print: what the file is for, and what the backend reaches."""
        names = " ".join(self.hosts.names[host] for host in self.order)
        lines = [f"for mlx.launch, with its backend {self.backend}; ranks in the order {names}"]
        if self.algbw_GBps is not None:
            bound = self.bounds.single_path.algbw_GBps
            lines.append(
                f"{self.backend} reaches at most {format_rate(self.algbw_GBps)} GB/s algbw of "
                f"{self.collective}, {self.fraction:.1%} of the single-path bound, "
                f"{format_rate(bound)}"
            )
            lines.append(
                "RDMA needs macOS 26.2 and Thunderbolt 5: run rdma_ctl enable in macOS Recovery on "
                "each Mac, and turn the Thunderbolt bridge off (mlx.distributed_config does)"
            )
        if self.backend != TCP_RING and not self.hosts.addresses[self.order[0]]:
            lines.append(
                f"rank 0's address is unknown: its name, {self.hosts.names[self.order[0]]}, has to "
                "resolve on all hosts, or write the address in its place (ips)"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the file's fields in topo-synth's JSON."""
        return {
            "backend": self.backend,
            "order": [self.hosts.names[host] for host in self.order],
            "ranks": list(self.order),
            "cables": self.cables,
            "algbw_GBps": None if self.algbw_GBps is None else float(self.algbw_GBps),
            "bound_one_way": float(self.bounds.single_path.algbw_GBps),
            "fraction": self.fraction,
        }


def write_mlx(hosts: CabledHosts, collective: Collective, bounds: Bounds) -> MlxHostfile:
    """Return the host file for the fastest of MLX's backends; `bounds` are those of the hosts.

    Raise InfeasibleError if MLX cannot run on this cabling, or has no such collective.
    """
    if collective.name not in COLLECTIVES:
        raise InfeasibleError(
            f"MLX has no {collective.name} of its own; the host file is for allreduce, allgather "
            "and reduce-scatter"
        )
    rings = list_rings(hosts)
    limit = bounds.single_path.algbw_GBps
    has_rdma = hosts.are_macs and all(port.rdma for cable in hosts.cables for port in cable.ends)
    files: list[MlxHostfile] = []
    if has_rdma and hosts.is_mesh and hosts.count <= _MAX_MESH:
        natural = tuple(range(hosts.count))
        rate = min(_rate_mesh(hosts, collective.name), limit)
        files.append(MlxHostfile(hosts, bounds, collective.name, MESH, natural, rate, 1))
    if has_rdma:
        for order in rings:
            cables = min(_MAX_CABLES, *(len(hosts.between[edge]) for edge in list_edges(order)))
            rate = min(_rate_ring(hosts, collective.name, order, cables), limit)
            files.append(MlxHostfile(hosts, bounds, collective.name, RING, order, rate, cables))
    elif rings and all(port.address for cable in hosts.cables for port in cable.ends):
        return MlxHostfile(hosts, bounds, collective.name, TCP_RING, rings[0], None)
    if not files:
        why = (
            "it has neither a cable between every two hosts nor a ring"
            if not rings
            else "it names neither RDMA devices of Macs nor addresses of all ports"
        )
        raise InfeasibleError(
            f"{hosts.topology.name}: MLX cannot start on this cabling: {why}",
            parameter="format",
        )
    # Among equals the mesh, which comes first, has the lower latency.
    return max(files, key=lambda file: file.algbw_GBps or 0)


def _rate_mesh(hosts: CabledHosts, collective: str) -> Fraction:
    """Return the algbw of JACCL's mesh, which uses one cable between every two hosts.

    Above 32 KiB each host sends each other one its share of the buffer, twice for an allreduce.
    """
    narrowest = min(_rate_cables(hosts, pair, 1) for pair in hosts.between)
    return narrowest * (hosts.count - 1) / COLLECTIVES[collective](hosts.count)


def _rate_ring(hosts: CabledHosts, collective: str, order: Order, cables: int) -> Fraction:
    """Return the algbw of JACCL's ring, half of the buffer in each direction.

    Two hosts have both directions on the same cables.
    """
    width = min(
        _rate_cables(hosts, pair, cables) for a, b in list_edges(order) for pair in ((a, b), (b, a))
    )
    return width * (2 if hosts.count > 2 else 1) / COLLECTIVES[collective](hosts.count)


def _rate_cables(hosts: CabledHosts, pair: tuple[int, int], cables: int) -> Fraction:
    """Return what the first `cables` from one host to another carry together, in GB/s.

    All get equal shares, so the slowest one decides.
    """
    used = hosts.between[pair][:cables]
    return cables * min(
        link.bandwidth_GBps
        for cable in used
        for link in cable.links[cable.ends[0].host != pair[0] :][:1]
    )
