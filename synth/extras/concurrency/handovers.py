"""Handovers: who tells whom that a port is free, so that the limits hold when ranks run ahead.

Ranks play schedules without a common clock: a rank sends as soon as it has what it sends. So
between two steps that use a limited port, each receiver of the first tells each sender of the
second that its message is there, by a message of one element, a token. What a pair of ranks sends
in both steps is one stream, and needs no token.

A port (limits.py) is a GPU with what leaves it, or with what enters it, or another device with what
passes through it. `limited` maps ports to the most transfers at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise, product
from typing import NamedTuple

from ....topo.graph import Topology
from ....topo.routes import Router
from ...cost.host_costs import host_of, step_us
from ...ir.schedule import Schedule
from .limits import Port, list_ports


class Handover(NamedTuple):
    """Rank `src` tells rank `dst` that what it receives in step `after` is there.

    Rank `dst` waits for that before it sends in step `before`; if `src` is `dst`, it just waits.
    """

    after: int
    src: int
    dst: int
    before: int


def find_handovers(
    schedule: Schedule, topology: Topology, limited: Mapping[Port, int]
) -> list[Handover]:
    """Return the handovers that keep a schedule, in one segment, to the limits of ports.

    Of several between two ranks after one step, the first wait is listed alone.
    """
    ranks, users = topology.ranks, defaultdict[Port, dict[int, set[tuple[int, int]]]](dict)
    paths, path_of = schedule.transfers.paths()
    ports = [list_ports((ranks[src], *route, ranks[dst]), limited) for src, dst, route in paths]
    rows = dict.fromkeys(zip(schedule.transfers.step.tolist(), path_of.tolist(), strict=True))
    for step, path in sorted(rows):
        for port in ports[path]:
            users[port].setdefault(step, set()).add(paths[path][:2])
    first: dict[tuple[int, int, int], int] = {}
    for steps in users.values():
        for (after, ending), (before, beginning) in pairwise(steps.items()):
            for old, new in product(ending, beginning):
                if old != new:
                    key = after, old[1], new[0]
                    first[key] = min(before, first.get(key, before))
    return sorted(Handover(*key, before) for key, before in first.items())


def find_waits_us(schedule: Schedule, topology: Topology, limited: Mapping[Port, int]) -> Fraction:
    """Return how long a schedule's steps wait for handovers, in microseconds, by the cost model.

    After each step the slowest handover counts: its latency, and the host's costs of a message.
    """
    router, host = Router(topology), host_of(topology)
    own_us = step_us(topology)
    if host is not None:
        costs = host.send_us + host.receive_us + host.io_us + host.wake_us
        own_us += Fraction(costs).limit_denominator(1000)
    slowest: dict[int, Fraction] = {}
    for after, src, dst, _ in find_handovers(schedule, topology, limited):
        route = None if src == dst else router.route(src, dst)
        if src != dst:
            latency = Fraction(0) if route is None else router.latency_us(route)
            slowest[after] = max(slowest.get(after, latency), latency)
    return sum((own_us + latency for latency in slowest.values()), Fraction(0))
