"""Reduce a machine that is too large to draw to a part that represents the rest.

One box of each kind is drawn, or, of a large graph without boxes, the GPUs nearest to the first. A
box is a group of devices connected without the network, such as a server. A cable stands for the
links of one kind between two devices, of both directions if these are equal.
"""

from itertools import chain

from ...graph import Device, Topology
from ...grouping import group_by_key
from ...pictures.cables import find_cables
from ...pictures.collapse import ShownPart, keep_devices, name_host
from .components import find_components

# Cables, chosen by eye: a picture with more is a tangle.
MAX_CABLES = 400
# Boxes of several GPUs: with more, one box of each kind is drawn.
_MAX_BOXES = 4
# GPUs drawn of a large graph without boxes: a 6 x 6 part of a mesh.
_MAX_GPUS = 36


def collapse(
    topology: Topology, max_cables: int = MAX_CABLES, max_boxes: int = _MAX_BOXES
) -> ShownPart:
    """Return the whole machine if it is small enough to draw, else a part that represents the rest.

    The part has one box of each kind, or, if that is not possible, the GPUs nearest to the first; a
    sentence says what was left out. Unlike `show_hosts_once` it looks at links, not at names of
    hosts. A machine with more than `max_boxes` boxes of several GPUs, or more than `max_cables`
    cables, is too large to draw.
    """
    boxes = list_boxes(topology)
    if (
        len(find_cables(topology)) <= max_cables
        and sum(sum(d.kind == "gpu" for d in box) > 1 for box in boxes) <= max_boxes
    ):
        return ShownPart(topology, None)
    kinds = group_by_key((_describe_box(topology, box), box) for box in boxes)
    kept = [of[0] for of in kinds.values()]
    # If all boxes differ, or one of each kind is still too many, only a neighbourhood is shown.
    if len(kept) == len(boxes) or sum(len(box) for box in kept) > MAX_CABLES:
        return _keep_nearest(topology)
    firsts = [next((d.id for d in box if d.kind == "gpu"), box[0].id) for box in kept]
    drawn = keep_devices(topology, {d.id for d in (*list_hubs(topology), *chain(*kept))})
    if len(find_cables(drawn)) > max_cables:
        return _keep_nearest(topology)
    listed = (f"{len(of):,} like that of {x}" for of, x in zip(kinds.values(), firsts, strict=True))
    return ShownPart(drawn, f"one box of each kind is drawn: there are {', '.join(listed)}")


def list_hubs(topology: Topology) -> list[Device]:
    """Return the switches that connect boxes: those of a network or of no family."""
    return [d for d in topology.devices if d.kind == "switch" and d.family in (None, "network")]


def list_boxes(topology: Topology) -> list[list[Device]]:
    """Return the devices of each box: a group connected without the switches of `list_hubs`."""
    return find_components(topology, find_cables(topology), {d.id for d in list_hubs(topology)})


def _describe_box(topology: Topology, box: list[Device]) -> object:
    """Return a key that is equal for boxes with the same devices in order and the same rates."""
    place = {d.id: i for i, d in enumerate(box)}
    return tuple((d.kind, d.family) for d in box), frozenset(
        (i, place.get(b, b), topology.capacity_GBps[a, b], topology.capacity_GBps.get((b, a)))
        for a, i in place.items()
        for b in topology.out_neighbours[a]
    )


def _keep_nearest(topology: Topology) -> ShownPart:
    """Return the GPUs fewest hops from the first, with the devices between them."""
    order = [topology.ranks[0]]
    gpus = 1
    for ident in order:
        for other in topology.out_neighbours[ident]:
            if other not in order and gpus < _MAX_GPUS and len(order) < MAX_CABLES // 2:
                order.append(other)
                gpus += topology.by_id[other].kind == "gpu"
    return ShownPart(
        keep_devices(topology, set(order)),
        f"{gpus} of {len(topology.ranks):,} GPUs are drawn, those nearest to {topology.ranks[0]}",
    )


def count_hosts(topology: Topology) -> int:
    """Return the number of hosts that the devices name; 0 if they name none."""
    return len({name_host(device) for device in topology.devices} - {""})
