"""NCCL's own graph of a host, built from a topology by the rules of its graph/topo.cc.

The graph has the devices and rates that NCCL derives from a machine's PCI tree, CPU models, NVLink
counts and compute capabilities. It ignores the rates of the topology's links, as NCCL never sees
them. Rates are integers in kB/s, in which all of NCCL's constants are exact.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ....topo.extras.nccl_topology import build_elements
from ....topo.extras.nccl_topology.made_up import SKYLAKE
from ....topo.formats.nccl_xml.partial_topology import TOPOPLAN_PREFIX, get_topoplan_attribute
from ....topo.formats.safe_xml import Element
from ....topo.graph import Topology
from ....topo.hardware import nvlink_counted_GBps, pcie_generation
from .constants import (
    LINK_PCI,
    RATES_BY_WIDTH,
    UNKNOWN_RATE,
    UNKNOWN_WIDTH,
    AMD_kBps,
    ARM_kBps,
    INTEL_kBps,
    LOCAL_kBps,
    PathType,
    POWER_kBps,
    UNKNOWN_NET_Mbps,
    YONGFENG_kBps,
    ZHAOXIN_kBps,
    kBps_PER_GBps,
    kBps_PER_Mbps,
    kBps_PER_RATE,
)

# The kinds of nodes. A GPU hangs on its `dev`, which has the links of the hardware.
GPU, DEV, PCI, NVS, CPU, NIC, NET = "gpu", "dev", "pci", "nvs", "cpu", "nic", "net"


# The beginnings of PCI classes with the kind that NCCL takes them for; others are bridges.
_KINDS_OF_CLASS = (
    *(("0x060400", PCI), ("0x080100", PCI), ("0x068000", NVS), ("0x068001", CPU)),
    *(("0x03", GPU), ("0x02", NIC)),
)
# NICs that hang on a CPU are one device to NCCL, on the first such CPU, whatever their CPUs.
_NO_ADDRESS = "no address"
# Marks a switch whose second level the reader merged.
_FLATTENED = TOPOPLAN_PREFIX + "flattened"
# Intel's CPUs of the time of GPUs, by PCIe generation or compute capability (times ten) at least:
# Sapphire Rapids, Ice Lake, Broadwell.
_MODELS_OF_TIME = ((5, 90, 0x8F), (4, 80, 0x6A), (0, 0, 0x4F))


@dataclass(eq=False, slots=True)
class StockLink:
    """A directed link: its type, rate in kB/s, and the node that it leads to."""

    type: PathType
    rate_kBps: int
    end: "StockNode"

    def count_kBps(self, between_cpus: int) -> int:
        """Return the rate with links between CPUs `between_cpus` times as fast."""
        return self.rate_kBps * (between_cpus if self.type == PathType.SYS else 1)


@dataclass(eq=False, slots=True)
class StockNode:
    """A node of NCCL's graph with its links, in the order in which NCCL tries them.

    `kind` is NCCL's ("gpu", "cpu" ...), `index` its number among the nodes of its kind. `address`
    is the PCI address of a GPU, DEV (a GPU's board), PCI or NIC node, `element` the XML element it
    comes from, and `parent` the DEV of a GPU. `rank` is a GPU's rank, `sm` the compute capability
    (times ten) of a DEV.
    """

    kind: str
    index: int
    element: Element
    address: str = ""
    rank: int = -1
    sm: int = 0
    parent: "StockNode | None" = None
    links: list[StockLink] = field(default_factory=list)

    def get(self, key: str) -> str:
        """Return an attribute of the node's XML element, "" if absent."""
        return self.element.attributes.get(key, "")


@dataclass
class StockSystem:
    """The nodes of NCCL's graph of a host by kind, and the root of the XML they were made from."""

    root: Element
    nodes: dict[str, list[StockNode]] = field(
        default_factory=lambda: {kind: [] for kind in (GPU, DEV, PCI, NVS, CPU, NIC, NET)}
    )

    def add(self, kind: str, element: Element, address: str = "") -> StockNode:
        """Add a node of a kind at a PCI address for an XML element, and return it."""
        node = StockNode(kind, len(self.nodes[kind]), element, address)
        self.nodes[kind].append(node)
        return node

    def find(self, kind: str, address: str) -> StockNode | None:
        """Return the first node of a kind at a PCI address, None if there is none."""
        return next((node for node in self.nodes[kind] if node.address == address), None)

    def remove(self, removed: StockNode) -> None:
        """Remove a node and all links to it, and number the other nodes anew."""
        self.nodes[removed.kind].remove(removed)
        for kind in self.nodes.values():
            for index, node in enumerate(kind):
                node.index = index
                node.links = [link for link in node.links if link.end is not removed]

    @property
    def min_sm(self) -> int:
        """The lowest compute capability of the GPUs, times ten."""
        return min(dev.sm for dev in self.nodes[DEV])

    def has_cpu(self, arch: str, vendor: str = "") -> bool:
        """Return whether the first CPU, which NCCL takes for all, is of `arch` and `vendor`."""
        return is_cpu(self.nodes[CPU][0], arch, vendor)


def is_cpu(cpu: StockNode, arch: str, vendor: str = "") -> bool:
    """Return whether a CPU node has the architecture `arch` and, if given, the vendor `vendor`."""
    return cpu.get("arch").startswith(arch) and cpu.get("vendor").startswith(vendor)


def connect(node: StockNode, end: StockNode, kind: PathType, rate_kBps: int) -> None:
    """Add a link of the type `kind` and a rate from `node` to `end`.

    If there is one of that type, add the rate to it. The faster links stay first.
    """
    links = node.links
    at = next((i for i, x in enumerate(links) if x.end is end and x.type == kind), len(links))
    link = links.pop(at) if at < len(links) else StockLink(kind, 0, end)
    link.rate_kBps += rate_kBps
    while at > 0 and links[at - 1].rate_kBps < link.rate_kBps:
        at -= 1
    links.insert(at, link)


def _join(a: StockNode, b: StockNode, kind: PathType, rate_kBps: int) -> None:
    """Connect two nodes in both directions, first from `a`."""
    connect(a, b, kind, rate_kBps)
    connect(b, a, kind, rate_kBps)


def build_system(topology: Topology) -> StockSystem:
    """Return NCCL's graph of a host with GPUs on PCI or NVLink.

    The facts are those that topoplan writes into NCCL's XML; made-up ones are marked there.
    """
    system = StockSystem(build_elements(topology))
    _assume_cpus(system.root, topology)
    for element in system.root.select("cpu"):
        _add_cpu(system, element)
    for element, gpu in list_gpu_elements(system.root):
        _add_nvlinks(system, element, gpu)
    for element, gpu in list_gpu_elements(system.root):
        _add_c2c(system, element, gpu)
    _add_pcilinks(system)
    _flatten_broadcom_switches(system)
    cpus = system.nodes[CPU]
    for cpu in cpus:
        for other in cpus:
            if cpu is not other:
                connect(cpu, other, PathType.SYS, count_between_cpus_kBps(cpu))
    for cpu in cpus:
        _put_uplinks_last(cpu, None)
    return system


def _assume_cpus(root: Element, topology: Topology) -> None:
    """Give CPUs of unknown vendor the model of Intel's CPUs of the time of the GPUs.

    The writer of the XML made up models that fit the rates of links, which NCCL does not know.
    """
    slots = [element for element in root.walk() if element.select("gpu")]
    generation = max(pcie_generation(slot.get("link_speed")) or 0 for slot in slots)
    sms = (
        gpu.get_integer("sm", 0) or 0
        for slot in slots
        for gpu in slot.select("gpu")
        if not get_topoplan_attribute(gpu, "made_up") or gpu.select("nvlink")
    )
    sm = max(sms, default=0)
    model = next(model for g, least, model in _MODELS_OF_TIME if generation >= g or sm >= least)
    devices = (device for device in topology.devices if device.kind == "cpu")
    for device, cpu in zip(devices, root.select("cpu"), strict=False):
        is_made_up = get_topoplan_attribute(cpu, "made_up") and "vendor" not in device.extra
        if is_made_up and cpu.get("arch") == "x86_64":
            cpu.attributes |= {**SKYLAKE, "modelid": str(model)}


# -- the PCI tree ---------------------------------------------------------------


def _add_cpu(system: StockSystem, element: Element) -> None:
    cpu = system.add(CPU, element)
    for child in order_children(element):
        if child.tag == "pci":
            _add_pci(system, child, cpu)
        elif child.tag == "nic":
            nic = system.find(NIC, _NO_ADDRESS)
            if nic is None:
                nic = system.add(NIC, child, _NO_ADDRESS)
                _join(cpu, nic, LINK_PCI, LOCAL_kBps)
            _add_nets(system, child, nic)


def order_children(element: Element) -> list[Element]:
    """Return the child elements in NCCL's order of finding them: by PCI address, NICs last."""
    return sorted(
        element.children,
        key=lambda child: (child.tag != "pci", child.get("busid") or ""),
    )


def _add_pci(system: StockSystem, element: Element, parent: StockNode) -> None:
    """Add a pci element below `parent`, and all below it."""
    address = element.get("busid") or ""
    width = element.get_integer("link_width", 0) or UNKNOWN_WIDTH
    speed = element.attributes.get("link_speed", "")
    by_width = next((r for text, r in RATES_BY_WIDTH if speed.startswith(text)), UNKNOWN_RATE)
    rate_kBps = width * by_width * kBps_PER_RATE
    for gpu in element.select("gpu"):
        dev = system.add(DEV, gpu, address)
        dev.sm = gpu.get_integer("sm", 0) or 0
        _join(dev, parent, LINK_PCI, rate_kBps)
        node = system.add(GPU, gpu, address)
        node.rank, node.parent = gpu.get_integer("rank", 0) or 0, dev
        _join(dev, node, PathType.LOC, LOCAL_kBps)
    pci_class = element.get("class") or ""
    kind = next((k for text, k in _KINDS_OF_CLASS if pci_class.startswith(text)), PCI)
    if nics := element.select("nic"):
        nic = system.find(NIC, address)
        if nic is None:
            nic = system.add(NIC, element, address)
            _join(nic, parent, LINK_PCI, rate_kBps)
        _add_nets(system, nics[0], nic)
    elif kind == PCI:
        switch = system.add(PCI, element, address)
        for child in order_children(element):
            if child.tag == "pci":
                _add_pci(system, child, switch)
        _join(switch, parent, LINK_PCI, rate_kBps)


def _add_nets(system: StockSystem, element: Element, nic: StockNode) -> None:
    for child in element.select("net"):
        if "dev" in child.attributes and child.get("net") != "0":
            net = system.add(NET, child)
            mbps = child.get_integer("speed", 0, minimum=-(10**9)) or 0
            rate_kBps = (mbps if mbps > 0 else UNKNOWN_NET_Mbps) * kBps_PER_Mbps
            _join(nic, net, PathType.NET, rate_kBps)


def count_between_cpus_kBps(cpu: StockNode) -> int:
    """Return the rate from a CPU to another in kB/s, by NCCL's constants."""
    if is_cpu(cpu, "ppc64"):
        return POWER_kBps
    if is_cpu(cpu, "arm64"):
        return ARM_kBps
    model = cpu.element.get_integer("modelid", 0, minimum=-1) or 0
    family = cpu.element.get_integer("familyid", 0, minimum=-1)
    if is_cpu(cpu, "x86_64", "GenuineIntel"):
        number = model if family == 6 else 0
        return next(rate for least, rate in INTEL_kBps if number >= least)
    if is_cpu(cpu, "x86_64", "AuthenticAMD"):
        return AMD_kBps
    if is_cpu(cpu, "x86_64", "CentaurHauls") or is_cpu(cpu, "x86_64", "  Shanghai  "):
        return YONGFENG_kBps if (family, model) == (7, 0x5B) else ZHAOXIN_kBps
    return LOCAL_kBps


# -- links outside the PCI tree -------------------------------------------------


def list_gpu_elements(
    element: Element,
    address: str = "",
    *,
    order: Callable[[Element], Iterable[Element]] = order_children,
) -> Iterator[tuple[Element, str]]:
    """Yield each gpu element with the PCI address above it, in the order of the tree.

    `order` returns the children of an element in that order.
    """
    address = element.get("busid") or address
    for child in order(element):
        if child.tag == "gpu":
            yield child, address
        else:
            yield from list_gpu_elements(child, address, order=order)


def _add_nvlinks(system: StockSystem, element: Element, address: str) -> None:
    dev = system.find(DEV, address)
    for nvlink in element.select("nvlink") if dev else ():
        assert dev is not None
        each_GBps = nvlink_counted_GBps(dev.sm)
        rate_kBps = int((nvlink.get_integer("count", 0) or 0) * each_GBps * kBps_PER_GBps)
        tclass = nvlink.get("tclass") or ""
        kind = next((k for text, k in _KINDS_OF_CLASS if tclass.startswith(text)), PCI)
        if kind == GPU:
            if (target := system.find(DEV, nvlink.get("target") or "")) is not None:
                connect(dev, target, PathType.NVL, rate_kBps)
            continue
        if kind == CPU:
            end = _find_cpu_above(dev, None)
        else:  # all NVSwitches are one
            end = system.nodes[NVS][0] if system.nodes[NVS] else system.add(NVS, nvlink)
        if end is not None:
            _join(dev, end, PathType.NVL, rate_kBps)


def _add_c2c(system: StockSystem, element: Element, address: str) -> None:
    dev = system.find(DEV, address)
    cpu = _find_cpu_above(dev, None) if dev else None
    for c2c in element.select("c2c") if cpu else ():
        assert dev is not None and cpu is not None
        rate_kBps = (c2c.get_integer("bw", 0) or 0) * (c2c.get_integer("count", 0) or 0) * 1000
        _join(dev, cpu, PathType.C2C, rate_kBps)


def _find_cpu_above(node: StockNode, below: StockNode | None) -> StockNode | None:
    """Return the CPU that a node's PCI links lead up to."""
    if node.kind == CPU:
        return node
    for link in node.links:
        if link.type == LINK_PCI and link.end is not below and link.end.kind in (PCI, CPU):
            cpu = _find_cpu_above(link.end, node)
            if cpu is not None:
                return cpu
    return None


def _add_pcilinks(system: StockSystem) -> None:
    for switch in system.nodes[PCI]:
        for element in switch.element.select("pcilink"):
            target = system.find(PCI, element.get("target") or "")
            if target is not None:
                connect(switch, target, PathType.LOC, LOCAL_kBps)


# -- order and flattening --------------------------------------------------------


def _get_broadcom_generation(switch: StockNode, level: int) -> int:
    """Return 4 or 5 for a Broadcom switch that shows itself as two levels of switches, else 0."""
    keys = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    try:
        vendor, device, sub_vendor, sub_device = (int(switch.get(k) or "0", 0) for k in keys)
    except ValueError:
        return 0
    generations = {(0x1000, 0xC010, 0x1000, 0xA): 4, (0x1000, 0xC030, 0x1000, level): 5}
    return generations.get((vendor, device, sub_vendor, sub_device >> 12), 0)


def _flatten_broadcom_switches(system: StockSystem) -> None:
    """Merge the second level of Broadcom switches into the first, unless the reader did so."""
    done = {switch for switch in system.nodes[PCI] if switch.get(_FLATTENED)}
    while switch := next(
        (x for x in system.nodes[PCI] if x not in done and _get_broadcom_generation(x, 0)), None
    ):
        done.add(switch)
        generation = _get_broadcom_generation(switch, 0)
        for sub in [link.end for link in switch.links if link.end.kind == PCI]:
            if sub not in done and _get_broadcom_generation(sub, 1) == generation:
                _merge_switch(system, switch, sub)


def _merge_switch(system: StockSystem, switch: StockNode, sub: StockNode) -> None:
    """Move all links of a switch to the switch above it."""
    for link in sub.links:
        if link.end is not switch:
            switch.links.append(StockLink(link.type, link.rate_kBps, link.end))
            if back := next((x for x in link.end.links if x.end is sub), None):
                back.end = switch
    system.remove(sub)


def _put_uplinks_last(node: StockNode, above: StockNode | None) -> None:
    """Order the links of a PCI tree: those down before the one up."""
    at = next((i for i, link in enumerate(node.links) if link.end is above), None)
    if at is not None:
        node.links.append(node.links.pop(at))
    for link in node.links:
        if link.type == LINK_PCI and link.end is not above:
            _put_uplinks_last(link.end, node)
