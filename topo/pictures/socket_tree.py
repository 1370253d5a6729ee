"""Lay out a box with sockets and PCIe: a tree from the sockets down to a row of GPUs and NICs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..facts.keys import split_host
from ..graph import Device, Topology
from .cables import Cable, group_switches
from .collapse import name_host, number_ranks
from .shapes import (
    GPU_HEIGHT,
    NIC_HEIGHT,
    Frame,
    Picture,
    Shape,
    Wire,
    bend_around,
    bundle_wires,
    fit_width,
    get_gpu_size,
    make_bars,
    make_gpu_shape,
    make_nic_shape,
    make_wire,
)

# Sizes in pixels, chosen by eye. Between levels of the tree, between leaves, and between trees.
_TIER, _LEAF_GAP, _TREE_GAP = 96, 14, 44
_CPU_HEIGHT, _SWITCH_HEIGHT, _BAR_REACH = 50, 30, 40
# Sockets and PCIe switches above a single leaf are at least this wide, for their names.
_MIN_PARENT_WIDTH = 110.0
_FRAME_PAD, _FRAME_HEAD, _FRAME_ROOM, _TEXT = 16, 28, 44, 13


@dataclass(frozen=True)
class _Leaf:
    """A GPU, or NICs with identical connections, at the bottom of the tree."""

    ids: tuple[str, ...]
    is_gpu: bool


def _shorten_switch_name(ident: str) -> str:
    """Shorten a switch's id; an id made of a bus address loses the PCI domain that all share."""
    return "PCIe " + ident[4:].removeprefix("0000:") if ident.startswith("pci-") else ident


def lay_out_sockets(
    topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]
) -> Picture:
    """Lay out sockets, then PCIe switches, GPUs and NICs, and NVSwitches, from top to bottom.

    Direct links between GPUs are arcs below these.
    """
    return _SocketTree(topology, devices, inside).build_picture()


class _SocketTree:
    """Build the tree, then place it from left to right."""

    def __init__(
        self, topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]
    ) -> None:
        self.topology = topology
        self.rank = number_ranks(topology)
        self.device = {d.id: d for d in devices}
        self.inside = inside
        self.neighbours: dict[str, list[str]] = defaultdict(list)
        on_pcie = {end for c in inside if c.kind == "pcie" for end in (c.a, c.b)}
        for c in inside:
            # A superchip's GPU is placed by its PCIe link, though C2C connects it to the CPU too.
            if c.kind != "c2c" or not {c.a, c.b} <= on_pcie:
                self.neighbours[c.a].append(c.b)
                self.neighbours[c.b].append(c.a)
        self.bars = [d.id for d in devices if d.kind == "switch" and d.family != "pcie"]
        self.children: dict[str, list[str]] = defaultdict(list)
        self.depth: dict[str, int] = {}
        self.roots = self._build_tree(devices)
        self.leaf_y = _TIER * (
            1 + max((self.depth[d] for d in self.depth if not self._is_leaf(d)), default=0)
        )
        self.shapes: dict[str, Shape] = {}

    def _is_leaf(self, ident: str) -> bool:
        return self.device[ident].kind in ("gpu", "nic")

    def _build_tree(self, devices: Sequence[Device]) -> list[str]:
        """Fill in the children of sockets and PCIe switches and return the roots.

        A device that no socket reaches is a root of its own.
        """
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
            below.sort(key=lambda ident: self._sort_key(ident, order))
        return roots

    def _sort_key(self, ident: str, order: dict[str, int]) -> tuple[bool, int]:
        """Sort devices by the first GPU below them; those without one, such as NICs, come last."""
        below = [ident]
        for member in below:
            below += self.children.get(member, [])
        leaves = [order[i] for i in below if self.device[i].kind == "gpu"]
        return not leaves, min(leaves or [order[ident]])

    def _descend(self, queue: list[str]) -> None:
        """Add everything reachable from the queue's devices below them, breadth first."""
        for upper in queue:
            if self._is_leaf(upper):
                continue
            for lower in dict.fromkeys(self.neighbours[upper]):
                if lower not in self.depth and lower not in self.bars:
                    self.depth[lower] = self.depth[upper] + 1
                    self.children[upper].append(lower)
                    queue.append(lower)

    def build_picture(self) -> Picture:
        """Return the picture: shapes from left to right, then bars and wires."""
        x = 0.0
        framed: list[tuple[str, float, float]] = []
        for host, roots in self._list_roots_by_host():
            left = x
            for root in roots:
                x = self._place_subtree(root, x) + _TREE_GAP
            if host:
                framed.append((host, left, x - _TREE_GAP))
        # Arcs come before the bars, which are placed below the deepest arc.
        arcs = self._list_cables_of("gpu")
        sockets = self._list_cables_of("cpu")
        wires = [self._make_arc(c) for c in arcs] + [self._join_sockets(c) for c in sockets]
        bottom = max(
            [s.bottom for s in self.shapes.values()]
            + [w.end[1] + self._measure_depth(w) for w in wires]
        )
        top = min(s.top for s in self.shapes.values()) if self.shapes else 0.0
        frames = tuple(
            Frame(
                host,
                left - _FRAME_PAD,
                top - _FRAME_HEAD,
                right - left + 2 * _FRAME_PAD,
                bottom - top + _FRAME_ROOM,
            )
            for host, left, right in framed
        )
        self._place_bars(bottom + _BAR_REACH + (_FRAME_PAD if frames else 0))
        shapes = tuple(dict.fromkeys(self.shapes.values()))
        rest = [c for c in self.inside if c not in set(arcs) | set(sockets)]
        for c, wire in bundle_wires(self.shapes, rest):
            ends = (self.shapes[c.a], self.shapes[c.b])
            others = [s for s in shapes if s not in ends]
            wires.append(bend_around(wire, others) if c.kind == "c2c" else wire)
        return Picture(shapes, tuple(wires), frames)

    def _list_cables_of(self, kind: str) -> list[Cable]:
        return [c for c in self.inside if self.device[c.a].kind == kind == self.device[c.b].kind]

    def _list_roots_by_host(self) -> list[tuple[str, list[str]]]:
        """Return the roots of each host, with the host's name if there are several."""
        of_host: dict[str, list[str]] = defaultdict(list)
        for root in self.roots:
            of_host[name_host(self.device[root])].append(root)
        return list(of_host.items()) if len(of_host) > 1 else [("", self.roots)]

    def _place_subtree(self, ident: str, x: float) -> float:
        """Place a device and its subtree from `x` on; return the right edge."""
        if self._is_leaf(ident):
            return self._place_leaf(_Leaf((ident,), self.device[ident].kind == "gpu"), x)
        start = x
        for i, child in enumerate(self._group_nics(self.children.get(ident, []))):
            x += _LEAF_GAP if i else 0
            x = (
                self._place_leaf(child, x)
                if isinstance(child, _Leaf)
                else self._place_subtree(child, x)
            )
        device = self.device[ident]
        look = "cpu" if device.kind == "cpu" else "pcie"
        name = split_host(ident)[1]
        least = fit_width(
            [name if look == "cpu" else _shorten_switch_name(name)], _TEXT, _MIN_PARENT_WIDTH
        )
        if x - start < least:
            self._shift_below(ident, (least - (x - start)) / 2)
        width = max(x - start, least)
        y = _TIER * self.depth[ident]
        node = "" if device.numa_node is None else f"NUMA node {device.numa_node}"
        if look == "cpu":
            title, subtitle = name, node
        else:
            title, subtitle = (
                _shorten_switch_name(name),
                "" if name.startswith("pci-") else "PCIe switch",
            )
        height = _CPU_HEIGHT if look == "cpu" else _SWITCH_HEIGHT
        self.shapes[ident] = Shape(
            (ident,), look, title, subtitle, start + width / 2, y, width, height
        )
        return start + width

    def _shift_below(self, ident: str, dx: float) -> None:
        below = [ident]
        for member in below:
            below += self.children.get(member, [])
        shifted = {s.ids: replace(s, x=s.x + dx) for i in below[1:] for s in (self.shapes[i],)}
        self.shapes |= {i: shape for ids, shape in shifted.items() for i in ids}

    def _group_nics(self, children: list[str]) -> list[_Leaf | str]:
        """Return the children, with NICs that have identical connections grouped as one."""
        groups: dict[object, list[str]] = {}
        for ident in children:
            alike: object = ident
            if self.device[ident].kind == "nic":
                alike = frozenset(
                    (c.a + c.b).replace(ident, "", 1) + str(c.GBps)
                    for c in self.inside
                    if ident in (c.a, c.b)
                )
            groups.setdefault(alike, []).append(ident)
        return [
            _Leaf(tuple(g), self.device[g[0]].kind == "gpu") if self._is_leaf(g[0]) else g[0]
            for g in groups.values()
        ]

    def _place_leaf(self, leaf: _Leaf, x: float) -> float:
        """Place a GPU or a group of NICs from `x` on; return the right edge."""
        if leaf.is_gpu:
            width = get_gpu_size(self.topology)[0]
            ident = leaf.ids[0]
            self.shapes[ident] = make_gpu_shape(
                self.topology, ident, self.rank[ident], x + width / 2, self.leaf_y
            )
            return x + width
        y = self.leaf_y + (NIC_HEIGHT - GPU_HEIGHT) / 2
        shape = make_nic_shape(self.topology, leaf.ids[0], x, y)
        shape = replace(shape, ids=leaf.ids, x=x + shape.width / 2)
        if len(leaf.ids) > 1:
            shape = replace(shape, title=f"{len(leaf.ids)} NICs", subtitle=f"{shape.title} …")
        self.shapes |= dict.fromkeys(leaf.ids, shape)
        return shape.right

    def _place_bars(self, y: float) -> None:
        """Place NVSwitches below the GPUs; those with the same neighbours are one bar."""
        gpus = [s for s in self.shapes.values() if s.look == "gpu"] or list(self.shapes.values())
        left, right = min(s.left for s in gpus), max(s.right for s in gpus)
        names = {
            group: "NVSwitch" if self.device[group[0]].family == "nvswitch" else "switch"
            for group in group_switches(self.bars, self.inside)
        }
        self.shapes |= make_bars(names, "nvswitch", left, y + 20, right - left, gap=8)

    def _make_arc(self, cable: Cable) -> Wire:
        """Return a wire between two GPUs, below their row: the farther apart, the deeper."""
        a, b = self.shapes[cable.a], self.shapes[cable.b]
        depth = 40 + 0.42 * abs(a.x - b.x)
        wire = make_wire(cable, a, b, ((a.x + b.x) / 2, a.y + GPU_HEIGHT / 2 + depth))
        offset = math.copysign(a.width / 4, b.x - a.x)
        return replace(
            wire, start=(a.x + offset, a.y + a.height / 4), end=(b.x - offset, b.y + b.height / 4)
        )

    def _join_sockets(self, cable: Cable) -> Wire:
        """Return a wire between two sockets: straight if they are neighbours, else an arc above."""
        a, b = sorted((self.shapes[cable.a], self.shapes[cable.b]), key=lambda s: s.x)
        if not any(s.look == "cpu" and a.x < s.x < b.x for s in self.shapes.values()):
            return make_wire(cable, a, b)
        return make_wire(
            cable, a, b, ((a.x + b.x) / 2, a.y - _CPU_HEIGHT / 2 - 24 - 0.12 * (b.x - a.x))
        )

    def _measure_depth(self, wire: Wire) -> float:
        return 0.0 if wire.bend is None else max(0.0, (wire.bend[1] - wire.end[1]) / 2)
