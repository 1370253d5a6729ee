"""Merge equivalent parallel switches into one.

GPUs spread every message over all NVSwitches of a board, so for planning they are one switch: a
DGX-2 has six per board, and each GPU has one link to each. A route names only one path, and through
one of six switches it would have a sixth of the hardware's rate. The spines of a network are merged
too, for callers who assume that its many flows spread over all equal paths.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..graph import Device, Link, Topology


def merge_nvswitches(topology: Topology) -> Topology:
    """Merge equivalent parallel NVSwitches and add up their links.

    NVSwitches are equivalent if they have the same links to the same devices other than NVSwitches,
    and equally many links to each class of equivalent NVSwitches. The coarsest such classes are
    used. Traffic spread evenly over a class loads all its links equally, so no plan for the merged
    machine exceeds the capacity of a link.
    """
    return _merge(topology, [d for d in topology.devices if d.family == "nvswitch"])


def merge_spines(topology: Topology) -> Topology:
    """Merge equivalent network switches that only connect other switches.

    Leaf switches, which hosts are linked to, are unchanged.
    """
    joins_more = {
        end
        for link in topology.links
        for end, other in ((link.src, link.dst), (link.dst, link.src))
        if topology.by_id[other].kind != "switch"
    }
    spines = [
        d
        for d in topology.devices
        if d.kind == "switch" and d.family not in ("nvswitch", "pcie") and d.id not in joins_more
    ]
    return _merge(topology, spines)


def _merge(topology: Topology, switches: Sequence[Device]) -> Topology:
    members_of_head = {
        members[0]: members
        for members in _classify(topology, switches).values()
        if len(members) > 1
    }
    if not members_of_head:
        return topology
    head_of = {member: head for head, members in members_of_head.items() for member in members}
    devices = []
    for device in topology.devices:
        if device.id in members_of_head:
            members = members_of_head[device.id]
            said = {topology.by_id[member].in_network for member in members} - {None}
            # if they differ, the merged switch's value is unknown
            devices.append(
                replace(
                    device,
                    in_network=said.pop() if len(said) == 1 else None,
                    extra={**device.extra, "members": list(members)},
                )
            )
        elif device.id not in head_of:
            devices.append(device)
    merged: dict[tuple[str, str, str, object], Link] = {}
    for link in topology.links:
        src, dst = head_of.get(link.src, link.src), head_of.get(link.dst, link.dst)
        is_merged = link.src in head_of or link.dst in head_of
        key = (src, dst, link.kind, None if is_merged else len(merged))
        earlier = merged.get(key)
        if earlier is None and src != dst:
            merged[key] = replace(link, src=src, dst=dst, extra={} if is_merged else link.extra)
        elif earlier is not None:
            merged[key] = replace(
                earlier,
                bandwidth_GBps=earlier.bandwidth_GBps + link.bandwidth_GBps,
                count=earlier.count + link.count,
                latency_us=max(earlier.latency_us, link.latency_us),
            )
    return replace(topology, devices=tuple(devices), links=tuple(merged.values()))


def _classify(topology: Topology, switches: Sequence[Device]) -> dict[object, list[str]]:
    """Return switches by class.

    Classes are refined until all switches of a class have equal links to all other classes.
    """
    label: dict[str, object] = {d.id: ("switch", d.can_reduce, d.can_copy) for d in switches}
    while True:
        rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for link in topology.links:
            for near_end, far_end, direction in (
                (link.src, link.dst, "out"),
                (link.dst, link.src, "in"),
            ):
                if near_end in label:
                    facts = link.kind, link.bandwidth_GBps, link.latency_us, link.count
                    rows[near_end].append(
                        (direction, *map(str, facts), str(label.get(far_end, far_end)))
                    )
        classes: dict[object, list[str]] = defaultdict(list)
        for d in switches:
            classes[label[d.id], tuple(sorted(rows[d.id]))].append(d.id)
        if len(classes) == len(set(label.values())):
            return classes
        label = {
            member: number for number, members in enumerate(classes.values()) for member in members
        }
