"""The PCI Express tree behind the labels of a matrix: which switches, host bridges, NUMA nodes and sockets there must be.

PIX (one switch), PXB (several switches), PHB (one CPU), NODE (two host bridges of one NUMA node) and SYS (between NUMA nodes)
are read as classes within classes. Devices that are PIX of each other share a switch; PIX classes that are PXB of each
other share a switch above; what is PHB or NODE shares a CPU, and where both occur below one CPU, `extra["root"]` says
which root complex a device hangs on. Where the labels are no such hierarchy, classes grow together and the nearest
remains. NV# hides the PCI Express way of a pair; such GPUs are placed by their other labels and by their affinities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from typing import TypeVar

from ...errors import InputError
from ...graph import Device, Link, both_ways
from ...hardware import LATENCY_us, QPI_DATASHEET_GBps, pcie_link
from .cells import PCIE_LABELS, Cells, listed, members

MAX_NODES = 128
"""A matrix that needs more NUMA nodes is refused: they would have to be joined pairwise."""

_Value = TypeVar("_Value")
_PCIE = pcie_link(None, None)
_PCIE_SOURCE = "assumed: Gen3 x16, as NCCL takes PCIe links that are not known"
_SMP_SOURCE = "assumed: one QPI link of 9.6 GT/s"
_OWN_LABELS = ("XGMI", "LNK", "SW", "NET", "DIS")


@dataclass(frozen=True)
class Affinity:
    """Where a GPU is, as its row says: CPUs (`0-19,40-59`) and NUMA node; None where the row does not say it."""

    cpus: str | None = None
    numa_node: int | None = None


UNKNOWN = Affinity()
"""What a row says that has `N/A` for both."""


@dataclass
class Draft:
    """Devices and links as they are found; `place` has the NUMA node and root complex of a column's device."""

    cells: Cells
    affinities: dict[int, Affinity]
    source: str
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    node: dict[int, int] = field(default_factory=dict)
    root: dict[int, str] = field(default_factory=dict)

    def new_id(self, stem: str, number: int | None = None) -> str:
        """`stem` with the number, or with the first that is free."""
        used = {*self.cells.ids, *(device.id for device in self.devices)}
        if number is not None and f"{stem}{number}" not in used:
            return f"{stem}{number}"
        return next(name for n in range(len(used) + 1) if (name := f"{stem}{n}") not in used)

    def join(self, link: Link) -> None:
        """Add a link for both directions."""
        self.links += both_ways(link)

    def names(self, mask: int) -> list[str]:
        """Ids of a set's devices."""
        return [self.cells.ids[i] for i in members(mask)]


def hang(draft: Draft, where: str) -> None:
    """Put the devices of the matrix below switches and CPUs, which are added. InputError for more than MAX_NODES CPUs."""
    cells = draft.cells
    hung = _hung(draft)
    pix, pxb = (_classes(hung, cells, label) for label in ("PIX", "PXB"))
    nodes = _numa_classes(draft, hung)
    if len(nodes) > MAX_NODES:
        raise InputError(
            f"{where}: by its labels the matrix has {len(nodes)} NUMA nodes; more than {MAX_NODES} are refused"
        )
    cpus = [_cpu(draft, node) for node in nodes]
    _note_assumed(draft, nodes, cpus)
    for node, cpu in zip(nodes, cpus, strict=True):
        groups = [group for group in pxb if group & node]
        _name_roots(draft, cpu.id, groups)
        for group in groups:
            _branch(draft, cpu, group, [part for part in pix if part & group])
    _join_cpus(draft, nodes, cpus)
    _note_hidden(draft, nodes, pxb)


def _hung(draft: Draft) -> int:
    """Devices that PCI Express reaches: a label says so, or an affinity and no label that nvidia-smi would not print."""
    cells, hung = draft.cells, 0
    for i in range(len(cells.ids)):
        placed = draft.affinities.get(i, UNKNOWN) != UNKNOWN and not cells.any_of(i, *_OWN_LABELS)
        if cells.near(i, "SYS") or placed:
            hung |= 1 << i
    lonely = [name for i, name in enumerate(cells.ids) if not hung >> i & 1 and not _any(cells, i)]
    if lonely:
        draft.notes.append(f"how {listed(lonely)} is joined to anything is not told")
    return hung


def _any(cells: Cells, i: int) -> bool:
    return any(row[i] for row in cells.at.values())


def _classes(among: int, cells: Cells, label: str) -> list[int]:
    """The sets that `label` and nearer ones join, in order of their first devices."""
    found: list[int] = []
    while among:
        group, fresh = 0, among & -among
        while fresh:
            group |= fresh
            fresh = _union(cells.near(i, label) for i in members(fresh)) & among & ~group
        found.append(group)
        among &= ~group
    return found


def _union(masks: Iterable[int]) -> int:
    out = 0
    for mask in masks:
        out |= mask
    return out


def _numa_classes(draft: Draft, hung: int) -> list[int]:
    """Devices of one NUMA node each: joined by NODE or nearer, or of one affinity, or none, and not told to be apart."""
    cells = draft.cells
    found: list[int] = []
    by_key: dict[int | str | None, list[int]] = {}
    for group in _classes(hung, cells, "NODE"):
        keys = [_key(draft.affinities[i]) for i in members(group) if i in draft.affinities]
        key = next((key for key in keys if key is not None), None)
        if len(set(keys) - {None}) > 1:
            draft.notes.append(f"{listed(draft.names(group))}: labels of one NUMA node, affinities of several")
        apart = _union(cells.any_of(i, "SYS", "NET", "DIS") for i in members(group))
        at = next((at for at in by_key.get(key, ()) if not found[at] & apart), None)
        if at is not None:
            found[at] |= group
            continue
        by_key.setdefault(key, []).append(len(found))
        found.append(group)
    return found


def _key(affinity: Affinity) -> int | str | None:
    return affinity.cpus if affinity.numa_node is None else affinity.numa_node


def _cpu(draft: Draft, group: int) -> Device:
    """The CPU of a NUMA class: named by its node where that is known; the device is added."""
    own = [draft.affinities[i] for i in members(group) if i in draft.affinities]
    node, cpus = _common([a.numa_node for a in own]), _common([a.cpus for a in own])
    extra = {"cpus": cpus} if cpus else {}
    ident = draft.new_id("cpu", _free_number(draft) if node is None else node)
    cpu = Device(ident, "cpu", numa_node=node, source=draft.source, extra=extra)
    draft.devices.append(cpu)
    for i in members(group):
        if node is not None and i not in draft.affinities:
            draft.node[i] = node
    return cpu


def _note_assumed(draft: Draft, nodes: list[int], cpus: list[Device]) -> None:
    """Which CPUs stand there only because labels say that some devices are apart from those whose affinity is told."""
    away: list[str] = []
    untold: list[str] = []
    for node, cpu in zip(nodes, cpus, strict=True):
        if not any(i in draft.affinities for i in members(node)):
            (untold if node & draft.cells.gpus else away).append(f"{listed(draft.names(node))} ({cpu.id})")
    if away:
        draft.notes.append(f"no GPU is near {listed(away)}; a CPU of its own is assumed for each")
    if untold:
        draft.notes.append(f"no affinities of {listed(untold)}; which CPUs there are is told by the labels alone")


def _common(told: list[_Value]) -> _Value | None:
    """What all rows say alike."""
    return told[0] if len(set(told)) == 1 else None


def _free_number(draft: Draft) -> int:
    """The first number that is no NUMA node's and no other CPU's."""
    taken = {affinity.numa_node for affinity in draft.affinities.values()}
    used = {device.id for device in draft.devices}
    return next(n for n in count() if n not in taken and f"cpu{n}" not in used)


def _name_roots(draft: Draft, cpu: str, groups: list[int]) -> None:
    """Root complexes below a CPU, where NODE tells groups of devices apart; a group without NODE has none named."""
    cells = draft.cells
    here = _union(groups)
    apart = [g for g in groups if _union(cells.at["NODE"][i] for i in members(g)) & here & ~g]
    of_group = {g: number for number, g in enumerate(apart)}
    for a, b in combinations(apart, 2):
        if of_group[a] != of_group[b] and _union(cells.at["PHB"][i] for i in members(a)) & b:
            merged, kept = of_group[b], of_group[a]
            of_group = {g: kept if number == merged else number for g, number in of_group.items()}
    order = {number: k for k, number in enumerate(dict.fromkeys(of_group.values()))}
    for group, number in of_group.items():
        for i in members(group):
            draft.root[i] = f"{cpu}-root{order[number]}"


def _branch(draft: Draft, cpu: Device, group: int, parts: list[int]) -> None:
    """What hangs on one port of a CPU: a device, a switch with devices, or a switch with such switches below."""
    if group & (group - 1) == 0:
        _pcie(draft, draft.names(group)[0], cpu.id)
        return
    switches = [_switch(draft, cpu.numa_node) for _ in parts]
    for part, switch in zip(parts, switches, strict=True):
        for name in draft.names(part):
            _pcie(draft, name, switch)
    top = switches[0] if len(parts) == 1 else _switch(draft, cpu.numa_node)
    for switch in switches if len(parts) > 1 else ():
        _pcie(draft, switch, top)
    _pcie(draft, top, cpu.id)


def _switch(draft: Draft, node: int | None) -> str:
    number = sum(device.family == "pcie" for device in draft.devices)
    ident = draft.new_id("pcie-switch", number)
    draft.devices.append(Device(ident, "switch", "pcie", numa_node=node, source=draft.source))
    return ident


def _pcie(draft: Draft, below: str, above: str) -> None:
    draft.join(Link(below, above, _PCIE.bandwidth_GBps, LATENCY_us["pcie"], "pcie", source=_PCIE_SOURCE))


def _join_cpus(draft: Draft, nodes: list[int], cpus: list[Device]) -> None:
    """Every CPU to every other, but for those whose devices have no way, or a network, between them."""
    cells = draft.cells
    far = [_union(cells.any_of(i, "NET", "DIS") for i in members(node)) for node in nodes]
    seen = [_union(cells.at["SYS"][i] for i in members(node)) for node in nodes]
    assumed: list[str] = []
    for (i, a), (j, b) in combinations(enumerate(cpus), 2):
        if far[i] & nodes[j]:
            continue
        if not seen[i] & nodes[j]:
            assumed.append(f"{a.id} - {b.id}")
        draft.join(Link(a.id, b.id, QPI_DATASHEET_GBps, LATENCY_us["smp"], "smp", source=_SMP_SOURCE))
    if assumed:
        draft.notes.append(f"the labels do not say how {listed(assumed, 3)} are joined; taken as CPUs of one machine")


def _note_hidden(draft: Draft, nodes: list[int], pxb: list[int]) -> None:
    """Which GPUs are below ports of their own only because direct links hide their PCI Express way."""
    cells = draft.cells
    hidden = 0
    for group in pxb:
        node = next(node for node in nodes if node & group)
        known = group | _union(cells.near(i, PCIE_LABELS[-1]) for i in members(group))
        others = _union(other for other in pxb if other & node and not other & known)
        hidden |= group & cells.gpus if others & cells.gpus else 0
    if hidden:
        names = listed(draft.names(hidden))
        draft.notes.append(
            f"direct links hide how {names} reach each other over PCIe; each is placed below its own port"
        )


def placed(draft: Draft) -> Iterator[Device]:
    """The devices of the columns, with the places that were found."""
    for i, ident in enumerate(draft.cells.ids):
        affinity = draft.affinities.get(i, UNKNOWN)
        node = draft.node.get(i) if affinity.numa_node is None else affinity.numa_node
        kind = "gpu" if draft.cells.gpus >> i & 1 else "nic"
        device = Device(ident, kind, numa_node=node, source=draft.source)
        yield replace(device, extra={"root": draft.root[i]}) if i in draft.root else device
