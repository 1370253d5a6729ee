"""Files for virtual machines: the PCI tree and nothing else, since NCCL finds GPUs, NICs and NVLinks by itself.

NCCL keeps the tree and the speeds of the file it is given, and puts each device into the place with its PCI address
(graph/xml.cc). Inside a virtual machine the speeds that it would find are placeholders, and one of them above a GPU
is all that its rings are given (0.12 GB/s); so each is replaced by what the device is made for, and noted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

from ...errors import InputError
from ...facts import facts_of
from ...graph import Device, Link, Topology
from ...hardware import PCIE_GTps, pcie_link
from .limits import NCCL, RCCL, facts_for, refuse_too_much
from .vm_speeds import Lanes, gpu_lanes, nic_lanes
from .writer import BRIDGE_CLASS, NIC_CLASS, PCIE_WIDTHS, gpu_class, is_amd, speed_text
from .xml_tree import Node, addresses, node_numbers, normal_address, tree_of

_CPU_KEYS = ("affinity", "arch", "vendor", "familyid", "modelid")
_DECLARED = re.compile(r"(\d+(?:\.\d+)? GT/s) x(\d{1,2})")
_PLACEHOLDER_GENERATION = 2
"""No GPU that NCCL or RCCL runs on is made for less than Gen3: lower ones are placeholders, or read while idle."""


def write_for_vm(topology: Topology) -> str:
    """The PCI tree of a machine, for NCCL_TOPO_FILE on that machine; what was replaced is said in comments.

    Raises InputError where there are no GPUs, a GPU has no PCI address, or NCCL would not load the file.
    """
    vm = _Vm(topology)
    head = "for NCCL_TOPO_FILE; NCCL finds GPUs, NICs and NVLinks at these addresses by itself"
    return "".join(f"<!-- {_comment(line)} -->\n" for line in (head, *vm.notes)) + vm.root.text()


def for_vm_notes(topology: Topology) -> list[str]:
    """What `write_for_vm` replaced or left out, a line each. Raises InputError as it does."""
    return _Vm(topology).notes


def _comment(line: str) -> str:
    return re.sub("[^ -~]", "?", line).replace("--", "- -").replace("=", " is ").replace("->", "to")


class _Vm:
    """The elements of the file, and what had to be replaced for them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._said: dict[str, list[str]] = {}
        _refuse(topology)
        self.facts = facts_of(topology.extra, topology.name)
        self.index = {normal_address(self.facts.text(f"gpu/{i}", "bus_id")): i for i in self.facts.names("gpu")}
        self.tree = tree_of(topology)
        self.bus = addresses(topology, self.tree)
        self.gpu_class = gpu_class(topology)
        self.up = {(x.src, x.dst): x for x in topology.links if x.kind in ("pcie", "link")}
        self.switches = {self.bus[d.id] for d in topology.devices if d.family == "pcie"}
        self.written: set[str] = set()
        self.root = self._system()

    @property
    def notes(self) -> list[str]:
        """What was replaced or left out, a line each; the same of several devices in one."""
        return [" ".join(f"{', '.join(names)}: {what}".split()) for what, names in self._said.items()]

    def _note(self, device: Device, what: str) -> None:
        self._said.setdefault(what, []).append(device.id)

    def _system(self) -> Node:
        amd = is_amd(self.topology)
        root = Node("system", {"version": "2" if amd else "1"})
        cpus = [d for d in self.topology.devices if d.kind == "cpu"]
        numbers = node_numbers(cpus)
        nodes: dict[int, Node] = {}
        for cpu in cpus:
            for numa, below in self._by_numa(cpu, numbers[cpu.id], len(cpus)).items():
                children = [node for d in below if (node := self._element(d, cpu))]
                if children:
                    facts = {k: v for k, v in facts_for("cpu", cpu.extra).items() if k in _CPU_KEYS}
                    if cpu.numa_node is None:
                        facts.pop("affinity", None)
                    nodes.setdefault(numa, Node("cpu", {"numaid": str(numa), **facts})).children += children
        self._orphans(nodes)
        root.children = [nodes[numa] for numa in sorted(nodes)]
        at = [(gpu, normal_address(self.topology.by_id[gpu].bus_id) or "") for gpu in self.topology.ranks]
        refuse_too_much(root, self.topology.name, RCCL if amd else NCCL, at)
        return root

    # -- CPUs ------------------------------------------------------------------------------------------------------

    def _by_numa(self, cpu: Device, number: int, cpus: int) -> dict[int, list[Device]]:
        """What hangs on a CPU, by NUMA node; where that of the CPU is not known, by those of the devices."""
        below = self.tree.children[cpu.id]
        if cpu.numa_node is not None:
            return {number: below}
        groups: dict[int, list[Device]] = defaultdict(list)
        unknown: list[Device] = []
        for device in below:
            numa = self._numa_of(device)
            (unknown if numa is None else groups[numa]).append(device)
        if groups:
            names = ", ".join(str(numa) for numa in sorted(groups))
            self._note(cpu, f"NUMA node unknown; from what is known of the devices below: {names}")
            groups[min(groups)] += unknown
        elif unknown:
            numa = 0 if cpus == 1 else number
            why = "it is the only CPU" if cpus == 1 else "the other CPUs are others"
            self._note(cpu, f"NUMA node unknown; written as {numa}, since {why}")
            groups[numa] = unknown
        return groups

    def _numa_of(self, device: Device) -> int | None:
        """The NUMA node of a device, or of the first below a switch for which it is known."""
        if device.kind == "switch":
            return next((n for d in self.tree.children[device.id] if (n := self._numa_of(d)) is not None), None)
        address = normal_address(device.bus_id)
        index = self.index.get(address)
        subjects = [f"pci/{address}"] + ([f"gpu/{index}"] if index is not None else [])
        told = [device.numa_node, *(self.facts.number(subject, "numa_node") for subject in subjects)]
        return next((n for n in told if n is not None and n >= 0), None)

    def _orphans(self, nodes: dict[int, Node]) -> None:
        """Devices of which it is not known what they hang on stand below a CPU."""
        for device in self.tree.orphans:
            node = self._element(device, None)
            if node is None:
                continue
            numa = self._numa_of(device)
            told = "its NUMA node" if numa is not None else "the first one"
            numa = min(nodes, default=0) if numa is None else numa
            nodes.setdefault(numa, Node("cpu", {"numaid": str(numa)})).children.append(node)
            self._note(device, f"not known what it hangs on; put below CPU {numa}, {told}")

    # -- PCI -------------------------------------------------------------------------------------------------------

    def _element(self, device: Device, parent: Device | None) -> Node | None:
        """The place of a device, None where it can have none or is there already (ports of one adapter)."""
        if device.kind == "switch":
            below = [node for d in self.tree.children[device.id] if (node := self._element(d, device))]
            if not below:
                return None
            lanes = self._lanes(device, parent, lambda: _widest(below))
            return self._place(self.bus[device.id], BRIDGE_CLASS, lanes, below)
        address = normal_address(device.bus_id)
        if address is None:
            self._note(device, "no PCI address known; left out, and NCCL puts it where it finds it")
            return None
        if address in self.switches:
            self._note(device, "its PCI address is that of a switch; left out")
            return None
        if address in self.written:
            return None
        self.written.add(address)
        pci = device.extra.get("pci")
        told = str(pci.get("class") or "") if isinstance(pci, Mapping) else ""
        if device.kind == "gpu":
            index = self.index.get(address)
            lanes = self._lanes(device, parent, lambda: gpu_lanes(device, self.facts, index))
            return self._place(address, told if told.startswith("0x03") else self.gpu_class, lanes, [])
        lanes = self._lanes(device, parent, lambda: nic_lanes(device, self.facts))
        return self._place(address, told if told.startswith("0x02") else NIC_CLASS, lanes, [])

    def _place(self, address: str, pci_class: str, lanes: Lanes, below: list[Node]) -> Node:
        facts = {"busid": address, "class": pci_class, "link_speed": speed_text(lanes.generation)}
        return Node("pci", {**facts, "link_width": str(lanes.width)}, below)

    def _lanes(self, device: Device, parent: Device | None, believed: Callable[[], Lanes]) -> Lanes:
        """The link above a device: as told, or, where that is nothing or a placeholder, as `believed`."""
        link = self.up.get((device.id, parent.id)) if parent is not None else None
        told = None if link is None else _told(device, link)
        if told is not None and not _is_placeholder(device, told):
            if link is not None and told.GBps != link.bandwidth_GBps and "declared" not in link.extra:
                self._note(device, f"{float(link.bandwidth_GBps):g} GB/s is no PCIe rate; written as {told}")
            return told
        lanes = believed()
        was = "link unknown" if told is None else f"{told}, a placeholder or read while idle"
        self._note(device, f"{was}; written as {lanes}, {lanes.why}")
        return lanes


def _widest(below: list[Node]) -> Lanes:
    """A link that carries what the fastest device below a switch can take."""
    fastest = max(pcie_link(n.attributes["link_speed"], int(n.attributes["link_width"])).generation for n in below)
    return Lanes(fastest, why="as the fastest device below")


def _told(device: Device, link: Link) -> Lanes | None:
    """The link that was declared, None where it was assumed; where only a rate is known, the nearest that PCIe has."""
    if (link.source or "").startswith("assumed"):
        return None
    match = _DECLARED.fullmatch(str(link.extra.get("declared") or ""))
    if match:
        declared = pcie_link(match.group(1), int(match.group(2)))
        return None if declared.assumed else Lanes(declared.generation, declared.width)
    pci = device.extra.get("pci")
    if isinstance(pci, Mapping) and ("link_speed" in pci or "link_width" in pci):
        width = str(pci.get("link_width") or "")
        listed = pcie_link(str(pci.get("link_speed") or ""), int(width) if width.isdecimal() else None)
        if listed.bandwidth_GBps == link.bandwidth_GBps:
            return None if listed.assumed else Lanes(listed.generation, listed.width)
    return _nearest(link.bandwidth_GBps)


def _nearest(rate: Fraction) -> Lanes:
    """The PCIe link whose rate is nearest; of those that are as near, one that can be true, and the widest."""
    links = [Lanes(generation, width) for width in PCIE_WIDTHS for generation in PCIE_GTps]
    return min(links, key=lambda x: (abs(x.GBps - rate), x.generation <= _PLACEHOLDER_GENERATION))


def _is_placeholder(device: Device, told: Lanes) -> bool:
    if device.kind != "nic":
        return told.generation <= _PLACEHOLDER_GENERATION
    net = device.extra.get("net_speed_GBps")
    slow = isinstance(net, (int, float)) and told.GBps < Fraction(net)
    return (told.generation, told.width) == (1, 1) or (told.generation <= _PLACEHOLDER_GENERATION and slow)


def _refuse(topology: Topology) -> None:
    """Raise InputError for what is no machine at hand: no GPUs, GPUs without addresses, several hosts."""
    name = topology.name
    if not topology.ranks:
        raise InputError(f"topology {name!r} has no GPUs; a file for NCCL is about GPUs, so there is nothing to write")
    for gpu in topology.ranks:
        if normal_address(topology.by_id[gpu].bus_id) is None:
            raise InputError(
                f"topology {name!r}: {gpu!r:.40} has no PCI address, by which NCCL would find it (presets have none); "
                "write the file on the virtual machine itself, from 'local', or give each GPU its bus_id in JSON"
            )
    hosts = {str(d.extra["host_hash"]) for d in topology.devices if d.kind == "cpu" and d.extra.get("host_hash")}
    if len(hosts) > 1:
        raise InputError(f"topology {name!r} is of {len(hosts)} hosts; a file for a virtual machine is of one")
