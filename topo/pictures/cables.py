"""Count links as people do: one cable for both directions where these are alike, and names for
their kinds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..graph import Device, Topology
from ..hardware import find_datasheet_GBps

# Names of kinds of links in texts for people; other kinds are called as they are.
KIND_NAMES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "NVLink-C2C",
    "pcie": "PCIe",
    "smp": "between sockets",
    "network": "network",
    "link": "link",
}

# Names of switch families in texts for people.
FAMILY_NAMES = {"pcie": "PCIe switch", "nvswitch": "NVSwitch", "network": "network switch"}


_LANES = re.compile(r"\bx(?:1|2|4|8|12|16|32)\b")


@dataclass(frozen=True)
class Cable:
    """All links of one kind between two devices: from `a` to `b`, and, unless `one_way`, as much
    back.

    `GBps` is the bandwidth in one direction, `count` how many lanes or bonded links make it up.
    """

    a: str
    b: str
    kind: str
    GBps: Fraction
    count: int
    one_way: bool


def find_cables(topology: Topology) -> tuple[Cable, ...]:
    """Return the cables of a topology, in the order in which its links first name them."""
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
    """Return who says what the rates are, by source, destination and kind of links."""
    sources: dict[tuple[str, str, str], list[str]] = {}
    for link in topology.links:
        listed = sources.setdefault((link.src, link.dst, link.kind), [])
        if link.source and link.source not in listed:
            listed.append(link.source)
    return sources


def find_widths(topology: Topology) -> dict[tuple[str, str, str], str]:
    """Return the lanes of PCIe links as their sources have them, `x16`, by source, destination and
    kind of links.
    """
    widths: dict[tuple[str, str, str], str] = {}
    for link in topology.links:
        told = (
            _LANES.search(f"{link.extra.get('declared')} {link.source}")
            if link.kind == "pcie"
            else None
        )
        if told:
            widths.setdefault((link.src, link.dst, link.kind), told[0])
    return widths


def describe_rates(topology: Topology) -> list[str]:
    """Return a line for each rate of GPU links that is a library's own, effective figure, beside
    the datasheet's.

    The same machine has one rate by an XML of NCCL, and another by what vendors print: presets,
    matrices and NVML have that.
    """
    counted: dict[tuple[str, Fraction, Fraction | None], None] = {}
    for link in topology.links:
        if link.counted_by and link.kind in ("nvlink", "xgmi"):
            gpu = next(
                (
                    d
                    for d in (topology.by_id[link.src], topology.by_id[link.dst])
                    if d.kind == "gpu"
                ),
                None,
            )
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
    """Return the name of a kind of link in texts for people."""
    return KIND_NAMES.get(kind, kind)


def format_rate(GBps: Fraction) -> str:
    """Return a bandwidth as people write it: "50", "19.2", "0.125"; at most three digits after the
    point, three below 1.
    """
    if GBps < 1:
        return f"{float(GBps):.3g}"
    return f"{round(float(GBps), 3):.3f}".rstrip("0").rstrip(".")


def find_components(
    topology: Topology, machine_cables: Iterable[Cable], without: set[str]
) -> list[list[Device]]:
    """Return the devices that hang together without the devices in `without`, in device order."""
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
