"""Laying a topology out as NCCL's tree of elements: what hangs on what, and at which PCI address."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from xml.sax.saxutils import escape

from ...errors import InputError
from ...graph import Device, Topology
from ..safe_xml import MAX_DEPTH

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-9a-f])")
_MOST_DOMAINS = 1 << 20
_MOST_NODES = 1 << 15
_DEEPEST = MAX_DEPTH - 6


def quoted(value: str) -> str:
    """A value between double quotes: RCCL's parser knows no others."""
    return f'"{escape(value, {chr(34): "&quot;", chr(10): "&#10;", chr(13): "&#13;", chr(9): "&#9;"})}"'


@dataclass(eq=False)
class Node:
    """An element to be written."""

    tag: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)

    def lines(self, indent: int = 0) -> Iterator[str]:
        """The element as XML text, a line each."""
        head = "  " * indent + " ".join([f"<{self.tag}", *(f"{k}={quoted(v)}" for k, v in self.attributes.items())])
        if not self.children:
            yield head + "/>"
            return
        yield head + ">"
        for child in self.children:
            yield from child.lines(indent + 1)
        yield "  " * indent + f"</{self.tag}>"

    def walk(self) -> Iterator[Node]:
        """This element and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def text(self) -> str:
        """The element as a file."""
        return "\n".join(self.lines()) + "\n"


def normal_address(text: str | None) -> str | None:
    """A PCI address as NCCL compares it, letter by letter: `00000000:3B:00.0` is `0000:3b:00.0`; None where it is none.

    Larger domains than NCCL has room for are none, either.
    """
    match = _ADDRESS.fullmatch((text or "").strip().lower())
    if match is None:
        return None
    domain = int(match.group(1) or "0", 16)
    return f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}" if domain < _MOST_DOMAINS else None


@dataclass(frozen=True)
class Tree:
    """What hangs on each CPU and PCIe switch, those nearest to a CPU first; and what hangs on neither."""

    children: Mapping[str, list[Device]]
    orphans: list[Device]


def tree_of(topology: Topology) -> Tree:
    """The tree that the PCIe links of a topology make; where they make more than that, the shortest ways count.

    Raises InputError where switches hang below each other deeper than XML is read.
    """
    joined: dict[str, dict[str, None]] = defaultdict(dict)
    for link in topology.links:
        if link.kind in ("pcie", "link") and link.extra.get("element") != "pcilink":
            joined[link.src][link.dst] = None
            joined[link.dst][link.src] = None
    children: dict[str, list[Device]] = defaultdict(list)
    found: dict[str, int] = {}  # how deep each device hangs

    def hang(queue: list[Device]) -> None:
        found.update((d.id, 0) for d in queue)
        for here in queue:
            below = [d for n in joined[here.id] if n not in found and _may_hang(d := topology.by_id[n])]
            found.update((d.id, found[here.id] + 1) for d in below)
            children[here.id] = below
            queue += [d for d in below if d.kind == "switch"]

    hang([d for d in topology.devices if d.kind == "cpu"])
    orphans: list[Device] = []
    for device in topology.devices:
        if device.family == "pcie" and device.id not in found:
            orphans.append(device)
            hang([device])
    orphans += [d for d in topology.devices if d.kind in ("gpu", "nic") and d.id not in found]
    if max(found.values(), default=0) > _DEEPEST:
        raise InputError(
            f"topology {topology.name!r:.60}: PCIe switches hang below each other deeper than {_DEEPEST}; "
            "no machine's do, so NCCL's XML is not written; keep the topology as JSON"
        )
    index = {d.id: i for i, d in enumerate(topology.devices)}
    for below in children.values():
        below.sort(key=lambda d: index[d.id])
    return Tree(children, orphans)


def _may_hang(device: Device) -> bool:
    return device.kind in ("gpu", "nic") or device.family == "pcie"


def addresses(topology: Topology, tree: Tree) -> dict[str, str]:
    """PCI addresses: those known and distinct (ports of one adapter share theirs), else made up, in domains from f000."""
    parent = {d.id: name for name, below in tree.children.items() for d in below}
    normal = {d.id: normal_address(d.bus_id) for d in topology.devices}
    known = Counter(address for d in topology.devices if d.kind != "nic" and (address := normal[d.id]))
    adapters: dict[str, str | None] = {}
    found: dict[str, str] = {}
    number = 0
    for device in topology.devices:
        address = normal[device.id]
        if address and device.kind == "nic":
            adapter = adapters.setdefault(address, parent.get(device.id))
            if not known[address] and adapter == parent.get(device.id):
                found[device.id] = address
        elif address and known[address] == 1:
            found[device.id] = address
    taken = set(normal.values())
    for device in topology.devices:
        if device.id in found:
            continue
        while _made_up(number) in taken:
            number += 1
        found[device.id] = _made_up(number)
        number += 1
    return found


def _made_up(number: int) -> str:
    return f"{0xF000 + (number >> 8):04x}:{number & 0xFF:02x}:00.0"


def node_numbers(cpus: list[Device]) -> dict[str, int]:
    """A `numaid` for each CPU, all different: its own, -1 for one that is not known, else the first that is free."""
    owners: dict[int, str] = {}
    for cpu in cpus:
        numa = -1 if cpu.numa_node is None else cpu.numa_node
        if -1 <= numa < _MOST_NODES:
            owners.setdefault(numa, cpu.id)
    numbers = {name: numa for numa, name in owners.items()}
    free = free_numbers(owners)
    return numbers | {cpu.id: next(free) for cpu in cpus if cpu.id not in numbers}


def free_numbers(taken: Iterable[int]) -> Iterator[int]:
    """Numbers that are none of `taken`, from 0 on."""
    used = set(taken)
    return (number for number in count() if number not in used)
