"""The devices and links read so far from NCCL's XML, before they become a Topology.

NCCL needs attributes and elements that topoplan may not know of a machine. When topoplan writes a
file it makes these up, and marks them with the attribute `topoplan_made_up`, so that readers leave
them out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...boards import Board, find_board, find_by_id
from ...graph import Device, Link
from ...names import pick_unused_name
from ..notes import Notes
from ..safe_xml import Element

# Prefixes of the PCI classes of GPUs: display controllers, and processing accelerators (RCCL).
GPU_CLASSES = ("0x03", "0x12")
NVSWITCH_CLASS = "0x068000"
CPU_CLASS = "0x068001"
# Prefix of the attributes and elements that topoplan adds to the format.
TOPOPLAN_PREFIX = "topoplan_"
# Value of the mark `topoplan_made_up` of a gpu element whose `sm` was made up.
CAPABILITY = "sm"
# Its value for a cpu element whose model was made up, and the attributes of the model.
CPU_MODEL = "model"
CPU_ATTRIBUTES = ("arch", "vendor", "familyid", "modelid")

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class TreePosition:
    """The position of an element in the tree.

    `host` is the host's number from 0 in the file's order, and the ids of its devices start with
    `prefix` (empty if the file has one host). `cpu` and `parent` are the ids of the CPU and of the
    device right above, None if topoplan made up the CPU. `numa_node` is the CPU's, None if unknown.
    """

    host: int
    prefix: str
    cpu: str | None
    numa_node: int | None
    parent: str | None


@dataclass(frozen=True)
class GpuElement:
    """A GPU of the file: its device id, XML element, PCI address in lower case, and position.

    `dev` and `rank` are attributes of its gpu element (`rank` None if absent), not ranks of the
    topology, which `PartialTopology.sort_gpus` decides. `board` is None if `boards.py` does not
    know the GPU.
    """

    id: str
    element: Element
    bus_id: str
    position: TreePosition
    dev: int
    rank: int | None
    board: Board | None = None

    def read_sm(self, maximum: int) -> int | None:
        """Return the compute capability times ten, None if the file does not give it.

        If topoplan made up the file's capability when it wrote the file, return the board's
        instead. Raise InputError if the file's is no integer from 0 to `maximum`.
        """
        if self.board is not None and get_topoplan_attribute(self.element, "made_up") == CAPABILITY:
            return self.board.sm
        return self.element.get_integer("sm", None, maximum=maximum)


@dataclass
class PartialTopology:
    """The devices and links read so far.

    `where` names the file in errors, `notes` collects doubts about it. `exact_pairs` are the
    (source, destination) pairs whose links topoplan itself wrote, so no notes question them.
    `uplinks` maps a device's id to the links between it and its parent, in both directions.
    `gpu_by_bus` and `bridge_by_bus` map (host, PCI address) to a device's id. The items of `cpus`
    are (id, host, element), those of `pcilinks` are (host, id of the switch, element).
    """

    where: str
    exact_pairs: frozenset[tuple[str, str]] = frozenset()
    devices: dict[str, Device] = field(default_factory=dict)
    uplinks: dict[str, tuple[Link, ...]] = field(default_factory=dict)
    gpus: list[GpuElement] = field(default_factory=list)
    gpu_by_bus: dict[tuple[int, str], str] = field(default_factory=dict)
    bridge_by_bus: dict[tuple[int, str], str] = field(default_factory=dict)
    cpus: list[tuple[str, int, Element]] = field(default_factory=list)
    pcilinks: list[tuple[int, str, Element]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def add(self, wanted: str, **facts: Any) -> Device:
        """Add and return a device with the id `wanted`, or `wanted#2` and so on if that is taken.

        `facts` are the other fields of `Device`. A changed id is noted.
        """
        name = pick_unused_name(wanted, self.devices)
        if name != wanted:
            self.notes.add(name, f"the file has more than one {wanted}")
        self.devices[name] = Device(name, **facts)
        return self.devices[name]

    def sort_gpus(self) -> list[GpuElement]:
        """Return the GPUs in the order of the topology's ranks.

        They are sorted by the file's ranks if each GPU has one and all differ. Otherwise they are
        sorted by host and device number, and a note says so.
        """
        ranks = [gpu.rank for gpu in self.gpus]
        if None not in ranks and len(set(ranks)) == len(ranks):
            return sorted(self.gpus, key=lambda gpu: gpu.rank or 0)
        self.notes.add(
            "ranks", "missing or not distinct; assigned in the order of the device numbers"
        )
        return sorted(self.gpus, key=lambda gpu: (gpu.position.host, gpu.dev))


def read_attributes(element: Element, *without: str) -> dict[str, Any]:
    """Return an element's attributes, except `without` and topoplan's own; integers as int."""
    return {
        key: int(text) if _INTEGER.fullmatch(text) else text
        for key, text in element.attributes.items()
        if key not in without and not key.startswith(TOPOPLAN_PREFIX)
    }


def get_topoplan_attribute(element: Element, key: str) -> str | None:
    """Return an element's attribute `topoplan_<key>`, or None if it is absent or empty."""
    return element.get(TOPOPLAN_PREFIX + key)


def find_gpu_board(gpu: Element, pci: Element) -> Board | None:
    """Return the board of a gpu element, by its name or the PCI id of its pci element, if known."""
    return find_board(gpu.get("name") or "") or find_by_id(pci.get("device") or "")


def has_class(element: Element, prefixes: Iterable[str], key: str = "class") -> bool:
    """Return whether an element's PCI class, its attribute `key`, starts with a prefix."""
    return (element.get(key) or "").lower().startswith(tuple(prefixes))
