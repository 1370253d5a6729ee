"""Fill in skeletons from the probed machine as NCCL does.

A skeleton is a file that lists PCI slots but no GPUs. Cloud providers distribute such files, since
the PCI tree inside a virtual machine is not the real one. The tree, CPUs, NUMA nodes and PCI speeds
come from the file; the devices in the slots and the NVLinks come from the machine.
"""

from collections.abc import Iterator
from dataclasses import replace

from ...errors import InputError
from ...facts.view import read_pci_details
from ...formats.nccl_xml.partial_topology import GPU_CLASSES, TOPOPLAN_PREFIX, has_class
from ...formats.nccl_xml.reader import has_no_gpus, make_skeleton_error, parse_system, read_system
from ...formats.notes import Notes
from ...formats.safe_xml import Element
from ...graph import Device, Link, Topology, both_directions
from ...hardware import LATENCY_us, inter_cpu_GBps_of
from ...names import join_first, pick_unused_name
from .xml_tree import build_tree, normalize_address

# Most addresses that a message lists before "and 5 more".
_MAX_NAMED = 3


def is_skeleton(text: str) -> bool:
    """Return whether a text is NCCL's XML without GPUs, which `fill_skeleton` must complete."""
    try:
        return has_no_gpus(parse_system(text, "text"))
    except InputError:
        return False


def fill_skeleton(text: str, where: str, live: Topology) -> Topology:
    """Return the probed machine `live` in the PCI tree of a skeleton, NCCL's XML without GPUs.

    `where` names the file in errors. GPUs and NICs go into the slot with their PCI address. Devices
    without a slot keep their probed position, and slots without a device are dropped; notes list
    both. Ranks and NVLinks are those of `live`.

    Raise InputError if the text is not a skeleton, if `live` has no GPUs, or if none of its GPUs
    has a slot.
    """
    root = parse_system(text, where)
    if not has_no_gpus(root):
        raise InputError(
            f"{where}: already lists its GPUs, so there is nothing to fill in; load the file itself"
        )
    if not live.ranks:
        raise make_skeleton_error(root)
    notes = Notes()
    _put_gpus(root, live, notes)
    _put_nics(root, live, notes)
    _prune(root, notes)
    return _FilledTree(read_system(root, has_links=False), live, notes).build_topology()


# -- putting devices into slots


def _find_slots(root: Element) -> dict[str, Element]:
    """Return the first element at each PCI address, as in NCCL; bridges are not slots."""
    slots: dict[str, Element] = {}
    for element in root.walk():
        address = normalize_address(element.get("busid")) if element.tag == "pci" else None
        if address and not any(child.tag == "pci" for child in element):
            slots.setdefault(address, element)
    return slots


def _put_gpus(root: Element, live: Topology, notes: Notes) -> None:
    """Put a gpu element into the slot of each GPU.

    Raise InputError if no GPU has a slot.
    """
    slots = _find_slots(root)
    for rank, name in enumerate(live.ranks):
        if slot := slots.get(normalize_address(live.by_id[name].bus_id) or ""):
            _note_spelling(slot, notes)
            slot.children.append(
                Element("gpu", {"dev": str(rank), "rank": str(rank), TOPOPLAN_PREFIX + "id": name})
            )
    if not has_no_gpus(root):
        return
    in_file = _list_addresses(
        [
            normalize_address(e.get("busid")) or ""
            for e in root.walk()
            if e.tag == "pci" and has_class(e, GPU_CLASSES)
        ]
    )
    on_machine = _list_addresses([live.by_id[name].bus_id or "unknown" for name in live.ranks])
    raise InputError(
        f"{root.where}: a skeleton for another machine: its GPU slots are at {in_file}, the GPUs "
        f"here at {on_machine}; "
        "run this on the machine it is for, or dump a whole file here with "
        "NCCL_TOPO_DUMP_FILE=topo.xml"
    )


def _list_addresses(addresses: list[str]) -> str:
    return join_first(addresses, _MAX_NAMED) or "no address"


def _note_spelling(slot: Element, notes: Notes) -> None:
    """Add a note if NCCL would not recognize the spelling of a slot's address."""
    text = slot.get("busid") or ""
    if text != normalize_address(text):
        notes.add(
            text,
            "NCCL compares addresses letter by letter and would not find it; write it in full and "
            "in lower case",
        )


def _put_nics(root: Element, live: Topology, notes: Notes) -> None:
    """Put each NIC into the slot that the file names, as NCCL does.

    If the file names none, the NIC goes into the slot at its address.
    """
    nics = {d.id: d for d in live.devices if d.kind == "nic"}
    named_in_file: set[str] = set()
    for nic in [element for element in root.walk() if element.tag == "nic"]:
        for net in nic.select("net"):
            name = net.get("name") or ""
            if name in nics and name not in named_in_file:
                named_in_file.add(name)
                net.attributes[TOPOPLAN_PREFIX + "id"] = name
            else:
                nic.children.remove(net)
                notes.add(
                    name or "a net without a name",
                    "a NIC of the file that this machine does not have; left out",
                )
    # Skip slots that already have a GPU: NCCL puts only one device into a slot.
    slots = _find_slots(root)
    for number, device in enumerate(nics.values()):
        slot = slots.get(normalize_address(device.bus_id) or "")
        if device.id in named_in_file or slot is None or slot.select("gpu"):
            continue
        _note_spelling(slot, notes)
        facts = {"name": device.id, "dev": str(number), TOPOPLAN_PREFIX + "id": device.id}
        speed_GBps = device.extra.get("net_speed_GBps")
        if isinstance(speed_GBps, (int, float)) and 0 < speed_GBps < 10_000:
            facts["speed"] = str(round(speed_GBps * 8000))
        if not slot.select("nic"):
            slot.children.append(Element("nic", {}))
        slot.select("nic")[0].children.append(Element("net", facts))


def _prune(element: Element, notes: Notes) -> bool:
    """Drop empty slots and bridges, as NCCL does; return whether the element remains."""
    if element.tag in ("gpu", "net"):
        return True
    remaining = []
    for child in element.children:
        if child.tag not in ("cpu", "pci", "nic") or _prune(child, notes):
            remaining.append(child)
        elif has_class(child, (*GPU_CLASSES, "0x02")):
            notes.add(
                child.get("busid") or "",
                f"a slot for a {'GPU' if has_class(child, GPU_CLASSES) else 'NIC'} that this "
                "machine does not have; left out",
            )
    element.children = remaining
    devices = element.select("pci", "nic", "gpu", "net")
    return bool(devices) or element.tag in ("system", "cpu")


# -- adding the machine's facts and links


class _FilledTree:
    """The file's tree with the machine's devices; `build_topology` combines them."""

    def __init__(self, file_topology: Topology, live: Topology, notes: Notes) -> None:
        self.file_topology, self.live, self.notes = file_topology, live, notes
        self.devices = {d.id: self._merge_device(d) for d in file_topology.devices}
        self.links = list(file_topology.links)
        self.tree = {
            d.id: up for up, below in build_tree(file_topology).children.items() for d in below
        }
        self.live_tree = {
            d.id: up for up, below in build_tree(live).children.items() for d in below
        }
        self.by_bus = {
            d.bus_id: d.id for d in file_topology.devices if d.family == "pcie" and d.bus_id
        }
        self.live_cpu: dict[str, str] = {}

    def build_topology(self) -> Topology:
        """Build the topology, GPUs in the machine's order."""
        for device in self.live.devices:
            if device.kind in ("gpu", "nic") and device.id not in self.devices:
                self._add_as_probed(device)
        self.devices |= {d.id: d for d in self.live.devices if d.family in ("nvswitch", "network")}
        self.links += self._list_crossing_links()
        ranks = [self.devices.pop(name) for name in self.live.ranks]
        notes = [
            *self.file_topology.extra.get("notes", ()),
            *self.notes.format_lines(),
            *(f"as probed: {note}" for note in self.live.extra.get("notes", ())),
        ]
        return Topology(
            name=self.file_topology.name,
            devices=(*ranks, *self.devices.values()),
            links=tuple(self.links),
            source=f"{self.file_topology.source}, filled in: {self.live.source or self.live.name}",
            extra={**self.live.extra, "notes": notes},
        )

    def _merge_device(self, from_file: Device) -> Device:
        """Combine a device of the file with the machine's information about it."""
        probed = self.live.by_id.get(from_file.id)
        if from_file.kind not in ("gpu", "nic") or probed is None:
            return from_file
        pci = {**read_pci_details(probed), **read_pci_details(from_file)}
        return replace(
            probed,
            numa_node=probed.numa_node if from_file.numa_node is None else from_file.numa_node,
            extra={**probed.extra, "pci": pci} if pci else probed.extra,
        )

    def _add_as_probed(self, device: Device) -> None:
        """Add a device without a slot, and its probed parents up to the first one in the file."""
        self.notes.add(
            f"{device.id} at {device.bus_id}" if device.bus_id else device.id,
            f"a {'GPU' if device.kind == 'gpu' else 'NIC'} that has no slot in the file; it stays "
            "where it was probed, as in NCCL",
        )
        self.devices[device.id] = device
        lower = device.id
        while above := self.live_tree.get(lower):
            parent = self.live.by_id[above]
            known = (
                self.by_bus.get(parent.bus_id or "")
                if parent.kind == "switch"
                else self._find_cpu(parent)
            )
            self.links += self._link_up(lower, above, known or above)
            if known is not None or above in self.devices:
                return
            self.devices[above] = parent
            lower = above

    def _link_up(self, below: str, above: str, upper: str) -> Iterator[Link]:
        """Yield the machine's links between two devices, the upper one named as in the file."""
        for link in self.live.links:
            if link.kind in ("pcie", "link") and {link.src, link.dst} == {below, above}:
                yield replace(
                    link,
                    src=upper if link.src == above else below,
                    dst=upper if link.dst == above else below,
                )

    def _find_cpu(self, cpu: Device) -> str:
        """Return the file's CPU with the same NUMA node; add the machine's if there is none."""
        if cpu.id in self.live_cpu:
            return self.live_cpu[cpu.id]
        known = [d for d in self.file_topology.devices if d.kind == "cpu"]
        same = [d.id for d in known if d.numa_node == cpu.numa_node]
        if not same:
            name = pick_unused_name(cpu.id, self.devices)
            self.devices[name] = replace(cpu, id=name)
            for other in known:
                self.links += both_directions(
                    Link(
                        name,
                        other.id,
                        inter_cpu_GBps_of(cpu.extra),
                        LATENCY_us["smp"],
                        "smp",
                        source="between CPUs",
                    )
                )
            same = [name]
        self.live_cpu[cpu.id] = same[0]
        return same[0]

    def _list_crossing_links(self) -> Iterator[Link]:
        """Yield the links outside the PCI tree, such as NVLinks.

        A link to a CPU ends at the file's CPU above the link's other device.
        """
        for link in self.live.links:
            if link.kind in ("pcie", "smp") or all(
                self.live.by_id[end].kind == "cpu" for end in (link.src, link.dst)
            ):
                continue
            src, dst = self._rename_end(link.src, link.dst), self._rename_end(link.dst, link.src)
            # a link of unknown kind may be part of the probed PCI tree
            above = self.live_tree.get(link.src), self.live_tree.get(link.dst)
            is_in_tree = link.kind == "link" and (link.dst == above[0] or link.src == above[1])
            if src != dst and self.devices.keys() >= {src, dst} and not is_in_tree:
                yield replace(link, src=src, dst=dst)

    def _rename_end(self, name: str, other: str) -> str:
        """Return the file's name for a link's end; a CPU becomes the CPU above the end `other`."""
        device = self.live.by_id[name]
        if device.kind != "cpu":
            return name
        top = other
        while top in self.tree:
            top = self.tree[top]
        return top if top != other and self.devices[top].kind == "cpu" else self._find_cpu(device)
