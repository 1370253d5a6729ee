"""The picture of one box with sockets and PCI Express: a tree from the sockets down to a row of GPUs and NICs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph import Device, Topology
from .cables import Cable
from .shapes import GPU_HEIGHT, NIC_HEIGHT, NIC_WIDTH, TIMES, Picture, Shape, Wire, gpu_shape, gpu_size, wire_between

_TIER, _LEAF_GAP, _TREE_GAP = 96, 14, 44
_CPU_HEIGHT, _SWITCH_HEIGHT, _BAR_HEIGHT, _BAR_REACH = 50, 30, 34, 40
_LEAST_PARENT_WIDTH = 110.0


@dataclass(frozen=True)
class _Leaf:
    """A GPU, or NICs that are joined alike, at the bottom of the tree."""

    ids: tuple[str, ...]
    is_gpu: bool


def bar_label(name: str, idents: Sequence[str]) -> str:
    """What is written on the bar of several switches."""
    return f"{len(idents)} {TIMES} {name}" if len(idents) > 1 else f"{name} · {idents[0]}"


def _switch_name(ident: str) -> str:
    """A switch that is called by its bus address, without the domain that they all share."""
    return "PCIe " + ident[4:].removeprefix("0000:") if ident.startswith("pci-") else ident


def tiered_box(topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]) -> Picture:
    """Sockets on top, then PCIe switches, then GPUs and NICs, then NVSwitches; GPUs joined directly by arcs below."""
    return _Tiers(topology, devices, inside).picture()


class _Tiers:
    """Finds the tree, then places it from left to right."""

    def __init__(self, topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]) -> None:
        self.topology = topology
        self.rank = {ident: i for i, ident in enumerate(topology.ranks)}
        self.device = {d.id: d for d in devices}
        self.inside = inside
        self.near: dict[str, list[str]] = defaultdict(list)
        for c in inside:
            self.near[c.a].append(c.b)
            self.near[c.b].append(c.a)
        self.bars = [d.id for d in devices if d.kind == "switch" and d.family != "pcie"]
        self.children: dict[str, list[str]] = defaultdict(list)
        self.depth: dict[str, int] = {}
        self.roots = self._tree(devices)
        self.leaf_y = _TIER * (1 + max((self.depth[d] for d in self.depth if not self._is_leaf(d)), default=0))
        self.shapes: dict[str, Shape] = {}

    def _is_leaf(self, ident: str) -> bool:
        return self.device[ident].kind in ("gpu", "nic")

    def _tree(self, devices: Sequence[Device]) -> list[str]:
        """Children of each socket and PCIe switch, breadth first; what neither reaches is a root of its own."""
        roots = [d.id for d in devices if d.kind == "cpu"]
        self.depth = dict.fromkeys(roots, 0)
        self._descend(list(roots))
        for device in sorted(devices, key=lambda d: self._is_leaf(d.id)):
            if device.id not in self.depth and device.id not in self.bars:
                roots.append(device.id)
                self.depth[device.id] = 0
                self._descend([device.id])
        order = {ident: i for i, ident in enumerate(self.device)}
        for below in self.children.values():
            below.sort(key=lambda ident: self._first_leaf(ident, order))
        return roots

    def _first_leaf(self, ident: str, order: dict[str, int]) -> tuple[bool, int]:
        """Sorts by the first GPU below; NICs come after GPUs."""
        below = [ident]
        for here in below:
            below += self.children.get(here, [])
        leaves = [order[i] for i in below if self.device[i].kind == "gpu"]
        return not leaves, min(leaves or [order[ident]])

    def _descend(self, queue: list[str]) -> None:
        for here in queue:
            if self._is_leaf(here):
                continue
            for there in dict.fromkeys(self.near[here]):
                if there not in self.depth and there not in self.bars:
                    self.depth[there] = self.depth[here] + 1
                    self.children[here].append(there)
                    queue.append(there)

    def picture(self) -> Picture:
        """Shapes from left to right, then bars and wires."""
        x = 0.0
        for root in self.roots:
            x = self._place(root, x) + _TREE_GAP
        arcs = [c for c in self.inside if {self.device[c.a].kind, self.device[c.b].kind} == {"gpu"}]
        sockets = [c for c in self.inside if {self.device[c.a].kind, self.device[c.b].kind} == {"cpu"}]
        wires = [self._arc(c) for c in arcs] + [self._between_sockets(c) for c in sockets]
        bottom = max([s.bottom for s in self.shapes.values()] + [w.end[1] + self._depth(w) for w in wires])
        self._place_bars(bottom + _BAR_REACH)
        rest = [c for c in self.inside if c not in set(arcs) | set(sockets)]
        bundles = Counter((self.shapes[c.a].ids, self.shapes[c.b].ids, c.kind, c.GBps, c.one_way) for c in rest)
        drawn: set[tuple[object, ...]] = set()
        for c in rest:
            key = (self.shapes[c.a].ids, self.shapes[c.b].ids, c.kind, c.GBps, c.one_way)
            if key not in drawn:
                drawn.add(key)
                wires.append(replace(wire_between(c, self.shapes[c.a], self.shapes[c.b]), cables=bundles[key]))
        return Picture(tuple(dict.fromkeys(self.shapes.values())), tuple(wires), ())

    # -- placing -------------------------------------------------------------------------------------------------

    def _place(self, ident: str, x: float) -> float:
        """Places a device and what is below it, from `x` on; returns the right edge."""
        if self._is_leaf(ident):
            return self._place_leaf(_Leaf((ident,), self.device[ident].kind == "gpu"), x)
        start = x
        for i, child in enumerate(self._grouped(self.children.get(ident, []))):
            x += _LEAF_GAP if i else 0
            x = self._place_leaf(child, x) if isinstance(child, _Leaf) else self._place(child, x)
        if x - start < _LEAST_PARENT_WIDTH:
            self._shift(ident, (_LEAST_PARENT_WIDTH - (x - start)) / 2)
        device = self.device[ident]
        look = "cpu" if device.kind == "cpu" else "pcie"
        width = max(x - start, _LEAST_PARENT_WIDTH)
        y = _TIER * self.depth[ident]
        node = "" if device.numa_node is None else f"NUMA node {device.numa_node}"
        title, subtitle = (
            (ident, node) if look == "cpu" else (_switch_name(ident), "" if ident.startswith("pci-") else "PCIe switch")
        )
        height = _CPU_HEIGHT if look == "cpu" else _SWITCH_HEIGHT
        self.shapes[ident] = Shape((ident,), look, title, subtitle, start + width / 2, y, width, height)
        return start + width

    def _shift(self, ident: str, dx: float) -> None:
        """Moves what is below a device to the right."""
        below = [ident]
        for here in below:
            below += self.children.get(here, [])
        moved = {s.ids: replace(s, x=s.x + dx) for i in below[1:] for s in (self.shapes[i],)}
        self.shapes |= {i: shape for ids, shape in moved.items() for i in ids}

    def _grouped(self, children: list[str]) -> list[_Leaf | str]:
        """Children, of which NICs that are joined alike become one."""
        groups: dict[object, list[str]] = {}
        for ident in children:
            alike: object = ident
            if self.device[ident].kind == "nic":
                alike = frozenset(
                    (c.a + c.b).replace(ident, "", 1) + str(c.GBps) for c in self.inside if ident in (c.a, c.b)
                )
            groups.setdefault(alike, []).append(ident)
        return [
            _Leaf(tuple(g), self.device[g[0]].kind == "gpu") if self._is_leaf(g[0]) else g[0] for g in groups.values()
        ]

    def _place_leaf(self, leaf: _Leaf, x: float) -> float:
        if leaf.is_gpu:
            width = gpu_size(self.topology)[0]
            ident = leaf.ids[0]
            self.shapes[ident] = gpu_shape(self.topology, ident, self.rank[ident], x + width / 2, self.leaf_y)
            return x + width
        many = len(leaf.ids) > 1
        title = f"{len(leaf.ids)} NICs" if many else leaf.ids[0]
        subtitle = f"{leaf.ids[0]} …" if many else "NIC"
        y = self.leaf_y + (NIC_HEIGHT - GPU_HEIGHT) / 2
        shape = Shape(leaf.ids, "nic", title, subtitle, x + NIC_WIDTH / 2, y, NIC_WIDTH, NIC_HEIGHT)
        self.shapes |= dict.fromkeys(leaf.ids, shape)
        return x + NIC_WIDTH

    def _place_bars(self, y: float) -> None:
        """NVSwitches below the GPUs, those with the same neighbours as one."""
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for ident in self.bars:
            groups[frozenset(self.near[ident])].append(ident)
        gpus = [s for s in self.shapes.values() if s.look == "gpu"] or list(self.shapes.values())
        left, right = min(s.left for s in gpus), max(s.right for s in gpus)
        each = (right - left) / max(len(groups), 1)
        for i, group in enumerate(groups.values()):
            name = "NVSwitch" if self.device[group[0]].family == "nvswitch" else "switch"
            x = left + (i + 0.5) * each
            bar = Shape(tuple(group), "nvswitch", bar_label(name, group), "", x, y + 20, each - 8, _BAR_HEIGHT)
            self.shapes |= dict.fromkeys(group, bar)

    # -- curves --------------------------------------------------------------------------------------------------

    def _arc(self, cable: Cable) -> Wire:
        """GPU to GPU, below the row; the farther the deeper."""
        a, b = self.shapes[cable.a], self.shapes[cable.b]
        reach = abs(a.x - b.x)
        deep = 40 + 0.42 * reach
        wire = wire_between(cable, a, b, ((a.x + b.x) / 2, a.y + GPU_HEIGHT / 2 + deep))
        aside = math.copysign(a.width / 4, b.x - a.x)
        return replace(wire, start=(a.x + aside, a.y + a.height / 4), end=(b.x - aside, b.y + b.height / 4))

    def _between_sockets(self, cable: Cable) -> Wire:
        """Straight between neighbours, arcs above the others."""
        a, b = sorted((self.shapes[cable.a], self.shapes[cable.b]), key=lambda s: s.x)
        if not any(s.look == "cpu" and a.x < s.x < b.x for s in self.shapes.values()):
            return wire_between(cable, a, b)
        return wire_between(cable, a, b, ((a.x + b.x) / 2, a.y - _CPU_HEIGHT / 2 - 24 - 0.12 * (b.x - a.x)))

    def _depth(self, wire: Wire) -> float:
        """How far a curve reaches below its ends."""
        return 0.0 if wire.bend is None else max(0.0, (wire.bend[1] - wire.end[1]) / 2)
