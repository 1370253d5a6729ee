"""The PCI Express tree as it matters to traffic: bridges with one child only are part of the cable.

A chain of bridges without a branch (a root port, the ports of a switch) carries what its narrowest part carries; where
the tree branches there is a switch. Speeds are those that the parts are made for, since idle devices clock down;
widths are those at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..facts import Facts
from ..hardware import PcieLink, pcie_link


@dataclass
class _Port:
    """A bus address in the tree while it is built, with what hangs below it."""

    bus_id: str
    below: dict[str, _Port] = field(default_factory=dict)


@dataclass(frozen=True)
class Slot:
    """A device or switch at `bus_id` below the switch `parent` (None: a CPU), and what the way up carries."""

    bus_id: str
    parent: str | None
    is_switch: bool
    top: str
    link: PcieLink
    notes: tuple[str, ...]
    source: str


def slots(facts: Facts, bus_ids: Iterable[str]) -> Iterator[Slot]:
    """Switches and devices of the tree above `bus_ids`, parents before children, in order of bus address."""
    leaves = dict.fromkeys(bus_ids)
    roots: dict[str, _Port] = {}
    for bus_id in leaves:
        level = roots
        for part in (*facts.texts(f"pci/{bus_id}", "bridges"), bus_id):
            level = level.setdefault(part, _Port(part)).below
    for top in sorted(roots):
        yield from _walk(facts, roots[top], leaves, None, (), top)


def _walk(
    facts: Facts,
    port: _Port,
    leaves: Mapping[str, None],
    parent: str | None,
    chain: tuple[str, ...],
    top: str,
) -> Iterator[Slot]:
    chain = (*chain, port.bus_id)
    is_leaf, below = port.bus_id in leaves, [port.below[name] for name in sorted(port.below)]
    if not is_leaf and len(below) == 1:
        yield from _walk(facts, below[0], leaves, parent, chain, top)
        return
    link, notes = _narrowest(facts, chain, is_leaf)
    source = facts.source(f"pci/{port.bus_id}", "max_link_speed") or "assumed"
    yield Slot(port.bus_id, parent, not is_leaf, top, link, notes, source)
    for child in below:
        yield from _walk(facts, child, leaves, port.bus_id, (), top)


def _narrowest(facts: Facts, chain: tuple[str, ...], is_leaf: bool) -> tuple[PcieLink, tuple[str, ...]]:
    """The link with the least bandwidth in a chain, and what is odd about the chain."""
    found: list[PcieLink] = []
    notes: list[str] = []
    for bus_id in chain:
        speed, width = facts.text(f"pci/{bus_id}", "max_link_speed"), _width(facts, bus_id, "max_link_width")
        current = _width(facts, bus_id, "current_link_width")
        link = pcie_link(speed, min(w for w in (width, current) if w) if width or current else None)
        if link.assumed:
            continue
        is_card = is_leaf and bus_id == chain[-1] and not _is_gpu(facts, bus_id)
        if (link.generation, width) == (1, 1) and not is_card:
            notes.append(f"{bus_id} declares 2.5 GT/s x1, a placeholder of virtual machines; left out of account")
            continue
        if width and current and current < width:
            notes.append(f"{bus_id} runs on {current} of its {width} PCIe lanes")
        found.append(link)
    if not found:
        return _assumed(facts, chain[-1]), tuple(notes)
    return min(found, key=lambda link: link.bandwidth_GBps), tuple(notes)


def _assumed(facts: Facts, bus_id: str) -> PcieLink:
    """What is left where no file says it: NVML's word for a GPU, else NCCL's default."""
    index = gpu_index(facts, bus_id)
    if index is not None:
        generation = facts.number(f"gpu/{index}", "pcie_max_generation")
        width = facts.number(f"gpu/{index}", "pcie_max_width")
        if generation is not None and 1 <= generation <= 6 and width:
            return PcieLink(generation, width)
    return pcie_link(None, None)


def _is_gpu(facts: Facts, bus_id: str) -> bool:
    return gpu_index(facts, bus_id) is not None


def gpu_index(facts: Facts, bus_id: str) -> str | None:
    """NVML's index of the GPU at a bus address, None where NVML lists none there."""
    return next((i for i in facts.names("gpu") if facts.text(f"gpu/{i}", "bus_id") == bus_id), None)


def _width(facts: Facts, bus_id: str, key: str) -> int | None:
    """A link width in lanes, None where it is not known: devices without a real link say 0, 63 or 255."""
    width = facts.number(f"pci/{bus_id}", key)
    return width if width is not None and 1 <= width <= 32 else None
