"""Find between which two hosts one more cable helps most.

The single-path bound holds for plans in which two GPUs use one route, the hardware's; algbw is the
bytes of the buffer over the time of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from ....topo.graph import Link, Topology
from ....topo.loader.resolve import load_for_planning
from ....topo.pictures.cables import format_rate
from ...bounds.certificate import Bound, proved_s_per_GB
from ...bounds.single_path import find_bounds
from ...ir.collective import Collective
from ...machine.symmetry import MAX_IMAGES, group, shifts
from ...numeric.effort import Effort
from .hosts import CabledHosts, HostPort, find_obstacle, read_hosts
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

    `bound_GBps` is the single-path bound now, `nccl_GBps` the rate of stock NCCL's rings now, None
    if stock NCCL does not start. If the search for the bound was cut short (`is_cut_short`), no
    cables are compared; `left_out` is the number of pairs of hosts whose own search was.
    """

    bound_GBps: Fraction
    nccl_GBps: Fraction | None
    cables: tuple[NextCable, ...]
    is_cut_short: bool = False
    left_out: int = 0

    def list_lines(self) -> list[str]:
        """Return the lines to print: the cable that helps most, and the best for free ports."""
        if self.is_cut_short:
            return ["next cable: not known, as the time limit stopped the search for the bound"]
        pairs = f"{self.left_out} pair{'s' * (self.left_out > 1)} of hosts"
        left_out = [f"next cable: {pairs} not compared: the search met its limit"] * (
            self.left_out > 0
        )
        best = next((x for x in self.cables if self._helps(x)), None)
        if best is None:
            none = "next cable: no single one raises the bound, or helps stock NCCL"
            return [*([none] if self.cables or not left_out else []), *left_out]
        lines = [f"next cable: {self._describe(best)}"]
        possible = next((x for x in self.cables if self._helps(x) and not x.needs), None)
        if best.needs:
            lines.append(
                "next cable without another port: "
                + ("none helps" if possible is None else self._describe(possible))
            )
        return lines + left_out

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
        """Return the bound and the cables that could be added as topo-synth's JSON."""
        return {
            "bound_one_way": float(self.bound_GBps),
            "nccl_GBps": _to_json(self.nccl_GBps),
            **({"cut_short": True} if self.is_cut_short or self.left_out else {}),
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


def explain_cables(
    topology: Topology, collective: Collective, bound: Bound, effort: Effort
) -> NextCables | None:
    """Return what each additional cable would change; None unless only cables join the hosts.

    `bound` is the present single-path bound; `effort` limits the search for the others.
    """
    if not collective.has_all_gpus or find_obstacle(topology):
        return None
    return find_next_cables(topology, collective, bound, effort)


def find_next_cables(
    topology: Topology, collective: Collective, bound: Bound, effort: Effort
) -> NextCables:
    """Return what each cable that could be added does to the bound and to NCCL's rate.

    A cable is like those that its hosts have. Pairs of hosts between which it does the same, in
    machines of the same shape, are tried once. `bound` is the present single-path bound; `effort`
    limits the search for the others. Bounds whose search was cut short are not compared. Raise
    InfeasibleError if cables do not join the hosts.
    """
    hosts = read_hosts(topology)
    nccl_GBps = _rate_nccl(hosts, collective.name)
    if bound.is_cut_short:
        return NextCables(bound.algbw_GBps, nccl_GBps, (), is_cut_short=True)
    left_out = 0
    tried: dict[tuple[str, tuple[bool, bool]], NextCable] = {}
    values: dict[str, tuple[Fraction | None, Fraction | None]] = {}
    shapes: dict[tuple[int, Fraction], str] = {}
    orbits = _find_orbits(hosts)
    for a, b in combinations(range(hosts.count), 2):
        if effort.is_over("next cable"):
            left_out += 1
            continue
        # As wide as the slower host's cables.
        rate_GBps = min(x.bandwidth_GBps for host in (a, b) for x in _find_widest(hosts, host))
        alike = orbits[a, b], rate_GBps
        wider = _add_cable(hosts, a, b, rate_GBps) if alike not in shapes else None
        if wider is not None:
            shapes[alike] = wider.fingerprint
        shape = shapes[alike]
        free = bool(hosts.list_free_ports(a)), bool(hosts.list_free_ports(b))
        key = shape, (free if free[0] <= free[1] else free[::-1])
        if key in tried:
            tried[key] = replace(tried[key], alike=tried[key].alike + 1)
            continue
        if shape not in values:
            wider = wider or _add_cable(hosts, a, b, rate_GBps)
            grant = effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
            values[shape] = (
                _find_bound_GBps(wider, collective, bound, grant),
                _rate_nccl(read_hosts(wider), collective.name),
            )
        raised_GBps, nccl_then_GBps = values[shape]
        if raised_GBps is None:
            left_out += 1
            continue
        names = hosts.names[a], hosts.names[b]
        tried[key] = NextCable(names, free, raised_GBps, nccl_then_GBps)
    ordered = sorted(
        tried.values(), key=lambda x: (-x.bound_GBps, -(x.nccl_GBps or 0), len(x.needs))
    )
    return NextCables(bound.algbw_GBps, nccl_GBps, tuple(ordered), left_out=left_out)


def _find_orbits(hosts: CabledHosts) -> dict[tuple[int, int], int]:
    """Return a number for each two hosts, equal if a shift of the machine maps one pair to another.

    The machines with a cable more between such pairs are of the same shape.
    """
    place = {device.id: i for i, device in enumerate(hosts.topology.devices)}
    host_of = {place[gpu]: host for host, gpu in enumerate(hosts.gpus)}
    images = group(shifts(hosts.topology), MAX_IMAGES)
    orbits: dict[tuple[int, int], int] = {}
    for pair in combinations(range(hosts.count), 2):
        if pair in orbits:
            continue
        number = orbits[pair] = len(orbits)
        for image in () if images is None else images:
            a, b = sorted(host_of[int(image[place[hosts.gpus[host]]])] for host in pair)
            orbits[a, b] = number
    return orbits


def _find_bound_GBps(
    wider: Topology, collective: Collective, bound: Bound, effort: Effort
) -> Fraction | None:
    """Return the single-path bound with one more cable, None if its search was cut short.

    A cable lowers no bound, so that there is nothing to search if the proof of the present one
    still holds.
    """
    _, router = load_for_planning(wider)
    proved = proved_s_per_GB(bound.kind, bound.certificate, collective, wider, router)
    if proved >= bound.s_per_GB:
        return bound.algbw_GBps
    raised = find_bounds(collective, router, effort).single_path
    return None if raised.is_cut_short else raised.algbw_GBps


def _rate_nccl(hosts: CabledHosts, collective: str) -> Fraction | None:
    """Return what stock NCCL's rings reach in GB/s algbw, None if it does not start."""
    cabling = find_nccl_cabling(hosts)
    runs_nccl = hosts.rdma and not hosts.are_macs and collective in RING_SHARES
    if cabling.obstacle or not runs_nccl:
        return None
    return rate_ring(collective, hosts.count, find_width_GBps(hosts, cabling.order))


def _add_cable(hosts: CabledHosts, a: int, b: int, rate_GBps: Fraction) -> Topology:
    """Return the topology with one more cable between two hosts.

    It has their first free ports, or new ones.
    """
    samples = [_find_widest(hosts, host) for host in (a, b)]
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
        links.append(replace(out, dst=into.dst, bandwidth_GBps=rate_GBps, source=None, extra=extra))
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
