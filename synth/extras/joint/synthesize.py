"""Synthesis of joint plans: the links are shared by exact fractions so that all calls end together.

A call is one group's collective with its bytes and weight (joint_calls.py); groups of one kind have
one purpose, such as tensor parallelism, and no rank in common. One linear program packs the trees
and paths of all calls into the links (packing.py). Each group's schedule consists of its trees; its
share of a link is its part of all that is sent over the link.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from os import PathLike

from ....topo.errors import InfeasibleError, InputError
from ....topo.graph import Topology
from ....topo.loader.resolve import load_for_planning
from ....topo.routes import Router
from ...bounds.certificate import SINGLE_PATH, Bound, join_devices
from ...bounds.cuts import cut_bound
from ...bounds.group_bounds import SubMachine
from ...bounds.multipath import directed_bounds, find_nearest_gpu
from ...bounds.single_path import Bounds
from ...cost.affine import costs_between_gpus
from ...cost.loads import DirectedLink, computes_in_network, list_computing
from ...groups.ranks import REST
from ...machine.routes import OwnRoutes
from ...numeric.effort import USUAL_LIMIT_S, Effort
from ...plan import Entry, Plan
from ...planner.whole import lower_envelope
from ...request import segment_counts
from .bound import JointBound
from .draw import draw_schedule, measure_seconds
from .joint_calls import JointCall, check_calls, choose_any_helpers, helpers_of, read_calls
from .packing import BY_PATHS, Branches, Columns, JointPacking, prove
from .plan import GroupPlan, JointPlan, share_out

# Shares of the work and of the time left for the packing on the hardware's routes, and then for the
# bound on any use of the links.
_MAIN, _SECOND = 0.5, 0.6
# Work for each call as if it had all links for itself, in seconds of an idle core.
_ALONE_WORK_S = 1.0


@dataclass(frozen=True)
class Separate:
    """The time that plans made for each group alone would take, if only bandwidth counted.

    `together_s` is the time in seconds at which all calls, started together, have ended;
    `in_turn_s` the time if the kinds of groups follow each other, the groups of one kind at once.
    """

    together_s: Fraction
    in_turn_s: Fraction


@dataclass(frozen=True)
class JointSynthesis:
    """A joint plan, the comparison with separate plans, and the `seconds` that the search took.

    `cut_short` lists the searches that the time limit stopped.
    """

    plan: JointPlan
    separate: Separate
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
    may relay, copy and add for groups of which they are no members: "rest" (all), "none", or a list
    of ranks.

    Raise InputError if names or options are wrong, InfeasibleError if a group's ranks cannot reach
    each other. Searches stop after `time_limit_s` seconds; `progress` is given lines about them.
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

    `helpers` are the ranks that may help (relay for) groups of which they are not members; `effort`
    limits the search; `progress` is given lines about it.
    """
    started = time.monotonic()
    effort = effort if effort is not None else Effort()
    topology = router.topology
    routes = OwnRoutes(router)
    packing = JointPacking(calls, topology, helpers, routes)
    granted = effort.grant(effort.left_s / effort.scale * _MAIN, _MAIN)
    # What members carry by themselves comes first: of equally fast plans, that with less help wins.
    unhelped = JointPacking(calls, topology, (), routes)
    if packing.is_helped:
        with suppress(InfeasibleError):  # some members only reach each other with help
            unhelped.run(granted)
    of_kinds = _pack_kinds(calls, topology, helpers, routes, effort)
    packing.run(granted, progress, [*unhelped.columns, *of_kinds])
    columns = packing.list_columns()
    multipath, single_path = _find_bounds(calls, router, helpers, packing, effort, progress)
    loads = [
        measure_seconds(draw_schedule(call, own, topology), topology, call)
        for call, own in zip(calls, columns, strict=True)
    ]
    total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for load in loads:
        for link, busy in load.items():
            total[link] += busy
    alone = [
        _plan_alone(call, router, helpers, routes, effort.grant(_ALONE_WORK_S)) for call in calls
    ]
    groups = []
    for call, own, load, one in zip(calls, columns, loads, alone, strict=True):
        shares = {link: busy / total[link] for link, busy in load.items() if busy}
        groups.append(_plan_group(call, own, router, shares, helpers, one))
    plan = JointPlan(
        topology.for_plans(), tuple(groups), tuple(helpers), multipath, single_path, router
    )
    plan.verify()
    seconds = time.monotonic() - started
    return JointSynthesis(plan, _compare(calls, alone), seconds, tuple(effort.cut_short))


def _pack_kinds(
    calls: Sequence[JointCall],
    topology: Topology,
    helpers: Sequence[int],
    routes: OwnRoutes,
    effort: Effort,
) -> list[Branches]:
    """Return the columns with which each kind's groups are fast by themselves, if several run."""
    kinds = dict.fromkeys(call.kind for call in calls)
    out: list[Branches] = []
    for kind in kinds if len(kinds) > 1 else ():
        numbers = [number for number, call in enumerate(calls) if call.kind == kind]
        packing = JointPacking([calls[number] for number in numbers], topology, helpers, routes)
        packing.run(effort.grant(_ALONE_WORK_S))
        out += (replace(column, call=numbers[column.call]) for column in packing.columns)
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


def _plan_group(
    call: JointCall,
    columns: Columns,
    router: Router,
    shares: dict[DirectedLink, Fraction],
    helpers: Sequence[int],
    alone: _Alone,
) -> GroupPlan:
    """Return a group's plan: the schedule in the number of segments that is best for each size."""
    topology = router.topology
    machine = share_out(topology, shares)
    schedule = draw_schedule(call, columns, machine)
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
        alone.bounds.multipath,
        alone.bounds.single_path,
        router=router,
        helpers=tuple(helpers_of(call, helpers)),
        bound_alone=None if call.collective.has_all_gpus else alone.unhelped,
    )
    return GroupPlan(call, plan, shares)


@dataclass(frozen=True)
class _Alone:
    """A call that has all links for itself.

    `bounds` are with the help that its plan may use, `unhelped` is the single-path bound without
    any, None if the members cannot reach each other. `seconds` is how long each link is busy with
    the call, times its weight.
    """

    bounds: Bounds
    unhelped: Bound | None
    seconds: dict[DirectedLink, Fraction]


def _plan_alone(
    call: JointCall, router: Router, helpers: Sequence[int], routes: OwnRoutes, effort: Effort
) -> _Alone:
    """Plan for a call as if it had all links for itself."""
    topology = router.topology
    packing = JointPacking([call], topology, helpers, routes)
    packing.run(effort)
    seconds = measure_seconds(
        draw_schedule(call, packing.list_columns()[0], topology), topology, call
    )
    bounds = _prove_alone(packing, router)
    unhelped = bounds.single_path if not packing.is_helped else None
    if packing.is_helped:
        members_only = JointPacking([call], topology, (), routes)
        with suppress(InfeasibleError):  # its members only reach each other with help
            members_only.run(effort)
            unhelped = _prove_alone(members_only, router).single_path
    return _Alone(bounds, unhelped, seconds)


def _prove_alone(packing: JointPacking, router: Router) -> Bounds:
    """Return the bounds of a packing of one call, on the machine of those that may take part."""
    call = packing.calls[0]
    part = SubMachine.of(call.collective, router, packing.participants[0])
    collective, machine = part.collective, part.router.topology
    best = cut = cut_bound(collective, machine)
    if not computes_in_network(machine, collective):
        links = machine.capacity_GBps
        prices = {link: p for link, p in packing.link_prices.items() if link in links}
        by_paths = collective.name in BY_PATHS
        wanted = packing.value * float(packing.unit_GB / call.demand_GB)
        kind = SINGLE_PATH + ("prices" if by_paths else "tree-prices")
        proved = directed_bounds(kind, prices, collective, machine, wanted, part.router)
        best = max([cut, *proved], key=lambda bound: bound.s_per_GB)
    return Bounds(cut, best)


def _compare(calls: Sequence[JointCall], alone: Sequence[_Alone]) -> Separate:
    """Return what plans take that were made for each group as if it had all links for itself."""
    busy: dict[str, dict[DirectedLink, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for call, one in zip(calls, alone, strict=True):
        for link, seconds in one.seconds.items():
            busy[call.kind][link] += seconds
    total: dict[DirectedLink, Fraction] = defaultdict(Fraction)
    for loads in busy.values():
        for link, seconds in loads.items():
            total[link] += seconds
    in_turn = sum((max(loads.values()) for loads in busy.values()), Fraction(0))
    return Separate(max(total.values()), in_turn)
