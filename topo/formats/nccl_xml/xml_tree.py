"""Lay a topology out as NCCL's tree of elements: what hangs on what, and at which PCI address."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from xml.sax.saxutils import escape

from ...errors import InputError
from ...graph import Device, Topology
from ...printable import printable
from ..safe_xml import MAX_DEPTH

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-9a-f])")
_MOST_DOMAINS = 1 << 20
_MOST_NODES = 1 << 15
_DEEPEST = MAX_DEPTH - 6


def quote(value: str) -> str:
    """Return a value between double quotes: RCCL's parser knows no others.

    What a terminal would obey or hide is written by its number, which XML reads as the same.
    """
    text = escape(value, {'"': "&quot;"})
    if printable(text) != text:
        text = "".join(c if printable(c) == c else f"&#{ord(c)};" for c in text)
    return f'"{text}"'


@dataclass(eq=False)
class XmlNode:
    """An element to be written."""

    tag: str
    attributes: dict[str, str]
    children: list[XmlNode] = field(default_factory=list)

    def format_lines(self, indent: int = 0) -> Iterator[str]:
        """Yield the element as lines of XML."""
        head = "  " * indent + " ".join(
            [f"<{self.tag}", *(f"{k}={quote(v)}" for k, v in self.attributes.items())]
        )
        if not self.children:
            yield head + "/>"
            return
        yield head + ">"
        for child in self.children:
            yield from child.format_lines(indent + 1)
        yield "  " * indent + f"</{self.tag}>"

    def walk(self) -> Iterator[XmlNode]:
        """Yield this element and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_text(self) -> str:
        """Return the element as the text of a file."""
        return "\n".join(self.format_lines()) + "\n"


def normalize_address(text: str | None) -> str | None:
    """Return a PCI address as NCCL compares it, letter by letter, None where the text is none.

    `00000000:3B:00.0` is `0000:3b:00.0`; domains larger than NCCL has room for are no addresses,
    either.
    """
    match = _ADDRESS.fullmatch((text or "").strip().lower())
    if match is None:
        return None
    domain = int(match.group(1) or "0", 16)
    return (
        f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}"
        if domain < _MOST_DOMAINS
        else None
    )


@dataclass(frozen=True)
class PcieTree:
    """The devices below each CPU and PCIe switch, those nearest to a CPU first; `orphans` are below
    neither.
    """

    children: Mapping[str, list[Device]]
    orphans: list[Device]


def build_tree(topology: Topology) -> PcieTree:
    """Return the tree that a topology's PCIe links make; of several ways to a device the shortest
    counts.

    Raises InputError where switches hang below each other deeper than XML is read.
    """
    joined: dict[str, dict[str, None]] = defaultdict(dict)
    for link in topology.links:
        if link.kind in ("pcie", "link") and link.extra.get("element") != "pcilink":
            joined[link.src][link.dst] = None
            joined[link.dst][link.src] = None
    children: dict[str, list[Device]] = defaultdict(list)
    depth: dict[str, int] = {}

    def hang(queue: list[Device]) -> None:
        depth.update((d.id, 0) for d in queue)
        for upper in queue:
            below = [
                d for n in joined[upper.id] if n not in depth and _may_hang(d := topology.by_id[n])
            ]
            depth.update((d.id, depth[upper.id] + 1) for d in below)
            children[upper.id] = below
            queue += [d for d in below if d.kind == "switch"]

    # from the CPUs down first, so that a switch without a CPU takes only what no CPU has
    hang([d for d in topology.devices if d.kind == "cpu"])
    orphans: list[Device] = []
    for device in topology.devices:
        if device.family == "pcie" and device.id not in depth:
            orphans.append(device)
            hang([device])
    orphans += [d for d in topology.devices if d.kind in ("gpu", "nic") and d.id not in depth]
    if max(depth.values(), default=0) > _DEEPEST:
        raise InputError(
            f"topology {topology.name!r:.60}: PCIe switches hang below each other deeper than "
            f"{_DEEPEST}; "
            "no machine's do, so NCCL's XML is not written; keep the topology as JSON"
        )
    index = {d.id: i for i, d in enumerate(topology.devices)}
    for below in children.values():
        below.sort(key=lambda d: index[d.id])
    return PcieTree(children, orphans)


def _may_hang(device: Device) -> bool:
    """Return whether a device can be below another in the PCI tree."""
    return device.kind in ("gpu", "nic") or device.family == "pcie"


def assign_addresses(topology: Topology, tree: PcieTree) -> dict[str, str]:
    """Return a PCI address for each device, all different but for ports of one adapter.

    Known and distinct addresses are kept; the others are made up, in domains from f000.
    """
    parent = {d.id: name for name, below in tree.children.items() for d in below}
    normal = {d.id: normalize_address(d.bus_id) for d in topology.devices}
    known = Counter(
        address for d in topology.devices if d.kind != "nic" and (address := normal[d.id])
    )
    adapters: dict[str, str | None] = {}
    assigned: dict[str, str] = {}
    number = 0
    for device in topology.devices:
        address = normal[device.id]
        if address and device.kind == "nic":
            adapter = adapters.setdefault(address, parent.get(device.id))
            if not known[address] and adapter == parent.get(device.id):
                assigned[device.id] = address
        elif address and known[address] == 1:
            assigned[device.id] = address
    # what has no address of its own gets one that no device of the machine has
    taken = set(normal.values())
    for device in topology.devices:
        if device.id in assigned:
            continue
        while _make_up_address(number) in taken:
            number += 1
        assigned[device.id] = _make_up_address(number)
        number += 1
    return assigned


def _make_up_address(number: int) -> str:
    """Return the made-up address of a number, in the domains from f000."""
    return f"{0xF000 + (number >> 8):04x}:{number & 0xFF:02x}:00.0"


def number_nodes(cpus: list[Device]) -> dict[str, int]:
    """Return a `numaid` for each CPU, all different: its own, -1 for one that is not known, else
    the first that is free.
    """
    owners: dict[int, str] = {}
    for cpu in cpus:
        numa = -1 if cpu.numa_node is None else cpu.numa_node
        if -1 <= numa < _MOST_NODES:
            owners.setdefault(numa, cpu.id)
    numbers = {name: numa for numa, name in owners.items()}
    free = iterate_free_numbers(owners)
    return numbers | {cpu.id: next(free) for cpu in cpus if cpu.id not in numbers}


def iterate_free_numbers(taken: Iterable[int]) -> Iterator[int]:
    """Return an iterator over the numbers from 0 on that are not `taken`."""
    used = set(taken)
    return (number for number in count() if number not in used)
