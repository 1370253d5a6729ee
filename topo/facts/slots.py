"""List the PCI Express tree as traffic sees it: slots, each a device or switch with the link above.

A bridge with a single child is part of the link: a chain of bridges without a branch (a root port,
the ports of a switch) is as fast as its narrowest part. A bridge with several children is a switch.
Link speeds are the maximum ones, since idle devices clock down; widths are the ones currently in
use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..hardware import PcieLink, pcie_link
from ..notes import assumed
from . import Facts, keys
from .keys import GPU, Key, gpu_subject, pci_subject


@dataclass
class _Port:
    """A PCI address in the tree while it is built, with the ports below it."""

    bus_id: str
    below: dict[str, _Port] = field(default_factory=dict)


@dataclass(frozen=True)
class PciNode:
    """A slot: a device or switch, its parent in the PCI tree, and the link between them.

    `bus_id` is its PCI address and `parent` that of the switch above it, None if it is directly
    below a CPU. `link` leads up to that parent or CPU. `top` is the address of the bridge at the
    root of its branch. `notes` describe anything unusual about the link, and `source` names the
    source of the link speed.
    """

    bus_id: str
    parent: str | None
    is_switch: bool
    top: str
    link: PcieLink
    notes: tuple[str, ...]
    source: str


def list_slots(facts: Facts, bus_ids: Iterable[str]) -> Iterator[PciNode]:
    """Yield the devices at these PCI addresses and the switches above them, from facts `pci/BUS`.

    Parents come before their children, siblings in order of PCI address. A bridge with a single
    child is part of that child's link and has no slot of its own. What facts do not give of a link
    is assumed as in NCCL, and named in its `assumed`.
    """
    leaves = dict.fromkeys(bus_ids)
    roots: dict[str, _Port] = {}
    for bus_id in leaves:
        level = roots
        for part in (*facts.get_texts(pci_subject(bus_id), keys.PCI_BRIDGES), bus_id):
            level = level.setdefault(part, _Port(part)).below
    for top in sorted(roots):
        yield from _list_below(facts, roots[top], leaves, None, (), top)


def _list_below(
    facts: Facts,
    port: _Port,
    leaves: Mapping[str, None],
    parent: str | None,
    chain: tuple[str, ...],
    top: str,
) -> Iterator[PciNode]:
    chain = (*chain, port.bus_id)
    is_leaf, below = port.bus_id in leaves, [port.below[name] for name in sorted(port.below)]
    if not is_leaf and len(below) == 1:
        yield from _list_below(facts, below[0], leaves, parent, chain, top)
        return
    link, notes = _find_narrowest(facts, chain, is_leaf)
    yield PciNode(
        port.bus_id,
        parent,
        not is_leaf,
        top,
        link,
        notes,
        facts.get_source(pci_subject(port.bus_id), keys.PCI_MAX_LINK_SPEED) or assumed(),
    )
    for child in below:
        yield from _list_below(facts, child, leaves, port.bus_id, (), top)


def _find_narrowest(
    facts: Facts, chain: tuple[str, ...], is_leaf: bool
) -> tuple[PcieLink, tuple[str, ...]]:
    """Return the link with the least bandwidth in a chain, and notes on unusual links."""
    links: list[PcieLink] = []
    notes: list[str] = []
    for bus_id in chain:
        width = _read_width(facts, bus_id, keys.PCI_MAX_LINK_WIDTH)
        current = _read_width(facts, bus_id, keys.PCI_CURRENT_LINK_WIDTH)
        link = pcie_link(
            facts.get_text(pci_subject(bus_id), keys.PCI_MAX_LINK_SPEED),
            min(w for w in (width, current) if w) if width or current else None,
        )
        if link.assumed:
            continue
        is_card = is_leaf and bus_id == chain[-1] and _find_gpu_index(facts, bus_id) is None
        if (link.generation, width) == (1, 1) and not is_card:
            notes.append(
                f"{bus_id} declares 2.5 GT/s x1, a placeholder of virtual machines; ignored"
            )
            continue
        if width and current and current < width:
            notes.append(f"{bus_id} runs on {current} of its {width} PCIe lanes")
        links.append(link)
    if not links:
        return _assume_link(facts, chain[-1]), tuple(notes)
    return min(links, key=lambda link: link.bandwidth_GBps), tuple(notes)


def _assume_link(facts: Facts, bus_id: str) -> PcieLink:
    # sysfs does not report this link. NVML may, if it is a GPU's; otherwise assume what NCCL does.
    index = _find_gpu_index(facts, bus_id)
    if index is not None:
        generation = facts.get_number(gpu_subject(index), keys.GPU_PCIE_MAX_GENERATION)
        width = facts.get_number(gpu_subject(index), keys.GPU_PCIE_MAX_WIDTH)
        if generation is not None and 1 <= generation <= 6 and width:
            return PcieLink(generation, width)
    return pcie_link(None, None)


def _find_gpu_index(facts: Facts, bus_id: str) -> str | None:
    """Return NVML's index of the GPU at a PCI address, or None if NVML lists no GPU there."""
    return next(
        (
            i
            for i in facts.list_names(GPU)
            if facts.get_text(gpu_subject(i), keys.GPU_BUS_ID) == bus_id
        ),
        None,
    )


def _read_width(facts: Facts, bus_id: str, key: Key[int]) -> int | None:
    # Devices without a real link report 0, 63 or 255 PCIe lanes.
    width = facts.get_number(pci_subject(bus_id), key)
    return width if width is not None and 1 <= width <= 32 else None
