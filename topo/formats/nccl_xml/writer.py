"""Write NCCL's XML (or RCCL's, where there are xGMI links or gcn attributes).

What NCCL understands is written as NCCL's own elements: the PCI tree, GPUs, NICs, NVLinks. That
text is read back, and wherever it says something else than the topology, topoplan's elements are
added (see `nccl_xml`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

from ...errors import InputError
from ...graph import Device, Link, Topology
from ...hardware import ASSUMED_BY, ASSUMED_SPEED, PCIE_GTps, pcie_GBps
from .limits import NCCL, RCCL, check_limits, fits, select_attributes
from .made_up import MADE_UP, Capabilities, make_up_cpu
from .partial_topology import CPU_CLASS, GPU_CLASSES, NVSWITCH_CLASS, TOPOPLAN_PREFIX
from .reader import read
from .xml_tree import XmlNode, assign_addresses, build_tree, iterate_free_numbers, number_nodes

NIC_CLASS = "0x020000"
BRIDGE_CLASS = "0x060400"
_NO_TARGET = "fffffff:ff:ff.0"
_NVIDIA_GPU_CLASS, _AMD_GPU_CLASS = "0x030200", "0x038000"
_DEFAULT_SLOT = (4, 16)
PCIE_WIDTHS = (16, 8, 4, 2, 1)
_MOST_LINKS, _MOST_C2C = 10_000, 10**9
_MOST_Mbps = 10**9


def write_all(topology: Topology) -> str:
    """Return the topology as XML text; `read` gives back its devices, links and ranks.

    Raises InputError where there are no GPUs, and where NCCL would not load the text (too large,
    values too long).
    """
    if not topology.ranks:
        raise InputError(
            f"topology {topology.name!r} has no GPUs; NCCL's XML is about GPUs, so there is "
            "nothing to write"
        )
    writer = _Writer(topology)
    root, dialect = writer.build_system(), RCCL if writer.amd else NCCL
    gpu_addresses = [(gpu, writer.addresses[gpu]) for gpu in topology.ranks]
    check_limits(root, topology.name, dialect, gpu_addresses)
    # limits are checked before reading back, which large files would make slow, and again with what
    # was added
    root.children += _list_differences(topology, read(root.to_text(), topology.name))
    check_limits(root, topology.name, dialect, gpu_addresses)
    return root.to_text()


def is_amd(topology: Topology) -> bool:
    """Return whether the machine's library is RCCL."""
    return any(x.kind == "xgmi" for x in topology.links) or any(
        "gcn" in d.extra for d in topology.devices
    )


def choose_gpu_class(topology: Topology) -> str:
    """Return the PCI class for GPUs whose file does not give one."""
    return _AMD_GPU_CLASS if is_amd(topology) else _NVIDIA_GPU_CLASS


def format_speed(generation: int) -> str:
    """Return the speed of a PCIe generation as Linux prints it."""
    return f"{float(PCIE_GTps[generation]):.1f} GT/s PCIe"


class _Writer:
    """Lays one topology out as NCCL's tree."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rank = {name: i for i, name in enumerate(topology.ranks)}
        self.amd = is_amd(topology)
        self.gpu_class = choose_gpu_class(topology)
        self.tree = build_tree(topology)
        self.addresses = assign_addresses(topology, self.tree)
        self.numbers = number_nodes([d for d in topology.devices if d.kind == "cpu"])
        self.nvswitches = [d.id for d in topology.devices if d.family == "nvswitch"]
        self.out: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self.out[link.src].append(link)
        self.pcie = {(x.src, x.dst): x.bandwidth_GBps for x in topology.links if x.kind == "pcie"}
        self.nets = 0
        self.capabilities = Capabilities(topology)

    def build_system(self) -> XmlNode:
        """Return the <system> element; what is below no CPU is put below one that is made up."""
        root = XmlNode("system", {"version": "2" if self.amd else "1"})
        if fits(self.topology.name):
            root.attributes[TOPOPLAN_PREFIX + "name"] = self.topology.name
        if self.nvswitches and self.nvswitches[0] != "nvswitch0":
            root.attributes[TOPOPLAN_PREFIX + "nvswitch"] = self.nvswitches[0]
        for cpu in self.topology.devices:
            if cpu.kind == "cpu":
                root.children.append(self._build_cpu(cpu))
        if self.tree.orphans:
            numa = str(next(iterate_free_numbers(self.numbers.values())))
            made_up = XmlNode(
                "cpu", {"numaid": numa, "arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6"}
            )
            made_up.attributes |= {"modelid": "85", MADE_UP: "1"}
            made_up.children = self._build_below(self.tree.orphans, None)
            root.children.append(made_up)
        return root

    def _build_cpu(self, cpu: Device) -> XmlNode:
        """Return a cpu element with all below it."""
        numa = self.numbers[cpu.id]
        listed = select_attributes("cpu", cpu.extra, "numaid")
        node = XmlNode(
            "cpu", {"numaid": str(numa), **listed, **make_up_cpu(self.topology, cpu, listed)}
        )
        if cpu.id != f"cpu{numa}":
            node.attributes[TOPOPLAN_PREFIX + "id"] = cpu.id
        node.children = self._build_below(self.tree.children[cpu.id], cpu)
        return node

    def _build_below(self, devices: list[Device], parent: Device | None) -> list[XmlNode]:
        """Return the elements of what hangs on one CPU or switch; the ports of one NIC share
        theirs.
        """
        nodes: list[XmlNode] = []
        adapters: dict[str, XmlNode] = {}
        for device in devices:
            bus = self.addresses[device.id]
            if device.kind == "gpu":
                nodes.append(self._build_slot(device, parent, self._build_gpu(device)))
            elif device.kind == "switch":
                nodes.append(self._build_bridge(device, parent))
            elif device.bus_id is None and (parent is None or parent.kind == "cpu"):
                nodes.append(XmlNode("nic", {}, [self._build_net(device)]))
            elif bus in adapters:
                adapters[bus].children.append(self._build_net(device))
            else:
                adapters[bus] = XmlNode("nic", {}, [self._build_net(device)])
                nodes.append(self._build_slot(device, parent, adapters[bus]))
        return nodes

    def _build_slot(self, device: Device, parent: Device | None, child: XmlNode | None) -> XmlNode:
        """Return a device's pci element, with the link that its file told or the one nearest to its
        rate.
        """
        listed = device.extra.get("pci")
        facts = select_attributes("pci", listed) if isinstance(listed, Mapping) else {}
        rate = self.pcie.get((device.id, parent.id)) if parent is not None else None
        fits_rate = ((g, w) for w in PCIE_WIDTHS for g in PCIE_GTps if pcie_GBps(g, w) == rate)
        generation, width = next(fits_rate, _DEFAULT_SLOT)
        listed_class = facts.pop("class", "")
        attributes = {
            "busid": self.addresses[device.id],
            "class": self._choose_class(device, listed_class),
            **facts,
        }
        attributes.setdefault("link_speed", format_speed(generation))
        attributes.setdefault("link_width", str(width))
        node = XmlNode("pci", attributes, [] if child is None else [child])
        if device.bus_id is None or self.addresses[device.id] != device.bus_id.lower():
            node.attributes[MADE_UP] = "bus" if parent is not None else "slot"
        return node

    def _choose_class(self, device: Device, listed: str) -> str:
        """Return the class that was listed, where NCCL takes it for what the device is, else one
        that it does.
        """
        is_gpu_class = listed.startswith(GPU_CLASSES if self.amd else GPU_CLASSES[0])
        if device.kind == "gpu":
            return listed if is_gpu_class else self.gpu_class
        if device.kind == "nic":
            return listed or NIC_CLASS
        leaf = listed.startswith((*GPU_CLASSES, "0x02", NVSWITCH_CLASS, CPU_CLASS))
        return listed if listed and not leaf else BRIDGE_CLASS

    def _build_bridge(self, switch: Device, parent: Device | None) -> XmlNode:
        """Return the pci element of a PCIe switch with all below it."""
        node = self._build_slot(switch, parent, None)
        if switch.id != f"pci-{node.attributes['busid']}":
            node.attributes[TOPOPLAN_PREFIX + "id"] = switch.id
        merged = switch.extra.get("flattened")
        if isinstance(merged, list) and fits(" ".join(map(str, merged))):
            node.attributes[TOPOPLAN_PREFIX + "flattened"] = " ".join(map(str, merged))
        node.children = self._build_below(self.tree.children[switch.id], switch)
        for link in self.out[switch.id]:
            if link.extra.get("element") == "pcilink":
                node.children.append(XmlNode("pcilink", {"target": self.addresses[link.dst]}))
        return node

    def _build_net(self, nic: Device) -> XmlNode:
        """Return the net element of a NIC."""
        facts = select_attributes(
            "net", nic.extra, "net_speed_GBps", "pci", "box", "host", ASSUMED_SPEED, ASSUMED_BY
        )
        node = XmlNode(
            "net",
            {"name": facts.pop("name", nic.id), "dev": facts.pop("dev", str(self.nets)), **facts},
        )
        self.nets += 1
        if "speed" not in facts and (speed := self._estimate_net_GBps(nic)):
            node.attributes["speed"] = str(min(int(speed * 8000), _MOST_Mbps))
        if nic.id != node.attributes["name"]:
            node.attributes[TOPOPLAN_PREFIX + "id"] = nic.id
        return node

    def _estimate_net_GBps(self, nic: Device) -> Fraction:
        """Return a NIC's rate: its own, or else that of its links to networks."""
        listed = nic.extra.get("net_speed_GBps")
        if isinstance(listed, (int, float)) and 0 < listed < _MOST_Mbps:
            return Fraction(listed)
        return sum((x.bandwidth_GBps for x in self.out[nic.id] if x.kind == "network"), Fraction(0))

    def _build_gpu(self, gpu: Device) -> XmlNode:
        """Return the gpu element of a GPU with its NVLinks and the like."""
        facts = select_attributes("gpu", gpu.extra, "rank", "box", "host")
        node = XmlNode(
            "gpu",
            {
                "dev": facts.pop("dev", str(self.rank[gpu.id])),
                "rank": str(self.rank[gpu.id]),
                **facts,
            },
        )
        if "sm" not in node.attributes and not self.amd:
            node.attributes |= self.capabilities.find_attributes(gpu.id)
        if gpu.id != f"gpu{node.attributes['dev']}":
            node.attributes[TOPOPLAN_PREFIX + "id"] = gpu.id
        for link in self.out[gpu.id]:
            if link.count <= _MOST_LINKS:
                node.children += self._build_direct_links(link)
        return node

    def _build_direct_links(self, link: Link) -> Iterator[XmlNode]:
        """Yield elements for a link that leaves a GPU otherwise than by PCI, as far as NCCL knows
        such links.
        """
        peer = self.topology.by_id[link.dst]
        tag = "xgmi" if link.kind == "xgmi" else "nvlink"
        if peer.kind == "cpu" and link.kind == "c2c":
            megabytes = round(link.bandwidth_GBps * 1000 / link.count)
            if megabytes <= _MOST_C2C:
                yield XmlNode("c2c", {"bw": str(megabytes), "count": str(link.count)})
        elif peer.family == "nvswitch" or (peer.kind == "cpu" and link.kind == "nvlink"):
            tclass = NVSWITCH_CLASS if peer.kind == "switch" else CPU_CLASS
            for target, count in _count_targets(link).items():
                yield XmlNode(tag, {"target": target, "count": str(count), "tclass": tclass})
        elif peer.kind == "gpu" and link.kind in ("nvlink", "xgmi", "link"):
            pci = peer.extra.get("pci")
            tclass = self._choose_class(
                peer, str(pci.get("class") or "") if isinstance(pci, Mapping) else ""
            )
            yield XmlNode(
                tag, {"target": self.addresses[peer.id], "count": str(link.count), "tclass": tclass}
            )


def _count_targets(link: Link) -> Mapping[str, int]:
    """Return the addresses that a file named for the links of a GPU into its NVSwitch, and how many
    lead to each.
    """
    listed = link.extra.get("targets")
    counts = listed.values() if isinstance(listed, Mapping) else ()
    usable = isinstance(listed, Mapping) and all(
        isinstance(n, int) and 0 < n <= _MOST_LINKS for n in counts
    )
    return (
        {str(target): count for target, count in listed.items()}
        if listed and usable
        else {_NO_TARGET: link.count}
    )


# -- what NCCL's own elements leave unsaid
# -------------------------------------------------------------------------


def _list_differences(topology: Topology, as_read: Topology) -> Iterator[XmlNode]:
    """Yield the elements that turn what the text says (`as_read`) into `topology`."""
    for device in topology.devices:
        other = as_read.by_id.get(device.id)
        if other is None or _get_compared_fields(other) != _get_compared_fields(device):
            facts = {"id": device.id, "kind": device.kind, "family": device.family or ""}
            facts |= {
                "can_reduce": str(int(device.can_reduce)),
                "can_copy": str(int(device.can_copy)),
            }
            if device.numa_node is not None:
                facts["numa_node"] = str(device.numa_node)
            if device.bus_id:
                facts["bus_id"] = device.bus_id
            yield XmlNode(TOPOPLAN_PREFIX + "device", facts)
    links_of_pair, read_links = _group_links(topology), _group_links(as_read)
    for src, dst in dict.fromkeys((*links_of_pair, *read_links)):
        links = links_of_pair.get((src, dst), [])
        if links == read_links.get((src, dst), []):
            continue
        if not links:
            yield XmlNode(TOPOPLAN_PREFIX + "link", {"src": src, "dst": dst, "GBps": "0"})
        for rate, latency, kind, count in links:
            facts = {
                "src": src,
                "dst": dst,
                "GBps": str(rate),
                "us": str(latency),
                "kind": kind,
                "count": str(count),
            }
            yield XmlNode(TOPOPLAN_PREFIX + "link", facts)


def _get_compared_fields(device: Device) -> tuple[object, ...]:
    """Return the fields of a device that the text must give back."""
    return (
        device.kind,
        device.family,
        device.can_reduce,
        device.can_copy,
        device.numa_node,
        device.bus_id or None,
    )


def _group_links(
    topology: Topology,
) -> dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]]:
    """Return the links from each device to each other one, as comparable rows."""
    links: dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]] = defaultdict(list)
    for x in topology.links:
        links[x.src, x.dst].append((x.bandwidth_GBps, x.latency_us, x.kind, x.count))
    return {pair: sorted(rows) for pair, rows in links.items()}
