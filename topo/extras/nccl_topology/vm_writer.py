"""Write files for virtual machines: only the PCI tree, since NCCL finds GPUs, NICs and NVLinks.

NCCL takes the tree and the speeds from the file, and puts each device into the slot with its PCI
address (graph/xml.cc). Inside a virtual machine NCCL would find placeholder speeds, and one of them
above a GPU limits its rings to 0.12 GB/s. Each placeholder is replaced by the speed that the device
is made for, and noted. A slot is the pci element with a device's address, class and link.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from ...boards import find_board, find_by_architecture, find_by_id
from ...errors import InputError
from ...facts import Facts, keys, load_facts
from ...facts.keys import GPU, gpu_subject, net_subject, pci_subject, rdma_subject
from ...facts.view import read_pci_details
from ...formats.safe_xml import Element
from ...graph import Device, Link, Topology
from ...hardware import PCIE_GTps, PcieLink, pcie_generation, pcie_link
from .limits import NCCL, RCCL, check_limits, select_attributes
from .writer import BRIDGE_CLASS, NIC_CLASS, PCIE_WIDTHS, choose_gpu_class, format_speed, is_amd
from .xml_tree import assign_addresses, build_tree, format_xml, normalize_address, number_nodes

_CPU_KEYS = ("affinity", "arch", "vendor", "familyid", "modelid")
_DECLARED = re.compile(r"(\d+(?:\.\d+)? GT/s) x(\d{1,2})")
# No GPU that NCCL or RCCL runs on is made for less than Gen3: lower generations are placeholders or
# were read while idle.
_PLACEHOLDER_GENERATION = 2
# The generation whose 16 lanes carry a NIC of this speed (ConnectX-5, -6 and -7); faster NICs have
# Gen6.
_GENERATION_OF_Gbps: tuple[tuple[int, int], ...] = ((100, 3), (200, 4), (400, 5))

_MAX = re.compile(r"Gen([1-6]) x(\d{1,2})")


def write_for_vm(topology: Topology) -> str:
    """Write a virtual machine's PCI tree as the text of its NCCL_TOPO_FILE.

    XML comments list the replaced and omitted values, as `list_vm_notes` does. Raise InputError if
    there are no GPUs or several hosts, a GPU has no PCI address, or NCCL would not load the file.
    """
    file = _VmFile(topology)
    head = "for NCCL_TOPO_FILE; NCCL finds GPUs, NICs and NVLinks at these addresses by itself"
    return "".join(
        f"<!-- {_escape_comment(line)} -->\n" for line in (head, *file.notes)
    ) + format_xml(file.root)


def list_vm_notes(topology: Topology) -> list[str]:
    """List, a line each, the values that `write_for_vm` replaces or leaves out, with the reasons.

    Raise InputError as `write_for_vm` does.
    """
    return _VmFile(topology).notes


def _escape_comment(line: str) -> str:
    """Return a line that NCCL's parser can skip inside an XML comment."""
    return re.sub("[^ -~]", "?", line).replace("--", "- -").replace("=", " is ").replace("->", "to")


class _VmFile:
    """The elements of the file, and notes on replaced values."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._devices_by_note: dict[str, list[str]] = {}
        _check_writable(topology)
        self.facts = load_facts(topology.extra, topology.name)
        self.index = {
            normalize_address(self.facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)): i
            for i in self.facts.list_names(GPU)
        }
        self.tree = build_tree(topology)
        self.addresses = assign_addresses(topology, self.tree)
        self.gpu_class = choose_gpu_class(topology)
        self.uplinks = {(x.src, x.dst): x for x in topology.links if x.kind in ("pcie", "link")}
        self.switches = {self.addresses[d.id] for d in topology.devices if d.family == "pcie"}
        self.written: set[str] = set()
        self.root = self._build_system()

    @property
    def notes(self) -> list[str]:
        """The replaced and omitted values, one line for all devices with the same note."""
        return [
            " ".join(f"{', '.join(names)}: {what}".split())
            for what, names in self._devices_by_note.items()
        ]

    def _note(self, device: Device, what: str) -> None:
        self._devices_by_note.setdefault(what, []).append(device.id)

    def _build_system(self) -> Element:
        """Build the <system> element.

        Raise InputError if NCCL would not load it.
        """
        amd = is_amd(self.topology)
        root = Element("system", {"version": "2" if amd else "1"})
        cpus = [d for d in self.topology.devices if d.kind == "cpu"]
        numbers = number_nodes(cpus)
        nodes: dict[int, Element] = {}
        for cpu in cpus:
            listed = select_attributes(
                "cpu", cpu.extra, "affinity" if cpu.numa_node is None else ""
            )
            facts = {key: text for key, text in listed.items() if key in _CPU_KEYS}
            for numa, below in self._group_by_numa(cpu, numbers[cpu.id], len(cpus)).items():
                if children := [node for d in below if (node := self._build_element(d, cpu))]:
                    own = Element("cpu", {"numaid": str(numa), **facts})
                    nodes.setdefault(numa, own).children += children
        # orphans come last: they are put below a CPU that is written anyway, if there is one
        self._place_orphans(nodes)
        root.children = [nodes[numa] for numa in sorted(nodes)]
        check_limits(
            root,
            self.topology.name,
            RCCL if amd else NCCL,
            [
                (gpu, normalize_address(self.topology.by_id[gpu].bus_id) or "")
                for gpu in self.topology.ranks
            ],
        )
        return root

    # -- CPUs

    def _group_by_numa(self, cpu: Device, number: int, cpu_count: int) -> dict[int, list[Device]]:
        """Group the devices below a CPU by its NUMA node, or by their own if that is unknown."""
        below = self.tree.children[cpu.id]
        if cpu.numa_node is not None:
            return {number: below}
        groups: dict[int, list[Device]] = defaultdict(list)
        unknown: list[Device] = []
        for device in below:
            numa = self._find_numa(device)
            (unknown if numa is None else groups[numa]).append(device)
        if groups:
            self._note(
                cpu,
                "NUMA node unknown; from what is known of the devices below: "
                + ", ".join(map(str, sorted(groups))),
            )
            groups[min(groups)] += unknown
        elif unknown:
            numa = 0 if cpu_count == 1 else number
            why = "it is the only CPU" if cpu_count == 1 else "the other CPUs are others"
            self._note(cpu, f"NUMA node unknown; written as {numa}, since {why}")
            groups[numa] = unknown
        return groups

    def _find_numa(self, device: Device) -> int | None:
        """Return the NUMA node of a device, for a switch the first known one below.

        None if it is unknown.
        """
        if device.kind == "switch":
            candidates = [self._find_numa(below) for below in self.tree.children[device.id]]
        else:
            address = normalize_address(device.bus_id)
            candidates = [
                device.numa_node,
                self.facts.get_number(pci_subject(address), keys.PCI_NUMA_NODE),
                self.facts.get_number(gpu_subject(self.index.get(address)), keys.GPU_NUMA_NODE),
            ]
        return next((n for n in candidates if n is not None and n >= 0), None)

    def _place_orphans(self, nodes: dict[int, Element]) -> None:
        for device in self.tree.orphans:
            node = self._build_element(device, None)
            if node is None:
                continue
            numa = self._find_numa(device)
            reason = "its NUMA node" if numa is not None else "the first one"
            numa = min(nodes, default=0) if numa is None else numa
            nodes.setdefault(numa, Element("cpu", {"numaid": str(numa)})).children.append(node)
            self._note(device, f"not known what it hangs on; put below CPU {numa}, {reason}")

    # -- PCI

    def _build_element(self, device: Device, parent: Device | None) -> Element | None:
        """Build a device's pci element, None if it needs none.

        Left out are switches without devices, devices without a PCI address or with that of a
        switch, and further ports of an adapter.
        """
        if device.kind == "switch":
            below = [
                node
                for child in self.tree.children[device.id]
                if (node := self._build_element(child, device))
            ]
            if not below:
                return None
            link = self._choose_link(device, parent, lambda: _match_fastest(below))
            return _build_slot(self.addresses[device.id], BRIDGE_CLASS, link, below)
        address = normalize_address(device.bus_id)
        if address is None:
            self._note(device, "no PCI address known; left out, and NCCL puts it where it finds it")
            return None
        if address in self.switches:
            self._note(device, "its PCI address is that of a switch; left out")
            return None
        if address in self.written:
            return None
        self.written.add(address)
        if device.kind == "gpu":
            prefix, usual_class = "0x03", self.gpu_class
            link = self._choose_link(
                device,
                parent,
                lambda: _find_gpu_link(device, self.facts, self.index.get(address)),
            )
        else:
            prefix, usual_class = "0x02", NIC_CLASS
            link = self._choose_link(device, parent, lambda: _find_nic_link(device, self.facts))
        listed_class = str(read_pci_details(device).get("class") or "")
        return _build_slot(
            address, listed_class if listed_class.startswith(prefix) else usual_class, link, []
        )

    def _choose_link(
        self, device: Device, parent: Device | None, estimate: Callable[[], PcieLink]
    ) -> PcieLink:
        """Return the declared link above a device, or `estimate()` for a placeholder."""
        link = self.uplinks.get((device.id, parent.id)) if parent is not None else None
        declared = None if link is None else _read_declared(device, link)
        if link and declared and not _is_placeholder(device, declared):
            rate = link.bandwidth_GBps
            if declared.bandwidth_GBps != rate and "declared" not in link.extra:
                self._note(device, f"{float(rate):g} GB/s is no PCIe rate; written as {declared}")
            return declared
        estimated = estimate()
        was = f"{declared}, a placeholder or read while idle" if declared else "link unknown"
        self._note(device, f"{was}; written as {estimated}, {estimated.assumed[0]}")
        return estimated


def _build_slot(address: str, pci_class: str, link: PcieLink, below: list[Element]) -> Element:
    return Element(
        "pci",
        {
            "busid": address,
            "class": pci_class,
            "link_speed": format_speed(link.generation),
            "link_width": str(link.width),
        },
        below,
    )


def _match_fastest(below: list[Element]) -> PcieLink:
    return PcieLink(
        max(pcie_generation(node.get("link_speed")) or 0 for node in below),
        16,
        ("as the fastest device below",),
    )


def _read_declared(device: Device, link: Link) -> PcieLink | None:
    """Return the declared link, None if it was assumed.

    If only its rate is known, return the PCIe link with the nearest rate; if several are equal, a
    plausible, wide one.
    """
    if link.is_assumed:
        return None
    if match := _DECLARED.fullmatch(str(link.extra.get("declared") or "")):
        declared = pcie_link(match[1], int(match[2]))
        return None if declared.assumed else declared
    pci = read_pci_details(device)
    if "link_speed" in pci or "link_width" in pci:
        width = str(pci.get("link_width") or "")
        listed = pcie_link(
            str(pci.get("link_speed") or ""), int(width) if width.isdecimal() else None
        )
        if listed.bandwidth_GBps == link.bandwidth_GBps:
            return None if listed.assumed else listed
    return min(
        (PcieLink(generation, width) for width in PCIE_WIDTHS for generation in PCIE_GTps),
        key=lambda each: (
            abs(each.bandwidth_GBps - link.bandwidth_GBps),
            each.generation <= _PLACEHOLDER_GENERATION,
        ),
    )


def _is_placeholder(device: Device, declared: PcieLink) -> bool:
    """Return whether a declared speed is too low: a placeholder, or read while idle."""
    is_low = declared.generation <= _PLACEHOLDER_GENERATION
    if device.kind != "nic":
        return is_low
    net = device.extra.get("net_speed_GBps")
    return (declared.generation, declared.width) == (1, 1) or (
        is_low and isinstance(net, (int, float)) and declared.bandwidth_GBps < net
    )


def _check_writable(topology: Topology) -> None:
    """Raise InputError unless the topology is one host whose GPUs have PCI addresses."""
    name = topology.name
    if not topology.ranks:
        raise InputError(
            f"topology {name!r} has no GPUs; a file for NCCL is about GPUs, so there is nothing "
            "to write"
        )
    for gpu in topology.ranks:
        if normalize_address(topology.by_id[gpu].bus_id) is None:
            raise InputError(
                f"topology {name!r}: {gpu!r:.40} has no PCI address, by which NCCL would find it "
                "(presets have none); "
                "write the file on the virtual machine itself, from 'local', or give each GPU its "
                "bus_id in JSON"
            )
    hosts = {
        str(d.extra["host_hash"])
        for d in topology.devices
        if d.kind == "cpu" and d.extra.get("host_hash")
    }
    if len(hosts) > 1:
        raise InputError(
            f"topology {name!r} is of {len(hosts)} hosts; a file for a virtual machine is of one"
        )


# -- what devices are made for


def _find_gpu_link(gpu: Device, facts: Facts, index: str | None) -> PcieLink:
    """Estimate a GPU's link from NVML's facts, its architecture, compute capability or name.

    As in `_find_nic_link`, the link's `assumed` is the reason for the estimate.
    """
    subject = gpu_subject(index)
    by_nvml = [
        (
            facts.get_number(subject, keys.GPU_PCIE_MAX_GENERATION) or 0,
            facts.get_number(subject, keys.GPU_PCIE_MAX_WIDTH) or 0,
        )
    ]
    pcie = gpu.extra.get("pcie")
    if isinstance(pcie, dict) and (match := _MAX.fullmatch(str(pcie.get("max")))):
        by_nvml.append((int(match[1]), int(match[2])))
    for generation, width in by_nvml:
        if _PLACEHOLDER_GENERATION < generation in PCIE_GTps and 1 <= width <= 32:
            return PcieLink(generation, width, ("the GPU's own most, as NVML says",))
    name = str(gpu.extra.get("name") or facts.get_text(subject, keys.GPU_NAME) or "")
    gcn = str(gpu.extra.get("gcn") or "").split(":")[0]
    sm = gpu.extra.get("sm")
    sm = sm if isinstance(sm, int) else facts.get_number(subject, keys.GPU_SM)
    known = find_by_id(str(read_pci_details(gpu).get("device") or "")) or find_board(name)
    what = f"{name or (known.name if known else gcn)} is"
    boards = (known,) if known else find_by_architecture(gcn=gcn) if gcn else ()
    if not boards and sm is not None and not gcn:
        what = f"GPUs of compute capability {sm // 10}.{sm % 10} are"
        boards = find_by_architecture(sm)
    if boards:
        return replace(boards[0].pcie, assumed=(f"what {what} made for",))
    return PcieLink(3, 16, ("as NCCL takes it, since nothing is known of the GPU",))


def _find_nic_link(nic: Device, facts: Facts) -> PcieLink:
    """Estimate the link that a NIC of this speed is made for."""
    speed_GBps = nic.extra.get("net_speed_GBps")
    if isinstance(speed_GBps, (int, float)) and 0 < speed_GBps < 10**6:
        Gbps = Fraction(speed_GBps) * 8
    else:
        Mbps = facts.get_number(rdma_subject(nic.id), keys.RDMA_SPEED_Mbps) or facts.get_number(
            net_subject(nic.id), keys.NET_SPEED_Mbps
        )
        Gbps = Fraction(Mbps or 0, 1000)
    if Gbps <= 0:
        return PcieLink(3, 16, ("as NCCL takes it, since the speed of the NIC is not known",))
    generation = next((g for most, g in _GENERATION_OF_Gbps if Gbps <= most), 6)
    return PcieLink(generation, 16, (f"what a NIC of {float(Gbps):g} Gb/s is made for",))
