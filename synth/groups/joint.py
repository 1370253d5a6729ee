"""Synthesis of joint plans: the links are shared by exact fractions so that all calls end together.

One linear program packs the trees and paths of all calls into the links (packing.py). Each group's
schedule consists of its trees; its share of a link is its part of all that is sent over the link.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from os import PathLike

import numpy as np

from ...topo.errors import InputError
from ...topo.graph import Topology
from ...topo.loader.resolve import load_for_planning
from ...topo.routes import Route, Router
from ..bounds.certificate import join_devices
from ..bounds.multipath import find_nearest_gpu
from ..cost.affine import costs_between_gpus, tighten, total_seconds
from ..cost.loads import DirectedLink, list_computing
from ..forest.machine.routes import OwnRoutes
from ..ir.collective import Chunk
from ..ir.schedule import Schedule
from ..ir.transfers import COPY, REDUCE, Transfers
from ..numeric.effort import USUAL_LIMIT_S, Effort
from ..plan import Entry, Plan
from ..planner.synthesize import lower_envelope
from ..request import segment_counts
from .bounds import GroupBounds, find_group_bounds
from .calls import JointCall, check_calls, choose_any_helpers, helpers_of, read_calls
from .joint_bound import JointBound
from .joint_plan import GroupPlan, JointPlan, share_out
from .packing import Branches, JointPacking, prove
from .ranks import REST

# Shares of the work and of the time left for the packing on the hardware's routes, and then for the
# bound on any use of the links.
_MAIN, _SECOND = 0.5, 0.6
# Work for the bounds of each group by itself, in seconds of an idle core.
_ALONE_WORK_S = 2.0
NAME = "joint"


@dataclass(frozen=True)
class Separate:
    """What plans that were made for each group alone would take, if only bandwidth counted.

    `together_s` is the time at which all calls have ended that start together, `in_turn_s` the time
    if the kinds of groups follow each other, the groups of one kind at once.
    """

    together_s: Fraction
    in_turn_s: Fraction


@dataclass(frozen=True)
class JointSynthesis:
    """A joint plan, and how long the search took.

    `cut_short` lists the searches that the time limit stopped.
    """

    plan: JointPlan
    seconds: float
    cut_short: tuple[str, ...] = ()


def synthesize_joint(
    groups: str | Sequence[JointCall],
    topology: str | PathLike[str] | Topology,
    *,
    collective: str | None = None,
    size: str = "1G",
    helpers: str | Sequence[int] = REST,
    time_limit_s: float = USUAL_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> JointPlan:
    """Return the verified joint plan of groups whose collectives run at the same time.

    `groups` is a text such as "tp:allreduce:64M=0,1|2,3 dp=0,2|1,3" (docs/files.md, Joint plans),
    the name of a file of it, or JointCall objects, which `mesh_groups` makes of a DeviceMesh.
    `collective` and `size` are for kinds of groups that state none. `helpers` are the ranks that
    may relay, copy and add for groups of which they are no members: "rest" (all), "none", or a
    list of ranks.

    Raise InputError if names or options are wrong, InfeasibleError if a group's ranks cannot reach
    each other.
    """
    if not isinstance(time_limit_s, (int, float)) or not time_limit_s > 0:
        raise InputError(f"time_limit_s is {time_limit_s!r}; expected seconds above 0")
    machine, router = load_for_planning(topology)
    calls = (
        read_calls(groups, machine, collective, size)
        if isinstance(groups, str)
        else check_calls(groups, machine)
    )
    chosen = choose_any_helpers(helpers, calls, machine)
    return plan_jointly(calls, router, chosen, Effort(time_limit_s), progress).plan


def plan_jointly(
    calls: Sequence[JointCall],
    router: Router,
    helpers: Sequence[int],
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
) -> JointSynthesis:
    """Return the joint plan of calls on a router's topology, and how the search went.

    `helpers` are the ranks that may help groups of which they are no members.
    """
    started = time.monotonic()
    effort = effort if effort is not None else Effort()
    topology = router.topology
    routes = OwnRoutes(router)
    packing = JointPacking(calls, topology, helpers, routes)
    packing.run(effort.grant(effort.left_s / effort.scale * _MAIN, _MAIN), progress)
    columns = _list_columns(packing)
    multipath, single_path = _find_bounds(calls, router, helpers, packing, effort, progress)
    loads = [_measure(_draw(call, own, topology), topology, call) for call, own in columns]
    total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for load in loads:
        for link, busy in load.items():
            total[link] += busy
    # A group's plan has the bounds that hold while the others do nothing.
    alone = {
        call.collective: find_group_bounds(
            call.collective, helpers_of(call, helpers), router, effort.grant(_ALONE_WORK_S)
        )
        for call in calls
    }
    groups = []
    for (call, own), load in zip(columns, loads, strict=True):
        shares = {link: busy / total[link] for link, busy in load.items() if busy}
        groups.append(_plan_group(call, own, router, shares, helpers, alone[call.collective]))
    plan = JointPlan(
        topology.for_plans(), tuple(groups), tuple(helpers), multipath, single_path, router
    )
    plan.verify()
    return JointSynthesis(plan, time.monotonic() - started, tuple(effort.cut_short))


Columns = list[tuple[Branches, Fraction]]


def _list_columns(packing: JointPacking) -> list[tuple[JointCall, Columns]]:
    """Return each call with its columns and their exact shares of the parts, without idle ones."""
    out: list[tuple[JointCall, Columns]] = [(call, []) for call in packing.calls]
    for column, share in zip(packing.columns, packing.round(), strict=True):
        if share:
            out[column.call][1].append((column, share))
    return out


def _find_bounds(
    calls: Sequence[JointCall],
    router: Router,
    helpers: Sequence[int],
    packing: JointPacking,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> tuple[JointBound, JointBound]:
    """Return the bound for any use of the links, and that for the hardware's routes.

    If switches compute, both are the bound of the machine in which each is one with a GPU.
    """
    topology = router.topology
    computing = list_computing(topology)
    joined = [(device, find_nearest_gpu(device, topology)) for device in computing]
    machine = join_devices(topology, dict(joined))
    helping = {*helpers, *(topology.ranks.index(gpu) for _, gpu in joined)}
    anywhere = JointPacking(calls, machine, helping, None)
    anywhere.run(effort.grant(effort.left_s / effort.scale * _SECOND, _SECOND), progress)
    multipath = prove(anywhere, helpers, router, joined)
    if computing:
        return multipath, multipath
    single_path = prove(packing, helpers, router, ())
    return multipath, max(single_path, multipath, key=lambda bound: bound.time_s)


def _draw(call: JointCall, columns: Columns, topology: Topology) -> Schedule:
    """Return the schedule of a call's columns: each carries a chunk of its own from step 0 on."""
    collective, rank = call.collective, {gpu: i for i, gpu in enumerate(topology.ranks)}
    whole = collective.even_chunks(1)[0].share
    chunks: list[Chunk] = []
    rows: list[tuple[int, int, int, int, int, int]] = []
    number: dict[Route, int] = {}
    depth = 0
    for column, share in columns:
        up = {rank[r[0]]: (rank[r[-1]], r[1:-1]) for r in column.up}
        down = {rank[r[-1]]: (rank[r[0]], r[1:-1]) for r in column.down}
        heights, depths = _measure_heights(up, column.root), _measure_depths(down, column.root)
        start = heights[column.root]
        depth = max(depth, start, *depths.values())
        for child, (parent, between) in up.items():
            place = number.setdefault(between, len(number))
            rows.append((heights[child], child, parent, len(chunks), REDUCE, place))
        for child, (parent, between) in down.items():
            place = number.setdefault(between, len(number))
            rows.append((start + depths[child] - 1, parent, child, len(chunks), COPY, place))
        chunks.append(Chunk(share * whole, column.source, column.target))
    # The parts that stay where they are, such as a root's own part of a gather.
    moved = {(column.source, column.target) for column, _ in columns}
    chunks += [c for c in collective.even_chunks(1) if (c.source, c.target) not in moved]
    transfers = Transfers.from_columns(zip(*rows, strict=True), list(number)).sorted()
    named = {int(r) for r in np.unique(np.r_[transfers.src, transfers.dst])}
    schedule = Schedule(
        collective,
        NAME,
        tuple(chunks),
        transfers,
        (),
        trees=len(columns),
        depth=depth,
        helpers=tuple(sorted(named.difference(collective.members))),
    )
    return tighten(schedule, topology)


def _measure_depths(parents: dict[int, tuple[int, Route]], root: int) -> dict[int, int]:
    """Return the hops from the root to each node of a tree, given the nodes' parents."""
    depths = {root: 0}
    for node in parents:
        path = [node]
        while path[-1] not in depths:
            path.append(parents[path[-1]][0])
        for above, below in zip(path[::-1], path[-2::-1], strict=False):
            depths[below] = depths[above] + 1
    return depths


def _measure_heights(parents: dict[int, tuple[int, Route]], root: int) -> dict[int, int]:
    """Return the hops from each node of a tree to the farthest node below it."""
    depths = _measure_depths(parents, root)
    heights = dict.fromkeys(depths, 0)
    for node in sorted(parents, key=depths.__getitem__, reverse=True):
        parent = parents[node][0]
        heights[parent] = max(heights[parent], heights[node] + 1)
    return heights


def _measure(
    schedule: Schedule, topology: Topology, call: JointCall
) -> dict[DirectedLink, Fraction]:
    """Return how long each link is busy with a call, in seconds times the call's weight."""
    busy = total_seconds(schedule, topology)
    return {link: seconds * call.demand_GB for link, seconds in busy.items()}


def _plan_group(
    call: JointCall,
    columns: Columns,
    router: Router,
    shares: dict[DirectedLink, Fraction],
    helpers: Sequence[int],
    bounds: GroupBounds,
) -> GroupPlan:
    """Return a group's plan: the schedule in the number of segments that is best for each size."""
    topology = router.topology
    machine = share_out(topology, shares)
    schedule = _draw(call, columns, machine)
    segments = segment_counts(len(columns))
    costed = costs_between_gpus(schedule, machine, segments)
    entries: list[Entry] = []
    for i, first in lower_envelope(costed):
        if entries:
            entries[-1] = replace(entries[-1], max_bytes=first)
        entries.append(Entry(first, None, replace(schedule, segments=segments[i])))
    plan = Plan(
        topology.for_plans(),
        call.collective,
        tuple(entries),
        bounds.allowed.multipath,
        bounds.allowed.single_path,
        router=router,
        helpers=tuple(helpers_of(call, helpers)),
        bound_alone=bounds.alone,
        bound_with_helpers=bounds.with_helpers,
    )
    return GroupPlan(call, plan, shares)


def plan_separately(
    calls: Sequence[JointCall], router: Router, helpers: Sequence[int], effort: Effort | None = None
) -> Separate:
    """Return what plans take that were made for each group as if it had all links for itself.

    The arguments are those of `plan_jointly`.
    """
    effort = effort if effort is not None else Effort()
    topology, routes = router.topology, OwnRoutes(router)
    busy: dict[str, dict[DirectedLink, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for call in calls:
        packing = JointPacking([call], topology, helpers, routes)
        packing.run(effort.grant(effort.left_s / effort.scale / len(calls)))
        for _, columns in _list_columns(packing):
            schedule = _draw(call, columns, topology)
            for link, seconds in _measure(schedule, topology, call).items():
                busy[call.kind][link] += seconds
    total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for loads in busy.values():
        for link, seconds in loads.items():
            total[link] += seconds
    in_turn = sum((max(loads.values()) for loads in busy.values()), Fraction(0))
    return Separate(max(total.values()), in_turn)
