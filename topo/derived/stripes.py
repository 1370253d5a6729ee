"""Merge equivalent parallel switches into one: equal NVSwitches, equal spines of a network.

Traffic spreads over such switches: GPUs stripe every message over all NVSwitches of a board (a
DGX-2 has six per board, and each GPU has one link to each), and networks spread their flows over
all equal paths. A route names only one path, and through one of six switches it would have a sixth
of the hardware's rate.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..graph import Device, Link, Topology
from ..grouping import group_by_key
from ..names import join_first

# Most switches to name in a line, and most lines: together about a quarter of a screen.
_MAX_NAMED, _MAX_LINES = 4, 6
# Field of a merged switch's `extra` that lists the switches it stands for.
_MEMBERS = "members"


def merge_nvswitches(topology: Topology) -> Topology:
    """Merge equivalent parallel NVSwitches and add up their links.

    Other switches are unchanged; `merge_switches` merges these too.
    """
    nvswitches = [d for d in topology.devices if d.family == "nvswitch"]
    return _merge(topology, _find_groups(topology, nvswitches))


def merge_switches(topology: Topology) -> Topology:
    """Merge the groups of `group_equal`, and add up their links."""
    return _merge(topology, group_equal(topology))


def group_equal(topology: Topology) -> dict[str, list[str]]:
    """Return the groups of equivalent parallel switches, keyed by the first of each.

    Switches are equivalent if they are of one family, add and multicast alike, have the same links
    to the same other devices, and equally many links to each class of equivalent switches. The
    coarsest such classes are used, so in a fat tree the upper two levels are merged. Traffic spread
    evenly over a class loads all its links equally, so no plan for the merged machine exceeds the
    capacity of a link. PCIe switches are trees, in which no two are parallel.
    """
    switches = [
        d
        for d in topology.devices
        if d.kind == "switch"
        and d.family != "pcie"
        # A switch with a single neighbour carries nothing, so it is left as drawn.
        and (d.family == "nvswitch" or len(topology.out_neighbours[d.id]) > 1)
    ]
    return _find_groups(topology, switches)


def list_forms(topology: Topology) -> tuple[Topology, ...]:
    """Return the forms of a machine that plans can be for, without repetitions.

    They are the machine as given, with its NVSwitches merged, and with all equal parallel switches
    merged, which is what planners plan for today.
    """
    merged = merge_nvswitches(topology)
    return tuple(dict.fromkeys((topology, merged, merge_switches(merged))))


def describe_merged(topology: Topology) -> list[str]:
    """Return a line for each merged switch of a topology, the first few if there are many.

    NVSwitches are left out: for them an even spread is the hardware's own, and no assumption.
    """
    groups = [
        (len(members), join_first(list(map(str, members)), _MAX_NAMED))
        for d in topology.devices
        if d.kind == "switch"
        and d.family != "nvswitch"
        # A field of this name may be the user's own.
        and isinstance(members := d.extra.get(_MEMBERS), list)
        and members[:1] == [d.id]
    ]
    lines = [f"{count} equal switches ({names}) planned as one" for count, names in groups]
    more = len(lines) - _MAX_LINES
    return lines[:_MAX_LINES] + [f"and {more} more groups of equal switches"] * (more > 0)


def _find_groups(topology: Topology, switches: Sequence[Device]) -> dict[str, list[str]]:
    classes = _classify(topology, switches).values()
    return {members[0]: members for members in classes if len(members) > 1}


def _merge(topology: Topology, members_of_head: Mapping[str, Sequence[str]]) -> Topology:
    if not members_of_head:
        return topology
    head_of = {member: head for head, members in members_of_head.items() for member in members}
    devices = []
    for device in topology.devices:
        if device.id in members_of_head:
            members = members_of_head[device.id]
            answers = {topology.by_id[member].in_network for member in members} - {None}
            # Where they differ, the answer for the merged switch is unknown.
            devices.append(
                replace(
                    device,
                    in_network=answers.pop() if len(answers) == 1 else None,
                    extra={**device.extra, _MEMBERS: list(members)},
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
    label: dict[str, object] = {
        d.id: ("switch", d.family, d.can_reduce, d.can_copy) for d in switches
    }
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
        classes: dict[object, list[str]] = group_by_key(
            ((label[d.id], tuple(sorted(rows[d.id]))), d.id) for d in switches
        )
        if len(classes) == len(set(label.values())):
            return classes
        label = {
            member: number for number, members in enumerate(classes.values()) for member in members
        }
