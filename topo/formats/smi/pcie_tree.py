"""Infer the PCI Express tree from the labels of a matrix.

The tree consists of switches, host bridges, NUMA nodes and sockets. PIX (one switch), PXB (several
switches), PHB (one CPU), NODE (two host bridges of one NUMA node) and SYS (between NUMA nodes) are
read as nested classes. Devices that are PIX of each other share a switch; PIX classes that are PXB
of each other share a switch above; PHB and NODE share a CPU, and if both occur below one CPU,
`extra["root"]` names each device's root complex. If the labels form no such hierarchy, classes are
merged and the nearest label counts. NV# hides the PCI Express route of a pair; such GPUs are placed
by their other labels and by their affinities.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, count
from typing import Any, TypeVar

from ...between_cpus import join_cpus
from ...errors import InputError
from ...exact import fraction_to_json
from ...graph import Device
from ...hardware import ASSUMED_BY, ASSUMED_PLACE, ASSUMED_SPEED
from .cells import PCIE_LABELS, iterate_members, list_some, unite
from .inferred import UNKNOWN, Affinity, InferredTopology

# More NUMA nodes are refused: they would have to be joined pairwise.
MAX_NODES = 128
# Without affinities, labels alone are no evidence of more CPUs.
_MAX_UNTOLD_CPUS = 2

_Value = TypeVar("_Value")
# Labels that nvidia-smi does not print; topoplan writes them for other topologies.
_OWN_LABELS = ("XGMI", "LNK", "SW", "NET", "DIS")


def infer_pcie_tree(inferred: InferredTopology, where: str) -> None:
    """Add switches and CPUs to `inferred`, and put the devices of its matrix below them.

    `inferred` has the labels and affinities of the matrix; links and notes on doubts are added to
    it, too. Raise InputError, with the file's name `where`, for more than MAX_NODES CPUs.
    """
    cells = inferred.cells
    on_pcie = _find_pcie_devices(inferred)
    pix, pxb = (cells.find_classes(on_pcie, label) for label in ("PIX", "PXB"))
    nodes = _join_unplaced(inferred, _find_numa_classes(inferred, on_pcie))
    nodes = _place_lonely_nics(inferred, nodes)
    if len(nodes) > MAX_NODES:
        raise InputError(
            f"{where}: by its labels the matrix has {len(nodes)} NUMA nodes; more than "
            f"{MAX_NODES} are refused"
        )
    # CPUs come before switches: each PXB class is connected to the CPU of its NUMA class
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
    """Return the set of devices that PCI Express reaches.

    These are devices with a PCI Express label, and devices with an affinity that have only labels
    of nvidia-smi.
    """
    cells = inferred.cells
    placed = {i for i, affinity in inferred.affinities.items() if affinity != UNKNOWN}
    on_pcie = sum(
        1 << i
        for i in range(len(cells.ids))
        if cells.find_near(i, "SYS") or (i in placed and not cells.find_with(i, *_OWN_LABELS))
    )
    lonely = [
        name
        for i, name in enumerate(cells.ids)
        if not on_pcie >> i & 1 and not any(row[i] for row in cells.with_label.values())
    ]
    if lonely:
        inferred.notes.append(f"nothing says how {list_some(lonely)} is connected")
    return on_pcie


def _find_numa_classes(inferred: InferredTopology, on_pcie: int) -> list[int]:
    """Return the set of devices of each NUMA node.

    Devices share a node if NODE or a nearer label joins them, or if their affinities agree or are
    unknown and no label sets them apart.
    """
    cells = inferred.cells
    classes: list[int] = []
    by_key: dict[int | str | None, list[int]] = {}
    several = len({affinity.key for affinity in inferred.affinities.values()} - {None}) > 1
    merged: list[tuple[int, int]] = []
    for group in cells.find_classes(on_pcie, "NODE"):
        keys = dict.fromkeys(affinity.key for affinity in _list_affinities(inferred, group))
        key = next((key for key in keys if key is not None), None)
        if len(keys.keys() - {None}) > 1:
            inferred.notes.append(
                f"{list_some(inferred.get_names(group))}: labels of one NUMA node, affinities of "
                "several"
            )
        # GPUs whose NVLinks hide their PCIe routes have only their affinity in common; NET and DIS
        # overrule it, and SYS does if all affinities are of one NUMA node: that column is then
        # meaningless. One of several NUMA nodes (0-1) explains SYS: the nodes are of one socket.
        is_followed = (several and key is not None) or _is_of_several_nodes(inferred, group)
        apart_labels = ("NET", "DIS") if is_followed else ("SYS", "NET", "DIS")
        apart = cells.find_around(group, *apart_labels)
        position = next((p for p in by_key.get(key, ()) if not classes[p] & apart), None)
        if position is None:
            by_key.setdefault(key, []).append(len(classes))
            classes.append(group)
        else:
            merged.append((classes[position], group))
            classes[position] |= group
    _note_overruled(inferred, merged)
    return classes


def _is_of_several_nodes(inferred: InferredTopology, group: int) -> bool:
    affinities = _list_affinities(inferred, group)
    return any(affinity.is_of_several_nodes for affinity in affinities)


def _join_unplaced(inferred: InferredTopology, nodes: list[int]) -> list[int]:
    """Put all GPUs below one CPU if more than two are set apart by SYS alone.

    A virtual machine or container without NUMA shows SYS for all pairs that share no switch. So if
    no two affinities differ, SYS tells no sockets apart. Two CPUs are common, and stay.
    """
    cells = inferred.cells
    keys = {affinity.key for affinity in inferred.affinities.values()} - {None}
    known = [node for node in nodes if set(_list_affinities(inferred, node)) - {UNKNOWN}]
    if len(keys) == 1 and len(known) == _MAX_UNTOLD_CPUS:
        inferred.notes.append(
            "SYS between GPUs whose affinities are all of one NUMA node: the two contradict each "
            "other; the labels are followed, so there are two CPUs"
        )
    if len(nodes) <= _MAX_UNTOLD_CPUS or len(keys) > 1:
        return nodes
    with_gpus = [node for node in nodes if node & cells.gpus]
    if any(cells.find_around(node, "NET", "DIS") for node in with_gpus):
        return nodes
    if keys and len(with_gpus) <= _MAX_UNTOLD_CPUS:
        return nodes  # all further ones are of NICs
    what = "no affinities tell CPUs apart" if keys else "no affinities are given"
    inferred.notes.append(
        f"{what}, and SYS is what containers and virtual machines without NUMA show for any two "
        "devices, so how many CPUs there are is not known"
    )
    if len(with_gpus) <= _MAX_UNTOLD_CPUS:
        return nodes
    joined = unite(with_gpus)
    inferred.overruled |= _pair_up(joined, joined)
    return [joined, *(node for node in nodes if not node & cells.gpus)]


def _list_affinities(inferred: InferredTopology, group: int) -> list[Affinity]:
    return [inferred.affinities[i] for i in iterate_members(group) if i in inferred.affinities]


def _note_overruled(inferred: InferredTopology, merged: list[tuple[int, int]]) -> None:
    """Note pairs labelled SYS that were put into one NUMA node because of their affinities."""
    pairs = [
        (i, j)
        for a, b in merged
        for i in iterate_members(a)
        for j in iterate_members(inferred.cells.with_label["SYS"][i] & b)
    ]
    if pairs:
        inferred.overruled |= {frozenset(pair) for pair in pairs}
        members = sorted({i for pair in pairs for i in pair})
        inferred.notes.append(
            f"{list_some(inferred.cells.ids[i] for i in members)}: SYS between devices whose "
            "affinities are of one NUMA node; the affinities are followed"
        )


def _place_lonely_nics(inferred: InferredTopology, nodes: list[int]) -> list[int]:
    """Put NICs that are SYS from all GPUs below CPUs of GPUs: they get no CPU of their own.

    If there are several such CPUs, each group of NICs goes below the one with the fewest NICs. If
    there is one, all of these NICs share one further CPU. This applies only if the affinities of
    all CPUs with GPUs are known, since labels alone may show a further NUMA node, or if there would
    be more than two without any.
    """
    cells = inferred.cells
    homes = [node for node in nodes if set(_list_affinities(inferred, node)) - {UNKNOWN}]
    if not homes and len(nodes) > _MAX_UNTOLD_CPUS:
        homes = [node for node in nodes if node & cells.gpus]
    lonely = [node for node in nodes if not node & cells.gpus]
    if not homes or not lonely or any(node & cells.gpus for node in nodes if node not in homes):
        return nodes
    nics = unite(lonely)
    if len(homes) == 1 and len(lonely) == 1:
        return nodes
    for number, group in enumerate(lonely, 1):
        inferred.unplaced |= dict.fromkeys(iterate_members(group), number)
    if len(homes) == 1:
        inferred.overruled |= _pair_up(nics, nics)
        return [*homes, nics]
    placed = dict.fromkeys(homes, 0)
    for group in lonely:
        nearest = min(homes, key=lambda node: ((node & ~cells.gpus) | placed[node]).bit_count())
        placed[nearest] |= group
    places = []
    for home, group in placed.items():
        if group:
            inferred.overruled |= _pair_up(group, home | group)
            gpu = cells.ids[next(iterate_members(home & cells.gpus))]
            which = f"{list_some(inferred.get_names(group))} " if group != nics else ""
            places.append(f"{which}on the CPU of {gpu}")
    inferred.notes.append(
        f"{list_some(inferred.get_names(nics))}: SYS from every GPU, so their CPU is not known; "
        f"taken to be {', '.join(places)}"
    )
    return [home | placed[home] for home in homes]


def _pair_up(a: int, b: int) -> set[frozenset[int]]:
    return {frozenset((i, j)) for i in iterate_members(a) for j in iterate_members(b)}


def _add_cpu(inferred: InferredTopology, group: int) -> Device:
    """Add the CPU of a NUMA class, named by its node if that is known, and return it."""
    affinities = _list_affinities(inferred, group)
    node = _find_common([a.numa_node for a in affinities])
    cpus = _find_common([a.cpus for a in affinities])
    # if its number is unknown, the first that no NUMA node and no other CPU has
    taken = {f"cpu{affinity.numa_node}" for affinity in inferred.affinities.values()}
    taken |= {device.id for device in inferred.devices}
    free = next(n for n in count() if f"cpu{n}" not in taken)
    cpu = Device(
        inferred.pick_id("cpu", free if node is None else node),
        "cpu",
        numa_node=node,
        source=inferred.source,
        extra={"cpus": cpus}
        if cpus
        else {}
        if affinities or group & inferred.cells.gpus
        else {ASSUMED_PLACE: True},
    )
    inferred.devices.append(cpu)
    for i in iterate_members(group):
        if node is not None and i not in inferred.affinities and i not in inferred.unplaced:
            inferred.node[i] = node
    return cpu


def _note_assumed(inferred: InferredTopology, nodes: list[int], cpus: list[Device]) -> None:
    """Note CPUs that are inferred only from labels, since none of their devices has an affinity."""
    unknown = [
        (f"{list_some(inferred.get_names(node))} ({cpu.id})", node & inferred.cells.gpus)
        for node, cpu in zip(nodes, cpus, strict=True)
        if not _list_affinities(inferred, node)
    ]
    without_gpus = [name for name, gpus in unknown if not gpus]
    without_affinities = [name for name, gpus in unknown if gpus]
    if without_gpus:
        inferred.notes.append(
            f"no GPU is near {list_some(without_gpus)}; a CPU of its own is assumed for each"
        )
    if without_affinities:
        inferred.notes.append(
            f"no affinities of {list_some(without_affinities)}; the CPUs are inferred from the "
            "labels alone"
        )


def _find_common(values: list[_Value]) -> _Value | None:
    """Return the value that all rows share, None if they differ."""
    return values[0] if len(set(values)) == 1 else None


def _name_roots(inferred: InferredTopology, cpu: str, groups: list[int]) -> None:
    """Name root complexes below a CPU if NODE sets groups of devices apart; else name none."""
    cells = inferred.cells
    on_cpu = unite(groups)
    apart = [g for g in groups if cells.find_around(g, "NODE", "SYS") & on_cpu & ~g]
    # groups with PHB between them are on one root complex, though NODE sets both apart from a third
    of_group = {g: number for number, g in enumerate(apart)}
    for a, b in combinations(apart, 2):
        first, second = of_group[a], of_group[b]
        if first != second and cells.find_around(a, "PHB") & b:
            of_group = {g: first if n == second else n for g, n in of_group.items()}
    order = list(dict.fromkeys(of_group.values()))
    inferred.root |= {
        i: f"{cpu}-root{order.index(number)}"
        for group, number in of_group.items()
        for i in iterate_members(group)
    }


def _add_branch(inferred: InferredTopology, cpu: Device, group: int, parts: list[int]) -> None:
    """Add the devices at one port of a CPU: a device, a switch, or a switch above switches."""
    if group.bit_count() == 1:
        inferred.join_pcie(inferred.get_names(group)[0], cpu.id, to_cpu=True)
        return
    switches = [_add_switch(inferred, cpu.numa_node) for _ in parts]
    for part, switch in zip(parts, switches, strict=True):
        for name in inferred.get_names(part):
            inferred.join_pcie(name, switch)
    if len(parts) > 1:
        switches.append(_add_switch(inferred, cpu.numa_node))
    for switch in switches[:-1]:
        inferred.join_pcie(switch, switches[-1])
    inferred.join_pcie(switches[-1], cpu.id)


def _add_switch(inferred: InferredTopology, node: int | None) -> str:
    ident = inferred.pick_id(
        "pcie-switch", sum(device.family == "pcie" for device in inferred.devices)
    )
    inferred.devices.append(Device(ident, "switch", "pcie", numa_node=node, source=inferred.source))
    return ident


def _join_cpus(inferred: InferredTopology, nodes: list[int], cpus: list[Device]) -> None:
    """Join every CPU to every other, unless their devices are labelled NET or DIS."""
    cells = inferred.cells
    far = [cells.find_around(node, "NET", "DIS") for node in nodes]
    by_sys = [cells.find_around(node, "SYS") for node in nodes]
    unlabelled: list[str] = []
    for (i, a), (j, b) in combinations(enumerate(cpus), 2):
        if far[i] & nodes[j]:
            continue
        if not by_sys[i] & nodes[j]:
            unlabelled.append(f"{a.id} - {b.id}")
        inferred.links += join_cpus(a.id, b.id, inferred.rates.between_cpus)
    if unlabelled:
        inferred.notes.append(
            f"the labels do not say how {list_some(unlabelled, 3)} are joined; taken as CPUs of "
            "one machine"
        )


def _note_hidden(inferred: InferredTopology, nodes: list[int], pxb: list[int]) -> None:
    """Note GPUs that got ports of their own only because direct links hide their PCIe routes."""
    cells = inferred.cells
    hidden = 0
    for group in pxb:
        node = next(node for node in nodes if node & group)
        known = group | cells.find_around(group, *PCIE_LABELS)
        others = unite(other for other in pxb if other & node and not other & known)
        hidden |= group & cells.gpus if others & cells.gpus else 0
    if hidden:
        inferred.notes.append(
            f"direct links hide how {list_some(inferred.get_names(hidden))} reach each other over "
            "PCIe; each is placed below its own port"
        )


def list_matrix_devices(
    inferred: InferredTopology, named: Mapping[str, Mapping[str, str]]
) -> Iterator[Device]:
    """Yield the devices of the columns, with inferred NUMA nodes and root complexes.

    NICs also have their assumed rates. `named` maps a GPU's id to further fields of its `extra`.
    """
    for i, ident in enumerate(inferred.cells.ids):
        node = inferred.affinities.get(i, UNKNOWN).numa_node
        kind = "gpu" if inferred.cells.gpus >> i & 1 else "nic"
        extra: dict[str, Any] = {"root": inferred.root[i]} if i in inferred.root else {}
        if kind == "nic" and inferred.rates.nic_GBps is not None:
            extra[ASSUMED_SPEED] = fraction_to_json(inferred.rates.nic_GBps)
            extra[ASSUMED_BY] = inferred.rates.nic_source
        if i in inferred.unplaced:
            extra[ASSUMED_PLACE] = inferred.unplaced[i]
        yield Device(
            ident,
            kind,
            numa_node=inferred.node.get(i) if node is None else node,
            source=inferred.source,
            extra={**extra, **named.get(ident, {})},
        )
