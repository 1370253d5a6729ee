"""Count links as people do: one cable for both directions, and readable names for kinds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..graph import Device, Topology
from ..hardware import find_datasheet_GBps

# Names of link kinds in tables and pictures; other kinds are shown unchanged.
KIND_NAMES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "NVLink-C2C",
    "pcie": "PCIe",
    "smp": "between sockets",
    "network": "network",
    "link": "link",
}

# Names of switch families in tables and pictures.
FAMILY_NAMES = {"pcie": "PCIe switch", "nvswitch": "NVSwitch", "network": "network switch"}


# A PCIe link's width in the text of a source.
_LANES = re.compile(r"\bx(?:1|2|4|8|12|16|32)\b")


@dataclass(frozen=True)
class Cable:
    """All links of one kind between devices `a` and `b`.

    If `directed`, only those from `a` to `b`. `GBps` is the bandwidth in one direction, `count` the
    number of PCIe lanes or bonded links.
    """

    a: str
    b: str
    kind: str
    GBps: Fraction
    count: int
    directed: bool


def find_cables(topology: Topology) -> tuple[Cable, ...]:
    """Return the cables of a topology, in the order of its links."""
    rate: dict[tuple[str, str, str], Fraction] = {}
    count: Counter[tuple[str, str, str]] = Counter()
    for link in topology.links:
        key = link.src, link.dst, link.kind
        earlier = rate.get(key)
        rate[key] = link.bandwidth_GBps if earlier is None else earlier + link.bandwidth_GBps
        count[key] += link.count
    out: list[Cable] = []
    done: set[tuple[str, str, str]] = set()
    for (src, dst, kind), GBps in rate.items():
        forth, back = (src, dst, kind), (dst, src, kind)
        if forth in done:
            continue
        both = rate.get(back) == GBps and count[back] == count[forth]
        done |= {forth, back} if both else {forth}
        out.append(Cable(src, dst, kind, GBps, count[forth], not both))
    return tuple(out)


def find_sources(topology: Topology) -> dict[tuple[str, str, str], list[str]]:
    """Return the sources of the rates, keyed (source device, destination device, kind)."""
    sources: dict[tuple[str, str, str], list[str]] = {}
    for link in topology.links:
        listed = sources.setdefault((link.src, link.dst, link.kind), [])
        if link.source and link.source not in listed:
            listed.append(link.source)
    return sources


def find_widths(topology: Topology) -> dict[tuple[str, str, str], str]:
    """Return the widths of PCIe links, such as "x16", if their sources state them.

    Keys are (source device, destination device, kind).
    """
    widths: dict[tuple[str, str, str], str] = {}
    for link in topology.links:
        if link.kind != "pcie":
            continue
        if width := _LANES.search(f"{link.extra.get('declared')} {link.source}"):
            widths.setdefault((link.src, link.dst, link.kind), width[0])
    return widths


def describe_rates(topology: Topology) -> list[str]:
    """Return a line for each GPU link rate that is NCCL's or RCCL's effective figure.

    A machine read from an NCCL XML has lower rates than the same machine from a preset, a matrix
    or NVML, which have the datasheet's. The line gives both.
    """
    counted: dict[tuple[str, Fraction, Fraction | None], None] = {}
    for link in topology.links:
        if link.counted_by and link.kind in ("nvlink", "xgmi"):
            ends = (topology.by_id[link.src], topology.by_id[link.dst])
            gpu = next((d for d in ends if d.kind == "gpu"), None)
            printed = None if gpu is None else find_datasheet_GBps(link.kind, gpu.extra)
            counted[link.counted_by, link.bandwidth_GBps / link.count, printed] = None
    return [
        f"rates: {library}'s, {format_rate(rate)} GB/s a link"
        + (
            ""
            if printed is None or printed == rate
            else f"; the datasheet says {format_rate(printed)}"
        )
        for library, rate, printed in counted
    ]


def get_kind_name(kind: str) -> str:
    """Return the readable name of a link kind."""
    return KIND_NAMES.get(kind, kind)


def format_rate(GBps: Fraction) -> str:
    """Format a bandwidth in GB/s with three decimals at most, or three digits below 1.

    Examples are "50", "19.2" and "0.125".
    """
    if GBps < 1:
        return f"{float(GBps):.3g}"
    return f"{round(float(GBps), 3):.3f}".rstrip("0").rstrip(".")


def group_switches(switches: Iterable[str], cables: Iterable[Cable]) -> list[tuple[str, ...]]:
    """Group switches with the same neighbours, which are drawn as one bar."""
    neighbours: dict[str, set[str]] = {ident: set() for ident in switches}
    for c in cables:
        for one, other in ((c.a, c.b), (c.b, c.a)):
            if one in neighbours:
                neighbours[one].add(other)
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for ident, others in neighbours.items():
        # Links among the switches do not distinguish them, unless they have no others.
        groups[frozenset(others - neighbours.keys() or others or {ident})].append(ident)
    return [tuple(group) for group in groups.values()]


def find_components(
    topology: Topology, machine_cables: Iterable[Cable], without: set[str]
) -> list[list[Device]]:
    """Return the connected components without the devices in `without`, in device order."""
    neighbours: dict[str, list[str]] = defaultdict(list)
    for cable in machine_cables:
        if not {cable.a, cable.b} & without:
            neighbours[cable.a].append(cable.b)
            neighbours[cable.b].append(cable.a)
    component_of: dict[str, int] = {}
    components: list[list[Device]] = []
    for device in topology.devices:
        if device.id in without:
            continue
        if device.id not in component_of:
            queue = [device.id]
            component_of[device.id] = len(components)
            for ident in queue:
                fresh = [n for n in dict.fromkeys(neighbours[ident]) if n not in component_of]
                component_of |= dict.fromkeys(fresh, len(components))
                queue += fresh
            components.append([])
        components[component_of[device.id]].append(device)
    return components
