"""Which one more cable between two hosts helps most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from ...topo.graph import Link, Topology
from ...topo.loader.resolve import load_for_planning
from ...topo.pictures.cables import format_rate
from ..bounds.single_path import find_bounds
from ..ir.collective import Collective
from ..numeric.effort import Effort
from .hosts import CabledHosts, HostPort, read_hosts
from .nccl import find_nccl_cabling
from .rings import RING_SHARES, find_width_GBps, rate_ring

# Work of each bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 5.0, 0.1
# A relative rise of at most this counts as none.
_NOTHING = Fraction(1, 10**6)


@dataclass(frozen=True)
class NextCable:
    """A cable that could be added between two hosts, and what it changes.

    `free` says for each of the two whether it has a port for it. `bound_GBps` is the single-path
    bound on algbw with the cable, `nccl_GBps` what stock NCCL's rings reach then; None if stock
    NCCL does not start. `alike` is the number of pairs of hosts between which a cable does the
    same.
    """

    hosts: tuple[str, str]
    free: tuple[bool, bool]
    bound_GBps: Fraction
    nccl_GBps: Fraction | None
    alike: int = 1

    @property
    def needs(self) -> list[str]:
        """The hosts that need another port."""
        return [host for host, free in zip(self.hosts, self.free, strict=True) if not free]


@dataclass(frozen=True)
class NextCables:
    """The cables that could be added, the most useful first, beside the present bound.

    `nccl_GBps` is what stock NCCL's rings reach now, None if stock NCCL does not start.
    """

    bound_GBps: Fraction
    nccl_GBps: Fraction | None
    cables: tuple[NextCable, ...]

    def list_lines(self) -> list[str]:
        """Return a line on the cable that helps most, and one on what needs no further port."""
        best = next((x for x in self.cables if self._helps(x)), None)
        if best is None:
            return ["next cable: no single one raises the bound, or helps stock NCCL"]
        lines = [f"next cable: {self._describe(best)}"]
        possible = next((x for x in self.cables if self._helps(x) and not x.needs), None)
        if best.needs:
            lines.append(
                "next cable without another port: "
                + ("none helps" if possible is None else self._describe(possible))
            )
        return lines

    def _helps(self, cable: NextCable) -> bool:
        return cable.bound_GBps > self.bound_GBps * (1 + _NOTHING) or (
            (cable.nccl_GBps or 0) > (self.nccl_GBps or 0) * (1 + _NOTHING)
        )

    def _describe(self, cable: NextCable) -> str:
        others = f"{cable.alike - 1} other{'s' * (cable.alike > 2)}"
        more = f" (or {others} like it)" if cable.alike > 1 else ""
        needs = f"; {' and '.join(cable.needs)} would need another port" if cable.needs else ""
        rise = f"{format_rate(self.bound_GBps)} to {format_rate(cable.bound_GBps)} GB/s algbw"
        nccl = ""
        if cable.nccl_GBps is not None:
            now = "" if self.nccl_GBps is None else f"from {format_rate(self.nccl_GBps)} "
            starts = " (it does not start now)" if self.nccl_GBps is None else ""
            nccl = f", stock NCCL's rings {now}to {format_rate(cable.nccl_GBps)}{starts}"
        return (
            f"{cable.hosts[0]} - {cable.hosts[1]}{more}: the bound rises from {rise}{nccl}{needs}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object of topo-synth's JSON."""
        return {
            "bound_one_way": float(self.bound_GBps),
            "nccl_GBps": _to_json(self.nccl_GBps),
            "next": [
                {
                    "hosts": list(x.hosts),
                    "needs_ports": x.needs,
                    "alike": x.alike,
                    "bound_one_way": float(x.bound_GBps),
                    "nccl_GBps": _to_json(x.nccl_GBps),
                }
                for x in self.cables
            ],
        }


def find_next_cables(
    topology: Topology, collective: Collective, bound_GBps: Fraction, effort: Effort
) -> NextCables:
    """Return what each cable that could be added to some hosts does to the bound and to NCCL.

    A cable is like those that its hosts have. Pairs of hosts between which it does the same, in
    machines of the same shape, are tried once. Raise InfeasibleError if cables do not join hosts.
    """
    hosts = read_hosts(topology)
    pairs = list(combinations(range(hosts.count), 2))
    tried: dict[tuple[str, tuple[bool, bool]], NextCable] = {}
    bounds: dict[str, tuple[Fraction, Fraction | None]] = {}
    for a, b in pairs:
        wider = _add_cable(hosts, a, b)
        if effort.is_over("next cable"):
            break
        free = bool(hosts.list_free_ports(a)), bool(hosts.list_free_ports(b))
        shape = wider.fingerprint
        key = shape, (free if free[0] <= free[1] else free[::-1])
        if key in tried:
            tried[key] = replace(tried[key], alike=tried[key].alike + 1)
            continue
        if shape not in bounds:
            _, router = load_for_planning(wider)
            grant = effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
            bound = find_bounds(collective, router, grant).single_path
            bounds[shape] = bound.algbw_GBps, _rate_nccl(read_hosts(wider), collective.name)
        tried[key] = NextCable((hosts.names[a], hosts.names[b]), free, *bounds[shape])
    ordered = sorted(
        tried.values(), key=lambda x: (-x.bound_GBps, -(x.nccl_GBps or 0), len(x.needs))
    )
    return NextCables(bound_GBps, _rate_nccl(hosts, collective.name), tuple(ordered))


def _rate_nccl(hosts: CabledHosts, collective: str) -> Fraction | None:
    """Return what stock NCCL's rings reach in GB/s algbw, None if it does not start."""
    cabling = find_nccl_cabling(hosts)
    runs_nccl = hosts.rdma and not hosts.are_macs and collective in RING_SHARES
    if cabling.obstacle or not runs_nccl:
        return None
    return rate_ring(collective, hosts.count, find_width_GBps(hosts, cabling.order))


def _add_cable(hosts: CabledHosts, a: int, b: int) -> Topology:
    """Return the topology with one more cable between two hosts.

    It carries what the slower of their cables do, and has their first free ports, or new ones.
    """
    samples = [_find_widest(hosts, host) for host in (a, b)]
    rate = min(link.bandwidth_GBps for pair in samples for link in pair)
    ports = [(hosts.list_free_ports(host) or ["another"])[0] for host in (a, b)]
    # RDMA devices of free ports are not in the topology; they are like those of the others.
    rdma = [next((port.rdma for port in _list_ports(hosts, host)), ()) for host in (a, b)]
    links = []
    for i, j in ((0, 1), (1, 0)):
        out, into = samples[i][0], samples[j][1]
        extra = {
            "src_port": ports[i],
            "dst_port": ports[j],
            "src_rdma": [f"{name}-{ports[i]}" for name in rdma[i]],
            "dst_rdma": [f"{name}-{ports[j]}" for name in rdma[j]],
        }
        links.append(replace(out, dst=into.dst, bandwidth_GBps=rate, source=None, extra=extra))
    return replace(hosts.topology, links=(*hosts.topology.links, *links))


def _find_widest(hosts: CabledHosts, host: int) -> tuple[Link, Link]:
    """Return the links out of a host and into it of its widest cable."""
    cables = [x for near in hosts.neighbours[host] for x in hosts.between[host, near]]
    best = max(cables, key=lambda cable: min(link.bandwidth_GBps for link in cable.links))
    return best.links if best.ends[0].host == host else best.links[::-1]


def _list_ports(hosts: CabledHosts, host: int) -> list[HostPort]:
    return [port for cable in hosts.cables for port in cable.ends if port.host == host]


def _to_json(rate_GBps: Fraction | None) -> float | None:
    return None if rate_GBps is None else float(rate_GBps)
