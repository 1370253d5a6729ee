"""Segmentation: how finely schedules are divided, and which is fastest at a size, given the hosts'
costs of sending.

A base is a schedule in one segment. Every base is also tried stepwise, so that a rank hands on the
first part of a step while the rest is still arriving. Where single steps load the links unevenly,
and only all steps together evenly, it is tried as a pipeline as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.schedule import Schedule
from ..ir.transfers import Transfers
from .affine import bandwidth_s_per_GB, cost, tighten
from .host_costs import HostCosts
from .loads import computes_in_network
from .simulate import predict_us, shape_of

# Numbers of segments that are tried, each twice the last; `fastest` stops at the first that is
# clearly slower.
_STEPWISE = (2, 4, 8)
# The same for pipelines; strategies may give longer ones, up to MAX_SEGMENTS.
_PIPED = (2, 4, 8, 16, 32, 64, 128, 256)
# Pipelines are tried if the links need this many times as long for a schedule's steps one after the
# other as for all of them at once.
_STEPWISE_LOSS = 1.02
# More segments are not tried once the prediction is this many times the best so far.
_WORSE = 1.1


@dataclass(frozen=True)
class Family:
    """A base and its segmentations, each list from the fewest segments to the most.

    `stepwise_s_per_GB` and `piped_s_per_GB` are the times that the links need for each GB;
    `messages` is the number of messages that the base sends.
    """

    base: Schedule
    stepwise: tuple[Schedule, ...]
    piped: tuple[Schedule, ...]
    stepwise_s_per_GB: float
    piped_s_per_GB: float
    messages: int


def as_sent(schedule: Schedule, router: Router) -> Schedule:
    """Return the schedule with every transfer on the system's route from its source to its
    destination.
    """
    paths, path_of = schedule.transfers.paths()
    asked = ((router.route(src, dst), given) for src, dst, given in paths)
    routes = [given if route is None else route[1:-1] for route, given in asked]
    if routes == [given for _, _, given in paths]:
        return schedule
    t = schedule.transfers
    moved = Transfers(t.step, t.src, t.dst, t.chunk, t.op, path_of, routes)
    return tighten(replace(schedule, transfers=moved), router.topology)


def on_own_routes(schedule: Schedule, router: Router) -> Schedule:
    """Return the schedule as it is sent; unchanged where switches add or copy, since there the
    network is asked for the routes.
    """
    return schedule if computes_in_network(router.topology) else as_sent(schedule, router)


def families(schedules: Iterable[Schedule], router: Router) -> list[Family]:
    """Return the segmentations of each different base, as it is sent, in the order of first
    mention.
    """
    out = []
    topology = router.topology
    by_base: dict[Schedule, list[Schedule]] = {}
    for schedule in schedules:
        sent = as_sent(schedule, router)
        by_base.setdefault(sent.uncut, []).append(sent)
    for base, given in by_base.items():
        stepwise_s = float(bandwidth_s_per_GB(base, topology))
        piped_s = float(bandwidth_s_per_GB(replace(base, segments=2), topology))
        piped = {s for s in given if s.segments > 1 and not s.stepwise}
        if stepwise_s > piped_s * _STEPWISE_LOSS:
            piped |= {replace(base, segments=m) for m in _PIPED}
        shape = shape_of(base, topology)
        out.append(
            Family(
                base,
                (base, *(replace(base, segments=m, stepwise=True) for m in _STEPWISE)),
                tuple(sorted(piped, key=lambda s: s.segments)),
                stepwise_s,
                piped_s,
                len(base.transfers) if shape is None else len(shape.groups),
            )
        )
    return out


def time_us(
    schedule: Schedule,
    topology: Topology | None,
    host: HostCosts,
    size_bytes: int,
    *,
    batched: bool = False,
) -> float:
    """Return the predicted microseconds, by playing the messages; by the affine model where there
    are too many of them (0 without links).
    """
    played = predict_us(schedule, topology, host, size_bytes, batched=batched)
    if played is not None:
        return played
    return 0.0 if topology is None else cost(schedule, topology).time_s(size_bytes) * 1e6


def fastest(
    candidates: Iterable[Family],
    topology: Topology | None,
    host: HostCosts,
    size_bytes: int,
    near: float = 1.0,
    *,
    batched: bool = False,
) -> list[tuple[float, Schedule]]:
    """Return schedules with their predicted microseconds at a size, best first: those within `near`
    times the best.

    Candidates that cannot be among them are not predicted. `topology` is that of the machine at
    hand; without one, only the hosts' own costs count.
    """
    host_us = (host.send_us + host.receive_us + host.io_us) / host.cores
    lists: list[tuple[float, tuple[Schedule, ...]]] = []
    scale: float | None = None
    # No segmentation is faster than its messages at the hosts, or its bytes on the links. These
    # floors need no playing.
    for family in candidates:
        if scale is None:
            # The time of the links of the machine at hand, over the family's own figure.
            piped = replace(family.base, segments=2)
            links_s = 0.0 if topology is None else float(bandwidth_s_per_GB(piped, topology))
            scale = links_s / family.piped_s_per_GB if links_s else 0.0
        for schedules, s_per_GB in (
            (family.stepwise, family.stepwise_s_per_GB),
            (family.piped, family.piped_s_per_GB),
        ):
            if schedules:
                link_us = s_per_GB * scale * size_bytes * 1e-3
                lists.append((max(family.messages * host_us, link_us), schedules))
    best = float("inf")
    predictions: list[tuple[float, Schedule]] = []
    # In ascending order of floors, playing can stop once a floor exceeds what counts as near.
    for floor, schedules in sorted(lists, key=lambda entry: entry[0]):
        if floor > best * max(near, 1.0):
            break
        least = float("inf")
        for schedule in schedules:
            predicted = time_us(schedule, topology, host, size_bytes, batched=batched)
            predictions.append((predicted, schedule))
            best = min(best, predicted)
            if predicted > least * _WORSE:
                break
            least = min(least, predicted)
    return sorted((x for x in predictions if x[0] <= best * near), key=lambda x: x[0])
