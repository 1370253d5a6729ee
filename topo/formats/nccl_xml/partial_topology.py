"""What the readers of an NCCL XML file fill in, piece by piece, before it is a Topology."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...graph import Device, Link
from ..notes import Notes
from ..safe_xml import Element

GPU_CLASSES = ("0x03", "0x12")
"""Prefixes of the PCI classes of GPUs: display controllers, and processing accelerators (RCCL)."""

NVSWITCH_CLASS = "0x068000"
CPU_CLASS = "0x068001"
OWN = "topoplan_"
"""Prefix of the attributes and elements that topoplan adds to the format."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Place:
    """Where in the tree an element stands: which host, below which CPU, and below which device (None: made up)."""

    host: int
    prefix: str
    cpu: str | None
    numa_node: int | None
    parent: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU that was found: its device, its element, its bus address, and where it stands."""

    id: str
    element: Element
    bus_id: str
    place: Place
    dev: int
    rank: int | None


@dataclass
class Draft:
    """Everything found so far. GPUs and bridges are found by (host, PCI address).

    `told` are the (source, destination) pairs whose links topoplan itself wrote down: nothing about them is in doubt.
    """

    where: str
    told: frozenset[tuple[str, str]] = frozenset()
    devices: dict[str, Device] = field(default_factory=dict)
    uplinks: dict[str, tuple[Link, ...]] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    gpu_by_bus: dict[tuple[int, str], str] = field(default_factory=dict)
    bridge_by_bus: dict[tuple[int, str], str] = field(default_factory=dict)
    cpus: list[tuple[str, int, Element]] = field(default_factory=list)
    pcilinks: list[tuple[int, str, Element]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def add(self, wanted: str, **facts: Any) -> Device:
        """A new device called `wanted`, or that and a number where the name is taken."""
        name, copy = wanted, 2
        while name in self.devices:
            name, copy = f"{wanted}#{copy}", copy + 1
        if name != wanted:
            self.notes.add(name, f"the file has more than one {wanted}")
        self.devices[name] = Device(name, **facts)
        return self.devices[name]

    def in_rank_order(self) -> list[Gpu]:
        """GPUs by the file's ranks where each has one of its own, else by device number."""
        ranks = [gpu.rank for gpu in self.gpus]
        if None not in ranks and len(set(ranks)) == len(ranks):
            return sorted(self.gpus, key=lambda gpu: gpu.rank or 0)
        self.notes.add("ranks", "not given, or not distinct; taken in the order of the device numbers")
        return sorted(self.gpus, key=lambda gpu: (gpu.place.host, gpu.dev))


def value_of(text: str) -> int | str:
    """An attribute as a JSON value: plain whole numbers as such, everything else as text."""
    return int(text) if _INTEGER.fullmatch(text) else text


def attributes(element: Element, *without: str) -> dict[str, int | str]:
    """The attributes of an element as JSON values, but for those named and topoplan's own."""
    return {
        key: value_of(text)
        for key, text in element.attributes.items()
        if key not in without and not key.startswith(OWN)
    }


def own(element: Element, key: str) -> str | None:
    """One of topoplan's own attributes."""
    return element.get(OWN + key)


def has_class(element: Element, prefixes: Iterable[str], key: str = "class") -> bool:
    """Whether a PCI class (or, with `key`, the class of a link's target) starts with one of `prefixes`."""
    return (element.get(key) or "").lower().startswith(tuple(prefixes))
