"""Reading NCCL's and RCCL's XML: the tree of CPUs, bridges, GPUs and NICs; `link_elements` reads what joins GPUs.

The rules are those of NCCL's graph/topo.cc: a PCI link has the speed and width of the element below it, unknown ones
are taken as Gen3 x16; the two levels of a Broadcom Gen4 or Gen5 switch are one switch; CPUs are joined all to all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import PurePath

from ...errors import InputError
from ...exact import fraction_to_json
from ...graph import Device, Link, Topology, both_ways
from ...hardware import LATENCY_us, LOCAL_GBps, PCIE_GTps, inter_cpu_GBps, pcie_link
from ..safe_xml import Element, parse_xml
from .link_elements import gpu_links, pci_links
from .partial_topology import GPU_CLASSES, NVSWITCH_CLASS, OWN, Draft, Gpu, Place, attributes, has_class, own
from .topoplan_elements import apply_own

_LEAF_CLASSES = (*GPU_CLASSES, "0x02", NVSWITCH_CLASS)
_MAX_LANES = 64
_MAX_Mbps = 10**9
_UNSPECIFIED_NET_Mbps = 10_000
_MANY_GPUS = 4


def read(text: str, where: str) -> Topology:
    """The machine that the XML in `text` describes; `where` names the file, in errors and as the topology's name.

    Raises InputError where the text is no such XML, is cut off, or is a skeleton that lists no GPUs.
    """
    root = system_of(text, where)
    if is_skeleton(root):
        raise refused_skeleton(root)
    return read_system(root)


def system_of(text: str, where: str) -> Element:
    """The <system> element of a text. Raises InputError where it is no such XML."""
    root = parse_xml(text, where)
    if root.tag != "system":
        raise root.error("is not NCCL's topology XML; expected <system> as the outermost element")
    return root


def is_skeleton(root: Element) -> bool:
    """Whether a file lists places for GPUs but no GPU."""
    return not any(element.tag == "gpu" for element in root.walk())


def refused_skeleton(root: Element) -> InputError:
    """What to say of a skeleton where there is no machine to fill it in from."""
    slots = sum(element.tag == "pci" and has_class(element, GPU_CLASSES) for element in root.walk())
    return InputError(
        f"{root.where}: a skeleton: it lists {slots} PCI slots of GPU class but no <gpu> element, so neither GPUs nor "
        "their links are known; dump a whole one on the machine with NCCL_TOPO_DUMP_FILE=topo.xml"
    )


def read_system(root: Element) -> Topology:
    """The machine that a <system> element describes. Raises InputError as `read` does."""
    where = root.where
    told = frozenset((x.get("src") or "", x.get("dst") or "") for x in root if x.tag == OWN + "link")
    draft = Draft(where, told)
    version = root.integer("version", 1)
    if version not in (1, 2):
        draft.notes.add("system", f"version {version} is not known; read as version 1 (NCCL) or 2 (RCCL) would be")
    _read_tree(draft, root)
    if not draft.gpus:
        raise InputError(
            f"{where}: none of its <gpu> elements stands in a <pci> element below a <cpu>; nothing to read"
        )
    gpus = draft.in_rank_order()
    first = [draft.devices.pop(gpu.id) for gpu in gpus]
    draft.devices = {d.id: d for d in (*first, *draft.devices.values())}
    crossing = gpu_links(draft, gpus, own(root, "nvswitch") or "nvswitch0")
    links = [x for name in draft.devices for x in draft.uplinks.get(name, ())]
    links += [*_cpu_links(draft), *crossing, *pci_links(draft)]
    _note_missing_nvlinks(draft, gpus)
    try:
        devices, links = apply_own(root, list(draft.devices.values()), links)
        return Topology(
            name=own(root, "name") or PurePath(where).stem or where,
            devices=tuple(devices),
            links=tuple(links),
            source=f"{'RCCL' if version == 2 else 'NCCL'} XML, version {version}",
            extra={"notes": draft.notes.lines()} if draft.notes.lines() else {},
        )
    except InputError as error:
        raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from None


# -- CPUs ----------------------------------------------------------------------------------------------------------


def _read_tree(draft: Draft, root: Element) -> None:
    elements = [element for element in root if element.tag == "cpu"]
    hashes = list(dict.fromkeys(element.get("host_hash") for element in elements))
    for element in elements:
        host = hashes.index(element.get("host_hash"))
        place = _read_cpu(draft, element, host, f"host{host}/" if len(hashes) > 1 else "")
        for child in element:
            if child.tag == "pci":
                _read_pci(draft, child, place)
            elif child.tag == "nic":
                _read_nic(draft, child, None, place)
            elif not child.tag.startswith(OWN):
                draft.notes.add(f"<{child.tag}>", "not read")


def _read_cpu(draft: Draft, element: Element, host: int, prefix: str) -> Place:
    if own(element, "made_up"):
        return Place(host, prefix, None, None, None)
    numa = element.integer("numaid", -1, least=-1)
    if numa == -1:
        taken = {f"{prefix}cpu{e.get('numaid')}" for _, _, e in draft.cpus} | set(draft.devices)
        name = next(f"{prefix}cpu{i}" for i in range(len(taken) + 1) if f"{prefix}cpu{i}" not in taken)
        draft.notes.add(name, "NUMA node unknown (numaid -1), as virtual machines report it")
    else:
        name = f"{prefix}cpu{numa}"
    numa_node = None if numa == -1 else numa
    extra = attributes(element, "numaid")
    cpu = draft.add(own(element, "id") or name, kind="cpu", numa_node=numa_node, extra=extra)
    draft.cpus.append((cpu.id, host, element))
    return Place(host, prefix, cpu.id, numa_node, cpu.id)


def _cpu_links(draft: Draft) -> Iterator[Link]:
    for a, host, element in draft.cpus:
        family, model = element.integer("familyid", None, -1), element.integer("modelid", None, -1)
        rate = inter_cpu_GBps(element.get("arch"), element.get("vendor"), family, model)
        for b, other_host, _ in draft.cpus:
            if a != b and host == other_host:
                yield Link(a, b, rate, LATENCY_us["smp"], "smp", source="between CPUs, as NCCL counts it")


# -- PCI -----------------------------------------------------------------------------------------------------------


def _read_pci(draft: Draft, element: Element, place: Place) -> None:
    bus = (element.get("busid") or "").lower()
    if not bus:
        raise element.error("has no busid; expected one such as 0000:3b:00.0")
    parts: dict[str, list[Element]] = {}
    for child in element:
        parts.setdefault(child.tag, []).append(child)
    for child in parts.get("gpu", ()):
        _read_gpu(draft, child, element, bus, place)
    for child in parts.get("nic", ()):
        _read_nic(draft, child, element, place)
    if "gpu" in parts or "nic" in parts:
        return
    if "pci" in parts or not has_class(element, _LEAF_CLASSES):
        _read_bridge(draft, element, bus, place)
    else:
        draft.notes.add(f"pci {bus}", f"of class {element.get('class')} without a gpu or nic element; left out")


def _read_bridge(draft: Draft, element: Element, bus: str, place: Place) -> None:
    children, merged = _flattened(element)
    extra: dict[str, object] = {"pci": attributes(element, "busid")}
    if before := own(element, "flattened"):
        merged = before.split()
    if merged:
        extra["flattened"] = merged
    made_up = own(element, "made_up")
    switch = draft.add(
        own(element, "id") or f"{place.prefix}pci-{bus}",
        kind="switch",
        family="pcie",
        numa_node=place.numa_node,
        bus_id=None if made_up else bus,
        extra=extra if not made_up else {},
    )
    for address in (bus, *merged):
        draft.bridge_by_bus.setdefault((place.host, address), switch.id)
    _add_uplink(draft, switch, element, place)
    for child in children:
        if child.tag == "pci":
            _read_pci(draft, child, replace(place, parent=switch.id))
        elif child.tag == "pcilink":
            draft.pcilinks.append((place.host, switch.id, child))


def _broadcom_generation(element: Element, level: int) -> int:
    """4 or 5 for a Broadcom switch that shows itself as two levels (as graph/topo.cc tells them), else 0."""
    ids = [element.get(key) or "" for key in ("vendor", "device", "subsystem_vendor", "subsystem_device")]
    try:
        vendor, device, sub_vendor, sub_device = (int(text, 16) for text in ids)
    except ValueError:
        return 0
    if (vendor, device, sub_vendor, sub_device >> 12) == (0x1000, 0xC010, 0x1000, 0xA):
        return 4
    return 5 if (vendor, device, sub_vendor, sub_device >> 12) == (0x1000, 0xC030, 0x1000, level) else 0


def _flattened(element: Element) -> tuple[list[Element], list[str]]:
    """The children of a bridge, those of its second level among them; and the addresses of that level."""
    generation = _broadcom_generation(element, 0)
    children: list[Element] = []
    merged: list[str] = []
    for child in element:
        if generation and child.tag == "pci" and _broadcom_generation(child, 1) == generation:
            children.extend(child)
            merged.append((child.get("busid") or "").lower())
        else:
            children.append(child)
    return children, merged


def _add_uplink(draft: Draft, device: Device, pci: Element | None, place: Place) -> None:
    if place.parent is None or (pci is not None and own(pci, "made_up") == "slot"):
        return
    if pci is None:
        rate, source = LOCAL_GBps, "no PCI address known; as NCCL counts what limits nothing"
        draft.notes.add(device.id, "hangs on its CPU without a PCI address; its link counts as unlimited, as in NCCL")
    else:
        link = pcie_link(pci.get("link_speed"), pci.integer("link_width", None, most=_MAX_LANES))
        rate, source = link.bandwidth_GBps, f"PCIe Gen{link.generation} x{link.width}, as NCCL counts it"
        for doubt in link.assumed:
            draft.notes.add(device.id, doubt)
        if link.generation <= 2:
            speed = f"{float(PCIE_GTps[link.generation]):g} GT/s x{link.width}"
            draft.notes.add(device.id, f"PCIe at {speed}: a placeholder of a virtual machine, or read while idle")
    up = Link(device.id, place.parent, rate, LATENCY_us["pcie"], "pcie", source=source)
    draft.uplinks[device.id] = both_ways(up)


# -- GPUs and NICs -------------------------------------------------------------------------------------------------


def _read_gpu(draft: Draft, element: Element, pci: Element, bus: str, place: Place) -> None:
    dev = element.integer("dev", len(draft.gpus), most=10**6) or 0
    made_up = own(pci, "made_up")
    extra: dict[str, object] = dict(attributes(element))
    if not made_up:
        extra["pci"] = attributes(pci, "busid")
    device = draft.add(
        own(element, "id") or f"{place.prefix}gpu{dev}",
        numa_node=place.numa_node,
        bus_id=None if made_up else bus,
        extra=extra,
    )
    if (place.host, bus) in draft.gpu_by_bus:
        draft.notes.add(device.id, f"shares the PCI address of {draft.gpu_by_bus[place.host, bus]}")
    draft.gpu_by_bus.setdefault((place.host, bus), device.id)
    draft.gpus.append(Gpu(device.id, element, bus, place, dev, element.integer("rank", None, -1, 10**6)))
    _add_uplink(draft, device, pci, place)


def _read_nic(draft: Draft, element: Element, pci: Element | None, place: Place) -> None:
    nets = [child for child in element if child.tag == "net"]
    names = []
    for net in nets:
        name = net.get("name") or f"nic{net.get('dev') or 0}"
        mbps = net.integer("speed", 0, least=-(10**9), most=_MAX_Mbps) or 0
        if mbps <= 0:
            draft.notes.add(name, f"net speed unknown; taken as {_UNSPECIFIED_NET_Mbps} Mb/s, as NCCL does")
            mbps = _UNSPECIFIED_NET_Mbps
        made_up = pci is None or bool(own(pci, "made_up"))
        extra: dict[str, object] = dict(attributes(net))
        extra["net_speed_GBps"] = fraction_to_json(Fraction(mbps, 8000))
        if pci is not None and not made_up:
            extra["pci"] = attributes(pci, "busid")
        device = draft.add(
            own(net, "id") or place.prefix + name,
            kind="nic",
            numa_node=place.numa_node,
            bus_id=None if pci is None or made_up else (pci.get("busid") or "").lower(),
            extra=extra,
        )
        names.append(device.id)
        _add_uplink(draft, device, pci, place)
    if len(names) > 1 and pci is not None:
        draft.notes.add(
            " and ".join(names), "ports of one adapter: they share one PCI link, though each is given it all"
        )


def _note_missing_nvlinks(draft: Draft, gpus: list[Gpu]) -> None:
    if len(gpus) < _MANY_GPUS or any(child.tag in ("nvlink", "xgmi") for gpu in gpus for child in gpu.element):
        return
    capability = gpus[0].element.get("sm") or ""
    if gpus[0].element.get("gcn") is None and capability in ("60", "70", "80", "90", "100", "103"):
        draft.notes.add(
            f"{len(gpus)} GPUs of sm {capability}",
            "the file has no nvlink elements; if the machine has NVLink (NCCL finds it by itself), it is missing here",
        )
