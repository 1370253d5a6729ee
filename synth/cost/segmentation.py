"""Divide schedules into segments, and find the fastest division for a size and the hosts' costs.

Segments are m equal parts of each chunk that go through the steps one after the other. A base is a
schedule in a single segment. Every base is also tried stepwise, so that a rank forwards the first
part of a step while the rest is still arriving. If single steps load the links unevenly but all
steps together load them evenly, the base is also tried as a pipeline, whose steps overlap.

A tick is the time slot of a step of one segment: segment j does step s at tick s + j in a pipeline,
at tick s m + j in a stepwise schedule.
"""

from collections import defaultdict
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

# Numbers of segments to try, each twice the previous one; `fastest` stops at the first that is
# clearly slower.
_STEPWISE = (2, 4, 8)
# The same for pipelines; strategies may offer more segments, up to MAX_SEGMENTS.
_PIPED = (2, 4, 8, 16, 32, 64, 128, 256)
# A pipeline is tried if the links take more than this many times as long for the steps one after
# another as for all of them at once.
_STEPWISE_LOSS = 1.02
# More segments are not tried once the prediction exceeds the best so far by this factor.
_WORSE = 1.1


@dataclass(frozen=True)
class Family:
    """A base and its segmentations, in ascending order of the number of segments.

    `stepwise` and `piped` are the schedules of the two kinds, `stepwise_s_per_GB` and
    `piped_s_per_GB` the seconds that the links need per GB of buffer, and `messages` is the number
    of messages that the base sends.
    """

    base: Schedule
    stepwise: tuple[Schedule, ...]
    piped: tuple[Schedule, ...]
    stepwise_s_per_GB: float
    piped_s_per_GB: float
    messages: int


def reroute(schedule: Schedule, router: Router) -> Schedule:
    """Return the schedule with each transfer on the hardware's route, as point-to-point sends go.

    A transfer keeps its given route if the hardware has none from its source to its destination.
    """
    t = schedule.transfers
    paths, path_of = t.paths()
    asked = ((router.route(src, dst), given) for src, dst, given in paths)
    routes = [given if route is None else route[1:-1] for route, given in asked]
    if routes == [given for _, _, given in paths]:
        return schedule
    return tighten(
        replace(
            schedule, transfers=Transfers(t.step, t.src, t.dst, t.chunk, t.op, path_of, routes)
        ),
        router.topology,
    )


def list_omitted(schedule: Schedule, router: Router) -> list[tuple[int, int]]:
    """Return the pairs of ranks that a schedule sends between, but that the router leaves out.

    Only routers with `omits_pairs`, such as after the loss of a link, leave pairs out: these have
    no route though a path joins them. With others the list is empty.
    """
    if not router.omits_pairs:
        return []
    return sorted(
        {(src, dst) for src, dst, _ in schedule.transfers.paths()[0] if not router.route(src, dst)}
    )


def reroute_unless_in_network(schedule: Schedule, router: Router) -> Schedule:
    """Return the schedule on the hardware's routes, unless switches add or copy its data.

    With such switches it is returned unchanged, since the network can be given routes.
    """
    if computes_in_network(router.topology, schedule.collective):
        return schedule
    return reroute(schedule, router)


def families(schedules: Iterable[Schedule], router: Router) -> list[Family]:
    """Return the segmentations of each distinct base of `schedules`, in order of first occurrence.

    The schedules are moved to the router's routes first.
    """
    out, topology = [], router.topology
    by_base: dict[Schedule, list[Schedule]] = defaultdict(list)
    for schedule in schedules:
        sent = reroute(schedule, router)
        by_base[sent.uncut].append(sent)
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
    """Return the predicted time of a schedule in microseconds for a buffer of `size_bytes`.

    The messages are simulated; if there are too many of them, the affine cost model is used, which
    gives 0 without a topology. `host` has the costs of messages; `batched` says that all messages
    of a tick are posted at once, as over NCCL.
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
    """Return the schedules near the best prediction, with their times in microseconds, best first.

    Near means within `near` times the best time. Candidates whose lower bound already excludes them
    are not predicted. `topology` is that of the machine that runs the schedules; without one, only
    the hosts' costs count. `batched` says that a tick's messages are posted at once, as over NCCL.
    """
    host_us = (host.send_us + host.receive_us + host.io_us) / host.cores
    lists: list[tuple[float, tuple[Schedule, ...]]] = []
    scale: float | None = None
    # No segmentation is faster than its messages at the hosts, or its bytes on the links. These
    # lower bounds need no simulation.
    for family in candidates:
        if scale is None:
            # The time that this machine's links need, relative to the links of the plan's topology.
            piped = replace(family.base, segments=2)
            links_s = 0.0 if topology is None else float(bandwidth_s_per_GB(piped, topology))
            scale = links_s / family.piped_s_per_GB if links_s else 0.0
        for schedules, s_per_GB in (
            (family.stepwise, family.stepwise_s_per_GB),
            (family.piped, family.piped_s_per_GB),
        ):
            bound_us = max(family.messages * host_us, s_per_GB * scale * size_bytes * 1e-3)
            lists.append((bound_us, schedules))
    best = float("inf")
    predictions: list[tuple[float, Schedule]] = []
    # In ascending order of lower bounds, stop once a bound exceeds what counts as near.
    for lower_bound_us, schedules in sorted(lists, key=lambda entry: entry[0]):
        if lower_bound_us > best * max(near, 1.0):
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
