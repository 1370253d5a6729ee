"""Lower bounds on the time of a collective on a topology, each with the certificate that proves it.

Cuts are found by maximum flows on whole numbers (OR-tools), prices by linear programmes (HiGHS through SciPy) whose
duals are rounded to fractions. Whatever the floats were, the value of a bound is what `certificate` proves exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import lcm
from typing import Any

import networkx as nx
import numpy as np
from ortools.graph.python import max_flow

from ..topo.errors import InfeasibleError
from ..topo.exact import fraction_to_json
from ..topo.graph import Topology
from .certificate import Bound, proved_s_per_GB
from .collective import Collective
from .linear import Rows, minimise

_MCF_LIMIT = 400_000
"""Alltoall's linear programme is set up for up to this many variables (GPUs times links)."""


def check_connected(collective: Collective, topology: Topology) -> None:
    """Raise InfeasibleError, naming the devices cut off, unless data can get everywhere that it must."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(d.id for d in topology.devices)
    graph.add_edges_from(topology.capacity_GBps)
    gpus = set(topology.ranks)
    hub = topology.ranks[collective.root or 0]
    reach, reached = nx.descendants(graph, hub) | {hub}, nx.ancestors(graph, hub) | {hub}
    out_needed = collective.name not in ("reduce", "gather")
    in_needed = collective.name not in ("broadcast", "scatter")
    for needed, side, how in ((out_needed, reach, "no way leads to"), (in_needed, reached, "no way leads back from")):
        if needed and not gpus <= side:
            lost = sorted(gpus - side, key=topology.ranks.index)
            listed = ", ".join(lost[:8]) + (" ..." if len(lost) > 8 else "")
            one_way = "" if topology.is_symmetric else ' (a link is one-way unless it says "bidirectional": true)'
            raise InfeasibleError(
                f"{collective.name} on {topology.name!r} is impossible: from {hub} {how} {listed}; add the links{one_way}"
            )


def bound(
    collective: Collective,
    topology: Topology,
    time_limit_s: float = 30.0,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """The best bound found within the time limit. Raises InfeasibleError where the topology is not connected.

    Needs at least two ranks.
    """
    check_connected(collective, topology)
    found = [_CUTS[collective.name](collective, topology)]
    if collective.name == "allreduce":
        found += _allreduce_prices(collective, topology, time_limit_s, progress)
    if collective.name == "alltoall":
        found += _alltoall_prices(collective, topology)
    return max(found, key=lambda b: b.s_per_GB)


def _proved(kind: str, certificate: Mapping[str, Any], collective: Collective, topology: Topology) -> Bound:
    return Bound(proved_s_per_GB(kind, certificate, collective, topology), kind, certificate)


def _cut_bound(inside: Iterable[str], collective: Collective, topology: Topology) -> Bound:
    members = set(inside)
    listed = [d.id for d in topology.devices if d.id in members]
    return _proved("cut", {"inside": listed}, collective, topology)


# -- cuts ----------------------------------------------------------------------------------------------------------


class _Flow:
    """Maximum flows on a topology from a super-source, in exact whole numbers."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.number = {d.id: i for i, d in enumerate(topology.devices)}
        self.links = list(topology.capacity_GBps.items())

    def violated_cut(self, supply: Mapping[str, Fraction], target: str) -> frozenset[str] | None:
        """Devices on the source's side of a minimum cut, where `target` cannot get all of `supply` (GB/s by GPU)."""
        denominators = (c.denominator for _, c in self.links)
        scale = lcm(*denominators, *(s.denominator for s in supply.values()))
        flow = max_flow.SimpleMaxFlow()
        source = len(self.number)
        for (a, b), c in self.links:
            flow.add_arc_with_capacity(self.number[a], self.number[b], int(c * scale))
        for gpu, rate in supply.items():
            flow.add_arc_with_capacity(source, self.number[gpu], int(rate * scale))
        if flow.solve(source, self.number[target]) != flow.OPTIMAL:
            raise InfeasibleError(f"the flow to {target} is too large to be computed in whole numbers")
        if flow.optimal_flow() == int(sum(supply.values(), Fraction(0)) * scale):
            return None
        side = set(flow.get_source_side_min_cut())
        return frozenset(d for d, i in self.number.items() if i in side)


def _worst_cut(
    collective: Collective,
    topology: Topology,
    supply_of: Callable[[Fraction], Mapping[str, Fraction]],
    targets: list[str],
) -> Bound:
    """The best cut bound of a collective in which `targets` must each get what GPUs supply, by Newton's method.

    `supply_of(T)` are the rates at which a schedule of T s a GB must supply; cuts that cannot carry them give a
    greater T, until none is violated (ForestColl, section 5.1, as a search for the bottleneck cut).
    """
    flow = _Flow(topology)
    best = _cut_bound(set(topology.by_id) - {targets[0]}, collective, topology)
    for target in targets:
        while (cut := flow.violated_cut(supply_of(best.s_per_GB), target)) is not None:
            best = _cut_bound(cut, collective, topology)
    return best


def _allgather_cut(collective: Collective, topology: Topology) -> Bound:
    n, gpus = collective.ranks, topology.ranks
    return _worst_cut(collective, topology, lambda t: dict.fromkeys(gpus, Fraction(1, n) / t), list(gpus))


def _root_cut(collective: Collective, topology: Topology) -> Bound:
    """Broadcast: from the root to each; gather: from all to the root."""
    n, gpus = collective.ranks, topology.ranks
    root = gpus[collective.root or 0]
    others = [g for g in gpus if g != root]
    if collective.name == "broadcast":
        return _worst_cut(collective, topology, lambda t: {root: 1 / t}, others)
    return _worst_cut(collective, topology, lambda t: dict.fromkeys(others, Fraction(1, n) / t), [root])


def _reversed_cut(collective: Collective, topology: Topology) -> Bound:
    """Reduce-scatter, reduce, scatter: the cut of the opposite collective on the reversed topology, complemented."""
    other = _CUTS[collective.reversed().name](collective.reversed(), topology.reversed())
    return _cut_bound(set(topology.by_id) - set(other.certificate["inside"]), collective, topology)


def _allreduce_cut(collective: Collective, topology: Topology) -> Bound:
    """The narrowest cut between GPU 0 and any other, either way."""
    hub, others = topology.ranks[0], list(topology.ranks[1:])
    out = _worst_cut(collective, topology, lambda t: {hub: 1 / t}, others)
    back = _worst_cut(collective, topology.reversed(), lambda t: {hub: 1 / t}, others)
    back = _cut_bound(set(topology.by_id) - set(back.certificate["inside"]), collective, topology)
    return max(out, back, key=lambda b: b.s_per_GB)


def _alltoall_cut(collective: Collective, topology: Topology) -> Bound:
    """The best of the cuts round single GPUs."""
    cuts = [_cut_bound({gpu}, collective, topology) for gpu in topology.ranks]
    cuts += [_cut_bound(set(topology.by_id) - {gpu}, collective, topology) for gpu in topology.ranks]
    return max(cuts, key=lambda b: b.s_per_GB)


_CUTS: Mapping[str, Callable[[Collective, Topology], Bound]] = {
    "allreduce": _allreduce_cut,
    "allgather": _allgather_cut,
    "reduce-scatter": _reversed_cut,
    "broadcast": _root_cut,
    "reduce": _reversed_cut,
    "gather": _root_cut,
    "scatter": _reversed_cut,
    "alltoall": _alltoall_cut,
}


# -- prices --------------------------------------------------------------------------------------------------------


def _allreduce_prices(
    collective: Collective, topology: Topology, time_limit_s: float, progress: Callable[[str], None] | None
) -> list[Bound]:
    from .trees import pack_trees

    if any(d.kind == "switch" and (d.can_reduce or d.can_copy) for d in topology.devices):
        return []
    try:
        prices = pack_trees(topology, time_limit_s, progress).prices
    except InfeasibleError:
        return []
    rows = [[a, b, fraction_to_json(p)] for (a, b), p in prices.items()]
    return [_proved("prices", {"prices": rows}, collective, topology)]


def _alltoall_prices(collective: Collective, topology: Topology) -> list[Bound]:
    """Duals of the concurrent multicommodity flow, one commodity a source; uniform prices where that is too large."""
    links = list(topology.capacity_GBps)
    if len(topology.ranks) * len(links) > _MCF_LIMIT:
        prices = {link: Fraction(1) for link in links}
    else:
        prices = _mcf_prices(topology, links)
    rows = [[a, b, fraction_to_json(p)] for (a, b), p in prices.items() if p]
    return [_proved("prices", {"prices": rows}, collective, topology)]


def _mcf_prices(topology: Topology, links: list[tuple[str, str]]) -> dict[tuple[str, str], Fraction]:
    """min t: every GPU sends one unit to every other; f[s,l] summed over s is at most t times the link's bandwidth."""
    n, gpus = len(topology.ranks), topology.ranks
    column = {(s, link): 1 + s * len(links) + i for s in range(n) for i, link in enumerate(links)}
    arriving: dict[str, list[tuple[tuple[str, str], float]]] = {d.id: [] for d in topology.devices}
    for link in links:
        arriving[link[1]].append((link, 1.0))
        arriving[link[0]].append((link, -1.0))
    balance, shared = Rows(), Rows()
    for s, source in enumerate(gpus):
        for device, terms in arriving.items():
            wanted = 1.0 - n if device == source else float(topology.by_id[device].kind == "gpu")
            balance.add([(column[s, link], sign) for link, sign in terms], wanted)
    for link in links:
        loads = [(column[s, link], 1.0) for s in range(n)]
        shared.add([*loads, (0, -float(topology.capacity_GBps[link]))], 0.0)
    objective = np.zeros(len(column) + 1)
    objective[0] = 1.0
    optimum = minimise(objective, shared, balance)
    if optimum is None:
        return dict.fromkeys(links, Fraction(1))
    duals = np.maximum(-optimum.at_most_duals, 0.0)
    least = float(duals[duals > 1e-12].min())
    return {x: Fraction(float(y) / least).limit_denominator(1000) for x, y in zip(links, duals, strict=True)}
