"""Rings over the best Hamiltonian cycles that the topology has, in both directions, weighted; not rank order.

Maximise the sum of the cycles' rates under the links' bandwidths. Cycles are generated as needed: the next one is the
cheapest Hamiltonian circuit under the links' dual prices, found by CP-SAT's circuit constraint; when none costs less
than 1, no set of cycles is better. A cycle of weight w carries w's share of the buffer (Baidu's and Horovod's ring).
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from ...topo.errors import InfeasibleError
from ...topo.routes import route_links
from ..cost.loads import DirectedLink
from ..effort import Effort
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule
from ..ir.transform import compose
from ..numeric.cp_sat import solve
from ..numeric.exact_rates import exact_rates
from ..numeric.linear import pack
from ..request import MOST_TRANSFERS, Request, Send, build_schedule, only_for

Cycle = tuple[int, ...]
_PRICE_SCALE = 10**9
_PRICING_WORK_S = 2.0
_MOST_CYCLES = 200
_MOST_RANKS = 200


def build(request: Request) -> list[Schedule]:
    """Return one schedule. Raises InfeasibleError where there is no Hamiltonian cycle, or none was found with that effort."""
    only_for(request, "ring", ["allreduce", "allgather", "reduce-scatter"])
    n = request.collective.ranks
    if n > _MOST_RANKS:
        raise InfeasibleError(f"ring: cycles through {n} GPUs are not searched for; at most {_MOST_RANKS}")
    cycles: dict[Cycle, Fraction] = {(0, 1): Fraction(1)} if n == 2 else find_best_cycles(request)
    cycles = _keep_heaviest(cycles, n)
    gather = _build_half(request, cycles, "allgather")
    if request.collective.name == "allgather":
        return [gather]
    scatter = _build_half(request, cycles, "reduce-scatter")
    return [scatter if request.collective.name == "reduce-scatter" else compose(scatter, gather)]


def _keep_heaviest(cycles: dict[Cycle, Fraction], n: int) -> dict[Cycle, Fraction]:
    """Return the heaviest cycles, as many as keep the schedule within MOST_TRANSFERS."""
    most = MOST_TRANSFERS // (2 * n * (n - 1))
    if most < 1:
        raise InfeasibleError(f"ring: a ring of {n} ranks has {2 * n * (n - 1)} transfers, more than are planned for")
    heaviest = sorted(cycles.items(), key=lambda item: -item[1])[:most]
    return dict(heaviest)


def _build_half(request: Request, cycles: dict[Cycle, Fraction], name: str) -> Schedule:
    """Return the allgather, or reduce-scatter, in which every rank's part travels n - 1 hops around each cycle."""
    n, total = request.collective.ranks, sum(cycles.values(), Fraction(0))
    scattering = name == "reduce-scatter"
    chunks: list[Chunk] = []
    sends: list[Send] = []
    for rank in range(n):
        for cycle, rate in cycles.items():
            start = cycle.index(rank) + (1 if scattering else 0)
            share = rate / (n * total)
            chunks.append(Chunk(share, target=rank) if scattering else Chunk(share, source=rank))
            for s in range(n - 1):
                a, b = cycle[(start + s) % n], cycle[(start + s + 1) % n]
                sends.append((s, a, b, len(chunks) - 1, "reduce" if scattering else "copy"))
    return build_schedule(request.of(Collective(name, n)), "ring", tuple(chunks), sends)


def find_best_cycles(request: Request) -> dict[Cycle, Fraction]:
    """Return directed Hamiltonian cycles with rates in GB/s under which no link carries more than its bandwidth.

    The rates are optimal where every cheapest cycle was proved in time.
    """
    topology, router, n = request.topology, request.router, request.collective.ranks
    rank_of = {device: r for r, device in enumerate(topology.ranks)}
    crossing = {(u, rank_of[gpu]): route_links(route) for u in range(n) for gpu, route in router.routes_from(u).items()}
    links = sorted({link for route in crossing.values() for link in route})
    number = {link: i for i, link in enumerate(links)}
    capacity = [topology.capacity_GBps[link] for link in links]
    floats = np.array([float(c) for c in capacity])
    # Before any cycle has a weight, wide links are cheap.
    prices = 1.0 / floats / len(links)
    cycles: dict[Cycle, Counter[int]] = {}
    weights = np.zeros(0)
    patience_s = _PRICING_WORK_S
    while len(cycles) < _MOST_CYCLES and not (cycles and request.effort.is_over("ring")):
        price_of_edge = {edge: _price(edge, crossing, number, prices) for edge in crossing}
        cheapest, proved = find_cheapest_cycle(n, price_of_edge, request.effort.grant(patience_s))
        if cheapest is None and not cycles:
            raise InfeasibleError("ring: no cycle through all GPUs was found in time")
        # The opposite direction of a cycle is nearly always as cheap, and needs no search of its own.
        both_ways = (cheapest, _start_at_rank_0(cheapest[::-1])) if cheapest is not None else ()
        fresh = [c for c in both_ways if c not in cycles and _has_routes(c, crossing)]
        cost = min(
            (sum(prices[i] * k for i, k in _count_uses(c, crossing, number).items()) for c in fresh), default=np.inf
        )
        if cycles and cost >= 1 - 1e-9:
            if proved:
                break
            patience_s *= 2  # a better cycle may exist: it was not proved that there is none
            continue
        for cycle in fresh:
            cycles[cycle] = _count_uses(cycle, crossing, number)
        solved = pack(list(cycles.values()), floats, request.effort)
        if solved is None:
            raise InfeasibleError("ring: the weights of the cycles have no optimum")
        weights, prices = solved
        request.say(f"ring: {len(cycles)} cycles, {weights.sum():.4g} GB/s around")
    # Floats served to find the cycles; the rates must be exact, as no link may be overloaded.
    rates = exact_rates(weights, list(cycles.values()), capacity, request.effort)
    return {cycle: rate for cycle, rate in zip(cycles, rates, strict=True) if rate}


def _price(
    edge: tuple[int, int],
    crossing: dict[tuple[int, int], tuple[DirectedLink, ...]],
    number: dict[DirectedLink, int],
    prices: NDArray[np.float64],
) -> float:
    return float(sum(prices[number[link]] for link in crossing[edge]))


def _has_routes(cycle: Cycle, crossing: dict[tuple[int, int], tuple[DirectedLink, ...]]) -> bool:
    return all(edge in crossing for edge in _list_edges(cycle))


def _list_edges(cycle: Cycle) -> list[tuple[int, int]]:
    return [(cycle[i], cycle[(i + 1) % len(cycle)]) for i in range(len(cycle))]


def _count_uses(
    cycle: Cycle, crossing: dict[tuple[int, int], tuple[DirectedLink, ...]], number: dict[DirectedLink, int]
) -> Counter[int]:
    """Return how often a cycle uses each link, by the link's number."""
    return Counter(number[link] for edge in _list_edges(cycle) for link in crossing[edge])


def _start_at_rank_0(cycle: Cycle) -> Cycle:
    """Return the same cycle, starting at rank 0."""
    start = cycle.index(0)
    return cycle[start:] + cycle[:start]


def find_cheapest_cycle(n: int, price: dict[tuple[int, int], float], effort: Effort) -> tuple[Cycle | None, bool]:
    """Return a cheap Hamiltonian circuit over the given directed edges, starting at rank 0 (None where the work that is
    allowed is too little to find one), and whether it is proved to be the cheapest.

    Raises InfeasibleError where it is proved that there is none.
    """
    model = cp_model.CpModel()
    arcs = {edge: model.new_bool_var("") for edge in price}
    model.add_circuit([(u, v, arc) for (u, v), arc in arcs.items()])
    top = max(price.values()) or 1.0
    model.minimize(sum(int(price[edge] / top * _PRICE_SCALE) * arc for edge, arc in arcs.items()))
    solver, status = solve(model, effort, "ring")
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError("ring: the topology has no cycle through all GPUs that no other GPU must forward for")
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, False
    after = {u: v for (u, v), arc in arcs.items() if solver.boolean_value(arc)}
    cycle = [0]
    while after[cycle[-1]] != 0:
        cycle.append(after[cycle[-1]])
    return tuple(cycle), status == cp_model.OPTIMAL
