"""NVSwitches side by side: GPUs spread every message over all of them, so for a planner they are one.

A DGX-2 has six a board, and each GPU one link to each. A route names one way, though; through one of six switches it would
have a sixth of what the hardware gives.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..graph import Link, Topology


def striped(topology: Topology) -> Topology:
    """The topology with NVSwitches that stand side by side made one, their links added up; as it is where none do.

    Side by side are switches with the same links to the same GPUs (and whatever else is no NVSwitch), and as many of each
    sort to switches that are themselves side by side: the coarsest such classes. Traffic that is spread evenly over a class
    loads all its links alike, so no plan for the merged machine asks more of a link than it has.
    """
    classes = _classes(topology)
    first = {members[0]: members for members in classes.values() if len(members) > 1}
    if not first:
        return topology
    name = {member: head for head, members in first.items() for member in members}
    devices = []
    for device in topology.devices:
        if device.id in first:
            devices.append(replace(device, extra={**device.extra, "members": list(first[device.id])}))
        elif device.id not in name:
            devices.append(device)
    merged: dict[tuple[str, str, str, object], Link] = {}
    for link in topology.links:
        src, dst = name.get(link.src, link.src), name.get(link.dst, link.dst)
        touched = link.src in name or link.dst in name
        key = (src, dst, link.kind, None if touched else len(merged))
        before = merged.get(key)
        if src == dst:
            continue
        if before is None:
            merged[key] = replace(link, src=src, dst=dst, extra={} if touched else link.extra)
        else:
            rate, count = before.bandwidth_GBps + link.bandwidth_GBps, before.count + link.count
            slowest = max(before.latency_us, link.latency_us)
            merged[key] = replace(before, bandwidth_GBps=rate, count=count, latency_us=slowest)
    return replace(topology, devices=tuple(devices), links=tuple(merged.values()))


def _classes(topology: Topology) -> dict[object, list[str]]:
    """NVSwitches by class: refined until all of a class have the same links to every device and to every class."""
    switches = [d for d in topology.devices if d.family == "nvswitch"]
    label: dict[str, object] = {d.id: ("switch", d.can_reduce, d.can_copy) for d in switches}
    while True:
        rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for link in topology.links:
            for here, there, way in ((link.src, link.dst, "out"), (link.dst, link.src, "in")):
                if here in label:
                    facts = link.kind, link.bandwidth_GBps, link.latency_us, link.count
                    rows[here].append((way, *map(str, facts), str(label.get(there, there))))
        found: dict[object, list[str]] = defaultdict(list)
        for d in switches:
            found[label[d.id], tuple(sorted(rows[d.id]))].append(d.id)
        if len(found) == len(set(label.values())):
            return found
        label = {member: number for number, members in enumerate(found.values()) for member in members}
