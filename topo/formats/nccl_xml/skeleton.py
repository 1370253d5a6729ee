"""Skeletons: files that list PCI places but no GPUs, filled in from the machine at hand as NCCL does it.

Providers of virtual machines hand out such files, since the PCI tree inside one is not the real one. The tree, the
CPUs, NUMA nodes and PCI speeds are the file's; what stands in the places, and NVLink, is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import InputError
from ...graph import Device, Link, Topology, both_ways
from ...hardware import LATENCY_us, inter_cpu_GBps
from ..notes import Notes
from ..safe_xml import Element
from .partial_topology import GPU_CLASSES, OWN, has_class
from .reader import is_skeleton as _is_skeleton
from .reader import read_system, refused_skeleton, system_of
from .xml_tree import normal_address, tree_of

_NAMED = 3
_TREE_KINDS = ("pcie", "smp")


def is_skeleton(text: str) -> bool:
    """Whether a text is NCCL's XML without a single GPU in it, which `read` refuses and `fill_skeleton` takes."""
    try:
        return _is_skeleton(system_of(text, "text"))
    except InputError:
        return False


def fill_skeleton(text: str, where: str, live: Topology) -> Topology:
    """The machine `live`, as probed, in the PCI tree of the skeleton in `text`; `where` names the file in errors.

    GPUs and NICs stand at the place with their PCI address. Those that have none stand as probed; places without a
    device are left out; both are noted. Ranks and NVLinks are those of `live`.

    Raises InputError where `live` has no GPUs, where no place is one of theirs, and where the text is no skeleton.
    """
    root = system_of(text, where)
    if not _is_skeleton(root):
        raise InputError(f"{where}: lists its GPUs by itself, so there is nothing to fill in; read it as it is")
    if not live.ranks:
        raise refused_skeleton(root)
    notes = Notes()
    _put_gpus(root, live, notes)
    _put_nics(root, live, notes)
    _prune(root, notes)
    read = read_system(root)
    return _Joined(read, live, notes).topology()


# -- devices into their places -------------------------------------------------------------------------------------


def _places(root: Element) -> dict[str, Element]:
    """The element at each PCI address; bridges are no places. The first counts, as in NCCL."""
    places: dict[str, Element] = {}
    for element in root.walk():
        address = normal_address(element.get("busid")) if element.tag == "pci" else None
        if address and not any(child.tag == "pci" for child in element):
            places.setdefault(address, element)
    return places


def _put_gpus(root: Element, live: Topology, notes: Notes) -> None:
    places = _places(root)
    found = 0
    for rank, name in enumerate(live.ranks):
        place = places.get(normal_address(live.by_id[name].bus_id) or "")
        if place is None:
            continue
        found += 1
        _note_spelling(place, notes)
        facts = {"dev": str(rank), "rank": str(rank), OWN + "id": name}
        place.children.append(Element("gpu", facts, place.where, place.line))
    if found:
        return
    listed = [normal_address(e.get("busid")) or "" for e in root.walk() if e.tag == "pci" and has_class(e, GPU_CLASSES)]
    here = [live.by_id[name].bus_id or "unknown" for name in live.ranks]
    raise InputError(
        f"{root.where}: a skeleton for another machine: its GPU slots are at {_few(listed)}, the GPUs here at "
        f"{_few(here)}; run this on the machine it is for, or dump a whole file here with NCCL_TOPO_DUMP_FILE=topo.xml"
    )


def _few(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "") if names else "no address"


def _note_spelling(place: Element, notes: Notes) -> None:
    text = place.get("busid") or ""
    if text != normal_address(text):
        notes.add(text, "NCCL compares addresses letter by letter and would not find it; write it in full and small")


def _put_nics(root: Element, live: Topology, notes: Notes) -> None:
    """NICs that the file names stay where it has them, as in NCCL; others go to their address."""
    nics = {d.id: d for d in live.devices if d.kind == "nic"}
    named: set[str] = set()
    for nic in [element for element in root.walk() if element.tag == "nic"]:
        for net in [child for child in nic if child.tag == "net"]:
            name = net.get("name") or ""
            if name in nics and name not in named:
                named.add(name)
                net.attributes = {**net.attributes, OWN + "id": name}
            else:
                nic.children.remove(net)
                notes.add(name or "a net without a name", "a NIC of the file that this machine does not have; left out")
    places = _places(root)
    for number, device in enumerate(nics.values()):
        place = places.get(normal_address(device.bus_id) or "")
        if device.id in named or place is None or any(child.tag == "gpu" for child in place):
            continue
        _note_spelling(place, notes)
        facts = {"name": device.id, "dev": str(number), OWN + "id": device.id, **_speed(device)}
        net = Element("net", facts, place.where, place.line)
        port = next((child for child in place if child.tag == "nic"), None)
        if port is None:
            place.children.append(Element("nic", {}, place.where, place.line, [net]))
        else:
            port.children.append(net)


def _speed(nic: Device) -> dict[str, str]:
    GBps = nic.extra.get("net_speed_GBps")
    return {"speed": str(round(GBps * 8000))} if isinstance(GBps, (int, float)) and 0 < GBps < 10_000 else {}


def _prune(element: Element, notes: Notes) -> bool:
    """Drop places without a device and bridges with nothing below, as NCCL does; whether something is left."""
    if element.tag in ("gpu", "net"):
        return True
    kept = []
    for child in element.children:
        if child.tag not in ("pci", "nic") or _prune(child, notes):
            kept.append(child)
        elif has_class(child, (*GPU_CLASSES, "0x02")):
            kind = "GPU" if has_class(child, GPU_CLASSES) else "NIC"
            notes.add(child.get("busid") or "", f"a place for a {kind} that this machine does not have; left out")
    element.children = kept
    if element.tag in ("system", "cpu"):
        for child in kept:
            if child.tag == "cpu":
                _prune(child, notes)
        return True
    return any(child.tag in ("pci", "nic", "gpu", "net") for child in kept)


# -- the machine's facts and links -----------------------------------------------------------------------------------


class _Joined:
    """The tree of the file with the devices of the machine."""

    def __init__(self, told: Topology, live: Topology, notes: Notes) -> None:
        self.told, self.live, self.notes = told, live, notes
        self.devices = {d.id: self._device(d) for d in told.devices}
        self.links = list(told.links)
        self.tree = {d.id: up for up, below in tree_of(told).children.items() for d in below}
        self.live_tree = {d.id: up for up, below in tree_of(live).children.items() for d in below}
        self.by_bus = {d.bus_id: d.id for d in told.devices if d.family == "pcie" and d.bus_id}
        self.live_cpu: dict[str, str] = {}

    def topology(self) -> Topology:
        """All of it, GPUs in the machine's order."""
        for device in self.live.devices:
            if device.kind in ("gpu", "nic") and device.id not in self.devices:
                self._stand_as_probed(device)
        others = [d for d in self.live.devices if d.family in ("nvswitch", "network")]
        self.devices |= {d.id: d for d in others}
        self.links += self._crossing()
        ranks = {name: self.devices.pop(name) for name in self.live.ranks}
        notes = [*self.told.extra.get("notes", ()), *self.notes.lines()]
        notes += [f"as probed: {note}" for note in self.live.extra.get("notes", ())]
        return Topology(
            name=self.told.name,
            devices=(*ranks.values(), *self.devices.values()),
            links=tuple(self.links),
            source=f"{self.told.source}, filled in: {self.live.source or self.live.name}",
            extra={**self.live.extra, "notes": notes},
        )

    def _device(self, told: Device) -> Device:
        """A device of the file with what the machine knows of it."""
        device = self.live.by_id.get(told.id)
        if told.kind not in ("gpu", "nic") or device is None:
            return told
        pci = {**(device.extra.get("pci") or {}), **(told.extra.get("pci") or {})}
        numa = device.numa_node if told.numa_node is None else told.numa_node
        return replace(device, numa_node=numa, extra={**device.extra, "pci": pci} if pci else device.extra)

    def _stand_as_probed(self, device: Device) -> None:
        """A device that has no place in the file, with what the machine has above it."""
        kind = "GPU" if device.kind == "gpu" else "NIC"
        doubt = f"a {kind} that has no place in the file; it stands where it was probed, as in NCCL"
        self.notes.add(f"{device.id} at {device.bus_id}" if device.bus_id else device.id, doubt)
        self.devices[device.id] = device
        here: str | None = device.id
        while here is not None:
            above = self.live_tree.get(here)
            if above is None:
                return
            parent = self.live.by_id[above]
            known = self.by_bus.get(parent.bus_id or "") if parent.kind == "switch" else self._cpu(parent)
            self.links += self._between(here, above, known or above)
            if known is None and above not in self.devices:
                self.devices[above] = parent
                here = above
            else:
                here = None

    def _between(self, below: str, above: str, here: str) -> Iterator[Link]:
        for link in self.live.links:
            if link.kind in ("pcie", "link") and {link.src, link.dst} == {below, above}:
                yield replace(link, src=here if link.src == above else below, dst=here if link.dst == above else below)

    def _cpu(self, cpu: Device) -> str:
        """The file's CPU that is one of the machine's: the one with its NUMA node; else the machine's own is added."""
        if cpu.id in self.live_cpu:
            return self.live_cpu[cpu.id]
        known = [d for d in self.told.devices if d.kind == "cpu"]
        same = [d.id for d in known if d.numa_node == cpu.numa_node]
        if not same:
            name, copy = cpu.id, 2
            while name in self.devices:
                name, copy = f"{cpu.id}#{copy}", copy + 1
            self.devices[name] = replace(cpu, id=name)
            family, model = (_whole(cpu.extra.get(key)) for key in ("familyid", "modelid"))
            rate = inter_cpu_GBps(cpu.extra.get("arch"), cpu.extra.get("vendor"), family, model)
            for other in known:
                self.links += both_ways(Link(name, other.id, rate, LATENCY_us["smp"], "smp", source="between CPUs"))
            same = [name]
        self.live_cpu[cpu.id] = same[0]
        return same[0]

    def _crossing(self) -> Iterator[Link]:
        """Links of the machine that are not of the PCI tree; those to a CPU lead to the one that the GPU hangs on."""
        for link in self.live.links:
            if link.kind in _TREE_KINDS or all(self.live.by_id[end].kind == "cpu" for end in (link.src, link.dst)):
                continue
            src, dst = self._end(link.src, link.dst), self._end(link.dst, link.src)
            if src != dst and {src, dst} <= set(self.devices) and not self._is_placed(link):
                yield replace(link, src=src, dst=dst)

    def _is_placed(self, link: Link) -> bool:
        """Whether a link of no known kind is one of the tree, which the file tells."""
        ends = {self.live_tree.get(link.src) == link.dst, self.live_tree.get(link.dst) == link.src}
        return link.kind == "link" and True in ends

    def _end(self, name: str, other: str) -> str:
        device = self.live.by_id[name]
        if device.kind != "cpu":
            return name
        here = other
        while here in self.tree:
            here = self.tree[here]
        return here if here != other and self.devices[here].kind == "cpu" else self._cpu(device)


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
