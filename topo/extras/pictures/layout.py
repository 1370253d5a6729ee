"""Lay out the picture of a machine: positions of shapes, and the wires between them.

Directly connected GPUs are arranged by structure (`structures`). On other machines, a box is a
group of devices connected without the network. In a box, sockets are above PCIe switches, these
above GPUs and NICs (`socket_tree`), and NVSwitches are bars next to the GPUs. Boxes are above and
below the network's bar. A wire is the line for a cable, the links of one kind between two devices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from ...graph import Device, Topology
from ...pictures.cables import Cable, find_cables
from ...pictures.collapse import name_host, number_ranks
from .collapse import list_hubs
from .components import find_components, group_switches
from .network_tiers import TieredNetwork, find_tiers
from .packages import arrange_packages, find_packages
from .shapes import (
    BAR_HEIGHT,
    GPU_WIDTH,
    MANY_GPUS,
    SMALL_GPU_WIDTH,
    Frame,
    Picture,
    Shape,
    bend_around,
    bundle_wires,
    get_gpu_size,
    get_nic_width,
    make_bars,
    make_shape,
    make_wire,
)
from .socket_tree import SocketTree
from .structures import arrange

# All sizes are in pixels, chosen by eye.
# Between neighbours of a direct graph, and the same with many GPUs.
_UNIT, _SMALL_UNIT = 104, 64
# Between boxes; inside a box's frame; for the frame's label; inside the frame of a host in a row.
_GAP, _FRAME_PAD, _FRAME_HEAD, _NEAR_PAD = 40, 18, 24, 5
# Between boxes of a single GPU; next to the dies inside the frame of a package.
_SINGLE_GAP, _PACKAGE_PAD = 14, 12
# The room above and below a switch's bar, for wires to fan out.
_BAR_GAP = 70
# GPUs of a graph in which wires bend around shapes, chosen: every link is tested against every GPU.
_MAX_BENT = 32
# GPUs of a box in rows beyond which they are drawn narrow, their width, the room between hosts.
_MANY_IN_ROWS, _NARROW_GPU_WIDTH, _HOST_GAP = 48, 30, 12
# Wider rows do not fit a page: GPUs of a switch, boxes of several devices, boxes of a single one.
_MAX_GPUS_IN_ROW, _MAX_BOXES_IN_ROW, _MAX_SINGLES_IN_ROW = 8, 2, 8


def lay_out(topology: Topology) -> Picture:
    """Return the picture of a whole topology, in pixels, with its upper left corner at (0, 0)."""
    if all(d.kind == "gpu" for d in topology.devices):
        return lay_out_direct(topology, topology.ranks, find_cables(topology)).move_to_origin()
    return lay_out_boxes(topology).move_to_origin()


def lay_out_direct(
    topology: Topology, gpus: Iterable[str], machine_cables: Iterable[Cable]
) -> Picture:
    """Return the picture of GPUs that are linked directly, arranged by how they are linked.

    `gpus` are ids in rank order; of `machine_cables` those between two of them are drawn. The
    picture is not moved to the origin.
    """
    rank = number_ranks(topology)
    index = {ident: i for i, ident in enumerate(gpus)}
    inside = {
        c: (min(index[c.a], index[c.b]), max(index[c.a], index[c.b]))
        for c in machine_cables
        if c.a in index and c.b in index
    }
    pairs = frozenset(inside.values())
    packages = find_packages(inside)
    arrangement = arrange_packages(packages, pairs) if packages else arrange(len(index), pairs)
    room = get_gpu_size(topology)[0] + _UNIT - GPU_WIDTH
    unit = _SMALL_UNIT if len(topology.ranks) > MANY_GPUS else max(_UNIT, room)
    shapes = {
        ident: make_shape(topology, ident, rank[ident], unit * x, unit * y)
        for ident, (x, y) in zip(index, arrangement.points, strict=True)
    }
    wires = []
    for c, pair in inside.items():
        bend = arrangement.bends.get(pair)
        curve = None if bend is None else (unit * bend[0], unit * bend[1])
        wire = make_wire(c, shapes[c.a], shapes[c.b], curve)
        is_bent = wire.bend is not None or len(index) > _MAX_BENT
        wires.append(wire if is_bent else bend_around(wire, shapes.values()))
    ids = tuple(index)
    frames = (
        _frame_package(number, [shapes[ids[i]] for i in package])
        for number, package in enumerate(packages)
    )
    return Picture(tuple(shapes.values()), tuple(wires), tuple(frames))


def _frame_package(number: int, dies: Sequence[Shape]) -> Frame:
    left, top = min(s.left for s in dies) - _PACKAGE_PAD, min(s.top for s in dies) - _FRAME_HEAD
    width = max(s.right for s in dies) + _PACKAGE_PAD - left
    height = max(s.bottom for s in dies) + _PACKAGE_PAD - top
    return Frame(f"package {number}", left, top, width, height)


def lay_out_boxes(topology: Topology) -> Picture:
    """Return the picture of a machine's boxes, with the network's switches as bars between them.

    A box is a group of devices connected without the network. The picture is not moved to the
    origin.
    """
    machine_cables = find_cables(topology)
    hubs = list_hubs(topology)
    components = find_components(topology, machine_cables, {d.id for d in hubs})
    singles = all(len(members) == 1 for members in components)
    pictures = [_lay_out_box(topology, members, machine_cables) for members in components]
    if len(components) > 1 and not singles:
        pictures = [
            _add_frame(picture, _name_box(members, i))
            for i, (picture, members) in enumerate(zip(pictures, components, strict=True))
        ]
    tiered = any(d.kind in ("cpu", "nic") or d.family == "pcie" for d in topology.devices)
    hub_ids = {d.id: d.family or "switch" for d in hubs}
    hub_cables = [c for c in machine_cables if {c.a, c.b} & hub_ids.keys()]
    names = {group: hub_ids[group[0]] for group in group_switches(hub_ids, hub_cables)}
    tiers = find_tiers(tuple(names), hub_cables)
    if len(tiers) > 1:
        facing_up = [_flip(p) if tiered else p for p in pictures]
        facing_down = [p if tiered else _flip(p) for p in pictures]
        network = TieredNetwork(
            facing_up, facing_down, tiers, names, hub_cables, _SINGLE_GAP if singles else _GAP
        )
        return network.build_picture(_MAX_SINGLES_IN_ROW if singles else _MAX_BOXES_IN_ROW)
    arranged = _place_boxes(pictures, tiered, bool(hubs), singles)
    return _add_network_bars(arranged, names, hub_cables)


def _name_box(devices: Sequence[Device], number: int) -> str:
    """Return the name of the devices' host, or "box 1" if they have none or several."""
    hosts = {name_host(d) for d in devices}
    return next(iter(hosts)) if len(hosts) == 1 and "" not in hosts else f"box {number}"


def _lay_out_box(
    topology: Topology, devices: Sequence[Device], machine_cables: tuple[Cable, ...]
) -> Picture:
    """Lay out one box at the origin; the network is above boxes without sockets and PCIe."""
    inside = [c for c in machine_cables if {c.a, c.b} <= {d.id for d in devices}]
    if any(d.kind == "cpu" or d.family == "pcie" for d in devices):
        return SocketTree(topology, devices, inside).build_picture().move_to_origin()
    if any(d.kind == "switch" for d in devices) or len(devices) == 1:
        return _lay_out_rows(topology, devices, inside).move_to_origin()
    gpus = [d.id for d in devices if d.kind == "gpu"]
    nics = [d.id for d in devices if d.kind == "nic"]
    picture = lay_out_direct(topology, gpus, inside).move_to_origin()
    shapes = {ident: s for s in picture.shapes for ident in s.ids}
    # NICs stand in the order of the GPUs above them, so that fewer wires cross.
    ends = (
        (nic, [shapes[x].x for x in topology.out_neighbours[nic] if x in shapes]) for nic in nics
    )
    middle = {nic: sum(xs) / max(len(xs), 1) for nic, xs in ends}
    nics.sort(key=lambda nic: middle[nic])
    spacing = max(picture.width / max(len(nics), 1), get_nic_width(topology) + 6)
    for i, nic in enumerate(nics):
        x = picture.width / 2 + spacing * (i - (len(nics) - 1) / 2)
        shapes[nic] = make_shape(topology, nic, None, x, picture.height + 70)
    to_nics = (
        bend_around(make_wire(c, shapes[c.a], shapes[c.b]), shapes.values())
        for c in inside
        if not {c.a, c.b}.issubset(gpus)
    )
    wires = (*picture.wires, *to_nics)
    return Picture(tuple(shapes.values()), wires, picture.frames).move_to_origin()


def _lay_out_rows(
    topology: Topology, devices: Sequence[Device], inside: Sequence[Cable]
) -> Picture:
    rank = number_ranks(topology)
    width, height = get_gpu_size(topology)
    if any(d.kind == "nic" for d in devices):
        width = max(width, get_nic_width(topology))
    leaves = [d.id for d in devices if d.kind != "switch"]
    if len(leaves) > _MANY_IN_ROWS and width == SMALL_GPU_WIDTH:
        width = _NARROW_GPU_WIDTH
    step_x = width + (14 if width > 50 else 6 if width == SMALL_GPU_WIDTH else 4)
    step_y = height / 2 + BAR_HEIGHT / 2 + (44 if width > 50 else 24)
    groups = group_switches((d.id for d in devices if d.kind == "switch"), inside)
    host = {ident: name_host(topology.by_id[ident]) for ident in leaves}
    rows = _divide_into_rows(groups, leaves, inside, host, small=width < 50)
    # Stagger rows of many GPUs, so that wires from the network to the row behind show in the gaps.
    own = {d.id for d in devices}
    is_linked = any(x not in own for ident in leaves for x in topology.out_neighbours[ident])
    is_many = len(topology.ranks) > MANY_GPUS and len(rows) > 2
    stagger = 0.5 if is_many and is_linked else 0.0
    # Frames of hosts need room next to each other.
    offsets = {
        ident: k * step_x + _HOST_GAP * sum(host[a] != host[b] for a, b in pairwise(row[: k + 1]))
        for row in rows
        if isinstance(row, list)
        for k, ident in enumerate(row)
    }
    span = max(offsets.values(), default=0.0) + stagger * step_x
    shapes: dict[str, Shape] = {}
    of_rows: list[list[tuple[str, Shape]]] = []
    below: list[bool] = []  # whether each row is below the switches
    for i, row in enumerate(rows):
        y = i * step_y
        if isinstance(row, list):
            left = (span - offsets[row[-1]]) / 2 + (step_x * stagger / 2 * (1 if i else -1))
            for ident in row:
                shape = make_shape(topology, ident, rank.get(ident), left + offsets[ident], y)
                shapes[ident] = replace(shape, width=min(shape.width, width))
            of_rows.append([(host[ident], shapes[ident]) for ident in row])
            below.append(i > 0)
        else:  # the bars of a row share the width of the widest row of GPUs
            shapes |= make_bars(
                dict.fromkeys(row, "NVSwitch"),
                "nvswitch",
                -step_x / 2,
                y,
                span + step_x,
                gap=step_x - width,
            )
    return Picture(
        tuple(dict.fromkeys(shapes.values())),
        bundle_wires(shapes, inside),
        tuple(_frame_hosts(of_rows, below)),
    )


def _frame_hosts(
    rows: Sequence[Sequence[tuple[str, Shape]]], below: Sequence[bool]
) -> Iterator[Frame]:
    """Yield a frame around the shapes of each host in each row, if there are several hosts.

    `below` is whether a row is below its switches; then labels are on the side without wires too.
    """
    if len({host for row in rows for host, _ in row} - {""}) <= 1:
        return
    for row, label_below in zip(rows, below, strict=True):
        for host, run in groupby(row, key=lambda member: member[0]):
            shapes = [shape for _, shape in run]
            left = min(s.left for s in shapes) - _NEAR_PAD
            top = min(s.top for s in shapes) - (_NEAR_PAD if label_below else _FRAME_HEAD)
            width = max(s.right for s in shapes) + _NEAR_PAD - left
            bottom = max(s.bottom for s in shapes) + (_FRAME_HEAD if label_below else _NEAR_PAD)
            if host:
                yield Frame(host, left, top, width, bottom - top, label_below)


def _divide_into_rows(
    groups: list[tuple[str, ...]],
    leaves: list[str],
    inside: Sequence[Cable],
    host: Mapping[str, str],
    small: bool,
) -> list[list[str] | tuple[tuple[str, ...], ...]]:
    """Return rows from top to bottom: a list of GPUs, or a tuple of switch groups."""
    if not groups:
        return [leaves]
    leaves_of_group = [
        [leaf for leaf in leaves if any({leaf, s} == {c.a, c.b} for c in inside for s in g)]
        for g in groups
    ]
    disjoint = sum(map(len, leaves_of_group)) == len(leaves) and len(
        set().union(*leaves_of_group)
    ) == len(leaves)
    if len(groups) == 2 and disjoint and all(leaves_of_group):
        return [leaves_of_group[0], (groups[0],), (groups[1],), leaves_of_group[1]]
    if len(leaves) <= (_MAX_GPUS_IN_ROW // 2 if small else _MAX_GPUS_IN_ROW):
        return [leaves, tuple(groups)]
    half = (len(leaves) + 1) // 2
    # A row ends where a host does, if one does near the middle.
    ends = [i for i in range(1, len(leaves)) if host[leaves[i - 1]] != host[leaves[i]]]
    half = min(ends, key=lambda end: abs(end - half), default=half)
    return [leaves[:half], tuple(groups), leaves[half:]]


def _add_frame(picture: Picture, label: str) -> Picture:
    content = picture.shift(_FRAME_PAD, _FRAME_HEAD + 8)
    height = picture.height + _FRAME_HEAD + _FRAME_PAD + 8
    frame = Frame(label, 0, 0, picture.width + 2 * _FRAME_PAD, height)
    return Picture(content.shapes, content.wires, (*content.frames, frame))


def _flip(picture: Picture) -> Picture:
    """Turn a picture upside down, so that its network side faces the bar."""
    height = picture.height

    def flip_point(point: tuple[float, float]) -> tuple[float, float]:
        return point[0], height - point[1]

    # Frames are turned too, except for the box's own, so that its label stays on top.
    flipped = Picture(
        tuple(replace(s, y=height - s.y) for s in picture.shapes),
        tuple(w.map_points(flip_point) for w in picture.wires),
        tuple(
            replace(f, top=height - f.top - f.height, label_below=not f.label_below)
            for f in picture.frames[:-1]
        ),
    ).shift(0, _FRAME_HEAD - _FRAME_PAD + 8 if picture.frames else 0)
    return replace(flipped, frames=(*flipped.frames, *picture.frames[-1:]))


def _place_boxes(
    pictures: list[Picture], network_below: bool, has_bar: bool, singles: bool
) -> Picture:
    """Place all boxes in one row, or in two on both sides of the bar."""
    gap = _SINGLE_GAP if singles else _GAP
    half = (len(pictures) + 1) // 2
    if len(pictures) <= (_MAX_SINGLES_IN_ROW if singles else _MAX_BOXES_IN_ROW):
        half = len(pictures) if network_below else 0
    # A box's network side is its lower one if network_below, else its upper one.
    upper = [p if network_below else _flip(p) for p in pictures[:half]]
    lower = [_flip(p) if network_below else p for p in pictures[half:]]
    bar_top = max((p.height for p in upper), default=0)
    # Upper boxes are aligned at the bottom and lower ones at the top, with the bar between them.
    bar_room = 2 * _BAR_GAP + BAR_HEIGHT if has_bar else _GAP
    parts: list[Picture] = []
    for row, is_upper in ((upper, True), (lower, False)):
        x = 0.0
        for picture in row:
            y = bar_top - picture.height if is_upper else bar_top + bar_room
            parts.append(picture.shift(x, y))
            x += picture.width + gap
    return Picture(
        tuple(s for p in parts for s in p.shapes),
        tuple(w for p in parts for w in p.wires),
        tuple(f for p in parts for f in p.frames),
    )


def _add_network_bars(
    boxes: Picture, names: Mapping[tuple[str, ...], str], hub_cables: Sequence[Cable]
) -> Picture:
    """Add the network's bars, side by side, between the rows of boxes or next to the only row."""
    if not names:
        return boxes
    width = max(boxes.width, 160 * len(names))
    shapes = {ident: s for s in boxes.shapes for ident in s.ids}
    shapes |= make_bars(names, "network", 0, _find_bar_y(boxes), width, gap=20)
    return Picture(
        tuple(dict.fromkeys(shapes.values())),
        (*boxes.wires, *bundle_wires(shapes, hub_cables)),
        boxes.frames,
    )


def _find_bar_y(boxes: Picture) -> float:
    """Return the middle of the widest gap between rows, or of the room next to the only row."""
    edges = [(f.top, f.top + f.height) for f in boxes.frames] or [
        (s.top, s.bottom) for s in boxes.shapes
    ]
    # Shapes whose vertical extents overlap form one row.
    rows: list[tuple[float, float]] = []
    for top, bottom in sorted(edges):
        if rows and top <= rows[-1][1]:
            top, last_bottom = rows.pop()
            bottom = max(bottom, last_bottom)
        rows.append((top, bottom))
    if not rows:
        return 0.0
    gaps = ((below[0] - above[1], (above[1] + below[0]) / 2) for above, below in pairwise(rows))
    widest, middle = max(gaps, default=(0.0, 0.0))
    if widest >= 2 * _BAR_GAP:
        return middle
    offset = _BAR_GAP + BAR_HEIGHT / 2
    return rows[0][0] - offset if rows[0][0] >= offset else rows[-1][1] + offset
