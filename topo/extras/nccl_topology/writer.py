"""Write NCCL's XML (or RCCL's, if there are xGMI links or gcn attributes).

The parts of a topology that NCCL understands become NCCL's own elements: the PCI tree, GPUs, NICs,
NVLinks. That text is read back, and wherever it differs from the topology, elements of topoplan's
own are added, whose names begin with `topoplan_` and which NCCL skips.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from ...errors import InputError
from ...facts.view import read_pci_details
from ...formats.nccl_xml.partial_topology import (
    CPU_CLASS,
    GPU_CLASSES,
    NVSWITCH_CLASS,
    TOPOPLAN_PREFIX,
)
from ...formats.nccl_xml.reader import read
from ...formats.safe_xml import Element
from ...graph import Device, Link, Topology
from ...grouping import group_by_key
from ...hardware import ASSUMED_BY, ASSUMED_SPEED, PCIE_GTps, PcieLink, pcie_generation, pcie_link
from .limits import NCCL, RCCL, check_limits, fits, select_attributes
from .made_up import MADE_UP, SKYLAKE, make_up_capability, make_up_cpu, view_machine
from .xml_tree import assign_addresses, build_tree, format_xml, iterate_free_numbers, number_nodes

NIC_CLASS = "0x020000"
BRIDGE_CLASS = "0x060400"
# The address that NCCL writes if it cannot query a target's; it reads this as an NVSwitch.
_NO_TARGET = "fffffff:ff:ff.0"
# Written if the rate of a PCIe link is unknown.
_DEFAULT_SLOT = PcieLink(4, 16)
# Lanes of PCIe links, the widest first: if rates are equal, the widest counts.
PCIE_WIDTHS = (16, 8, 4, 2, 1)
_SLOTS = tuple(PcieLink(generation, width) for width in PCIE_WIDTHS for generation in PCIE_GTps)
# Numbers beyond these are refused when the file is read back.
_MAX_LINKS = 10_000
_MAX_C2C_MBps = 10**9
_MAX_Mbps = 10**9


def write(topology: Topology) -> str:
    """Write the topology as XML text from which `read` restores its devices, links and ranks.

    Raise InputError if there are no GPUs, and if NCCL would not load the text (too large, values
    too long).
    """
    if not topology.ranks:
        raise InputError(
            f"topology {topology.name!r} has no GPUs; NCCL's XML is about GPUs, so there is "
            "nothing to write"
        )
    writer = _XmlWriter(topology)
    root, dialect = writer.build_system(), RCCL if writer.amd else NCCL
    gpu_addresses = [(gpu, writer.addresses[gpu]) for gpu in topology.ranks]
    # limits are checked before reading back, which is slow for large files, and again with the
    # added elements
    check_limits(root, topology.name, dialect, gpu_addresses)
    root.children += _list_differences(topology, read(format_xml(root), topology.name))
    check_limits(root, topology.name, dialect, gpu_addresses)
    return format_xml(root)


def build_elements(topology: Topology) -> Element:
    """Return the topology as NCCL's own elements, without those that topoplan adds.

    It is the outermost element, <system>. Attributes that are made up are marked
    `topoplan_made_up`. Whether NCCL would load a file of this size is not checked.
    """
    return _XmlWriter(topology).build_system()


def is_amd(topology: Topology) -> bool:
    """Return whether the machine's library is RCCL: it has xGMI links or `gcn` fields."""
    return any(x.kind == "xgmi" for x in topology.links) or any(
        "gcn" in d.extra for d in topology.devices
    )


def choose_gpu_class(topology: Topology) -> str:
    """Return the PCI class, such as 0x030200, to write for GPUs for which the topology has none."""
    return "0x038000" if is_amd(topology) else "0x030200"


def format_speed(generation: int) -> str:
    """Return the speed of a PCIe generation as Linux prints it."""
    return f"{float(PCIE_GTps[generation]):.1f} GT/s PCIe"


class _XmlWriter:
    """Writer that lays one topology out as NCCL's tree."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rank = {name: i for i, name in enumerate(topology.ranks)}
        self.amd = is_amd(topology)
        self.gpu_class = choose_gpu_class(topology)
        self.tree = build_tree(topology)
        self.addresses = assign_addresses(topology, self.tree)
        self.numbers = number_nodes([d for d in topology.devices if d.kind == "cpu"])
        self.out = group_by_key((link.src, link) for link in topology.links)
        self.pcie = {(x.src, x.dst): x.bandwidth_GBps for x in topology.links if x.kind == "pcie"}
        self.nets = 0
        self.machine = view_machine(topology)

    def build_system(self) -> Element:
        """Build the <system> element; devices below no CPU are put below a made-up one."""
        root = Element("system", {"version": "2" if self.amd else "1"})
        if fits(self.topology.name):
            root.attributes[TOPOPLAN_PREFIX + "name"] = self.topology.name
        nvswitches = [d.id for d in self.topology.devices if d.family == "nvswitch"]
        if nvswitches and nvswitches[0] != "nvswitch0":
            root.attributes[TOPOPLAN_PREFIX + "nvswitch"] = nvswitches[0]
        root.children = [self._build_cpu(d) for d in self.topology.devices if d.kind == "cpu"]
        if self.tree.orphans:
            numa = str(next(iterate_free_numbers(set(self.numbers.values()))))
            root.children.append(
                Element(
                    "cpu",
                    {"numaid": numa, **SKYLAKE, MADE_UP: "1"},
                    self._build_below(self.tree.orphans, None),
                )
            )
        return root

    def _build_cpu(self, cpu: Device) -> Element:
        numa = self.numbers[cpu.id]
        listed = select_attributes("cpu", cpu.extra, "numaid")
        return Element(
            "cpu",
            {
                "numaid": str(numa),
                **listed,
                **make_up_cpu(self.topology, cpu, listed),
                **_name(cpu.id, f"cpu{numa}"),
            },
            self._build_below(self.tree.children[cpu.id], cpu),
        )

    def _build_below(self, devices: list[Device], parent: Device | None) -> list[Element]:
        """Build the elements below one CPU or switch; the ports of one NIC share an element."""
        nodes: list[Element] = []
        adapters: dict[str, Element] = {}
        for device in devices:
            bus = self.addresses[device.id]
            if device.kind == "gpu":
                nodes.append(self._build_slot(device, parent, self._build_gpu(device)))
            elif device.kind == "switch":
                nodes.append(self._build_bridge(device, parent))
            elif device.bus_id is None and (parent is None or parent.kind == "cpu"):
                nodes.append(Element("nic", {}, [self._build_net(device)]))
            elif bus in adapters:
                adapters[bus].children.append(self._build_net(device))
            else:
                adapters[bus] = Element("nic", {}, [self._build_net(device)])
                nodes.append(self._build_slot(device, parent, adapters[bus]))
        return nodes

    def _build_slot(self, device: Device, parent: Device | None, *children: Element) -> Element:
        """Build a device's pci element with the PCIe link from its file, else one with its rate."""
        facts = select_attributes("pci", read_pci_details(device))
        rate = self.pcie.get((device.id, parent.id)) if parent is not None else None
        slot = _DEFAULT_SLOT if rate is None else _find_slot(rate)
        if rate is not None and _is_unknown(facts) and rate != pcie_link(None, None).bandwidth_GBps:
            facts = {k: v for k, v in facts.items() if k not in ("link_speed", "link_width")}
        address = self.addresses[device.id]
        pci_class = self._choose_class(device, facts.pop("class", ""))
        attributes = {"busid": address, "class": pci_class, **facts}
        attributes.setdefault("link_speed", format_speed(slot.generation))
        attributes.setdefault("link_width", str(slot.width))
        if device.bus_id is None or address != device.bus_id.lower():
            attributes[MADE_UP] = "bus" if parent is not None else "slot"
        return Element("pci", attributes, list(children))

    def _choose_class(self, device: Device, listed: str) -> str:
        """Return the device's listed PCI class if NCCL reads it as the device's kind.

        Otherwise return a class that NCCL reads as that kind.
        """
        if device.kind == "gpu":
            is_gpu = listed.startswith(GPU_CLASSES if self.amd else GPU_CLASSES[:1])
            return listed if is_gpu else self.gpu_class
        if device.kind == "nic":
            return listed or NIC_CLASS
        is_leaf = listed.startswith((*GPU_CLASSES, "0x02", NVSWITCH_CLASS, CPU_CLASS))
        return listed if listed and not is_leaf else BRIDGE_CLASS

    def _build_bridge(self, switch: Device, parent: Device | None) -> Element:
        node = self._build_slot(switch, parent)
        node.attributes |= _name(switch.id, f"pci-{node.attributes['busid']}")
        merged = switch.extra.get("flattened")
        if isinstance(merged, list) and fits(" ".join(map(str, merged))):
            node.attributes[TOPOPLAN_PREFIX + "flattened"] = " ".join(map(str, merged))
        node.children = self._build_below(self.tree.children[switch.id], switch)
        node.children += [
            Element("pcilink", {"target": self.addresses[link.dst]})
            for link in self.out[switch.id]
            if link.extra.get("element") == "pcilink"
        ]
        return node

    def _build_net(self, nic: Device) -> Element:
        facts = select_attributes(
            "net", nic.extra, "net_speed_GBps", "pci", "box", "host", ASSUMED_SPEED, ASSUMED_BY
        )
        name, dev = facts.pop("name", nic.id), facts.pop("dev", str(self.nets))
        self.nets += 1
        if "speed" not in facts and (speed := self._estimate_net_GBps(nic)):
            facts["speed"] = str(min(int(speed * 8000), _MAX_Mbps))
        return Element("net", {"name": name, "dev": dev, **facts, **_name(nic.id, name)})

    def _estimate_net_GBps(self, nic: Device) -> Fraction:
        """Return a NIC's rate in GB/s: its own, else that of its links to networks."""
        listed = nic.extra.get("net_speed_GBps")
        if isinstance(listed, (int, float)) and 0 < listed < _MAX_Mbps:
            return Fraction(listed)
        return sum((x.bandwidth_GBps for x in self.out[nic.id] if x.kind == "network"), Fraction(0))

    def _build_gpu(self, gpu: Device) -> Element:
        facts = select_attributes("gpu", gpu.extra, "rank", "box", "host")
        rank, links = str(self.rank[gpu.id]), self.out[gpu.id]
        dev = facts.pop("dev", rank)
        if "sm" not in facts and not self.amd:
            facts |= make_up_capability(self.machine, gpu.id, links)
        return Element(
            "gpu",
            {"dev": dev, "rank": rank, **facts, **_name(gpu.id, f"gpu{dev}")},
            [element for link in links for element in self._build_direct_links(link)],
        )

    def _build_direct_links(self, link: Link) -> Iterator[Element]:
        """Yield the elements of a GPU's link other than PCI, nothing if NCCL has no such links."""
        peer = self.topology.by_id[link.dst]
        if link.count > _MAX_LINKS:
            return
        if peer.kind == "cpu" and link.kind == "c2c":
            rate_MBps = round(link.bandwidth_GBps * 1000 / link.count)
            if rate_MBps <= _MAX_C2C_MBps:
                yield Element("c2c", {"bw": str(rate_MBps), "count": str(link.count)})
            return
        counts: Mapping[str, int] = {}
        if peer.family == "nvswitch" or (peer.kind == "cpu" and link.kind == "nvlink"):
            tclass = NVSWITCH_CLASS if peer.kind == "switch" else CPU_CLASS
            counts = _count_targets(link)
        elif peer.kind == "gpu" and link.kind in ("nvlink", "xgmi", "link"):
            tclass = self._choose_class(peer, str(read_pci_details(peer).get("class") or ""))
            counts = {self.addresses[peer.id]: link.count}
        for target, count in counts.items():
            yield Element(
                "xgmi" if link.kind == "xgmi" else "nvlink",
                {"target": target, "count": str(count), "tclass": tclass},
            )


def _is_unknown(facts: Mapping[str, str]) -> bool:
    """Return whether a PCI element gives neither a speed nor a width that NCCL can read."""
    has_width = facts.get("link_width", "0") not in ("", "0")
    return pcie_generation(facts.get("link_speed")) is None and not has_width


def _find_slot(rate_GBps: Fraction) -> PcieLink:
    """Return the PCIe link nearest to a rate that is not above it, the slowest if all are.

    A measured or stated rate is mostly none of NCCL's. A faster link would make NCCL's model
    promise more than there is; `_list_differences` keeps the exact rate for topoplan.
    """
    fitting = [slot for slot in _SLOTS if slot.bandwidth_GBps <= rate_GBps]
    if not fitting:
        return min(_SLOTS, key=lambda slot: slot.bandwidth_GBps)
    return max(fitting, key=lambda slot: slot.bandwidth_GBps)  # of equal ones, the widest


def _name(ident: str, implied: str) -> dict[str, str]:
    """Return the attribute with a device's id, none if the reader gives it that name anyway."""
    return {} if ident == implied else {TOPOPLAN_PREFIX + "id": ident}


def _count_targets(link: Link) -> Mapping[str, int]:
    """Return the number of links into an NVSwitch for each address that the file lists."""
    listed = link.extra.get("targets")
    counts = listed if isinstance(listed, Mapping) else {}
    if counts and all(isinstance(n, int) and 0 < n <= _MAX_LINKS for n in counts.values()):
        return {str(target): count for target, count in counts.items()}
    return {_NO_TARGET: link.count}


# -- properties that NCCL's own elements cannot express -------------------------


def _list_differences(topology: Topology, as_read: Topology) -> Iterator[Element]:
    """Yield the elements that correct the text, read back as `as_read`, to `topology`."""
    for device in topology.devices:
        other = as_read.by_id.get(device.id)
        fields = _get_written_fields(device)
        if other is None or _get_written_fields(other) != fields:
            yield Element(TOPOPLAN_PREFIX + "device", {"id": device.id, **fields})
    links_of_pair, read_links = _group_links(topology), _group_links(as_read)
    for src, dst in dict.fromkeys((*links_of_pair, *read_links)):
        links = links_of_pair.get((src, dst), [])
        if links == read_links.get((src, dst), []):
            continue
        ends = {"src": src, "dst": dst}
        if not links:
            yield Element(TOPOPLAN_PREFIX + "link", {**ends, "GBps": "0"})
        for rate, latency, kind, count in links:
            fields = {"GBps": str(rate), "us": str(latency), "kind": kind, "count": str(count)}
            yield Element(TOPOPLAN_PREFIX + "link", {**ends, **fields})


def _get_written_fields(device: Device) -> dict[str, str]:
    optional = {"numa_node": device.numa_node, "bus_id": device.bus_id or None}
    return {
        "kind": device.kind,
        "family": device.family or "",
        "can_reduce": str(int(device.can_reduce)),
        "can_copy": str(int(device.can_copy)),
        **{key: str(value) for key, value in optional.items() if value is not None},
    }


def _group_links(
    topology: Topology,
) -> dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]]:
    """Return the links from each device to each other device, as comparable rows.

    A row is (GB/s, microseconds of latency, kind, count).
    """
    links = group_by_key(
        ((x.src, x.dst), (x.bandwidth_GBps, x.latency_us, x.kind, x.count)) for x in topology.links
    )
    return {pair: sorted(rows) for pair, rows in links.items()}
