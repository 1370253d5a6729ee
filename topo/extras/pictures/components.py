"""Groups of devices that cables connect.

A cable stands for the links of one kind between two devices, of both directions if these are equal.
"""

from collections import defaultdict
from collections.abc import Iterable

from ...graph import Device, Topology
from ...grouping import group_by_key
from ...pictures.cables import Cable


def group_switches(switches: Iterable[str], cables: Iterable[Cable]) -> list[tuple[str, ...]]:
    """Return the ids of `switches` in groups with the same neighbours; each is drawn as one bar."""
    neighbours: dict[str, set[str]] = {ident: set() for ident in switches}
    for c in cables:
        for one, other in ((c.a, c.b), (c.b, c.a)):
            if one in neighbours:
                neighbours[one].add(other)
    # Links among the switches do not distinguish them, unless they have no others.
    groups = group_by_key(
        (frozenset(others - neighbours.keys() or others or {ident}), ident)
        for ident, others in neighbours.items()
    )
    return [tuple(group) for group in groups.values()]


def find_components(
    topology: Topology, machine_cables: Iterable[Cable], without: set[str]
) -> list[list[Device]]:
    """Return the groups of devices that cables connect if the ids in `without` are removed.

    `machine_cables` are the topology's cables. Groups and their devices are in device order.
    """
    neighbours = group_by_key(
        ends
        for cable in machine_cables
        if not {cable.a, cable.b} & without
        for ends in ((cable.a, cable.b), (cable.b, cable.a))
    )
    first_of: dict[str, str] = {}  # the first device of each device's component
    components: dict[str, list[Device]] = defaultdict(list)
    for device in (d for d in topology.devices if d.id not in without):
        queue = [device.id]
        for ident in queue:
            if ident not in first_of:
                first_of[ident] = device.id
                queue += neighbours[ident]
        components[first_of[device.id]].append(device)
    return list(components.values())
