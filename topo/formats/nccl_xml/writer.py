"""Writing NCCL's XML (or RCCL's, where there are xGMI links or gcn attributes).

What NCCL understands is written as NCCL's own elements: the PCI tree, GPUs, NICs, NVLinks. That text is read back,
and wherever it says something else than the topology, topoplan's own elements are added (see `nccl_xml`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

from ...errors import InputError
from ...graph import Device, Link, Topology
from ...hardware import PCIE_GTps, pcie_GBps
from .limits import NCCL, RCCL, facts_for, fits, refuse_too_much
from .partial_topology import CPU_CLASS, GPU_CLASSES, NVSWITCH_CLASS, OWN
from .reader import read
from .xml_tree import Node, addresses, free_numbers, node_numbers, tree_of

NIC_CLASS = "0x020000"
BRIDGE_CLASS = "0x060400"
_NO_TARGET = "fffffff:ff:ff.0"
_NVIDIA_GPU_CLASS, _AMD_GPU_CLASS = "0x030200", "0x038000"
_DEFAULT_SLOT = (4, 16)
PCIE_WIDTHS = (16, 8, 4, 2, 1)
_MOST_LINKS, _MOST_C2C = 10_000, 10**9
_MOST_Mbps = 10**9


def write_all(topology: Topology) -> str:
    """The topology as XML text; `read` gives back its devices, links and ranks.

    Raises InputError where there are no GPUs, and where NCCL would not load the text (too large, values too long).
    """
    if not topology.ranks:
        raise InputError(
            f"topology {topology.name!r} has no GPUs; NCCL's XML is about GPUs, so there is nothing to write"
        )
    writer = _Writer(topology)
    root, dialect = writer.system(), RCCL if writer.amd else NCCL
    at = [(gpu, writer.bus[gpu]) for gpu in topology.ranks]
    refuse_too_much(root, topology.name, dialect, at)
    root.children += _differences(topology, read(root.text(), topology.name))
    refuse_too_much(root, topology.name, dialect, at)
    return root.text()


def is_amd(topology: Topology) -> bool:
    """Whether the machine's library is RCCL."""
    return any(x.kind == "xgmi" for x in topology.links) or any("gcn" in d.extra for d in topology.devices)


def gpu_class(topology: Topology) -> str:
    """The PCI class of a GPU that no file told."""
    return _AMD_GPU_CLASS if is_amd(topology) else _NVIDIA_GPU_CLASS


def speed_text(generation: int) -> str:
    """The speed of a generation as Linux prints it."""
    return f"{float(PCIE_GTps[generation]):.1f} GT/s PCIe"


class _Writer:
    """Lays one topology out as NCCL's tree."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rank = {name: i for i, name in enumerate(topology.ranks)}
        self.amd = is_amd(topology)
        self.gpu_class = gpu_class(topology)
        self.tree = tree_of(topology)
        self.bus = addresses(topology, self.tree)
        self.numbers = node_numbers([d for d in topology.devices if d.kind == "cpu"])
        self.nvswitches = [d.id for d in topology.devices if d.family == "nvswitch"]
        self.out: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self.out[link.src].append(link)
        self.pcie = {(x.src, x.dst): x.bandwidth_GBps for x in topology.links if x.kind == "pcie"}
        self.nets = 0

    def system(self) -> Node:
        root = Node("system", {"version": "2" if self.amd else "1"})
        if fits(self.topology.name):
            root.attributes[OWN + "name"] = self.topology.name
        if self.nvswitches and self.nvswitches[0] != "nvswitch0":
            root.attributes[OWN + "nvswitch"] = self.nvswitches[0]
        for cpu in self.topology.devices:
            if cpu.kind == "cpu":
                root.children.append(self._cpu(cpu))
        if self.tree.orphans:
            numa = str(next(free_numbers(self.numbers.values())))
            made_up = Node("cpu", {"numaid": numa, "arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6"})
            made_up.attributes |= {"modelid": "85", OWN + "made_up": "1"}
            made_up.children = self._below(self.tree.orphans, None)
            root.children.append(made_up)
        return root

    def _cpu(self, cpu: Device) -> Node:
        numa = self.numbers[cpu.id]
        node = Node("cpu", {"numaid": str(numa), **facts_for("cpu", cpu.extra, "numaid")})
        if cpu.id != f"cpu{numa}":
            node.attributes[OWN + "id"] = cpu.id
        node.children = self._below(self.tree.children[cpu.id], cpu)
        return node

    def _below(self, devices: list[Device], parent: Device | None) -> list[Node]:
        """Elements of what hangs on one CPU or switch; the ports of one NIC share theirs."""
        nodes: list[Node] = []
        adapters: dict[str, Node] = {}
        for device in devices:
            bus = self.bus[device.id]
            if device.kind == "gpu":
                nodes.append(self._slot(device, parent, self._gpu(device)))
            elif device.kind == "switch":
                nodes.append(self._bridge(device, parent))
            elif device.bus_id is None and (parent is None or parent.kind == "cpu"):
                nodes.append(Node("nic", {}, [self._net(device)]))
            elif bus in adapters:
                adapters[bus].children.append(self._net(device))
            else:
                adapters[bus] = Node("nic", {}, [self._net(device)])
                nodes.append(self._slot(device, parent, adapters[bus]))
        return nodes

    def _slot(self, device: Device, parent: Device | None, child: Node | None) -> Node:
        """The pci element of a device, its link as the device's file told it or as close as PCIe comes to the rate."""
        told = device.extra.get("pci")
        facts = facts_for("pci", told) if isinstance(told, Mapping) else {}
        rate = self.pcie.get((device.id, parent.id)) if parent is not None else None
        fits_rate = ((g, w) for w in PCIE_WIDTHS for g in PCIE_GTps if pcie_GBps(g, w) == rate)
        generation, width = next(fits_rate, _DEFAULT_SLOT)
        told_class = facts.pop("class", "")
        attributes = {"busid": self.bus[device.id], "class": self._class(device, told_class), **facts}
        attributes.setdefault("link_speed", speed_text(generation))
        attributes.setdefault("link_width", str(width))
        node = Node("pci", attributes, [] if child is None else [child])
        if device.bus_id is None or self.bus[device.id] != device.bus_id.lower():
            node.attributes[OWN + "made_up"] = "bus" if parent is not None else "slot"
        return node

    def _class(self, device: Device, told: str) -> str:
        """The class that was told, where NCCL takes it for what the device is."""
        is_gpu_class = told.startswith(GPU_CLASSES if self.amd else GPU_CLASSES[0])
        if device.kind == "gpu":
            return told if is_gpu_class else self.gpu_class
        if device.kind == "nic":
            return told or NIC_CLASS
        leaf = told.startswith((*GPU_CLASSES, "0x02", NVSWITCH_CLASS, CPU_CLASS))
        return told if told and not leaf else BRIDGE_CLASS

    def _bridge(self, switch: Device, parent: Device | None) -> Node:
        node = self._slot(switch, parent, None)
        if switch.id != f"pci-{node.attributes['busid']}":
            node.attributes[OWN + "id"] = switch.id
        merged = switch.extra.get("flattened")
        if isinstance(merged, list) and fits(" ".join(map(str, merged))):
            node.attributes[OWN + "flattened"] = " ".join(map(str, merged))
        node.children = self._below(self.tree.children[switch.id], switch)
        for link in self.out[switch.id]:
            if link.extra.get("element") == "pcilink":
                node.children.append(Node("pcilink", {"target": self.bus[link.dst]}))
        return node

    def _net(self, nic: Device) -> Node:
        facts = facts_for("net", nic.extra, "net_speed_GBps", "pci", "box")
        node = Node("net", {"name": facts.pop("name", nic.id), "dev": facts.pop("dev", str(self.nets)), **facts})
        self.nets += 1
        if "speed" not in facts and (speed := self._net_GBps(nic)):
            node.attributes["speed"] = str(min(int(speed * 8000), _MOST_Mbps))
        if nic.id != node.attributes["name"]:
            node.attributes[OWN + "id"] = nic.id
        return node

    def _net_GBps(self, nic: Device) -> Fraction:
        told = nic.extra.get("net_speed_GBps")
        if isinstance(told, (int, float)) and 0 < told < _MOST_Mbps:
            return Fraction(told)
        return sum((x.bandwidth_GBps for x in self.out[nic.id] if x.kind == "network"), Fraction(0))

    def _gpu(self, gpu: Device) -> Node:
        facts = facts_for("gpu", gpu.extra, "rank", "box")
        node = Node("gpu", {"dev": facts.pop("dev", str(self.rank[gpu.id])), "rank": str(self.rank[gpu.id]), **facts})
        if gpu.id != f"gpu{node.attributes['dev']}":
            node.attributes[OWN + "id"] = gpu.id
        for link in self.out[gpu.id]:
            if link.count <= _MOST_LINKS:
                node.children += self._direct(link)
        return node

    def _direct(self, link: Link) -> Iterator[Node]:
        """What leaves a GPU otherwise than by PCI, as far as NCCL knows such a link."""
        peer = self.topology.by_id[link.dst]
        tag = "xgmi" if link.kind == "xgmi" else "nvlink"
        if peer.kind == "cpu" and link.kind == "c2c":
            megabytes = round(link.bandwidth_GBps * 1000 / link.count)
            if megabytes <= _MOST_C2C:
                yield Node("c2c", {"bw": str(megabytes), "count": str(link.count)})
        elif peer.family == "nvswitch" or (peer.kind == "cpu" and link.kind == "nvlink"):
            tclass = NVSWITCH_CLASS if peer.kind == "switch" else CPU_CLASS
            for target, count in _targets(link).items():
                yield Node(tag, {"target": target, "count": str(count), "tclass": tclass})
        elif peer.kind == "gpu" and link.kind in ("nvlink", "xgmi", "link"):
            told = peer.extra.get("pci")
            tclass = self._class(peer, str(told.get("class") or "") if isinstance(told, Mapping) else "")
            yield Node(tag, {"target": self.bus[peer.id], "count": str(link.count), "tclass": tclass})


def _targets(link: Link) -> Mapping[str, int]:
    """The addresses that a file named for the links of a GPU into its NVSwitch, and how many lead to each."""
    told = link.extra.get("targets")
    counts = told.values() if isinstance(told, Mapping) else ()
    usable = isinstance(told, Mapping) and all(isinstance(n, int) and 0 < n <= _MOST_LINKS for n in counts)
    return {str(target): count for target, count in told.items()} if told and usable else {_NO_TARGET: link.count}


# -- what NCCL's own elements leave unsaid -------------------------------------------------------------------------


def _differences(topology: Topology, told: Topology) -> Iterator[Node]:
    """Elements that turn what the text tells into `topology`."""
    for device in topology.devices:
        other = told.by_id.get(device.id)
        if other is None or _facts(other) != _facts(device):
            facts = {"id": device.id, "kind": device.kind, "family": device.family or ""}
            facts |= {"can_reduce": str(int(device.can_reduce)), "can_copy": str(int(device.can_copy))}
            if device.numa_node is not None:
                facts["numa_node"] = str(device.numa_node)
            if device.bus_id:
                facts["bus_id"] = device.bus_id
            yield Node(OWN + "device", facts)
    wanted, found = _between(topology), _between(told)
    for src, dst in dict.fromkeys((*wanted, *found)):
        links = wanted.get((src, dst), [])
        if links == found.get((src, dst), []):
            continue
        if not links:
            yield Node(OWN + "link", {"src": src, "dst": dst, "GBps": "0"})
        for rate, latency, kind, count in links:
            facts = {"src": src, "dst": dst, "GBps": str(rate), "us": str(latency), "kind": kind, "count": str(count)}
            yield Node(OWN + "link", facts)


def _facts(device: Device) -> tuple[object, ...]:
    return device.kind, device.family, device.can_reduce, device.can_copy, device.numa_node, device.bus_id or None


def _between(topology: Topology) -> dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]]:
    links: dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]] = defaultdict(list)
    for x in topology.links:
        links[x.src, x.dst].append((x.bandwidth_GBps, x.latency_us, x.kind, x.count))
    return {pair: sorted(rows) for pair, rows in links.items()}
