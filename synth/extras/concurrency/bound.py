"""A bound under limits: no schedule that keeps to them is faster.

At most N transfers at a time, none of which is faster than the fastest route through a port, carry
at most N times its rate. So the bound is that of a machine in which all data passes a link of that
rate at each limited port; its certificate is checked as any other.

A transfer is what one rank sends another in one step. A port (limits.py) is a GPU with what leaves
it, or with what enters it, or another device with what passes through it. `limited` maps ports to
the most transfers at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from ....topo.devices import Device, Link
from ....topo.graph import Topology
from ....topo.routes import Router
from ...bounds.certificate import Bound, check_bound
from ...bounds.multipath import bound
from ...cost.loads import computes_in_network
from ...ir.collective import Collective
from ...numeric.effort import Effort
from .limits import Port, find_fastest_GBps

_WORK_S, _CLOCK_S = 6.0, 30.0


def narrow(topology: Topology, limited: Mapping[Port, int]) -> Topology:
    """Return a machine without limits that can do all that the topology's can under limits.

    Each limited port becomes a link that carries as much as its transfers at a time can at most.
    Of a GPU, links begin at a device behind a link out of it, and end at one before a link into
    it; any other limited device becomes two, with a link between them.
    """
    fastest = find_fastest_GBps(Router(topology), limited)
    enters = {device: f"{device} into" for device, side in fastest if side != "out of"}
    leaves = {device: f"{device} out of" for device, side in fastest if side != "into"}
    devices, links = list[Device](), list[Link]()
    for device in topology.devices:
        if device.kind == "gpu" or device.id not in {*enters, *leaves}:
            devices.append(device)
        added = (side[device.id] for side in (enters, leaves) if device.id in side)
        devices += [Device(ident, kind="switch") for ident in added]
    for (ident, side), rate in fastest.items():
        src = ident if side == "out of" else enters[ident]
        dst = ident if side == "into" else leaves[ident]
        links.append(Link(src, dst, rate * limited[ident, side], Fraction(0)))
    links += [
        replace(link, src=leaves.get(link.src, link.src), dst=enters.get(link.dst, link.dst))
        for link in topology.links
    ]
    return Topology(f"{topology.name}, limited", tuple(devices), tuple(links))


def find_bound(
    collective: Collective, topology: Topology, limited: Mapping[Port, int]
) -> Bound | None:
    """Return the bound on all schedules that keep to limits.

    None where switches add or copy: they would have to be limited otherwise.
    """
    if computes_in_network(topology):
        return None
    return bound(collective, narrow(topology, limited), Effort(_CLOCK_S).grant(_WORK_S))


def check(
    claimed: Bound, collective: Collective, topology: Topology, limited: Mapping[Port, int]
) -> None:
    """Raise VerificationError unless the certificate proves exactly the bound under limits."""
    check_bound(claimed, collective, narrow(topology, limited))
