"""Merge switches side by side. NVSwitches: GPUs spread every message over all of them, so for a
planner they are one. Spines, for those who take a network's many flows to be spread over all of its
equal ways.

A DGX-2 has six a board, and each GPU one link to each. A route names one way, though; through one
of six switches it would have a sixth of what the hardware gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..graph import Device, Link, Topology


def merge_nvswitches(topology: Topology) -> Topology:
    """Return the topology with NVSwitches that stand side by side made one, their links added up;
    as it is where none do.

    Side by side are switches with the same links to the same GPUs (and whatever else is no
    NVSwitch), and as many of each sort to switches that are themselves side by side: the coarsest
    such classes. Traffic that is spread evenly over a class loads all its links alike, so no plan
    for the merged machine asks more of a link than it has.
    """
    return _merge(topology, [d for d in topology.devices if d.family == "nvswitch"])


def merge_spines(topology: Topology) -> Topology:
    """Return the topology with switches of the network that stand side by side made one, of those
    that only join other switches (leaves, and what hosts hang on, stay as they are).
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
    """Return the topology with those of the switches that stand side by side made one."""
    classes = _classify(topology, switches)
    members_of_head = {members[0]: members for members in classes.values() if len(members) > 1}
    if not members_of_head:
        return topology
    head_of = {member: head for head, members in members_of_head.items() for member in members}
    devices = []
    for device in topology.devices:
        if device.id in members_of_head:
            members = members_of_head[device.id]
            said = {topology.by_id[member].in_network for member in members} - {None}
            adding = (
                said.pop() if len(said) == 1 else None
            )  # where they differ, nothing is known of all together
            devices.append(
                replace(device, in_network=adding, extra={**device.extra, "members": list(members)})
            )
        elif device.id not in head_of:
            devices.append(device)
    merged: dict[tuple[str, str, str, object], Link] = {}
    for link in topology.links:
        src, dst = head_of.get(link.src, link.src), head_of.get(link.dst, link.dst)
        is_merged = link.src in head_of or link.dst in head_of
        key = (src, dst, link.kind, None if is_merged else len(merged))
        earlier = merged.get(key)
        if src == dst:
            continue
        if earlier is None:
            merged[key] = replace(link, src=src, dst=dst, extra={} if is_merged else link.extra)
        else:
            rate, count = earlier.bandwidth_GBps + link.bandwidth_GBps, earlier.count + link.count
            slowest = max(earlier.latency_us, link.latency_us)
            merged[key] = replace(earlier, bandwidth_GBps=rate, count=count, latency_us=slowest)
    return replace(topology, devices=tuple(devices), links=tuple(merged.values()))


def _classify(topology: Topology, switches: Sequence[Device]) -> dict[object, list[str]]:
    """Return switches by class: refined until all of a class have the same links to every device
    and to every class.
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
