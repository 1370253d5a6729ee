"""SCCL's formulation as CP-SAT models: for collectives that only copy, and for allreduce.

The graph has ranks, and edges between pairs of ranks whose hardware route passes through no other
GPU; a route may cross several physical links, and several edges may share one. Capacities are
integers: chunks per round, in the link unit.

Collectives that only copy (allgather, broadcast, gather, scatter, alltoall): a Boolean per (chunk,
edge, step): the chunk crosses that edge in that step. Every required rank gets every chunk over
exactly one edge in one step, from a rank that had it in an earlier step; a link of bandwidth b
carries at most b r_s chunks in step s, which lasts r_s >= 1 rounds; the r_s add up to R, the number
of rounds (Cai et al., PPoPP 2021, section 4). A send is a variable only if, by hop distances, its
source can have the chunk by then and its destination can still be of use.

Allreduce, solved directly instead of composed of two collectives: each rank holds one partial sum
of each chunk. has[v,c,j,s]: rank v's partial sum of chunk c includes the contribution of rank j
when step s begins. In a step a rank may send its partial sum over any edge; the receiver adds it
(its contributions must be disjoint from those that it holds and from those of other arrivals) or
takes it over in place of its own. At the end every rank holds every contribution. Ranks do not keep
several partial sums of a chunk apart: "infeasible" means infeasible in that form.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

from ortools.sat.python import cp_model

from ....topo.errors import TimeLimitError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.routes import Route, Router, route_links
from ...cost.loads import DirectedLink
from ...ir.collective import Chunk, Collective
from ...ir.schedule import Schedule
from ...ir.transfers import Op, Transfer, Transfers
from ...machine.routes import OwnRoutes
from ...machine.symmetry import group, shifts
from ...numeric.cp_sat import solve
from ...numeric.effort import Effort

# Maximum number of symmetries that a schedule must have; share of an instance's work for such
# schedules, which are few but quickly found.
_MAX_IMAGES, _FOLDED_SHARE = 16, 0.2
# (chunk, edge, step)
Key = tuple[int, int, int]
# (chunk, edge, step, op)
EdgeSend = tuple[int, int, int, Op]


@dataclass(frozen=True)
class SyncFabric:
    """The edges between ranks that exact synthesis sends over, with the links that they cross.

    An edge is a pair of ranks whose route passes through no other GPU. `edges[i]` = (u, v) takes
    `routes[i]`, a link carries `capacity[link]` chunks per round, and `unit_GBps` is the bandwidth
    of one chunk per round. `images` are permutations of the ranks, the identity first, that map
    routes to routes and no rank to itself: the images of each rank under a group of symmetries.
    """

    topology: Topology
    edges: tuple[tuple[int, int], ...]
    routes: tuple[Route, ...]
    capacity: dict[DirectedLink, int]
    unit_GBps: Fraction
    images: tuple[tuple[int, ...], ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.topology.ranks)

    def links_of(self, edge: int) -> tuple[DirectedLink, ...]:
        """Return the physical links that edge number `edge` crosses."""
        return route_links(self.routes[edge])

    def hops_from(self, sources: tuple[int, ...], *, backwards: bool = False) -> dict[int, int]:
        """Return the number of edges from the nearest of `sources` to each rank, by rank.

        Ranks that cannot be reached are missing. With `backwards`, count edges from each rank to
        the nearest of `sources`.
        """
        neighbours = group_by_key(
            (v if backwards else u, u if backwards else v) for u, v in self.edges
        )
        hops = dict.fromkeys(sources, 0)
        order = list(hops)
        for rank in order:
            for destination in neighbours[rank]:
                if destination not in hops:
                    hops[destination] = hops[rank] + 1
                    order.append(destination)
        return hops


def fabric_of(router: Router) -> SyncFabric:
    """Return the fabric of a topology, with an edge per ordered pair of ranks with a route."""
    topology = router.topology
    rank_of = {device: r for r, device in enumerate(topology.ranks)}
    routes = {
        (u, rank_of[destination]): route
        for u in range(len(rank_of))
        for destination, route in router.routes_from(u).items()
    }
    edges = tuple(sorted(routes))
    unit = router.unit_GBps
    used = {link for route in routes.values() for link in route_links(route)}
    capacity = {link: int(topology.capacity_GBps[link] / unit) for link in sorted(used)}
    listed, own = tuple(routes[edge] for edge in edges), OwnRoutes(router)
    images = group([turn for turn in shifts(topology) if own.keeps(turn[1])], _MAX_IMAGES)
    moved = () if images is None else own.rank_of[images[:, own.gpus]].tolist()
    return SyncFabric(topology, edges, listed, capacity, unit, tuple(map(tuple, moved)))


@dataclass(frozen=True)
class SyncInstance:
    """A question: does a schedule of exactly these chunks, steps and rounds exist?

    `chunks` are in SCCL's units (see `Collective.even_chunks`). `solve_copying` and
    `solve_combining` answer it.
    """

    collective: Collective
    chunks: int
    steps: int
    rounds: int


def _run_solver(
    model: cp_model.CpModel, effort: Effort, instance: SyncInstance
) -> cp_model.CpSolver | None:
    """Return the solver with its solution, or None if the model is proved infeasible.

    Raise TimeLimitError if the effort was too small to decide.
    """
    solver, status = solve(model, effort, "exact", varied=True)
    if status == cp_model.UNKNOWN:
        raise TimeLimitError(
            f"no answer in time for {instance.collective.name} with {instance.chunks} chunks, "
            f"{instance.steps} steps, {instance.rounds} rounds"
        )
    return solver if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def solve_copying(fabric: SyncFabric, instance: SyncInstance, effort: Effort) -> Schedule | None:
    """Return a schedule with exactly the chunks, steps and rounds of `instance`.

    For collectives that only copy. None if it is proved that there is none. Raise TimeLimitError if
    the effort was too small to decide. Schedules that are their own images under the fabric's
    symmetries are tried first, since they need few variables.
    """
    if instance.collective.root is None and fabric.images:
        try:
            granted = effort.grant(_FOLDED_SHARE * effort.left_s / effort.scale)
            schedule = _solve_folded(fabric, instance, granted, fabric.images)
            if schedule is not None:
                return schedule
        except TimeLimitError:
            pass  # other schedules may be found sooner
    return _solve_folded(fabric, instance, effort, ())


def _solve_folded(
    fabric: SyncFabric,
    instance: SyncInstance,
    effort: Effort,
    images: Sequence[tuple[int, ...]],
) -> Schedule | None:
    """Return a schedule that each of `images` maps to itself; else see `solve_copying`."""
    chunks = instance.collective.even_chunks(instance.chunks)
    sends = list_possible_sends(fabric, instance.collective, chunks, instance.steps)
    model = cp_model.CpModel()
    variable: dict[Key, cp_model.IntVar] = {}
    moves = _list_moves(fabric, chunks, images)
    for key in sends:
        c, e, s = key
        first = min(((chunk[c], edge[e], s) for chunk, edge in moves), default=key)
        variable[key] = variable[first] if first in variable else model.new_bool_var("")
    # A second arrival of a chunk at a rank is useless, so a relay receives it at most once.
    arrivals = group_by_key(((key[0], fabric.edges[key[1]][1]), key) for key in sends)
    # What holds for a chunk holds for its images.
    firsts = [c for c in range(len(chunks)) if all(chunk[c] >= c for chunk, _ in moves)]
    for c in firsts:
        sources = set(instance.collective.holders(chunks[c]))
        wanted = set(instance.collective.receivers(chunks[c]))
        for rank in set(range(fabric.ranks)) - sources:
            inward = [variable[key] for key in arrivals[c, rank]]
            if rank in wanted:
                if not inward:
                    return None
                model.add_exactly_one(inward)
            elif inward:
                model.add_at_most_one(inward)
        # A rank that does not hold the chunk at first sends it only after it has arrived.
        for c_, e, s in (key for rank in range(fabric.ranks) for key in arrivals[c, rank]):
            u = fabric.edges[e][0]
            if u not in sources:
                earlier = [variable[key] for key in arrivals[c, u] if key[2] < s]
                model.add_bool_or([*earlier, ~variable[c_, e, s]])
    rounds = _add_rounds(model, fabric, instance, {(*k, "copy"): x for k, x in variable.items()})
    # A schedule with equal chunks swapped is equally good: the solver must not refute each one
    # separately.
    _break_symmetry(model, instance, chunks, firsts, arrivals, variable)
    solver = _run_solver(model, effort, instance)
    if solver is None:
        return None
    chosen = {key for key, var in variable.items() if solver.boolean_value(var)}
    used = _drop_idle_sends(fabric, instance.collective, chunks, chosen)
    return _build_schedule(
        fabric, instance, ((*key, "copy") for key in used), [solver.value(r) for r in rounds]
    )


def _list_moves(
    fabric: SyncFabric, chunks: tuple[Chunk, ...], images: Sequence[tuple[int, ...]]
) -> list[tuple[list[int], list[int]]]:
    """Return for each of `images` the places to which it moves every chunk and every edge."""
    edge_at = {edge: e for e, edge in enumerate(fabric.edges)}
    # Chunks of one source and target keep their order.
    chunks_at = group_by_key(((chunk.source, chunk.target), c) for c, chunk in enumerate(chunks))
    out = []
    for image in images:
        moved: dict[int | None, int | None] = {None: None}
        moved |= dict(enumerate(image))
        chunk_moves = [0] * len(chunks)
        for (source, target), places in chunks_at.items():
            for c, at in zip(places, chunks_at[moved[source], moved[target]], strict=True):
                chunk_moves[c] = at
        out.append((chunk_moves, [edge_at[image[u], image[v]] for u, v in fabric.edges]))
    return out


def list_possible_sends(
    fabric: SyncFabric, collective: Collective, chunks: tuple[Chunk, ...], steps: int
) -> list[Key]:
    """Return the (chunk, edge number, step) triples that can be part of a schedule.

    By hop distances, the source must be able to have the chunk by then, and the destination must be
    able to pass it on in time. The only receiver of a chunk never sends it on.
    """
    out: list[Key] = []
    hops = cache(fabric.hops_from)
    for c, chunk in enumerate(chunks):
        sources, wanted = tuple(collective.holders(chunk)), tuple(collective.receivers(chunk))
        before, after = hops(sources), hops(wanted, backwards=True)
        for e, (u, v) in enumerate(fabric.edges):
            if v not in sources and wanted != (u,) and u in before and v in after:
                out.extend((c, e, s) for s in range(before[u], steps - after[v]))
    return out


def _add_rounds(
    model: cp_model.CpModel,
    fabric: SyncFabric,
    instance: SyncInstance,
    sends: Mapping[EdgeSend, cp_model.IntVar],
) -> list[cp_model.IntVar] | list[int]:
    """Add the length of each step in rounds to the model and return the lengths.

    Each length is at least 1, and they sum up to R. In each step, a link carries at most its
    capacity times the step's rounds.
    """
    slack = instance.rounds - instance.steps
    rounds: list[cp_model.IntVar] | list[int] = [1] * instance.steps
    if slack:
        rounds = [model.new_int_var(1, slack + 1, f"r{s}") for s in range(instance.steps)]
        model.add(sum(rounds) == instance.rounds)
    load = group_by_key(
        ((link, s), var) for (_, e, s, _), var in sends.items() for link in fabric.links_of(e)
    )
    # Links that symmetries map to each other carry the same, which is stated once.
    stated = {
        (s, fabric.capacity[link], tuple(sorted(x.index for x in variables))): variables
        for (link, s), variables in load.items()
    }
    for (s, capacity, _), variables in stated.items():
        model.add(sum(variables) <= capacity * rounds[s])
    return rounds


def _break_symmetry(
    model: cp_model.CpModel,
    instance: SyncInstance,
    chunks: tuple[Chunk, ...],
    places: Sequence[int],
    arrivals: dict[tuple[int, int], list[Key]],
    variable: dict[Key, cp_model.IntVar],
) -> None:
    """Order the arrivals of interchangeable chunks at the first rank that needs them.

    Chunks are interchangeable if they have the same source and target. `places` are those of the
    chunks to be ordered.
    """
    for c in [c for c in places if chunks[c : c + 2] == (chunks[c],) * 2]:
        sources = set(instance.collective.holders(chunks[c]))
        for rank in [r for r in instance.collective.receivers(chunks[c]) if r not in sources][:1]:
            before, after = (sum(k[2] * variable[k] for k in arrivals[d, rank]) for d in (c, c + 1))
            model.add(before <= after)


def _build_schedule(
    fabric: SyncFabric, instance: SyncInstance, sends: Iterable[EdgeSend], rounds: list[int]
) -> Schedule:
    """Return the schedule of the chosen sends; `rounds` is the length of each step in rounds."""
    chunks = instance.collective.even_chunks(instance.chunks)
    transfers = sorted(
        Transfer(s, *fabric.edges[e], c, op, fabric.routes[e][1:-1]) for c, e, s, op in sends
    )
    return Schedule(
        instance.collective,
        "exact",
        chunks,
        Transfers.of(transfers),
        tuple(r * chunks[0].share / fabric.unit_GBps for r in rounds),
    )


def _drop_idle_sends(
    fabric: SyncFabric, collective: Collective, chunks: tuple[Chunk, ...], chosen: set[Key]
) -> set[Key]:
    """Return the chosen sends without those that lead to no receiver."""
    by_end = {(c, fabric.edges[e][1]): (c, e, s) for c, e, s in chosen}
    useful: set[Key] = set()
    for c, chunk in enumerate(chunks):
        for rank in collective.receivers(chunk):
            # Go backwards from the receiver along the sends that brought the chunk, up to one that
            # is already known to be useful.
            send = by_end.get((c, rank))
            while send is not None and send not in useful:
                useful.add(send)
                send = by_end.get((c, fabric.edges[send[1]][0]))
    return useful


def solve_combining(fabric: SyncFabric, instance: SyncInstance, effort: Effort) -> Schedule | None:
    """Return an allreduce schedule with exactly the chunks, steps and rounds of `instance`.

    None if it is proved that none exists with one partial sum per rank. Raise TimeLimitError if the
    effort was too small to decide.
    """
    model = cp_model.CpModel()
    n, steps, count = fabric.ranks, instance.steps, instance.chunks
    # At first each rank has its own contribution alone; at the end every rank has all.
    has: dict[tuple[int, int, int, int], cp_model.IntVar] = {}
    for c, v, j in product(range(count), range(n), range(n)):
        has |= {(v, c, j, s): model.new_bool_var("") for s in range(steps + 1)}
        model.add(has[v, c, j, 0] == int(v == j))
        model.add(has[v, c, j, steps] == 1)
    # A copy in the first step would destroy the only copy of the receiver's contribution, so there
    # is no variable for it.
    sends: dict[EdgeSend, cp_model.IntVar] = {}
    for c, e, s in product(range(count), range(len(fabric.edges)), range(steps)):
        sends[c, e, s, "reduce"] = model.new_bool_var("")
        if s:
            sends[c, e, s, "copy"] = model.new_bool_var("")
    for c, v, s in product(range(count), range(n), range(steps)):
        _add_step(model, fabric, has, sends, (v, c, s))
    # Copies and additions share the links.
    rounds = _add_rounds(model, fabric, instance, sends)
    # A schedule with chunks swapped is equally good, and refuting each one separately would waste
    # work: chunks are ordered by their number of sends in the first step.
    first_sends = [
        sum(sends[c, e, 0, "reduce"] for e in range(len(fabric.edges))) for c in range(count)
    ]
    for fewer, more in pairwise(first_sends):
        model.add(fewer <= more)
    solver = _run_solver(model, effort, instance)
    if solver is None:
        return None
    chosen = (key for key, var in sends.items() if solver.boolean_value(var))
    return _build_schedule(fabric, instance, chosen, [solver.value(r) for r in rounds])


def _add_step(
    model: cp_model.CpModel,
    fabric: SyncFabric,
    has: dict[tuple[int, int, int, int], cp_model.IntVar],
    sends: dict[EdgeSend, cp_model.IntVar],
    where: tuple[int, int, int],
) -> None:
    """Add the constraints on the partial sum of one rank and chunk after one step.

    `where` is (rank, chunk, step).
    """
    v, c, s = where
    inward = [e for e, (_, end) in enumerate(fabric.edges) if end == v]
    copies = [sends[c, e, s, "copy"] for e in inward if s]
    adds = [sends[c, e, s, "reduce"] for e in inward]
    # A rank either takes one partial sum over, or adds any number of them to its own.
    copied = model.new_bool_var("")
    model.add(sum(copies) == copied)
    for add in adds:
        model.add_implication(add, ~copied)
    for j in range(fabric.ranks):
        before, after = has[v, c, j, s], has[v, c, j, s + 1]
        # `after` is 0 or 1, so a contribution that arrives twice makes the model infeasible: sets
        # must be disjoint.
        arriving = []
        for e, add in zip(inward, adds, strict=True):
            sender_has = has[fabric.edges[e][0], c, j, s]
            added = model.new_bool_var("")
            model.add_bool_or([~add, ~sender_has, added])
            model.add_implication(added, add)
            model.add_implication(added, sender_has)
            arriving.append(added)
        model.add(after == before + sum(arriving)).only_enforce_if(~copied)
        if s:
            for e, copy in zip(inward, copies, strict=True):
                model.add(after == has[fabric.edges[e][0], c, j, s]).only_enforce_if(copy)
