"""Reduce a large machine to a part that can be drawn.

One box of each kind stays; of a large graph without boxes, the GPUs nearest to the first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from ..graph import Device, Topology
from .cables import find_cables, find_components

# Cables: a picture of more is a tangle, and takes seconds to lay out.
MAX_CABLES = 400
# Boxes of several GPUs: with more, one box of each kind is drawn.
_MAX_BOXES = 4
# GPUs drawn of a large graph without boxes: a 6 x 6 part of a mesh.
_MAX_GPUS = 36


@dataclass(frozen=True)
class Collapsed:
    """The part of a machine to draw; `left_out` is a sentence on the rest, None if all is drawn."""

    topology: Topology
    left_out: str | None


def collapse(
    topology: Topology, max_cables: int = MAX_CABLES, max_boxes: int = _MAX_BOXES
) -> Collapsed:
    """Return the whole machine if it is small enough, else a part that stands for the rest.

    `max_boxes` counts boxes of several GPUs.
    """
    boxes = list_boxes(topology)
    large = [box for box in boxes if sum(d.kind == "gpu" for d in box) > 1]
    if len(find_cables(topology)) <= max_cables and len(large) <= max_boxes:
        return Collapsed(topology, None)
    kinds: dict[object, list[list[Device]]] = defaultdict(list)
    for box in boxes:
        kinds[_describe_box(topology, box)].append(box)
    kept = [of[0] for of in kinds.values()]
    # Where all boxes differ, or one of each kind is still too much, only a neighbourhood is left.
    if len(kept) == len(boxes) or sum(len(box) for box in kept) > MAX_CABLES:
        return _keep_nearest(topology)
    listed = ", ".join(f"{len(of):,} like that of {_name_first(of[0])}" for of in kinds.values())
    drawn = _keep(
        topology, {d.id for box in kept for d in box} | {d.id for d in _list_hubs(topology)}
    )
    if len(find_cables(drawn)) > max_cables:
        return _keep_nearest(topology)
    return Collapsed(drawn, f"one box of each kind is drawn: there are {listed}")


def _list_hubs(topology: Topology) -> list[Device]:
    """Return the switches that connect boxes."""
    return [d for d in topology.devices if d.kind == "switch" and d.family in (None, "network")]


def list_boxes(topology: Topology) -> list[list[Device]]:
    """Return the devices of each box: what is connected without network switches."""
    return find_components(topology, find_cables(topology), {d.id for d in _list_hubs(topology)})


def _describe_box(topology: Topology, box: list[Device]) -> object:
    """Return a key that is equal for boxes with the same devices in order and the same rates."""
    place = {d.id: f"#{i}" for i, d in enumerate(box)}
    rates = sorted(
        (
            place[a],
            place.get(b, b),
            str(topology.capacity_GBps[a, b]),
            str(topology.capacity_GBps.get((b, a))),
        )
        for a in place
        for b in topology.out_neighbours[a]
    )
    return tuple((d.kind, d.family) for d in box), str(rates)


def _name_first(box: list[Device]) -> str:
    return next((d.id for d in box if d.kind == "gpu"), box[0].id)


def _keep(topology: Topology, kept: set[str]) -> Topology:
    devices = tuple(d for d in topology.devices if d.id in kept)
    links = tuple(x for x in topology.links if x.src in kept and x.dst in kept)
    return replace(topology, name=f"{topology.name}, a part", devices=devices, links=links)


def _keep_nearest(topology: Topology) -> Collapsed:
    """Return the GPUs fewest hops from the first, with the devices between them."""
    order = [topology.ranks[0]]
    seen = set(order)
    gpus = 1
    for ident in order:
        for other in topology.out_neighbours[ident]:
            if other not in seen and gpus < _MAX_GPUS and len(order) < MAX_CABLES // 2:
                seen.add(other)
                order.append(other)
                gpus += topology.by_id[other].kind == "gpu"
    left_out = (
        f"{gpus} of {len(topology.ranks):,} GPUs are drawn, those nearest to {topology.ranks[0]}"
    )
    return Collapsed(_keep(topology, seen), left_out)
