"""Large machines made small enough to draw: of boxes that are alike one stays, of a large graph the
GPUs around the first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from ..graph import Device, Topology
from .cables import find_cables, find_components

# A machine with more cables than this is not drawn whole.
MOST_CABLES = 400
# With more boxes of several GPUs, alike ones are drawn once.
_MOST_BOXES = 4
# GPUs of a large graph without boxes that are drawn.
_MOST_GPUS = 36


@dataclass(frozen=True)
class Collapsed:
    """What is drawn of a machine, and a sentence that says what is left out (None: nothing is)."""

    topology: Topology
    left_out: str | None


def collapse(
    topology: Topology, most_cables: int = MOST_CABLES, most_boxes: int = _MOST_BOXES
) -> Collapsed:
    """Return the machine itself where it has at most so many cables, and boxes of several GPUs,
    else a part of it that stands for the rest.
    """
    cables = find_cables(topology)
    boxes = list_boxes(topology)
    large = [box for box in boxes if sum(d.kind == "gpu" for d in box) > 1]
    if len(cables) <= most_cables and len(large) <= most_boxes:
        return Collapsed(topology, None)
    kinds: dict[object, list[list[Device]]] = defaultdict(list)
    for box in boxes:
        kinds[_describe_box(topology, box)].append(box)
    kept = [of[0] for of in kinds.values()]
    if len(kept) == len(boxes) or sum(len(box) for box in kept) > MOST_CABLES:
        return _keep_nearest(topology)
    listed = ", ".join(f"{len(of):,} like that of {_name_first(of[0])}" for of in kinds.values())
    drawn = _keep(
        topology, {d.id for box in kept for d in box} | {d.id for d in _list_hubs(topology)}
    )
    if len(find_cables(drawn)) > most_cables:
        return _keep_nearest(topology)
    return Collapsed(drawn, f"one box of each kind is drawn: there are {listed}")


def _list_hubs(topology: Topology) -> list[Device]:
    """Return the switches that join boxes."""
    return [d for d in topology.devices if d.kind == "switch" and d.family in (None, "network")]


def list_boxes(topology: Topology) -> list[list[Device]]:
    """Return what hangs together without the switches that join boxes, in device order."""
    return find_components(topology, find_cables(topology), {d.id for d in _list_hubs(topology)})


def _describe_box(topology: Topology, box: list[Device]) -> object:
    """Return what boxes that are drawn alike have in common: their devices in order, and the rates
    between them and out.
    """
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
    """Return the GPUs that are reached from the first in the fewest hops, with what lies
    between.
    """
    order = [topology.ranks[0]]
    seen = set(order)
    gpus = 1
    for ident in order:
        for other in topology.out_neighbours[ident]:
            if other not in seen and gpus < _MOST_GPUS and len(order) < MOST_CABLES // 2:
                seen.add(other)
                order.append(other)
                gpus += topology.by_id[other].kind == "gpu"
    said = f"the {gpus} GPUs nearest to {topology.ranks[0]} are drawn, of {len(topology.ranks):,}"
    return Collapsed(_keep(topology, seen), said)
