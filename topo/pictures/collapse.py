"""Reduce a large machine to a part that can be shown, and describe the rest.

Only one of several identical hosts is shown: a rack of 18 trays becomes one tray and its count. In
pictures, one box of each kind is shown, or, for a large graph without boxes, the GPUs nearest to
the first.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ..facts.keys import split_host
from ..graph import Device, Topology
from ..grouping import group_by_key
from .cables import find_cables, find_components

# Cables, chosen by eye: a picture with more is a tangle.
MAX_CABLES = 400
# Boxes of several GPUs: with more, one box of each kind is drawn.
_MAX_BOXES = 4
# GPUs drawn of a large graph without boxes: a 6 x 6 part of a mesh.
_MAX_GPUS = 36
# Hosts: up to this many are shown even if they are identical.
_MAX_HOSTS = 4
# Key in a device's `extra` that holds its rank on the whole machine.
_RANK = "rank_of_whole"


@dataclass(frozen=True)
class ShownPart:
    """The part of a machine to show; `left_out` is a sentence on the rest, None if all is shown."""

    topology: Topology
    left_out: str | None


def show_hosts_once(topology: Topology) -> ShownPart:
    """Return the machine with one host of each kind, if it has more than four and some are equal.

    Tables, text trees and SVG use it; `collapse` reduces a machine that is too large to draw.

    Hosts are equal if they have the same devices in the same order, and the same links among these
    and to shared devices. Shared devices (networks, NVSwitches of a rack) stay if a shown host is
    linked to them.
    """
    members = group_by_key((name_host(device), device) for device in topology.devices)
    common = {d.id: d for d in members.pop("", [])}
    # GPUs of no host would be left out together with the hosts' count, so then all is shown.
    if len(members) <= _MAX_HOSTS or any(d.kind == "gpu" for d in common.values()):
        return ShownPart(topology, None)
    place = {d.id: (host, i) for host, of_host in members.items() for i, d in enumerate(of_host)}
    links: dict[str, Counter[tuple[object, ...]]] = {host: Counter() for host in members}
    joined_to: dict[str, set[str]] = {host: set() for host in members}
    for link in topology.links:
        for host in dict.fromkeys(place[end][0] for end in (link.src, link.dst) if end in place):
            ends = tuple(_describe_end(end, host, place, common) for end in (link.src, link.dst))
            links[host][ends, link.kind, link.count, link.bandwidth_GBps] += 1
            joined_to[host] |= {link.src, link.dst} & common.keys()
    kinds = group_by_key(
        ((tuple((d.kind, d.family) for d in of_host), frozenset(links[host].items())), host)
        for host, of_host in members.items()
    )
    if len(kinds) == len(members):
        return ShownPart(topology, None)
    shown = [hosts[0] for hosts in kinds.values()]
    kept = {d.id for host in shown for d in members[host]}
    part = _keep(topology, kept.union(*(joined_to[host] for host in shown)))
    listed = ", ".join(_count_hosts(hosts, members) for hosts in kinds.values())
    return ShownPart(replace(part, name=topology.name), f"{len(members)} hosts: {listed}")


def _keep(topology: Topology, kept: set[str]) -> Topology:
    """Return the part with some devices; its GPUs have the ranks that they have on the whole."""
    ranks = {ident: i for i, ident in enumerate(topology.ranks)}
    return replace(
        topology,
        name=f"{topology.name}, a part",
        devices=tuple(
            replace(d, extra={**d.extra, _RANK: ranks[d.id]}) if d.id in ranks else d
            for d in topology.devices
            if d.id in kept
        ),
        links=tuple(x for x in topology.links if x.src in kept and x.dst in kept),
    )


def number_ranks(topology: Topology) -> dict[str, int]:
    """Return the rank of each GPU by its id: that on the whole machine.

    `topology` may be the part that `show_hosts_once` or `collapse` returned.
    """
    return {
        ident: topology.by_id[ident].extra.get(_RANK, i) for i, ident in enumerate(topology.ranks)
    }


def count_hosts(topology: Topology) -> int:
    """Return the number of hosts that the devices name."""
    return len({name_host(device) for device in topology.devices} - {""})


def _count_hosts(hosts: list[str], members: Mapping[str, list[Device]]) -> str:
    gpus = sum(d.kind == "gpu" for d in members[hosts[0]])
    each = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    return (
        f"{len(hosts)} like {hosts[0]} ({each} each)" if len(hosts) > 1 else f"{hosts[0]} ({each})"
    )


def name_host(device: Device) -> str:
    """Return the name of a device's host; empty if it has none, as on machines of one host."""
    host = device.extra.get("host")
    return split_host(device.id)[0] if host is None else str(host)


def _describe_end(
    ident: str, host: str, place: Mapping[str, tuple[str, int]], common: Mapping[str, Device]
) -> tuple[object, ...]:
    """Describe the end of a link as seen from a host: its own device, a shared or another one."""
    if ident in common:
        return "shared", common[ident].kind, common[ident].family
    return ("own", place[ident][1]) if place[ident][0] == host else ("other", place[ident][1])


def collapse(
    topology: Topology, max_cables: int = MAX_CABLES, max_boxes: int = _MAX_BOXES
) -> ShownPart:
    """Return the whole machine if it is small enough to draw, else a part that represents the rest.

    A box is a group of devices connected without the network, such as a server. The part has one
    box of each kind, or, if that is not possible, the GPUs nearest to the first. Unlike
    `show_hosts_once` it looks at links, not at names of hosts. `max_boxes` counts boxes of several
    GPUs.
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
    drawn = _keep(topology, {d.id for d in (*list_hubs(topology), *chain(*kept))})
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
        _keep(topology, set(order)),
        f"{gpus} of {len(topology.ranks):,} GPUs are drawn, those nearest to {topology.ranks[0]}",
    )
