"""Place a job's ranks on a machine's GPUs: all orders of few ranks, CP-SAT for some more, a search
and a bound beyond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike

import numpy as np

from ...topo.derived.degrade import Change, degrade
from ...topo.derived.hosts import group_by_host
from ...topo.derived.route_table import RouteTable
from ...topo.derived.stripes import merge_spines
from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Topology
from ...topo.loader.resolve import load
from ..effort import USUAL_LIMIT_S, Effort
from ..planner.machine import load_for_planning
from .exhaustive import MOST_LISTED, MOST_PROVED, list_all, prove_best
from .improve import Improver, keep_hosts_together
from .inside import arrange_inside
from .job import Ints, Job, Phase, read_job
from .loads import OBJECTIVES, TIME, Loads, Ways
from .patterns import PAIRS, PLAN, RING, SPREAD, TARGETS
from .placement import EQUAL, Placement, Step
from .proof.bound import choose_parts, find_bound
from .proof.check import NOTHING, SEARCH, PlaceBound
from .search import Search
from .starts import find_rings, offer_starts
from .tiers import Tier, find_tiers

MOST_RANKS = 2048
# Work for each part of the search, in seconds of a quiet core at the usual time limit.
_INSIDE_S, _IMPROVE_S, _RINGS_S, _SHAKE_S, _SHAKE_FEW_S, _PROOF_S = 1.5, 2.0, 2.0, 3.0, 0.8, 30.0
_STARTS = 4
_MOST_SHAKEN = 256
_SEED = 1
_MOST_NOTES = 3


@dataclass(frozen=True)
class _Asked:
    """What is to be placed: the GPUs that take part, by number in `topology` (without failed ones,
    switches side by side made one) and in the one given; `notes` say what that assumes.
    """

    topology: Topology
    table: RouteTable
    gpus: tuple[int, ...]
    numbers: tuple[int, ...]
    job: Job
    phases: list[Phase]
    notes: tuple[str, ...]


def place(
    topology: Topology | str | PathLike[str],
    job: str | None = None,
    traffic: str | None = None,
    *,
    target: str = RING,
    objective: str = TIME,
    order: Sequence[int] | None = None,
    without_ranks: Iterable[int] = (),
    reserve: Iterable[int] = (),
    together: Iterable[str] = (),
    time_limit_s: float = USUAL_LIMIT_S,
) -> Placement:
    """Return which GPU each rank of a job gets, so that its communication takes the least predicted
    time, with a bound.

    `job` is a mesh such as "dp=4,tp=2,pp=2" (ranks count as in a DeviceMesh, the last dimension
    fastest; by default one group), `traffic` what a group of each dimension does in a step:
    "dp=allreduce:1G,tp=allgather:64M,pp=sendrecv:8M". `target` is "ring" (rings in the order of
    ranks), "stock" (gloo's algorithms) or "plan" (topoplan's, which do not depend on the order
    inside a group); `objective` "time" or "bottleneck", the link that is busy longest. `order` is
    the present order, a GPU's number for each rank. GPUs of `without_ranks` have failed, those of
    `reserve` stay free; groups of the dimensions `together` share a host each. Raises InputError
    for what does not fit, InfeasibleError where GPUs cannot reach each other.
    """
    if target not in TARGETS:
        raise InputError(
            f"{target!r} is nothing to place for; expected one of {', '.join(TARGETS)}"
        )
    if objective not in OBJECTIVES:
        raise InputError(f"{objective!r} is no objective; expected one of {', '.join(OBJECTIVES)}")
    machine = topology if isinstance(topology, Topology) else load(topology)
    together = tuple(together)
    asked = _read(machine, job, traffic, target, tuple(without_ranks), tuple(reserve))
    given = _read_order(order, asked.numbers)
    hosts = _number_hosts(asked)
    tiers = find_tiers(asked.topology, asked.gpus, _list_hosts(asked.gpus, hosts))
    loads = Loads(_make_ways(asked, tiers if target == PLAN else ()), asked.phases, objective)
    effort = Effort(time_limit_s)
    apart = tuple(asked.job.list_groups(name) for name in _check_names(together, asked.job))
    forwarded = asked.table.forwarded[np.ix_(asked.gpus, asked.gpus)]
    avoided = forwarded if forwarded.any() and target != PLAN else None
    search = Search(loads, asked.job, apart, hosts, effort, forwarded=avoided)
    bound = _search(search, asked, tiers, given, together)
    if search.best[0]:
        raise InfeasibleError(
            f"{machine.name}: no order was found in which each group of {', '.join(together)} "
            "shares a host; hosts have "
            f"{', '.join(map(str, sorted(set(np.bincount(hosts).tolist()))))} GPUs"
        )
    found = search.order
    apart_given, values, _ = search.judge(given[None, :])
    as_good = not apart_given[0] and int(values[0]) == search.best[1]
    if (
        as_good
        and search.count_forwarded(given[None, :])[0] <= search.count_forwarded(found[None, :])[0]
    ):
        found = given  # nothing is gained by another order
    found = keep_hosts_together(search, found)
    return Placement(
        name=machine.name,
        job=asked.job,
        target=target,
        objective=objective,
        order=tuple(asked.numbers[i] for i in found),
        gpus=tuple(asked.topology.ranks[asked.gpus[i]] for i in found),
        given=tuple(asked.numbers[i] for i in given),
        seconds=search.best[1] * loads.seconds_each,
        given_seconds=int(values[0]) * loads.seconds_each,
        bound=bound,
        steps=tuple(
            Step(phase.traffic, seconds, before)
            for phase, seconds, before in zip(
                asked.phases,
                loads.phase_seconds(found.tolist()),
                loads.phase_seconds(given.tolist()),
                strict=True,
            )
        ),
        busiest=loads.find_busiest(found.tolist()) if asked.phases else "",
        search_complete=not effort.cut_short,
        notes=asked.notes
        + _list_notes(
            int(search.count_forwarded(found[None, :])[0]), together if apart_given[0] else ()
        ),
    )


def _read(
    machine: Topology,
    job: str | None,
    traffic: str | None,
    target: str,
    failed: Sequence[int],
    reserved: Sequence[int],
) -> _Asked:
    """Return what is to be placed, on the machine without failed GPUs."""
    count = len(machine.ranks)
    for option, numbers in (("without-rank", failed), ("reserve", reserved)):
        for number in numbers:
            if not 0 <= number < count:
                raise InputError(
                    f"--{option} {number}: no such GPU; {machine.name} has 0 to {count - 1}"
                )
    left = [number for number in range(count) if number not in set(failed) | set(reserved)]
    if not left:
        raise InputError(f"{machine.name}: no GPU is left to place a rank on")
    if len(left) > MOST_RANKS:
        raise InputError(f"{machine.name}: {len(left)} GPUs; at most {MOST_RANKS} ranks are placed")
    read = read_job(job, traffic, len(left))
    whole = (
        degrade(machine, Change(without_ranks=tuple(sorted(set(failed))))) if failed else machine
    )
    whole, _ = load_for_planning(whole)
    spread = merge_spines(whole)
    merged = [d.extra["members"] for d in spread.devices if d.extra != whole.by_id[d.id].extra]
    whole = spread
    ids = {gpu: i for i, gpu in enumerate(whole.ranks)}
    gpus = tuple(ids[machine.ranks[number]] for number in left)
    notes = tuple(map(_note_merged, merged[:_MOST_NOTES]))
    return _Asked(
        whole, RouteTable(whole), gpus, tuple(left), read, read.list_phases(target), notes
    )


def _note_merged(switches: Sequence[str]) -> str:
    more = f" and {len(switches) - 2} more" if len(switches) > 2 else ""
    return f"{' and '.join(switches[:2])}{more} stand side by side: flows are assumed to be spread evenly over such switches"


def _read_order(order: Sequence[int] | None, numbers: Sequence[int]) -> Ints:
    """Return the present order as places among the GPUs that take part."""
    if order is None:
        return np.arange(len(numbers), dtype=np.int64)
    if sorted(order) != sorted(numbers):
        raise InputError(
            f"--order {','.join(map(str, list(order)[:12]))}{',...' if len(order) > 12 else ''}: "
            "expected each of the "
            f"{len(numbers)} GPUs that take part once, by its number"
        )
    return np.array([numbers.index(number) for number in order], dtype=np.int64)


def _check_names(names: Iterable[str], job: Job) -> list[str]:
    known = [name for name, _ in job.dimensions]
    for name in names:
        if name not in known:
            raise InputError(
                f"--together {name}: the job has no dimension {name!r}; it has {', '.join(known)}"
            )
    return list(names)


def _number_hosts(asked: _Asked) -> Ints:
    """Return the number of each GPU's host."""
    devices = [asked.topology.by_id[asked.topology.ranks[gpu]] for gpu in asked.gpus]
    hosts = np.zeros(len(devices), dtype=np.int64)
    for number, members in enumerate(group_by_host(devices)):
        hosts[members] = number
    return hosts


def _list_hosts(gpus: Sequence[int], hosts: Ints) -> list[list[int]]:
    return [
        [gpus[i] for i in np.flatnonzero(hosts == number).tolist()]
        for number in range(int(hosts.max()) + 1)
    ]


def _make_ways(asked: _Asked, tiers: Sequence[Tier]) -> Ways:
    """Return what messages cross; for plans the parts of tiers as well."""
    table, listed = asked.table, np.array(asked.gpus)
    names = [f"{a} -> {b}" for a, b in table.links]
    rates = [asked.topology.capacity_GBps[link] for link in table.links]
    at = {gpu: i for i, gpu in enumerate(asked.gpus)}
    part_of = np.zeros((len(tiers), len(listed)), dtype=np.int64)
    for row, tier in enumerate(tiers):
        for part in choose_parts(table, asked.gpus, tier, "out"):
            part_of[row, [at[gpu] for gpu in part.gpus]] = len(names)
            first = asked.topology.ranks[part.gpus[0]]
            names.append(
                f"out of {first}"
                + (f" and {len(part.gpus) - 1} more" if len(part.gpus) > 1 else "")
            )
            rates.append(part.capacity_GBps)
    crossed = table.crossed[np.ix_(listed, listed)]
    crossed = np.where(crossed == len(table.links), len(names), crossed).astype(np.int32)
    return Ways(names, rates, crossed, part_of)


def _search(
    search: Search, asked: _Asked, tiers: Sequence[Tier], given: Ints, together: Sequence[str]
) -> PlaceBound:
    """Find the best order, and return what bounds all."""
    job, loads = asked.job, search.loads
    search.offer(given[None, :])
    if not asked.phases:
        if search.best[0]:
            offer_starts(search, _renumber(tiers, asked.gpus))
        return PlaceBound(search.best[1] * loads.seconds_each, NOTHING, {})
    one_group = len([size for _, size in job.dimensions if size > 1]) == 1
    if one_group and all(phase.pattern.shape in (PAIRS, SPREAD) for phase in asked.phases):
        return PlaceBound(search.best[1] * loads.seconds_each, SEARCH, {})  # all orders are alike
    if job.ranks <= MOST_LISTED:
        list_all(search)
        return PlaceBound(search.best[1] * loads.seconds_each, SEARCH, {})
    effort = search.effort
    near = _renumber(tiers, asked.gpus)
    starts = offer_starts(search, near)
    search.effort = effort.grant(_RINGS_S)
    rings = find_rings(search)
    if rings:
        search.offer(np.array(rings))
    chance = np.random.default_rng(_SEED)
    improver = Improver(search, near, chance)

    def find() -> PlaceBound:
        unit = search.best[1] * loads.seconds_each
        return find_bound(
            asked.table, asked.gpus, tiers, job, asked.phases, loads.objective, unit, together
        )

    bound = None if search.best[0] else find()
    if bound is None or search.best[1] > bound.seconds / loads.seconds_each * (1 + EQUAL):
        search.effort = effort.grant(_IMPROVE_S)
        for start in [search.order.copy(), *starts[:_STARTS], given]:
            improver.improve(start)
    if search.best[0]:
        return PlaceBound(Fraction(0), NOTHING, {})
    bound = bound or find()
    least = bound.seconds / loads.seconds_each * (1 + EQUAL)
    if search.best[1] > least and job.ranks <= _MOST_SHAKEN:
        search.effort = effort.grant(_INSIDE_S)
        for start in starts[:_STARTS]:
            search.offer(np.array(arrange_inside(search, near, start, chance)))
        search.effort = effort.grant(_IMPROVE_S)
        improver.improve(search.order.copy())
        search.effort = effort.grant(_SHAKE_S if job.ranks > MOST_PROVED else _SHAKE_FEW_S)
        improver.search_on(least)
    if job.ranks <= MOST_PROVED and bound.seconds < search.best[1] * loads.seconds_each:
        proved = prove_best(search, effort.grant(_PROOF_S)) * loads.seconds_each
        if proved > bound.seconds:
            return PlaceBound(proved, SEARCH, {})
    return bound


def _renumber(tiers: Sequence[Tier], gpus: Sequence[int]) -> list[Tier]:
    """Return tiers with GPUs by their place among those that take part."""
    at = {gpu: i for i, gpu in enumerate(gpus)}
    return [tuple(tuple(at[gpu] for gpu in part) for part in tier) for tier in tiers]


def _list_notes(forwarded: int, not_together: Sequence[str]) -> tuple[str, ...]:
    """Return what a reader of the answer should know beside it: messages that are forwarded, and
    dimensions that the given order breaks up.
    """
    notes = []
    if not_together:
        notes.append(
            f"in the given order not every group of {', '.join(not_together)} shares a host, so "
            "it is no choice"
        )
    if forwarded:
        notes.append(f"{forwarded} messages go through other GPUs, which no direct way joins")
    return tuple(notes)
