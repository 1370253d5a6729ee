"""Links as people count them: one cable for both directions where these are alike, and names for their kinds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from ..graph import Topology

KIND_NAMES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "NVLink-C2C",
    "pcie": "PCIe",
    "smp": "between sockets",
    "network": "network",
    "link": "link",
}
"""What the kinds of links are called in texts for people; other kinds are called as they are."""


FAMILY_NAMES = {"pcie": "PCIe switch", "nvswitch": "NVSwitch", "network": "network switch"}
"""What switches of a family are called in texts for people."""


@dataclass(frozen=True)
class Cable:
    """All links of one kind between two devices: from `a` to `b`, and, unless `one_way`, as much back.

    `GBps` is the bandwidth in one direction, `count` how many lanes or bonded links make it up.
    """

    a: str
    b: str
    kind: str
    GBps: Fraction
    count: int
    one_way: bool


def cables(topology: Topology) -> tuple[Cable, ...]:
    """The cables of a topology, in the order in which its links first name them."""
    rate: dict[tuple[str, str, str], Fraction] = {}
    count: Counter[tuple[str, str, str]] = Counter()
    for link in topology.links:
        key = link.src, link.dst, link.kind
        before = rate.get(key)
        rate[key] = link.bandwidth_GBps if before is None else before + link.bandwidth_GBps
        count[key] += link.count
    out: list[Cable] = []
    done: set[tuple[str, str, str]] = set()
    for (src, dst, kind), GBps in rate.items():
        there, back = (src, dst, kind), (dst, src, kind)
        if there in done:
            continue
        both = rate.get(back) == GBps and count[back] == count[there]
        done |= {there, back} if both else {there}
        out.append(Cable(src, dst, kind, GBps, count[there], not both))
    return tuple(out)


def kind_name(kind: str) -> str:
    """What a kind of link is called in texts for people."""
    return KIND_NAMES.get(kind, kind)


def rate_text(GBps: Fraction) -> str:
    """A bandwidth as people write it: "50", "19.2", "0.125"; at most three digits after the point, three below 1."""
    if GBps < 1:
        return f"{float(GBps):.3g}"
    return f"{round(float(GBps), 3):.3f}".rstrip("0").rstrip(".")
