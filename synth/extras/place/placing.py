"""Placement of a job's ranks on a machine's GPUs.

An order says which GPU each rank gets. All orders of few ranks are tried; for some more ranks
CP-SAT proves the best order; beyond that, a local search finds an order, with a bound. It begins
with orders that divide the job's dimensions over the machine's tiers, which are divisions of its
GPUs into hosts, leaves or racks (starts.py). While the bound is not met, moves improve them, one
host's ranks are arranged and all hosts follow, and the best order is shaken and improved again. All
of it is limited by work; the clock only stops what still runs at the time limit.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from os import PathLike

import numpy as np

from ....topo.derived.degrade import Change, degrade
from ....topo.derived.hosts import group_by_host
from ....topo.derived.stripes import describe_merged
from ....topo.errors import InfeasibleError, InputError
from ....topo.graph import Topology
from ....topo.loader.resolve import load, load_for_planning
from ...numeric.effort import USUAL_LIMIT_S, Effort
from ..traffic import ByteMatrix
from .domains import compare_domains, find_domains
from .exhaustive import MAX_LISTED, MAX_PROVED, list_all, prove_best
from .improve import Improver, arrange_inside, keep_hosts_together
from .job import PAIRS, PLAN, RING, SPREAD, TARGETS, Ints, Phase, read_job
from .loads import OBJECTIVES, TIME, Latencies, OrderLoads, RouteLoads, Search, find_call_s
from .placement import EQUAL, Placement, Step, note_calls
from .proof.bound import choose_parts, find_bound
from .proof.check import NOTHING, SEARCH, PlaceBound
from .route_table import RouteTable
from .starts import find_rings, offer_starts
from .tiers import Tier, find_tiers

# Most GPUs, whose routes between all pairs fit into memory.
MAX_RANKS = 2048
# Work of each step of the search, in seconds of an idle core at the default time limit.
_INSIDE_S, _IMPROVE_S, _RINGS_S, _PROOF_S = 1.5, 2.0, 2.0, 30.0
# The same for shaking; less if CP-SAT follows.
_SHAKE_S, _SHAKE_FEW_S = 3.0, 0.8
# Most orders to improve, and most ranks for shaking improved orders.
_MAX_STARTS, _MAX_SHAKEN = 4, 256
# Fixed, so that the same request gives the same order.
_SEED = 1


def place(
    topology: Topology | str | PathLike[str],
    job: str | None = None,
    traffic: str | PathLike[str] | ByteMatrix | None = None,
    *,
    target: str = RING,
    objective: str = TIME,
    order: Sequence[int] | None = None,
    without_ranks: Iterable[int] = (),
    reserve: Iterable[int] = (),
    together: Iterable[str] = (),
    time_limit_s: float = USUAL_LIMIT_S,
) -> Placement:
    """Return the GPU of each rank that minimizes a job's communication time, with a bound.

    `job` is a mesh such as "dp=4,tp=2,pp=2" (ranks count as in a DeviceMesh, the last dimension
    fastest; by default one group), `traffic` the collective of each dimension's groups in a
    training step, with the number of its calls: "dp=allreduce:1G,tp=96xallreduce:64M,pp=8x8M"; or a
    matrix of bytes from rank to rank, or its file. `target` is "ring" (rings in the order of
    ranks), "stock" (gloo's algorithms) or "plan" (topoplan's, which do not depend on the order
    inside a group). `objective` is "time", or "bottleneck" for the time of the link that is busy
    longest. GPUs are named by their numbers in the topology: `order` is the present order, the GPU
    of each rank (default: all that take part, ascending); those of `without_ranks` have failed,
    those of `reserve` stay free. Each group of the dimensions `together` shares a host.

    Raise InputError for arguments that do not fit, InfeasibleError if GPUs are not connected, or no
    order was found in which these groups share hosts. Searches stop after `time_limit_s` seconds.
    """
    if target not in TARGETS:
        raise InputError(f"{target!r} is no target; expected one of {', '.join(TARGETS)}")
    if objective not in OBJECTIVES:
        raise InputError(f"{objective!r} is no objective; expected one of {', '.join(OBJECTIVES)}")
    machine, together = topology if isinstance(topology, Topology) else load(topology), [*together]
    failed = sorted(set(without_ranks))
    numbers = _list_left(machine, failed, tuple(reserve))
    mesh = read_job(job, traffic, len(numbers))
    phases, dimensions = mesh.list_phases(target), [name for name, _ in mesh.dimensions]
    for name in together:
        if name not in dimensions:
            raise InputError(
                f"{name}: the job has no dimension {name!r}; it has {', '.join(dimensions)}",
                parameter="together",
            )
    given = _read_order(order, numbers)
    table, notes = _find_routes(machine, failed)
    # GPUs have other numbers without the failed ones.
    number_of = {gpu: i for i, gpu in enumerate(table.topology.ranks)}
    gpus = [number_of[machine.ranks[number]] for number in numbers]
    blocks = group_by_host([table.topology.by_id[machine.ranks[number]] for number in numbers])
    host_of = np.zeros(len(gpus), dtype=np.int64)
    for number, members in enumerate(blocks):
        host_of[members] = number
    hosts = [[gpus[i] for i in sorted(members)] for members in blocks]
    tiers = find_tiers(table.topology, gpus, hosts)
    latencies = _list_latencies(table, gpus, tiers if target == PLAN else (), phases)
    routes = _list_loads(table, gpus, tiers if target == PLAN else (), latencies)
    loads = OrderLoads(routes, phases, objective)
    # For plans only traffic out of parts counts, so forwarding is no reason against an order.
    forwarded = table.forwarded[np.ix_(gpus, gpus)]
    effort = Effort(time_limit_s)
    search = Search(
        loads,
        mesh,
        tuple((mesh.list_groups(name), host_of) for name in together),
        host_of,
        effort,
        forwarded=forwarded if forwarded.any() and target != PLAN else None,
    )
    at = {gpu: i for i, gpu in enumerate(gpus)}
    near = [tuple(tuple(at[gpu] for gpu in part) for part in tier) for tier in tiers]
    bound = _search(search, table, gpus, tiers, near, given, together)
    if search.best[0]:
        raise InfeasibleError(
            f"{machine.name}: no order was found in which each group of {', '.join(together)} "
            f"shares a host; hosts have {', '.join(map(str, sorted(set(map(len, blocks)))))} GPUs"
        )
    apart, values, _ = search.evaluate(given[None, :])
    # Ranks only move for a gain.
    is_as_good = not apart[0] and int(values[0]) == search.best[1]
    before, after = search.count_forwarded(np.array([given, search.order])).tolist()
    if is_as_good and before <= after:
        search.adopt(given)
    search.effort = effort
    domains = find_domains(table.topology, gpus, [np.array(block) for block in blocks])
    stays = compare_domains(search, near, domains, given)
    best = keep_hosts_together(search, search.order)
    if apart[0]:
        notes.append(
            f"in the given order not every group of {', '.join(together)} shares a host, so it is "
            "not allowed"
        )
    through = int(search.count_forwarded(best[None, :])[0])
    if through:
        notes.append(f"{through} messages go through other GPUs, as no direct route exists")
    times = [
        f(order.tolist())
        for f in (loads.phase_seconds, loads.latency_seconds)
        for order in (best, given)
    ]
    return Placement(
        name=machine.name,
        job=mesh,
        target=target,
        objective=objective,
        order=tuple(numbers[i] for i in best),
        gpus=tuple(machine.ranks[numbers[i]] for i in best),
        given=tuple(numbers[i] for i in given),
        seconds=search.best[1] * loads.seconds_each,
        given_seconds=int(values[0]) * loads.seconds_each,
        bound=bound,
        steps=tuple(
            Step(phase.traffic, *seconds) for phase, *seconds in zip(phases, *times, strict=True)
        ),
        stays=tuple(stays),
        busiest=loads.find_busiest(best.tolist()) if phases else "",
        search_complete=not effort.cut_short,
        notes=(*notes, *note_calls(mesh)),
    )


def _list_left(machine: Topology, failed: Sequence[int], reserved: Sequence[int]) -> list[int]:
    count = len(machine.ranks)
    for parameter, numbers in (("without_ranks", failed), ("reserve", reserved)):
        for number in numbers:
            if not 0 <= number < count:
                raise InputError(
                    f"{number}: no such GPU; {machine.name} has 0 to {count - 1}",
                    parameter=parameter,
                )
    left = [number for number in range(count) if number not in {*failed, *reserved}]
    if not left:
        raise InputError(f"{machine.name}: no GPU is left to place a rank on")
    if len(left) > MAX_RANKS:
        raise InputError(f"{machine.name}: {len(left)} GPUs; at most {MAX_RANKS} ranks are placed")
    return left


def _find_routes(machine: Topology, failed: Sequence[int]) -> tuple[RouteTable, list[str]]:
    """Return the routes without the failed GPUs, over merged parallel switches, with notes."""
    topology, _ = load_for_planning(
        degrade(machine, Change(without_ranks=tuple(failed))) if failed else machine
    )
    return RouteTable(topology), [
        f"{line}: flows are assumed to spread evenly over them"
        for line in describe_merged(topology)
    ]


def _read_order(order: Sequence[int] | None, numbers: Sequence[int]) -> Ints:
    """Return the present order as positions among the GPUs that take part."""
    if order is None:
        return np.arange(len(numbers), dtype=np.int64)
    if sorted(order) != sorted(numbers):
        shown = ",".join(map(str, order[:12])) + (",..." if len(order) > 12 else "")
        raise InputError(
            f"{shown}: expected each of the {len(numbers)} GPUs that take part once, by its number",
            parameter="order",
        )
    return np.array([numbers.index(number) for number in order], dtype=np.int64)


def _list_latencies(
    table: RouteTable, gpus: Sequence[int], tiers: Sequence[Tier], phases: Sequence[Phase]
) -> Latencies:
    """Return the latencies of the routes, and of the hosts for each call of a phase."""
    routes, unit_s = table.sum_latencies()
    widest = [max(int(routes[np.ix_(part, part)].max()) for part in tier) for tier in tiers]
    routes = routes[np.ix_(gpus, gpus)]
    return Latencies(
        routes,
        np.array([*widest, routes.max()], dtype=np.int64),
        unit_s,
        [find_call_s(table.topology, phase) for phase in phases],
    )


def _list_loads(
    table: RouteTable, gpus: Sequence[int], tiers: Sequence[Tier], latencies: Latencies
) -> RouteLoads:
    """Return the columns that messages load: links and, for plans, borders of parts of tiers."""
    names = [f"{a} -> {b}" for a, b in table.links]
    rates = [table.topology.capacity_GBps[link] for link in table.links]
    part_of = np.zeros((len(tiers), len(gpus)), dtype=np.int64)
    for row, tier in enumerate(tiers):
        for part in choose_parts(table, gpus, tier, "out"):
            part_of[row, np.isin(gpus, part.gpus)] = len(names)
            others = f" and {len(part.gpus) - 1} more" if len(part.gpus) > 1 else ""
            names.append(f"out of {table.topology.ranks[part.gpus[0]]}{others}")
            rates.append(part.capacity_GBps)
    crossed = table.crossed[np.ix_(gpus, gpus)]
    crossed = np.where(crossed == len(table.links), len(names), crossed).astype(np.int32)
    return RouteLoads(names, rates, crossed, part_of, latencies)


def _search(
    search: Search,
    table: RouteTable,
    gpus: Sequence[int],
    tiers: Sequence[Tier],
    near: Sequence[Tier],
    given: Ints,
    together: Sequence[str],
) -> PlaceBound:
    job, loads, effort = search.job, search.loads, search.effort
    # The given order is a candidate: it stays if no other is better.
    search.offer(given[None, :])
    if not loads.phases:
        if search.best[0]:
            offer_starts(search, near)
        return PlaceBound(search.best[1] * loads.seconds_each, NOTHING, {})
    # Inside one group plans and exchanges of all pairs take the same time in every order.
    is_same = job.is_one_group and {phase.pattern.shape for phase in loads.phases} <= {
        PAIRS,
        SPREAD,
    }
    if is_same or job.ranks <= MAX_LISTED:
        if not is_same:
            list_all(search)
        return PlaceBound(search.best[1] * loads.seconds_each, SEARCH, {})
    starts = offer_starts(search, near)
    search.effort = effort.grant(_RINGS_S)
    search.offer(np.array(find_rings(search)))
    chance = np.random.default_rng(_SEED)
    improver = Improver(search, near, chance)

    def find() -> PlaceBound:
        return find_bound(
            table,
            gpus,
            tiers,
            job,
            loads.phases,
            loads.objective,
            search.best[1] * loads.seconds_each,
            together,
        )

    # Since orders are improved only if the bound is not met, 1,024 ranks take 3 to 7 s of a core.
    bound = None if search.best[0] else find()
    if bound is None or search.best[1] > bound.seconds / loads.seconds_each * (1 + EQUAL):
        search.effort = effort.grant(_IMPROVE_S)
        for start in [search.order.copy(), *starts[:_MAX_STARTS], given]:
            improver.improve(start)
    if search.best[0]:
        return PlaceBound(Fraction(0), NOTHING, {})
    bound = bound or find()
    least = bound.seconds / loads.seconds_each * (1 + EQUAL)
    if search.best[1] > least and job.ranks <= _MAX_SHAKEN:
        search.effort = effort.grant(_INSIDE_S)
        for start in starts[:_MAX_STARTS]:
            search.offer(np.array(arrange_inside(search, near, start, chance)))
        search.effort = effort.grant(_IMPROVE_S)
        improver.improve(search.order.copy())
        search.effort = effort.grant(_SHAKE_S if job.ranks > MAX_PROVED else _SHAKE_FEW_S)
        improver.search_on(least)
    if job.ranks <= MAX_PROVED and bound.seconds < search.best[1] * loads.seconds_each:
        proved = prove_best(search, effort.grant(_PROOF_S)) * loads.seconds_each
        if proved > bound.seconds:
            return PlaceBound(proved, SEARCH, {})
    return bound
