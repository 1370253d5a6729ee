"""Count links as people do: one cable for both directions, and readable names for kinds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from ..boards import find_datasheet_GBps
from ..devices import Link
from ..facts.keys import split_host
from ..grouping import group_by_key

if TYPE_CHECKING:
    from ..graph import Topology

# Names of link kinds in tables and pictures; other kinds are shown unchanged.
KIND_NAMES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "NVLink-C2C",
    "pcie": "PCIe",
    "smp": "between sockets",
}

# Names of switch families in tables and pictures.
FAMILY_NAMES = {"pcie": "PCIe switch", "nvswitch": "NVSwitch", "network": "network switch"}

# NUMA nodes of a host that are taken for a socket each if nothing says which sockets they are of.
_MAX_SOCKETS = 2
# A PCIe link's width in the text of a source.
_LANES = re.compile(r"\bx(?:1|2|4|8|12|16|32)\b")


@dataclass(frozen=True)
class Cable:
    """All links of one kind between devices `a` and `b`.

    If `directed`, only those from `a` to `b`. `GBps` is the bandwidth in one direction, `count` the
    number of PCIe lanes or bonded links, known if `counted`; `links` are those from `a` to `b`.
    `inside` is true of a link between NUMA nodes that are, or may be, of one socket.
    """

    a: str
    b: str
    kind: str
    GBps: Fraction
    count: int
    directed: bool
    links: tuple[Link, ...] = field(default=(), compare=False)
    inside: bool = False
    counted: bool = True

    @property
    def label(self) -> str:
        """The readable name of the cable's kind."""
        return "between NUMA nodes" if self.inside else get_kind_name(self.kind)

    @property
    def width(self) -> str:
        """The width of a PCIe link ("x16") if its source states it, else the count if known."""
        texts = (f"{link.extra.get('declared')} {link.source}" for link in self.links)
        stated = (_LANES.search(text) for text in texts if self.kind == "pcie")
        return next((match[0] for match in stated if match), str(self.count) * self.counted)

    def without_ends(self) -> Cable:
        """Return the cable without its ends: equal for all cables that look alike."""
        return replace(self, a="", b="", links=())


def find_cables(topology: Topology) -> tuple[Cable, ...]:
    """Return the cables of a topology, in the order of its links.

    Both directions between two devices are one cable if they have the same bandwidth and count,
    otherwise a directed cable each.
    """
    links_of = group_by_key(((link.src, link.dst, link.kind), link) for link in topology.links)
    total = {
        key: (reduce(add, (x.bandwidth_GBps for x in links)), sum(x.count for x in links))
        for key, links in links_of.items()
    }
    several = count_sockets(topology) is None
    sockets = {d.id: d.extra.get("socket") for d in topology.devices if d.kind == "cpu"}
    cables: dict[tuple[str, str, str], Cable] = {}
    for (a, b, kind), rate_and_count in total.items():
        directed = total.get((b, a, kind)) != rate_and_count
        if directed or (b, a, kind) not in cables:
            links = tuple(links_of[a, b, kind])
            near = several or (sockets.get(a) is not None and sockets.get(a) == sockets.get(b))
            inside = kind == "smp" and near and split_host(a)[0] == split_host(b)[0]
            counted = all(link.is_counted for link in links)
            cables[a, b, kind] = Cable(
                a, b, kind, *rate_and_count, directed, links, inside, counted
            )
    return tuple(cables.values())


def count_sockets(topology: Topology) -> int | None:
    """Return the number of sockets, None if it is unknown.

    Each CPU is a NUMA node. On hosts with at most two, each is taken for a socket unless the file
    says otherwise.
    """
    known: set[tuple[str, object]] = set()
    unknown: Counter[str] = Counter()
    for device in topology.devices:
        if device.kind == "cpu":
            host = str(device.extra.get("box") or split_host(device.id)[0])
            if (socket := device.extra.get("socket")) is None:
                unknown[host] += 1
            else:
                known.add((host, socket))
    if max(unknown.values(), default=0) > _MAX_SOCKETS:
        return None
    return len(known) + unknown.total()


def group_alike(cables: Iterable[Cable]) -> list[tuple[Cable, list[Cable]]]:
    """Return groups of cables that look alike, by kind and falling rate.

    Each item is what its cables have in common, a cable without ends, and the list of them.
    """
    groups = group_by_key((cable.without_ends(), cable) for cable in cables)
    return sorted(groups.items(), key=lambda group: (group[0].kind, -group[0].GBps))


def describe_rates(topology: Topology) -> list[str]:
    """Return a line for each GPU link rate that is NCCL's or RCCL's effective figure.

    A machine read from an NCCL XML has lower rates than the same machine from a preset, a matrix
    or NVML, which have the datasheet's. The line gives that, too, where it is known and differs.
    """
    counted: dict[tuple[str, str, Fraction | None], None] = {}
    for link in topology.links:
        if link.counted_by and link.kind in ("nvlink", "xgmi"):
            ends = (topology.by_id[link.src], topology.by_id[link.dst])
            gpus = (find_datasheet_GBps(link.kind, d.extra) for d in ends if d.kind == "gpu")
            rate, printed = link.bandwidth_GBps / link.count, next(gpus, None)
            each = (
                "a link" if link.is_counted else "by all links of a pair, whose number is unknown"
            )
            differs = printed not in (None, rate) and link.is_counted
            said = f"{format_rate(rate)} GB/s {each}"
            counted[link.counted_by, said, printed if differs else None] = None
    return [
        f"rates: {library}'s, {said}"
        + ("" if printed is None else f"; the datasheet says {format_rate(printed)}")
        for library, said, printed in counted
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
