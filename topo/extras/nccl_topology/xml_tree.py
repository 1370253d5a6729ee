"""Lay a topology out as NCCL's tree of elements: parents, PCI addresses, NUMA nodes.

NCCL's XML has an element for each CPU, with the PCI devices below it as elements in it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from xml.sax.saxutils import escape

from ...errors import InputError
from ...formats.safe_xml import MAX_DEPTH, Element
from ...graph import Device, Topology
from ...printable import printable

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-9a-f])")
# Larger domains do not fit the ids that NCCL makes of addresses.
_MAX_DOMAINS = 1 << 20
# Larger numbers are replaced: Linux has at most 1,024 NUMA nodes (CONFIG_NODES_SHIFT is up to 10).
_MAX_NODES = 1 << 15
# Room for the elements above and below a chain of switches: system, cpu, pci, nic, net.
_MAX_SWITCH_DEPTH = MAX_DEPTH - 6


def quote(value: str) -> str:
    """Put a value between double quotes, since RCCL's parser accepts no others.

    Characters that a terminal would interpret or hide become numeric character references.
    """
    text = escape(value, {'"': "&quot;"})
    if printable(text) != text:
        text = "".join(c if printable(c) == c else f"&#{ord(c)};" for c in text)
    return f'"{text}"'


def format_xml(element: Element, indent: str = "") -> str:
    """Return an element as the text of a file, a line each for its start and its end."""
    attributes = "".join(f" {k}={quote(v)}" for k, v in element.attributes.items())
    if not element.children:
        return f"{indent}<{element.tag}{attributes}/>\n"
    below = "".join(format_xml(child, indent + "  ") for child in element)
    return f"{indent}<{element.tag}{attributes}>\n{below}{indent}</{element.tag}>\n"


def normalize_address(text: str | None) -> str | None:
    """Write a PCI address as NCCL compares it, letter by letter.

    For `00000000:3B:00.0` that is `0000:3b:00.0`. Return None if the text is no address, or its
    domain is too large for NCCL.
    """
    match = _ADDRESS.fullmatch((text or "").strip().lower())
    if match and (domain := int(match[1] or "0", 16)) < _MAX_DOMAINS:
        return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}"
    return None


@dataclass(frozen=True)
class PcieTree:
    """The PCIe links of a topology as trees.

    `children` maps the id of a CPU or PCIe switch to the devices right below it, in the topology's
    order. `orphans` are the switches, GPUs and NICs at the top of trees without a CPU.
    """

    children: Mapping[str, list[Device]]
    orphans: list[Device]


def build_tree(topology: Topology) -> PcieTree:
    """Build the tree of a topology's PCIe links; each device is on its shortest route to a CPU.

    Raise InputError if switches are nested more deeply than the XML reader allows.
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
            unplaced = (topology.by_id[n] for n in joined[upper.id] if n not in depth)
            below = [d for d in unplaced if d.kind in ("gpu", "nic") or d.family == "pcie"]
            depth.update((d.id, depth[upper.id] + 1) for d in below)
            children[upper.id] = below
            queue += [d for d in below if d.kind == "switch"]

    # from the CPUs down first, so that a switch without a CPU gets only devices below no CPU
    hang([d for d in topology.devices if d.kind == "cpu"])
    orphans: list[Device] = []
    for device in topology.devices:
        if device.family == "pcie" and device.id not in depth:
            orphans.append(device)
            hang([device])
    orphans += [d for d in topology.devices if d.kind in ("gpu", "nic") and d.id not in depth]
    if max(depth.values(), default=0) > _MAX_SWITCH_DEPTH:
        raise InputError(
            f"topology {topology.name!r:.60}: PCIe switches are nested deeper than "
            f"{_MAX_SWITCH_DEPTH}; no machine's are, so NCCL's XML is not written; keep the "
            "topology as JSON"
        )
    index = {d.id: i for i, d in enumerate(topology.devices)}
    for below in children.values():
        below.sort(key=lambda d: index[d.id])
    return PcieTree(children, orphans)


def assign_addresses(topology: Topology, tree: PcieTree) -> dict[str, str]:
    """Return a PCI address for each device id, all different except for ports of one adapter.

    Known and distinct addresses stay; the others are made up, in PCI domains from f000
    (hexadecimal).
    """
    parent = {d.id: name for name, below in tree.children.items() for d in below}
    normal = {d.id: normalize_address(d.bus_id) for d in topology.devices}
    known = Counter(normal[d.id] for d in topology.devices if d.kind != "nic")
    adapters: dict[str, str | None] = {}
    assigned: dict[str, str] = {}
    for device in topology.devices:
        address = normal[device.id]
        if address and device.kind == "nic":
            above = parent.get(device.id)
            if adapters.setdefault(address, above) == above and not known[address]:
                assigned[device.id] = address
        elif address and known[address] == 1:
            assigned[device.id] = address
    # the others get addresses that no device of the machine has
    taken = set(normal.values())
    free = (
        address
        for number in count()
        if (address := f"{0xF000 + (number >> 8):04x}:{number & 0xFF:02x}:00.0") not in taken
    )
    return assigned | {d.id: next(free) for d in topology.devices if d.id not in assigned}


def number_nodes(cpus: list[Device]) -> dict[str, int]:
    """Return a different `numaid` for each CPU, by its id.

    It is the CPU's NUMA node, or -1 if that is unknown; if an earlier CPU has that number or it is
    out of range, the first free one.
    """
    owners: dict[int, str] = {}
    for cpu in cpus:
        numa = -1 if cpu.numa_node is None else cpu.numa_node
        if -1 <= numa < _MAX_NODES:
            owners.setdefault(numa, cpu.id)
    numbers = {name: numa for numa, name in owners.items()}
    free = iterate_free_numbers(owners)
    return numbers | {cpu.id: next(free) for cpu in cpus if cpu.id not in numbers}


def iterate_free_numbers(taken: Container[int]) -> Iterator[int]:
    """Iterate over the numbers from 0 that are not `taken`."""
    return (number for number in count() if number not in taken)
