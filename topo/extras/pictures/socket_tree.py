"""Lay out a box with sockets and PCIe: a tree from the sockets down to a row of GPUs and NICs.

A cable stands for the links of one kind between two devices, of both directions if these are equal.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...facts.keys import split_host
from ...graph import Device, Topology
from ...grouping import group_by_key
from ...pictures.cables import Cable
from ...pictures.collapse import name_host, number_ranks
from .components import group_switches
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
    make_bars,
    make_shape,
    make_wire,
)

# Sizes in pixels, chosen by eye. Between levels of the tree, between leaves, and between trees.
_TIER, _LEAF_GAP, _TREE_GAP = 96, 14, 44
_CPU_HEIGHT, _SWITCH_HEIGHT, _BAR_REACH = 50, 30, 40
# Sockets and PCIe switches above a single leaf are at least this wide, for their names.
_MIN_PARENT_WIDTH = 110.0
_FRAME_PAD, _FRAME_HEAD, _FRAME_ROOM, _TEXT = 16, 28, 44, 13


class SocketTree:
    """The layout of one box with sockets or PCIe switches; `build_picture` returns the result.

    `devices` are the box's, a group connected without the network; `inside` are the cables among
    them. From top to bottom there are sockets, then PCIe switches, GPUs and NICs, and NVSwitches.
    Direct links between GPUs are arcs between the row of GPUs and the NVSwitches.
    """

    def __init__(
        self, topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]
    ) -> None:
        self.topology = topology
        self.rank = number_ranks(topology)
        self.device = {d.id: d for d in devices}
        self.inside = inside
        on_pcie = {end for c in inside if c.kind == "pcie" for end in (c.a, c.b)}
        # A superchip's GPU is placed by its PCIe link, though C2C connects it to the CPU too.
        self.neighbours = group_by_key(
            ends
            for c in inside
            if c.kind != "c2c" or not {c.a, c.b} <= on_pcie
            for ends in ((c.a, c.b), (c.b, c.a))
        )
        self.bars = [d.id for d in devices if d.kind == "switch" and d.family != "pcie"]
        self.children: dict[str, list[str]] = defaultdict(list)
        self.depth: dict[str, int] = {}
        self.roots = self._build_tree(devices)
        parents = (depth for ident, depth in self.depth.items() if not self._is_leaf(ident))
        self.leaf_y = _TIER * (1 + max(parents, default=0))
        self.shapes: dict[str, Shape] = {}

    def _is_leaf(self, ident: str) -> bool:
        return self.device[ident].kind in ("gpu", "nic")

    def _build_tree(self, devices: Sequence[Device]) -> list[str]:
        """Fill in the children of sockets and PCIe switches and return the roots.

        A device that no socket reaches is a root of its own.
        """
        roots = [d.id for d in devices if d.kind == "cpu"]
        self._descend(roots)
        for device in sorted(devices, key=lambda d: self._is_leaf(d.id)):
            if device.id not in self.depth and device.id not in self.bars:
                roots.append(device.id)
                self._descend([device.id])
        order = {ident: i for i, ident in enumerate(self.device)}
        for below in self.children.values():
            below.sort(key=lambda ident: self._sort_key(ident, order))
        return roots

    def _sort_key(self, ident: str, order: dict[str, int]) -> tuple[bool, int]:
        """Sort devices by the first GPU below them; those without one, such as NICs, come last."""
        leaves = [order[i] for i in self._list_below(ident) if self.device[i].kind == "gpu"]
        return not leaves, min(leaves or [order[ident]])

    def _list_below(self, ident: str) -> list[str]:
        """Return a device and all devices below it."""
        below = [ident]
        for member in below:
            below += self.children.get(member, [])
        return below

    def _descend(self, roots: list[str]) -> None:
        """Add everything reachable from the roots below them, breadth first."""
        self.depth |= dict.fromkeys(roots, 0)
        queue = list(roots)
        for upper in queue:
            for lower in [] if self._is_leaf(upper) else self.neighbours[upper]:
                if lower not in self.depth and lower not in self.bars:
                    self.depth[lower] = self.depth[upper] + 1
                    self.children[upper].append(lower)
                    queue.append(lower)

    def build_picture(self) -> Picture:
        """Place the shapes from left to right, then bars and wires, and return the picture.

        Call it once. The picture is not moved to the origin.
        """
        x = 0.0
        framed: list[tuple[str, float, float]] = []
        for host, roots in self._list_roots_by_host():
            left = x
            for root in roots:
                x = self._place([root], x) + _TREE_GAP
            if host:
                framed.append((host, left, x - _TREE_GAP))
        # Arcs come before the bars, which are placed below the deepest arc.
        arcs = self._list_cables_of("gpu")
        sockets = self._list_cables_of("cpu")
        wires = [self._make_arc(c) for c in arcs] + [self._join_sockets(c) for c in sockets]
        # An arc comes half as low as its control point.
        arc_bottoms = [
            wire.end[1] + max(0.0, (wire.bend[1] - wire.end[1]) / 2)
            for wire in wires
            if wire.bend is not None
        ]
        bottom = max([s.bottom for s in self.shapes.values()] + arc_bottoms)
        top = min(s.top for s in self.shapes.values())
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
        wires += (
            bend_around(wire, self.shapes.values()) if wire.cable.kind == "c2c" else wire
            for wire in bundle_wires(
                self.shapes, [c for c in self.inside if c not in {*arcs, *sockets}]
            )
        )
        return Picture(tuple(dict.fromkeys(self.shapes.values())), tuple(wires), frames)

    def _list_cables_of(self, kind: str) -> list[Cable]:
        return [c for c in self.inside if self.device[c.a].kind == kind == self.device[c.b].kind]

    def _list_roots_by_host(self) -> list[tuple[str, list[str]]]:
        """Return the roots of each host, with the host's name if there are several."""
        of_host = group_by_key((name_host(self.device[root]), root) for root in self.roots)
        return list(of_host.items()) if len(of_host) > 1 else [("", self.roots)]

    def _place(self, group: Sequence[str], x: float) -> float:
        """Place leaves drawn as one, or a device and its subtree, from `x` on.

        Return the right edge.
        """
        ident = group[0]
        if self._is_leaf(ident):
            return self._place_leaf(group, x)
        start, device, name = x, self.device[ident], split_host(ident)[1]
        for i, below in enumerate(self._group_nics(self.children.get(ident, []))):
            x = self._place(below, x + (_LEAF_GAP if i else 0))
        if device.kind == "cpu":
            look, title, height = "cpu", name, _CPU_HEIGHT
            subtitle = "" if device.numa_node is None else f"NUMA node {device.numa_node}"
        else:
            look, title, subtitle, height = "pcie", name, "PCIe switch", _SWITCH_HEIGHT
            if name.startswith("pci-"):  # a bus address loses the PCI domain that all share
                title, subtitle = "PCIe " + name[4:].removeprefix("0000:"), ""
        width = max(x - start, fit_width([title], _TEXT, _MIN_PARENT_WIDTH))
        # A subtree narrower than the device above it is moved below its middle.
        for lower in self._list_below(ident)[1:]:
            shape = self.shapes[lower]
            self.shapes[lower] = replace(shape, x=shape.x + (width - (x - start)) / 2)
        self.shapes[ident] = Shape(
            (ident,),
            look,
            title,
            subtitle,
            start + width / 2,
            _TIER * self.depth[ident],
            width,
            height,
        )
        return start + width

    def _group_nics(self, children: Sequence[str]) -> Iterable[list[str]]:
        """Return the children, with NICs that have identical connections grouped."""
        groups: dict[object, list[str]] = defaultdict(list)
        for ident in children:
            alike = (
                (c.a + c.b).replace(ident, "", 1) + str(c.GBps)
                for c in self.inside
                if ident in (c.a, c.b)
            )
            groups[frozenset(alike) if self.device[ident].kind == "nic" else ident].append(ident)
        return groups.values()

    def _place_leaf(self, ids: Sequence[str], x: float) -> float:
        """Place a GPU or a group of NICs from `x` on; return the right edge."""
        rank = self.rank.get(ids[0])
        y = self.leaf_y + (0 if rank is not None else (NIC_HEIGHT - GPU_HEIGHT) / 2)
        shape = make_shape(self.topology, ids[0], rank, x, y)
        shape = replace(shape, ids=tuple(ids), x=x + shape.width / 2)
        if len(ids) > 1:
            shape = replace(shape, title=f"{len(ids)} NICs", subtitle=f"{shape.title} …")
        self.shapes |= dict.fromkeys(ids, shape)
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
            wire,
            start=(a.x + offset, a.y + a.height / 4),
            end=(b.x - offset, b.y + b.height / 4),
        )

    def _join_sockets(self, cable: Cable) -> Wire:
        """Return a wire between two sockets: straight if they are neighbours, else an arc above."""
        a, b = sorted((self.shapes[cable.a], self.shapes[cable.b]), key=lambda s: s.x)
        if not any(s.look == "cpu" and a.x < s.x < b.x for s in self.shapes.values()):
            return make_wire(cable, a, b)
        return make_wire(
            cable, a, b, ((a.x + b.x) / 2, a.y - _CPU_HEIGHT / 2 - 24 - 0.12 * (b.x - a.x))
        )
