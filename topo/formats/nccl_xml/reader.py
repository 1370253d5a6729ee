"""Read NCCL's and RCCL's XML: the tree of CPUs, bridges, GPUs and NICs.

`link_elements` reads the links between GPUs. The rules are those of NCCL's graph/topo.cc: a PCI
link has the speed and width of the element below it, unknown ones count as Gen3 x16; the two levels
of a Broadcom Gen4 or Gen5 switch are one switch; every CPU is joined to every other.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import PurePath

from ...boards import Board
from ...errors import InputError
from ...exact import fraction_to_json
from ...facts.view import WIRES
from ...graph import Device, Link, Topology, both_directions
from ...hardware import ASSUMED_BY, LATENCY_us, LOCAL_GBps, inter_cpu_GBps, pcie_link
from ...notes import assumed, counted, rated
from ..safe_xml import Element, parse_xml
from .link_elements import (
    apply_topoplan_elements,
    note_missing_links,
    read_gpu_links,
    read_pci_links,
)
from .partial_topology import (
    CAPABILITY,
    CPU_ATTRIBUTES,
    CPU_MODEL,
    GPU_CLASSES,
    NVSWITCH_CLASS,
    TOPOPLAN_PREFIX,
    GpuElement,
    PartialTopology,
    TreePosition,
    find_gpu_board,
    get_topoplan_attribute,
    has_class,
    read_attributes,
)

# PCIe has at most 32 lanes; NCCL multiplies any width.
_MAX_WIDTH_lanes = 64
# One petabit per second.
_MAX_Mbps = 10**9
# NCCL's rate for a NIC of unknown speed (ncclTopoAddNet).
_UNSPECIFIED_NET_Mbps = 10_000


def read(text: str, where: str) -> Topology:
    """Read the machine in NCCL's or RCCL's XML.

    `where` names the file, in errors and as the topology's name. Raise InputError if the text is
    not such XML, is cut off, or is a skeleton that lists no GPUs.
    """
    root = parse_system(text, where)
    if has_no_gpus(root):
        raise make_skeleton_error(root)
    return read_system(root)


def parse_system(text: str, where: str) -> Element:
    """Parse XML text and return its outermost element, <system>; `where` names the file in errors.

    Raise InputError if the text is malformed or has another outermost element.
    """
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
    """Return the error for a skeleton that is read without the machine that fills it in."""
    slots = [element for element in root.walk() if element.tag == "pci"]
    gpus = sum(has_class(element, GPU_CLASSES) for element in slots)
    listed = (
        f"{gpus} PCI slots of GPU class but"
        if gpus
        else f"{len(slots)} PCI slots, none of GPU class, and"
    )
    return InputError(
        f"{root.where}: a skeleton: it lists {listed} no <gpu> element, "
        "so neither GPUs nor their links are known; dump a complete file on the machine with "
        "NCCL_TOPO_DUMP_FILE=topo.xml"
    )


def read_system(root: Element, *, has_links: bool = True) -> Topology:
    """Build the topology that a <system> element describes, which must have GPUs.

    If `has_links` is False, the file is one that leaves out links between GPUs, so no note says
    that they are missing. Raise InputError if none of the GPUs is below a CPU, and for bad values.
    """
    where = root.where
    partial = PartialTopology(
        where,
        frozenset(
            (x.get("src") or "", x.get("dst") or "") for x in root.select(TOPOPLAN_PREFIX + "link")
        ),
    )
    version = root.get_integer("version", 1)
    if version not in (1, 2):
        partial.notes.add(
            "system",
            f"unknown version {version}; read as version 1 (NCCL) or 2 (RCCL) would be",
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
    if has_links and not any(link.kind in WIRES for link in crossing):
        note_missing_links(partial, gpus)
    notes = partial.notes.format_lines()
    # topoplan's own elements come last, since they correct all others
    try:
        devices, links = apply_topoplan_elements(root, list(partial.devices.values()), links)
        return Topology(
            name=get_topoplan_attribute(root, "name") or PurePath(where).stem or where,
            devices=tuple(devices),
            links=tuple(links),
            source=f"{'RCCL' if version == 2 else 'NCCL'} XML, version {version}",
            extra={"notes": notes} if notes else {},
        )
    except InputError as error:
        raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None


# -- CPUs ----------------------------------------------------------------------


def _read_tree(partial: PartialTopology, root: Element) -> None:
    """Read all elements below the CPUs.

    With several host hashes there are several hosts, whose names begin with host0/, host1/ ...
    """
    elements = root.select("cpu")
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
    """Add a CPU unless it was made up, and return the position of the elements below it."""
    made_up = get_topoplan_attribute(element, "made_up")
    if made_up and made_up != CPU_MODEL:
        return TreePosition(host, prefix, None, None, None)
    numa: int | None = element.get_integer("numaid", -1, minimum=-1)
    name = f"{prefix}cpu{numa}"
    if numa == -1:
        numa = None
        taken = {f"{prefix}cpu{e.get('numaid')}" for _, _, e in partial.cpus} | set(partial.devices)
        name = next(name for i in count() if (name := f"{prefix}cpu{i}") not in taken)
        partial.notes.add(name, "NUMA node unknown (numaid -1), as virtual machines report it")
    cpu = partial.add(
        get_topoplan_attribute(element, "id") or name,
        kind="cpu",
        numa_node=numa,
        extra=read_attributes(element, "numaid", *(CPU_ATTRIBUTES if made_up else ())),
    )
    partial.cpus.append((cpu.id, host, element))
    return TreePosition(host, prefix, cpu.id, numa, cpu.id)


def _join_cpus(partial: PartialTopology) -> Iterator[Link]:
    for a, host, element in partial.cpus:
        model = [element.get_integer(key, None, -1) for key in ("familyid", "modelid")]
        rate = inter_cpu_GBps(element.get("arch"), element.get("vendor"), *model)
        for b, other_host, _ in partial.cpus:
            if a != b and host == other_host:
                yield Link(
                    a,
                    b,
                    rate,
                    LATENCY_us["smp"],
                    "smp",
                    source=counted("between CPUs", "NCCL"),
                )


# -- PCI -----------------------------------------------------------------------


def _read_pci(partial: PartialTopology, element: Element, position: TreePosition) -> None:
    """Read a pci element and all below it, as GPUs and NICs if it has any, else as a bridge."""
    bus = (element.get("busid") or "").lower()
    if not bus:
        raise element.make_error("has no busid; expected one such as 0000:3b:00.0")
    gpus, nics = element.select("gpu"), element.select("nic")
    for child in gpus:
        _read_gpu(partial, child, element, bus, position)
    for child in nics:
        _read_nic(partial, child, element, position)
    if gpus or nics:
        return
    if element.select("pci") or not has_class(element, (*GPU_CLASSES, "0x02", NVSWITCH_CLASS)):
        _read_bridge(partial, element, bus, position)
    else:
        partial.notes.add(
            f"pci {bus}", f"of class {element.get('class')} without a gpu or nic element; left out"
        )


def _read_bridge(
    partial: PartialTopology, element: Element, bus: str, position: TreePosition
) -> None:
    """Add a PCIe switch with its link upwards, and read the elements below it."""
    children, merged = _flatten_bridge(element)
    if earlier := get_topoplan_attribute(element, "flattened"):
        merged = earlier.split()
    extra = {
        "pci": read_attributes(element, "busid"),
        **({"flattened": merged} if merged else {}),
    }
    made_up = get_topoplan_attribute(element, "made_up")
    switch = partial.add(
        get_topoplan_attribute(element, "id") or f"{position.prefix}pci-{bus}",
        kind="switch",
        family="pcie",
        numa_node=position.numa_node,
        bus_id=None if made_up else bus,
        extra={} if made_up else extra,
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
    """Return the generation, 4 or 5, of a two-level Broadcom switch, 0 for other bridges.

    Such a switch shows up as two levels of bridges, as in graph/topo.cc. Only `level` 1 of a Gen5
    switch differs from level 0 by its ids.
    """
    keys = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    try:
        vendor, device, sub_vendor, sub_device = (int(element.get(k) or "", 16) for k in keys)
    except ValueError:
        return 0
    return {(0x1000, 0xC010, 0x1000, 0xA): 4, (0x1000, 0xC030, 0x1000, level): 5}.get(
        (vendor, device, sub_vendor, sub_device >> 12), 0
    )


def _flatten_bridge(element: Element) -> tuple[list[Element], list[str]]:
    """Return a bridge's children, and the addresses of its second-level bridges.

    The children of the second level replace the bridges of that level.
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
    partial: PartialTopology,
    device: Device,
    pci: Element | None,
    position: TreePosition,
    board: Board | None = None,
) -> None:
    """Add the link from a device to its parent at the rate that NCCL counts; note assumptions.

    A link of 2.5 GT/s above a GPU whose `board` is known was at rest, so it has the board's rate.
    Other slow links keep theirs, and what follows from it holds only if they have it.
    """
    if position.parent is None or (
        pci is not None and get_topoplan_attribute(pci, "made_up") == "slot"
    ):
        return
    if pci is None:
        rate, source = LOCAL_GBps, "no PCI address known; as NCCL counts what limits nothing"
        doubts = [
            "hangs on its CPU without a PCI address; its link counts as unlimited, as in NCCL"
        ]
    else:
        link = pcie_link(
            pci.get("link_speed"), pci.get_integer("link_width", maximum=_MAX_WIDTH_lanes)
        )
        rate, doubts = link.bandwidth_GBps, list(link.assumed)
        source = counted(f"PCIe Gen{link.generation} x{link.width}", "NCCL")
        source = assumed(source) if doubts else source
        is_exact = (device.id, position.parent) in partial.exact_pairs
        if link.generation == 1 and board is not None and not board.c2c_GBps and not is_exact:
            slot = f"Gen{board.pcie.generation} x{board.pcie.width}, by the GPU: {board.name}"
            doubts.append(
                f"PCIe at {link}: a link at rest or a placeholder, which NCCL counts as it stands; "
                f"taken as {slot}"
            )
            rate, source = board.pcie.bandwidth_GBps, assumed(f"a link at rest, taken as {slot}")
        elif link.generation <= 2:
            doubt = "a placeholder of a virtual machine, or read while idle"
            if source.kind == "counted":
                source = rated(f"PCIe at {link}, {doubt}", "NCCL")
            doubts.append(f"PCIe at {link}: {doubt}")
    for doubt in doubts:
        partial.notes.add(device.id, doubt)
    partial.uplinks[device.id] = both_directions(
        Link(device.id, position.parent, rate, LATENCY_us["pcie"], "pcie", source=source)
    )


# -- GPUs and NICs -------------------------------------------------------------


def _read_gpu(
    partial: PartialTopology, element: Element, pci: Element, bus: str, position: TreePosition
) -> None:
    dev = element.get_integer("dev", len(partial.gpus), maximum=10**6) or 0
    made_up = get_topoplan_attribute(pci, "made_up")
    without = ("sm",) if get_topoplan_attribute(element, "made_up") == CAPABILITY else ()
    device = partial.add(
        get_topoplan_attribute(element, "id") or f"{position.prefix}gpu{dev}",
        numa_node=position.numa_node,
        bus_id=None if made_up else bus,
        extra={
            **read_attributes(element, *without),
            **({} if made_up else {"pci": read_attributes(pci, "busid")}),
        },
    )
    same = partial.gpu_by_bus.setdefault((position.host, bus), device.id)
    if same != device.id:
        partial.notes.add(device.id, f"shares the PCI address of {same}")
    rank = element.get_integer("rank", None, -1, 10**6)
    board = find_gpu_board(element, pci)
    partial.gpus.append(GpuElement(device.id, element, bus, position, dev, rank, board))
    _add_uplink(partial, device, pci, position, board)


def _read_nic(
    partial: PartialTopology, element: Element, pci: Element | None, position: TreePosition
) -> None:
    known_pci = None if pci is None or get_topoplan_attribute(pci, "made_up") else pci
    names: list[str] = []
    if not element.select("net"):
        where = "" if pci is None else f" of pci {(pci.get('busid') or '').lower()}"
        partial.notes.add(f"the <nic>{where}", "has no <net> in it; left out")
    for net in element.select("net"):
        name = net.get("name") or f"nic{net.get('dev') or 0}"
        extra = read_attributes(net)
        mbps = net.get_integer("speed", 0, minimum=-(10**9), maximum=_MAX_Mbps) or 0
        if mbps <= 0:
            mbps = _UNSPECIFIED_NET_Mbps
            extra[ASSUMED_BY] = "10 Gb/s, as NCCL takes NICs of unknown speed"
            partial.notes.add(name, f"net speed unknown; taken as {mbps} Mb/s, as NCCL does")
        extra["net_speed_GBps"] = fraction_to_json(Fraction(mbps, 8000))
        if known_pci is not None:
            extra["pci"] = read_attributes(known_pci, "busid")
        device = partial.add(
            get_topoplan_attribute(net, "id") or position.prefix + name,
            kind="nic",
            numa_node=position.numa_node,
            bus_id=None if known_pci is None else (known_pci.get("busid") or "").lower(),
            extra=extra,
        )
        names.append(device.id)
        _add_uplink(partial, device, pci, position)
    if pci is not None:
        partial.notes.add_shared_ports(names)
