"""How finely to cut schedules, and which of them is fastest at a size where sending costs the hosts something.

A base is a schedule in one segment. Where its steps load the links evenly it is cut stepwise, so that a rank hands on the
first part of a step while the rest is coming; where the links are only even over all steps it is piped as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.schedule import Schedule
from ..ir.transfers import Transfers
from .affine import bandwidth_s_per_GB, costs, tighten
from .host_costs import HostCosts
from .simulate import predict_us, shape_of

_STEPWISE = (2, 4, 8)
_PIPED = (2, 4, 8, 16, 32, 64, 128, 256)
_STEPWISE_LOSS = 1.02
_WORSE = 1.1
"""Cutting finer is given up where it has made the prediction so much worse."""


@dataclass(frozen=True)
class Family:
    """A base and its cuts, each list from coarse to fine; s for each GB that the links need, stepwise and piped; messages."""

    base: Schedule
    stepwise: tuple[Schedule, ...]
    piped: tuple[Schedule, ...]
    stepwise_s_per_GB: float
    piped_s_per_GB: float
    messages: int


def as_sent(schedule: Schedule, topology: Topology) -> Schedule:
    """The schedule with every transfer on the route that the system takes from its source to its destination."""
    router = Router(topology)
    ways, way = schedule.transfers.ways()
    routes = [router.route(src, dst) for src, dst, _ in ways]
    if all(r is None or r[1:-1] == given for r, (_, _, given) in zip(routes, ways, strict=True)):
        return schedule
    listed = [given if r is None else r[1:-1] for r, (_, _, given) in zip(routes, ways, strict=True)]
    t = schedule.transfers
    moved = Transfers(t.step, t.src, t.dst, t.chunk, t.op, way, listed)
    return tighten(replace(schedule, transfers=moved), topology)


def families(schedules: Iterable[Schedule], topology: Topology) -> list[Family]:
    """The cuts of each different base as they are sent, in the order of first mention; loads are the topology's."""
    out = []
    given: dict[Schedule, list[Schedule]] = {}
    for schedule in schedules:
        sent = as_sent(schedule, topology)
        given.setdefault(sent.uncut, []).append(sent)
    for base, cuts in given.items():
        alone = float(bandwidth_s_per_GB(base, topology))
        flowing = float(bandwidth_s_per_GB(replace(base, segments=2), topology))
        piped = {replace(base, segments=m) for m in _PIPED} if alone > flowing * _STEPWISE_LOSS else set()
        piped |= {s for s in cuts if s.segments > 1 and not s.stepwise}
        shape = shape_of(base, topology)
        out.append(
            Family(
                base,
                (base, *(replace(base, segments=m, stepwise=True) for m in _STEPWISE)),
                tuple(sorted(piped, key=lambda s: s.segments)),
                alone,
                flowing,
                len(base.transfers) if shape is None else len(shape.groups),
            )
        )
    return out


def time_us(
    schedule: Schedule, topology: Topology | None, host: HostCosts, size_bytes: int, *, rounds: bool = False
) -> float:
    """Predicted microseconds: played, or where there is too much to play by the affine model (and 0 without links)."""
    played = predict_us(schedule, topology, host, size_bytes, rounds=rounds)
    if played is not None:
        return played
    return 0.0 if topology is None else costs(schedule, topology, [schedule.segments])[0].time_s(size_bytes) * 1e6


def fastest(
    found: Iterable[Family],
    topology: Topology | None,
    host: HostCosts,
    size_bytes: int,
    near: float = 1.0,
    *,
    rounds: bool = False,
) -> list[tuple[float, Schedule]]:
    """Schedules by predicted time at a size, those within `near` of the best; not all are looked at. `topology` is that of
    the machine at hand, None: nothing but the hosts' own costs.
    """
    host_us = (host.send_us + host.receive_us + host.io_us) / host.cores
    lanes: list[tuple[float, tuple[Schedule, ...]]] = []
    scale: float | None = None
    for family in found:
        if scale is None:
            scale = _scale(family, topology)
        for cuts, seconds in ((family.stepwise, family.stepwise_s_per_GB), (family.piped, family.piped_s_per_GB)):
            if cuts:
                lanes.append((max(family.messages * host_us, seconds * scale * size_bytes * 1e-3), cuts))
    best = float("inf")
    out: list[tuple[float, Schedule]] = []
    for floor, cuts in sorted(lanes, key=lambda lane: lane[0]):
        if floor > best * max(near, 1.0):
            break
        least = float("inf")
        for schedule in cuts:
            predicted = time_us(schedule, topology, host, size_bytes, rounds=rounds)
            out.append((predicted, schedule))
            best = min(best, predicted)
            if predicted > least * _WORSE:
                break
            least = min(least, predicted)
    return sorted((x for x in out if x[0] <= best * near), key=lambda x: x[0])


def _scale(family: Family, topology: Topology | None) -> float:
    """How many times as long as the families' loads say links need on the machine at hand."""
    if topology is None:
        return 0.0
    return float(bandwidth_s_per_GB(replace(family.base, segments=2), topology)) / family.piped_s_per_GB
