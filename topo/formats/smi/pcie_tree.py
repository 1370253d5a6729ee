"""Infer the PCI Express tree behind the labels of a matrix: switches, host bridges, NUMA nodes and
sockets.

PIX (one switch), PXB (several switches), PHB (one CPU), NODE (two host bridges of one NUMA node)
and SYS (between NUMA nodes) are read as classes within classes. Devices that are PIX of each other
share a switch; PIX classes that are PXB of each other share a switch above; what is PHB or NODE
shares a CPU, and where both occur below one CPU, `extra["root"]` says which root complex a device
hangs on. Where the labels are no such hierarchy, classes grow together and the nearest remains. NV#
hides the PCI Express way of a pair; such GPUs are placed by their other labels and by their
affinities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any, TypeVar

from ...errors import InputError
from ...exact import fraction_to_json
from ...graph import Device, Link, both_ways
from ...hardware import ASSUMED_BY, ASSUMED_SPEED, LATENCY_us, QPI_DATASHEET_GBps
from ...notes import assumed
from .assumed_rates import UNKNOWN_RATES, AssumedRates
from .cells import PCIE_LABELS, Cells, find_components, iterate_members, list_some, unite

# A matrix that needs more NUMA nodes is refused: they would have to be joined pairwise.
MAX_NODES = 128

_Value = TypeVar("_Value")
_SMP_SOURCE = assumed("one QPI link of 9.6 GT/s")
_OWN_LABELS = ("XGMI", "LNK", "SW", "NET", "DIS")


@dataclass(frozen=True)
class Affinity:
    """CPUs (`0-19,40-59`) and NUMA node near a GPU; None where its row does not give them."""

    cpus: str | None = None
    numa_node: int | None = None


# The affinity of a row that has `N/A` for both.
UNKNOWN = Affinity()


@dataclass
class InferredTopology:
    """Devices and links inferred so far; `node` and `root` have the NUMA node and root complex of a
    column's device.

    `overruled` has the pairs whose labels were not followed, which a note says, `unplaced` the NICs
    whose CPU is a guess.
    """

    cells: Cells
    affinities: dict[int, Affinity]
    source: str
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: AssumedRates = UNKNOWN_RATES
    node: dict[int, int] = field(default_factory=dict)
    root: dict[int, str] = field(default_factory=dict)
    overruled: set[frozenset[int]] = field(default_factory=set)
    has_nic_rows: bool = True
    unplaced: int = 0

    def pick_id(self, stem: str, number: int | None = None) -> str:
        """Return `stem` with the number, or with the first number that is free."""
        used = {*self.cells.ids, *(device.id for device in self.devices)}
        if number is not None and f"{stem}{number}" not in used:
            return f"{stem}{number}"
        return next(name for n in range(len(used) + 1) if (name := f"{stem}{n}") not in used)

    def join(self, link: Link) -> None:
        """Add a link for both directions."""
        self.links += both_ways(link)

    def get_names(self, mask: int) -> list[str]:
        """Return the ids of a set's devices."""
        return [self.cells.ids[i] for i in iterate_members(mask)]


def infer_pcie_tree(inferred: InferredTopology, where: str) -> None:
    """Put the devices of the matrix below switches and CPUs, which are added.

    Raises InputError for more than MAX_NODES CPUs.
    """
    cells = inferred.cells
    on_pcie = _find_pcie_devices(inferred)
    pix, pxb = (_find_classes(on_pcie, cells, label) for label in ("PIX", "PXB"))
    nodes = _place_lonely_nics(inferred, _find_numa_classes(inferred, on_pcie))
    if len(nodes) > MAX_NODES:
        raise InputError(
            f"{where}: by its labels the matrix has {len(nodes)} NUMA nodes; more than "
            f"{MAX_NODES} are refused"
        )
    # NUMA classes are told apart before switches: each gets a CPU, and its PXB classes hang on that
    # one
    cpus = [_add_cpu(inferred, node) for node in nodes]
    _note_assumed(inferred, nodes, cpus)
    for node, cpu in zip(nodes, cpus, strict=True):
        groups = [group for group in pxb if group & node]
        _name_roots(inferred, cpu.id, groups)
        for group in groups:
            _add_branch(inferred, cpu, group, [part for part in pix if part & group])
    _join_cpus(inferred, nodes, cpus)
    _note_hidden(inferred, nodes, pxb)


def _find_pcie_devices(inferred: InferredTopology) -> int:
    """Return the devices that PCI Express reaches.

    A label says so, or an affinity where no label is one that nvidia-smi would not print.
    """
    cells, on_pcie = inferred.cells, 0
    for i in range(len(cells.ids)):
        has_affinity = inferred.affinities.get(i, UNKNOWN) != UNKNOWN and not cells.find_with(
            i, *_OWN_LABELS
        )
        if cells.find_near(i, "SYS") or has_affinity:
            on_pcie |= 1 << i
    lonely = [
        name
        for i, name in enumerate(cells.ids)
        if not on_pcie >> i & 1 and not _has_label(cells, i)
    ]
    if lonely:
        inferred.notes.append(f"how {list_some(lonely)} is joined to anything is not told")
    return on_pcie


def _has_label(cells: Cells, i: int) -> bool:
    """Return whether a device has any label with another."""
    return any(row[i] for row in cells.with_label.values())


def _find_classes(among: int, cells: Cells, label: str) -> list[int]:
    """Return the sets that `label` and nearer ones join, in order of their first devices."""
    return find_components(among, lambda i: cells.find_near(i, label))


def _find_numa_classes(inferred: InferredTopology, on_pcie: int) -> list[int]:
    """Return the devices of each NUMA node: joined by NODE or nearer, or of one affinity or none,
    but not set apart.
    """
    cells = inferred.cells
    classes: list[int] = []
    by_key: dict[int | str | None, list[int]] = {}
    told_apart = {_get_key(affinity) for affinity in inferred.affinities.values()} - {None}
    several = len(told_apart) > 1
    merged: list[tuple[int, int]] = []
    for group in _find_classes(on_pcie, cells, "NODE"):
        keys = [
            _get_key(inferred.affinities[i])
            for i in iterate_members(group)
            if i in inferred.affinities
        ]
        key = next((key for key in keys if key is not None), None)
        if len(set(keys) - {None}) > 1:
            inferred.notes.append(
                f"{list_some(inferred.get_names(group))}: labels of one NUMA node, affinities of "
                "several"
            )
        # GPUs whose NVLinks hide their PCIe way have only their affinity in common; NET and DIS
        # overrule it, and SYS does where the affinities are all one: that column then tells nothing
        by_affinity = several and key is not None
        apart = unite(
            cells.find_with(i, *(["SYS"] if not by_affinity else []), "NET", "DIS")
            for i in iterate_members(group)
        )
        position = next(
            (position for position in by_key.get(key, ()) if not classes[position] & apart), None
        )
        if position is not None:
            merged.append((classes[position], group))
            classes[position] |= group
            continue
        by_key.setdefault(key, []).append(len(classes))
        classes.append(group)
    _note_overruled(inferred, merged)
    return classes


def _note_overruled(inferred: InferredTopology, merged: list[tuple[int, int]]) -> None:
    """Note pairs with SYS between them that were put into one NUMA node, as their affinities
    say.
    """
    far = inferred.cells.with_label["SYS"]
    pairs = [
        (i, j) for a, b in merged for i in iterate_members(a) for j in iterate_members(far[i] & b)
    ]
    if pairs:
        inferred.overruled |= {frozenset(pair) for pair in pairs}
        names = list_some(
            inferred.cells.ids[i] for i in sorted({i for pair in pairs for i in pair})
        )
        inferred.notes.append(
            f"{names}: SYS between devices whose affinities are of one NUMA node; the affinities "
            "are followed"
        )


def _place_lonely_nics(inferred: InferredTopology, nodes: list[int]) -> list[int]:
    """Return the NUMA classes, NICs that are SYS from all GPUs being with those of the class that
    has the fewest NICs.

    Only where there are no rows of NICs and the affinities tell several NUMA nodes: then nothing
    says that there are more.
    """
    cells = inferred.cells
    known = [
        node
        for node in nodes
        if any(inferred.affinities.get(i, UNKNOWN) != UNKNOWN for i in iterate_members(node))
    ]
    lonely = [node for node in nodes if not node & cells.gpus]
    if inferred.has_nic_rows or len(known) < 2 or not lonely:
        return nodes
    nics = unite(lonely)
    nearest = min(known, key=lambda node: (node & ~cells.gpus).bit_count())
    gpus = [i for i in iterate_members(nearest) if i in inferred.affinities]
    inferred.overruled |= {
        frozenset((i, j)) for i in iterate_members(nics) for j in iterate_members(nearest)
    }
    names, place = list_some(inferred.get_names(nics)), inferred.cells.ids[gpus[0]]
    inferred.notes.append(
        f"{names}: SYS from every GPU, and no rows of their own; taken to be on the CPU of {place}"
    )
    inferred.unplaced |= nics
    return [node | nics if node == nearest else node for node in nodes if node not in lonely]


def _get_key(affinity: Affinity) -> int | str | None:
    """Return what an affinity is compared by: the NUMA node, else the CPUs."""
    return affinity.cpus if affinity.numa_node is None else affinity.numa_node


def _add_cpu(inferred: InferredTopology, group: int) -> Device:
    """Add the CPU of a NUMA class, named by its node where that is known, and return it."""
    affinities = [
        inferred.affinities[i] for i in iterate_members(group) if i in inferred.affinities
    ]
    node, cpus = (
        _find_common([a.numa_node for a in affinities]),
        _find_common([a.cpus for a in affinities]),
    )
    extra = {"cpus": cpus} if cpus else {}
    ident = inferred.pick_id("cpu", _find_free_number(inferred) if node is None else node)
    cpu = Device(ident, "cpu", numa_node=node, source=inferred.source, extra=extra)
    inferred.devices.append(cpu)
    for i in iterate_members(group):
        if node is not None and i not in inferred.affinities and not inferred.unplaced >> i & 1:
            inferred.node[i] = node
    return cpu


def _note_assumed(inferred: InferredTopology, nodes: list[int], cpus: list[Device]) -> None:
    """Note CPUs that exist only because labels set some devices apart from those with an
    affinity.
    """
    without_gpus: list[str] = []
    without_affinities: list[str] = []
    for node, cpu in zip(nodes, cpus, strict=True):
        if not any(i in inferred.affinities for i in iterate_members(node)):
            assumed = without_affinities if node & inferred.cells.gpus else without_gpus
            assumed.append(f"{list_some(inferred.get_names(node))} ({cpu.id})")
    if without_gpus:
        inferred.notes.append(
            f"no GPU is near {list_some(without_gpus)}; a CPU of its own is assumed for each"
        )
    if without_affinities:
        names = list_some(without_affinities)
        inferred.notes.append(
            f"no affinities of {names}; which CPUs there are is told by the labels alone"
        )


def _find_common(values: list[_Value]) -> _Value | None:
    """Return the value that all rows share, None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def _find_free_number(inferred: InferredTopology) -> int:
    """Return the first number that is no NUMA node's and no other CPU's."""
    taken = {affinity.numa_node for affinity in inferred.affinities.values()}
    used = {device.id for device in inferred.devices}
    return next(n for n in count() if n not in taken and f"cpu{n}" not in used)


def _name_roots(inferred: InferredTopology, cpu: str, groups: list[int]) -> None:
    """Name root complexes below a CPU, where NODE tells groups of devices apart; a group without
    NODE has none named.
    """
    cells = inferred.cells
    on_cpu = unite(groups)
    apart = [
        g
        for g in groups
        if unite(cells.find_with(i, "NODE", "SYS") for i in iterate_members(g)) & on_cpu & ~g
    ]
    # groups with PHB between them are on one root complex, though NODE sets both apart from a third
    of_group = {g: number for number, g in enumerate(apart)}
    for a, b in combinations(apart, 2):
        if (
            of_group[a] != of_group[b]
            and unite(cells.with_label["PHB"][i] for i in iterate_members(a)) & b
        ):
            merged, remaining = of_group[b], of_group[a]
            of_group = {
                g: remaining if number == merged else number for g, number in of_group.items()
            }
    order = {number: k for k, number in enumerate(dict.fromkeys(of_group.values()))}
    for group, number in of_group.items():
        for i in iterate_members(group):
            inferred.root[i] = f"{cpu}-root{order[number]}"


def _add_branch(inferred: InferredTopology, cpu: Device, group: int, parts: list[int]) -> None:
    """Add what hangs on one port of a CPU: a device, a switch with devices, or a switch with such
    switches below.
    """
    if group & (group - 1) == 0:
        _add_pcie_link(inferred, inferred.get_names(group)[0], cpu.id)
        return
    switches = [_add_switch(inferred, cpu.numa_node) for _ in parts]
    for part, switch in zip(parts, switches, strict=True):
        for name in inferred.get_names(part):
            _add_pcie_link(inferred, name, switch)
    top = switches[0] if len(parts) == 1 else _add_switch(inferred, cpu.numa_node)
    for switch in switches if len(parts) > 1 else ():
        _add_pcie_link(inferred, switch, top)
    _add_pcie_link(inferred, top, cpu.id)


def _add_switch(inferred: InferredTopology, node: int | None) -> str:
    """Add a PCIe switch and return its id."""
    number = sum(device.family == "pcie" for device in inferred.devices)
    ident = inferred.pick_id("pcie-switch", number)
    inferred.devices.append(Device(ident, "switch", "pcie", numa_node=node, source=inferred.source))
    return ident


def _add_pcie_link(inferred: InferredTopology, below: str, above: str) -> None:
    """Join a device to the switch or CPU above it."""
    rates = inferred.rates
    inferred.join(
        Link(
            below,
            above,
            rates.pcie.bandwidth_GBps,
            LATENCY_us["pcie"],
            "pcie",
            source=rates.pcie_source,
        )
    )


def _join_cpus(inferred: InferredTopology, nodes: list[int], cpus: list[Device]) -> None:
    """Join every CPU to every other, but for those whose devices have no way, or a network, between
    them.
    """
    cells = inferred.cells
    far = [unite(cells.find_with(i, "NET", "DIS") for i in iterate_members(node)) for node in nodes]
    by_sys = [unite(cells.with_label["SYS"][i] for i in iterate_members(node)) for node in nodes]
    assumed: list[str] = []
    for (i, a), (j, b) in combinations(enumerate(cpus), 2):
        if far[i] & nodes[j]:
            continue
        if not by_sys[i] & nodes[j]:
            assumed.append(f"{a.id} - {b.id}")
        inferred.join(
            Link(a.id, b.id, QPI_DATASHEET_GBps, LATENCY_us["smp"], "smp", source=_SMP_SOURCE)
        )
    if assumed:
        inferred.notes.append(
            f"the labels do not say how {list_some(assumed, 3)} are joined; taken as CPUs of one "
            "machine"
        )


def _note_hidden(inferred: InferredTopology, nodes: list[int], pxb: list[int]) -> None:
    """Note GPUs that are below ports of their own only because direct links hide their PCI Express
    way.
    """
    cells = inferred.cells
    hidden = 0
    for group in pxb:
        node = next(node for node in nodes if node & group)
        known = group | unite(cells.find_near(i, PCIE_LABELS[-1]) for i in iterate_members(group))
        others = unite(other for other in pxb if other & node and not other & known)
        hidden |= group & cells.gpus if others & cells.gpus else 0
    if hidden:
        names = list_some(inferred.get_names(hidden))
        inferred.notes.append(
            f"direct links hide how {names} reach each other over PCIe; each is placed below its "
            "own port"
        )


def list_matrix_devices(inferred: InferredTopology) -> Iterator[Device]:
    """Yield the devices of the columns, with NUMA nodes and root complexes as inferred, and the
    assumed rates of NICs.
    """
    for i, ident in enumerate(inferred.cells.ids):
        affinity = inferred.affinities.get(i, UNKNOWN)
        node = inferred.node.get(i) if affinity.numa_node is None else affinity.numa_node
        kind = "gpu" if inferred.cells.gpus >> i & 1 else "nic"
        extra: dict[str, Any] = {"root": inferred.root[i]} if i in inferred.root else {}
        if kind == "nic" and inferred.rates.nic_GBps is not None:
            extra[ASSUMED_SPEED] = fraction_to_json(inferred.rates.nic_GBps)
            extra[ASSUMED_BY] = inferred.rates.nic_source
        yield Device(ident, kind, numa_node=node, source=inferred.source, extra=extra)
