"""Read NCCL's and RCCL's XML: the tree of CPUs, bridges, GPUs and NICs; `link_elements` reads what
joins GPUs.

The rules are those of NCCL's graph/topo.cc: a PCI link has the speed and width of the element below
it, unknown ones are taken as Gen3 x16; the two levels of a Broadcom Gen4 or Gen5 switch are one
switch; CPUs are joined all to all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import PurePath

from ...errors import InputError
from ...exact import fraction_to_json
from ...graph import Device, Link, Topology, both_ways
from ...hardware import ASSUMED_BY, LATENCY_us, LOCAL_GBps, PCIE_GTps, inter_cpu_GBps, pcie_link
from ...notes import assumed, counted
from ..safe_xml import Element, parse_xml
from .link_elements import read_gpu_links, read_pci_links
from .made_up import CAPABILITY, CPU_ATTRIBUTES, CPU_MODEL
from .partial_topology import (
    GPU_CLASSES,
    NVSWITCH_CLASS,
    TOPOPLAN_PREFIX,
    GpuElement,
    PartialTopology,
    TreePosition,
    get_topoplan_attribute,
    has_class,
    read_attributes,
)
from .topoplan_elements import apply_topoplan_elements

_LEAF_CLASSES = (*GPU_CLASSES, "0x02", NVSWITCH_CLASS)
_MAX_LANES = 64
_MAX_Mbps = 10**9
_UNSPECIFIED_NET_Mbps = 10_000
_MANY_GPUS = 4


def read(text: str, where: str) -> Topology:
    """Return the machine that the XML in `text` describes; `where` names the file, in errors and as
    the topology's name.

    Raises InputError where the text is no such XML, is cut off, or is a skeleton that lists no
    GPUs.
    """
    root = parse_system(text, where)
    if has_no_gpus(root):
        raise make_skeleton_error(root)
    return read_system(root)


def parse_system(text: str, where: str) -> Element:
    """Return the <system> element of a text. Raises InputError where there is none."""
    root = parse_xml(text, where)
    if root.tag != "system":
        raise root.make_error(
            "is not NCCL's topology XML; expected <system> as the outermost element"
        )
    return root


def has_no_gpus(root: Element) -> bool:
    """Return whether a file is a skeleton: it lists PCI slots, but no GPU."""
    return not any(element.tag == "gpu" for element in root.walk())


def make_skeleton_error(root: Element) -> InputError:
    """Return the error for a skeleton where there is no machine to fill it in from."""
    slots = sum(element.tag == "pci" and has_class(element, GPU_CLASSES) for element in root.walk())
    return InputError(
        f"{root.where}: a skeleton: it lists {slots} PCI slots of GPU class but no <gpu> element, "
        "so neither GPUs nor "
        "their links are known; dump a whole one on the machine with NCCL_TOPO_DUMP_FILE=topo.xml"
    )


def read_system(root: Element) -> Topology:
    """Return the machine that a <system> element describes. Raises InputError as `read` does."""
    where = root.where
    exact_pairs = frozenset(
        (x.get("src") or "", x.get("dst") or "") for x in root if x.tag == TOPOPLAN_PREFIX + "link"
    )
    partial = PartialTopology(where, exact_pairs)
    version = root.get_integer("version", 1)
    if version not in (1, 2):
        partial.notes.add(
            "system",
            f"version {version} is not known; read as version 1 (NCCL) or 2 (RCCL) would be",
        )
    _read_tree(partial, root)
    if not partial.gpus:
        raise InputError(
            f"{where}: none of its <gpu> elements stands in a <pci> element below a <cpu>; "
            "nothing to read"
        )
    # ranks are the GPUs in their order among the devices, so they come first
    gpus = partial.sort_gpus()
    gpu_devices = [partial.devices.pop(gpu.id) for gpu in gpus]
    partial.devices = {d.id: d for d in (*gpu_devices, *partial.devices.values())}
    crossing = read_gpu_links(
        partial, gpus, get_topoplan_attribute(root, "nvswitch") or "nvswitch0"
    )
    links = [x for name in partial.devices for x in partial.uplinks.get(name, ())]
    links += [*_join_cpus(partial), *crossing, *read_pci_links(partial)]
    _note_missing_nvlinks(partial, gpus)
    # topoplan's own elements come last: they correct what all the others say
    try:
        devices, links = apply_topoplan_elements(root, list(partial.devices.values()), links)
        return Topology(
            name=get_topoplan_attribute(root, "name") or PurePath(where).stem or where,
            devices=tuple(devices),
            links=tuple(links),
            source=f"{'RCCL' if version == 2 else 'NCCL'} XML, version {version}",
            extra={"notes": partial.notes.format_lines()} if partial.notes.format_lines() else {},
        )
    except InputError as error:
        raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None


# -- CPUs
# ----------------------------------------------------------------------------------------------------------


def _read_tree(partial: PartialTopology, root: Element) -> None:
    """Read everything below the CPUs; several host hashes make several hosts, whose names begin
    with host0/, host1/ ...
    """
    elements = [element for element in root if element.tag == "cpu"]
    hashes = list(dict.fromkeys(element.get("host_hash") for element in elements))
    for element in elements:
        host = hashes.index(element.get("host_hash"))
        position = _read_cpu(partial, element, host, f"host{host}/" if len(hashes) > 1 else "")
        for child in element:
            if child.tag == "pci":
                _read_pci(partial, child, position)
            elif child.tag == "nic":
                _read_nic(partial, child, None, position)
            elif not child.tag.startswith(TOPOPLAN_PREFIX):
                partial.notes.add(f"<{child.tag}>", "not read")


def _read_cpu(partial: PartialTopology, element: Element, host: int, prefix: str) -> TreePosition:
    """Add the CPU of an element, unless it was made up, and return the position of what is below
    it.
    """
    made_up = get_topoplan_attribute(element, "made_up")
    if made_up and made_up != CPU_MODEL:
        return TreePosition(host, prefix, None, None, None)
    numa = element.get_integer("numaid", -1, least=-1)
    if numa == -1:
        taken = {f"{prefix}cpu{e.get('numaid')}" for _, _, e in partial.cpus} | set(partial.devices)
        name = next(
            f"{prefix}cpu{i}" for i in range(len(taken) + 1) if f"{prefix}cpu{i}" not in taken
        )
        partial.notes.add(name, "NUMA node unknown (numaid -1), as virtual machines report it")
    else:
        name = f"{prefix}cpu{numa}"
    numa_node = None if numa == -1 else numa
    extra = read_attributes(element, "numaid", *(CPU_ATTRIBUTES if made_up else ()))
    cpu = partial.add(
        get_topoplan_attribute(element, "id") or name, kind="cpu", numa_node=numa_node, extra=extra
    )
    partial.cpus.append((cpu.id, host, element))
    return TreePosition(host, prefix, cpu.id, numa_node, cpu.id)


def _join_cpus(partial: PartialTopology) -> Iterator[Link]:
    """Yield a link from each CPU to each other one of its host."""
    for a, host, element in partial.cpus:
        family, model = (
            element.get_integer("familyid", None, -1),
            element.get_integer("modelid", None, -1),
        )
        rate = inter_cpu_GBps(element.get("arch"), element.get("vendor"), family, model)
        for b, other_host, _ in partial.cpus:
            if a != b and host == other_host:
                yield Link(
                    a, b, rate, LATENCY_us["smp"], "smp", source=counted("between CPUs", "NCCL")
                )


# -- PCI
# -----------------------------------------------------------------------------------------------------------


def _read_pci(partial: PartialTopology, element: Element, position: TreePosition) -> None:
    """Read a pci element and everything below it: GPUs and NICs where it has any, else a bridge."""
    bus = (element.get("busid") or "").lower()
    if not bus:
        raise element.make_error("has no busid; expected one such as 0000:3b:00.0")
    children_by_tag: dict[str, list[Element]] = {}
    for child in element:
        children_by_tag.setdefault(child.tag, []).append(child)
    for child in children_by_tag.get("gpu", ()):
        _read_gpu(partial, child, element, bus, position)
    for child in children_by_tag.get("nic", ()):
        _read_nic(partial, child, element, position)
    if "gpu" in children_by_tag or "nic" in children_by_tag:
        return
    if "pci" in children_by_tag or not has_class(element, _LEAF_CLASSES):
        _read_bridge(partial, element, bus, position)
    else:
        partial.notes.add(
            f"pci {bus}", f"of class {element.get('class')} without a gpu or nic element; left out"
        )


def _read_bridge(
    partial: PartialTopology, element: Element, bus: str, position: TreePosition
) -> None:
    """Add a PCIe switch with its link upwards, and read what is below it."""
    children, merged = _flatten_bridge(element)
    extra: dict[str, object] = {"pci": read_attributes(element, "busid")}
    if earlier := get_topoplan_attribute(element, "flattened"):
        merged = earlier.split()
    if merged:
        extra["flattened"] = merged
    made_up = get_topoplan_attribute(element, "made_up")
    switch = partial.add(
        get_topoplan_attribute(element, "id") or f"{position.prefix}pci-{bus}",
        kind="switch",
        family="pcie",
        numa_node=position.numa_node,
        bus_id=None if made_up else bus,
        extra=extra if not made_up else {},
    )
    for address in (bus, *merged):
        partial.bridge_by_bus.setdefault((position.host, address), switch.id)
    _add_uplink(partial, switch, element, position)
    for child in children:
        if child.tag == "pci":
            _read_pci(partial, child, replace(position, parent=switch.id))
        elif child.tag == "pcilink":
            partial.pcilinks.append((position.host, switch.id, child))


def _get_broadcom_generation(element: Element, level: int) -> int:
    """Return 4 or 5 for a Broadcom switch that shows itself as two levels (as graph/topo.cc tells
    them), else 0.
    """
    ids = [
        element.get(key) or ""
        for key in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ]
    try:
        vendor, device, sub_vendor, sub_device = (int(text, 16) for text in ids)
    except ValueError:
        return 0
    if (vendor, device, sub_vendor, sub_device >> 12) == (0x1000, 0xC010, 0x1000, 0xA):
        return 4
    return (
        5
        if (vendor, device, sub_vendor, sub_device >> 12) == (0x1000, 0xC030, 0x1000, level)
        else 0
    )


def _flatten_bridge(element: Element) -> tuple[list[Element], list[str]]:
    """Return a bridge's children, those of its second level among them, and the addresses of that
    level.
    """
    generation = _get_broadcom_generation(element, 0)
    children: list[Element] = []
    merged: list[str] = []
    for child in element:
        if generation and child.tag == "pci" and _get_broadcom_generation(child, 1) == generation:
            children.extend(child)
            merged.append((child.get("busid") or "").lower())
        else:
            children.append(child)
    return children, merged


def _add_uplink(
    partial: PartialTopology, device: Device, pci: Element | None, position: TreePosition
) -> None:
    """Add the link from a device to what it hangs on, at the rate that NCCL counts; note what is
    assumed.
    """
    if position.parent is None or (
        pci is not None and get_topoplan_attribute(pci, "made_up") == "slot"
    ):
        return
    if pci is None:
        rate, source = LOCAL_GBps, "no PCI address known; as NCCL counts what limits nothing"
        partial.notes.add(
            device.id,
            "hangs on its CPU without a PCI address; its link counts as unlimited, as in NCCL",
        )
    else:
        link = pcie_link(
            pci.get("link_speed"), pci.get_integer("link_width", None, most=_MAX_LANES)
        )
        rate, source = (
            link.bandwidth_GBps,
            counted(f"PCIe Gen{link.generation} x{link.width}", "NCCL"),
        )
        if link.assumed:
            source = assumed(source)
        for doubt in link.assumed:
            partial.notes.add(device.id, doubt)
        if link.generation <= 2:
            speed = f"{float(PCIE_GTps[link.generation]):g} GT/s x{link.width}"
            partial.notes.add(
                device.id,
                f"PCIe at {speed}: a placeholder of a virtual machine, or read while idle",
            )
    up = Link(device.id, position.parent, rate, LATENCY_us["pcie"], "pcie", source=source)
    partial.uplinks[device.id] = both_ways(up)


# -- GPUs and NICs
# -------------------------------------------------------------------------------------------------


def _read_gpu(
    partial: PartialTopology, element: Element, pci: Element, bus: str, position: TreePosition
) -> None:
    """Add the GPU of a gpu element in a pci element at address `bus`."""
    dev = element.get_integer("dev", len(partial.gpus), most=10**6) or 0
    made_up = get_topoplan_attribute(pci, "made_up")
    without_sm = ("sm",) if get_topoplan_attribute(element, "made_up") == CAPABILITY else ()
    extra: dict[str, object] = dict(read_attributes(element, *without_sm))
    if not made_up:
        extra["pci"] = read_attributes(pci, "busid")
    device = partial.add(
        get_topoplan_attribute(element, "id") or f"{position.prefix}gpu{dev}",
        numa_node=position.numa_node,
        bus_id=None if made_up else bus,
        extra=extra,
    )
    if (position.host, bus) in partial.gpu_by_bus:
        partial.notes.add(
            device.id, f"shares the PCI address of {partial.gpu_by_bus[position.host, bus]}"
        )
    partial.gpu_by_bus.setdefault((position.host, bus), device.id)
    partial.gpus.append(
        GpuElement(
            device.id, element, bus, position, dev, element.get_integer("rank", None, -1, 10**6)
        )
    )
    _add_uplink(partial, device, pci, position)


def _read_nic(
    partial: PartialTopology, element: Element, pci: Element | None, position: TreePosition
) -> None:
    """Add a NIC for each net element below a nic element."""
    nets = [child for child in element if child.tag == "net"]
    names = []
    for net in nets:
        name = net.get("name") or f"nic{net.get('dev') or 0}"
        assumed: dict[str, object] = {}
        mbps = net.get_integer("speed", 0, least=-(10**9), most=_MAX_Mbps) or 0
        if mbps <= 0:
            partial.notes.add(
                name, f"net speed unknown; taken as {_UNSPECIFIED_NET_Mbps} Mb/s, as NCCL does"
            )
            mbps = _UNSPECIFIED_NET_Mbps
            assumed = {ASSUMED_BY: "10 Gb/s, as NCCL takes NICs of unknown speed"}
        made_up = pci is None or bool(get_topoplan_attribute(pci, "made_up"))
        extra: dict[str, object] = dict(read_attributes(net))
        extra |= {"net_speed_GBps": fraction_to_json(Fraction(mbps, 8000)), **assumed}
        if pci is not None and not made_up:
            extra["pci"] = read_attributes(pci, "busid")
        device = partial.add(
            get_topoplan_attribute(net, "id") or position.prefix + name,
            kind="nic",
            numa_node=position.numa_node,
            bus_id=None if pci is None or made_up else (pci.get("busid") or "").lower(),
            extra=extra,
        )
        names.append(device.id)
        _add_uplink(partial, device, pci, position)
    if pci is not None:
        partial.notes.add_shared_ports(names)


def _note_missing_nvlinks(partial: PartialTopology, gpus: list[GpuElement]) -> None:
    """Note it where GPUs of a kind that comes with NVLink have no nvlink elements."""
    if len(gpus) < _MANY_GPUS or any(
        child.tag in ("nvlink", "xgmi") for gpu in gpus for child in gpu.element
    ):
        return
    capability = gpus[0].element.get("sm") or ""
    if gpus[0].element.get("gcn") is None and capability in ("60", "70", "80", "90", "100", "103"):
        partial.notes.add(
            f"{len(gpus)} GPUs of sm {capability}",
            "the file has no nvlink elements; if the machine has NVLink (NCCL finds it by "
            "itself), it is missing here",
            kind="no-nvlink-elements",
        )
