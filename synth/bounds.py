"""Lower bounds on the time of a collective on a topology, each with the certificate that proves it.

Cuts are found by maximum flows on whole numbers (OR-tools), prices by linear programs (HiGHS through SciPy) whose
duals are rounded to fractions. The value of a bound is what its certificate proves exactly, however good the floats were.
"""

from __future__ import annotations

from collections import defaultdict
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
from .certificate import Bound, join_devices, proved_s_per_GB
from .cost.innetwork import computes_in_network
from .effort import Effort
from .forest.generate import Columns, exact_prices
from .forest.large.groups import find_narrow_groups
from .forest.machine.symmetry import colours, shifts
from .forest.rooted import RootedPacking
from .forest.survey import Survey, survey
from .ir.collective import Collective

DENOMINATORS = (1, 12, 60, 1000, 10**6)
"""Prices are rounded to fractions of at most one of these denominators, the smallest that loses nothing."""
_CLOSE = 1e-9
_SINGLE_PAIRS = 4000
"""With more pairs of linked devices, prices are only sought by class of links."""
_ROOTED_RANKS = 48
"""With more GPUs, no prices of in- and out-trees are sought."""
_MOST_FLOW = 1 << 62
"""Flows and bandwidths of a maximum flow must be below this, to fit into 64-bit integers."""
_MENDED_RANKS, _MENDED_WORK_S = 256, 6.0
"""With more GPUs, no bound of the machine without its slow links is sought; work allowed for it."""
_PREFIXES = 16
"""Cuts between low and high ranks that are tried for alltoall."""
_CUT_RANKS = 256
"""With more GPUs, cuts are sought towards one GPU of each class only: the others mostly give the same."""

_NEAR_CUT = 1.002
"""A time at most this often the cut's counts as met by it: no other bound is sought then."""


def check_connected(collective: Collective, topology: Topology) -> None:
    """Raise InfeasibleError, naming the GPUs that are cut off, unless data can reach all ranks that must have it."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(d.id for d in topology.devices)
    graph.add_edges_from(topology.capacity_GBps)
    gpus = set(topology.ranks)
    hub = topology.ranks[collective.root or 0]
    reach, reached = nx.descendants(graph, hub) | {hub}, nx.ancestors(graph, hub) | {hub}
    # Data must get from the hub (the root, or any GPU where there is none) to all GPUs, or from all to it, or both.
    out_needed = collective.name not in ("reduce", "gather")
    in_needed = collective.name not in ("broadcast", "scatter")
    for needed, side, how in ((out_needed, reach, "no way leads to"), (in_needed, reached, "no way leads back from")):
        if needed and not gpus <= side:
            lost = sorted(gpus - side, key=topology.ranks.index)
            listed = ", ".join(lost[:8]) + (" ..." if len(lost) > 8 else "")
            one_way = "" if topology.is_symmetric else ' (a link is one-way unless it says "bidirectional": true)'
            outside = reach if side is reach else set(topology.by_id) - reached
            raise InfeasibleError(
                f"{collective.name} on {topology.name!r} is impossible: from {hub} {how} {listed}: no link leads out of the "
                f"cut {{{_listed(outside, topology)}}}; add the links{one_way}"
            )


def _listed(members: set[str], topology: Topology) -> str:
    """Name up to eight devices, and say how many there are."""
    listed = [d.id for d in topology.devices if d.id in members]
    return ", ".join(listed[:8]) + (f", ... {len(listed)} in all" if len(listed) > 8 else "")


def bound(
    collective: Collective,
    topology: Topology,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """Return the greatest lower bound on time found within the work that is allowed, for at least two ranks.

    Raises InfeasibleError where the topology is not connected.
    """
    check_connected(collective, topology)
    effort = effort if effort is not None else Effort()
    bounds = [cut_bound(collective, topology)]
    bounds += _mended_bounds(collective, topology, effort, progress)
    if computes_in_network(topology):
        bounds += _joined_prices(collective, topology, effort, progress)
    else:
        if collective.name == "allreduce":
            bounds += _allreduce_prices(collective, topology, effort, progress)
        elif collective.name == "alltoall":
            bounds += _alltoall_prices(collective, topology, effort, progress, bounds[0].s_per_GB)
        elif not _balanced(topology):
            bounds += _tree_prices(collective, topology, effort, progress)
    return max(bounds, key=lambda b: b.s_per_GB)


def cut_bound(collective: Collective, topology: Topology) -> Bound:
    """Return the best bound of a cut that is known, for at least two ranks."""
    return _CUTS[collective.name](collective, topology)


def _mended_bounds(
    collective: Collective, topology: Topology, effort: Effort, progress: Callable[[str], None] | None
) -> list[Bound]:
    """Return what the certificate of the machine without its slow links proves: no more is possible than there.

    Mostly that machine has symmetries that this one lacks, so its bound is found at once.
    """
    mended = survey(topology).mended if collective.ranks <= _MENDED_RANKS else None
    if mended is None:
        return []
    found = bound(collective, mended, effort.grant(_MENDED_WORK_S, 0.4), progress)
    return [_bound_of(found.kind, found.certificate, collective, topology)]


def _joined_prices(
    collective: Collective, topology: Topology, effort: Effort, progress: Callable[[str], None] | None
) -> list[Bound]:
    """Return what prices prove for the machine in which each device that adds or copies is one with its nearest GPU."""
    gpu_of = {d.id: _find_nearest_gpu(d.id, topology) for d in topology.devices if d.kind != "gpu" and d.can_copy}
    joined = join_devices(topology, gpu_of)
    found = bound(collective, joined, effort, progress)
    if found.kind == "cut":  # which is one of the whole machine too
        inside = set(found.certificate["inside"])
        return [
            _bound_of_cut(inside | {device for device, gpu in gpu_of.items() if gpu in inside}, collective, topology)
        ]
    certificate = {**found.certificate, "joined": [list(pair) for pair in gpu_of.items()]}
    return [_bound_of(found.kind, certificate, collective, topology)]


def _find_nearest_gpu(device: str, topology: Topology) -> str:
    """Return the GPU that is fewest links from a device; of several the first in rank."""
    layer, reached = [device], {device}
    while layer:
        gpus = {d for d in layer if topology.by_id[d].kind == "gpu"}
        if gpus:
            return min(gpus, key=topology.ranks.index)
        layer = [near for d in layer for near in topology.out_neighbours[d] if near not in reached]
        reached |= set(layer)
    return topology.ranks[0]


def _balanced(topology: Topology) -> bool:
    """Return whether every device but GPUs has as much bandwidth in as out: then cuts are tight (Edmonds; splitting off)."""
    surplus: dict[str, Fraction] = defaultdict(Fraction)
    for (a, b), c in topology.capacity_GBps.items():
        surplus[b] += c
        surplus[a] -= c
    return all(not surplus[d.id] for d in topology.devices if d.kind != "gpu")


def _bound_of(kind: str, certificate: Mapping[str, Any], collective: Collective, topology: Topology) -> Bound:
    """Return the bound that a certificate proves."""
    return Bound(proved_s_per_GB(kind, certificate, collective, topology), kind, certificate)


def _bound_of_cut(inside: Iterable[str], collective: Collective, topology: Topology) -> Bound:
    """Return the bound of the cut around some devices."""
    members = set(inside)
    listed = [d.id for d in topology.devices if d.id in members]
    return _bound_of("cut", {"inside": listed}, collective, topology)


# -- cuts ----------------------------------------------------------------------------------------------------------


class _Flow:
    """Maximum flows on a topology from a super-source, in exact whole numbers."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.number = {d.id: i for i, d in enumerate(topology.devices)}
        self.a = np.array([self.number[a] for a, _ in topology.capacity_GBps], dtype=np.int64)
        self.b = np.array([self.number[b] for _, b in topology.capacity_GBps], dtype=np.int64)
        self.base = lcm(*(c.denominator for c in topology.capacity_GBps.values()))
        self.whole = [int(c * self.base) for c in topology.capacity_GBps.values()]
        self.most = max(self.whole)

    def violated_cut(self, supply: Mapping[str, Fraction], target: str) -> frozenset[str] | None:
        """Return the source's side of a minimum cut if `target` cannot receive all of `supply` (GB/s by GPU), else None."""
        scale = lcm(self.base, *{s.denominator for s in supply.values()})
        wanted = {gpu: int(rate * scale) for gpu, rate in supply.items()}
        times = scale // self.base
        if max(self.most * times, sum(wanted.values())) >= _MOST_FLOW:
            raise InfeasibleError(f"the flow to {target} is too large to be computed in whole numbers")
        flow = max_flow.SimpleMaxFlow()
        source = len(self.number)
        flow.add_arcs_with_capacity(self.a, self.b, np.array(self.whole, dtype=np.int64) * times)
        for gpu, rate in wanted.items():
            flow.add_arc_with_capacity(source, self.number[gpu], rate)
        if flow.solve(source, self.number[target]) != flow.OPTIMAL:
            raise InfeasibleError(f"the flow to {target} is too large to be computed in whole numbers")
        if flow.optimal_flow() == sum(wanted.values()):
            return None
        side = set(flow.get_source_side_min_cut())
        return frozenset(d for d, i in self.number.items() if i in side)


def _worst_cut(
    collective: Collective,
    topology: Topology,
    supply_of: Callable[[Fraction], Mapping[str, Fraction]],
    targets: list[str],
    hub: str | None = None,
) -> Bound:
    """Return the best cut bound of a collective in which each target must receive what GPUs supply, by Newton's method.

    `supply_of(T)` are the rates at which GPUs must supply in a schedule of T s for each GB. A cut that cannot carry them
    gives a greater T, until no cut is violated (ForestColl, section 5.1, as a search for the bottleneck cut). `hub` is the
    GPU with a role of its own, if there is one.
    """
    flow = _Flow(topology)
    targets = _one_of_each_class(topology, targets, hub)
    best = _bound_of_cut(set(topology.by_id) - {targets[0]}, collective, topology)
    for target in targets:
        while (cut := flow.violated_cut(supply_of(best.s_per_GB), target)) is not None:
            best = _bound_of_cut(cut, collective, topology)
    return best


def _one_of_each_class(topology: Topology, gpus: list[str], hub: str | None) -> list[str]:
    """Return one GPU of each class where there are many, else all.

    Any choice of targets gives a valid bound, and classes mostly are orbits, whose members give the same one.
    """
    if len(gpus) <= _CUT_RANKS:
        return gpus
    colour = dict(zip((d.id for d in topology.devices), colours(topology, hub).tolist(), strict=True))
    return list({colour[gpu]: gpu for gpu in reversed(gpus)}.values())


def _allgather_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best cut that every GPU's part must cross to reach some GPU."""
    n, gpus = collective.ranks, topology.ranks
    return _worst_cut(collective, topology, lambda t: dict.fromkeys(gpus, Fraction(1, n) / t), list(gpus))


def _root_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best cut between the root and any GPU (broadcast), or between all GPUs and the root (gather)."""
    n, gpus = collective.ranks, topology.ranks
    root = gpus[collective.root or 0]
    others = [g for g in gpus if g != root]
    if collective.name == "broadcast":
        return _worst_cut(collective, topology, lambda t: {root: 1 / t}, others, root)
    return _worst_cut(collective, topology, lambda t: dict.fromkeys(others, Fraction(1, n) / t), [root])


def _reversed_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the complement of the opposite collective's cut on the reversed topology (reduce-scatter, reduce, scatter)."""
    opposite = _CUTS[collective.reversed().name](collective.reversed(), topology.reversed())
    return _bound_of_cut(set(topology.by_id) - set(opposite.certificate["inside"]), collective, topology)


def _allreduce_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the narrowest cut between GPU 0 and any other, in either direction."""
    hub, others = topology.ranks[0], list(topology.ranks[1:])
    out = _worst_cut(collective, topology, lambda t: {hub: 1 / t}, others, hub)
    back = _worst_cut(collective, topology.reversed(), lambda t: {hub: 1 / t}, others, hub)
    back = _bound_of_cut(set(topology.by_id) - set(back.certificate["inside"]), collective, topology)
    return max(out, back, key=lambda b: b.s_per_GB)


def _alltoall_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best of the cuts around single GPUs and groups (boxes, sockets, what is behind a leaf switch) and, on direct
    networks, of those between low and high ranks.
    """
    gpus = _one_of_each_class(topology, list(topology.ranks), None)
    cuts = [_bound_of_cut({gpu}, collective, topology) for gpu in gpus]
    cuts += [_bound_of_cut(set(topology.by_id) - {gpu}, collective, topology) for gpu in gpus]
    cuts += [_bound_of_cut(inside, collective, topology) for inside in find_narrow_groups(topology)]
    if len(topology.devices) == collective.ranks:
        sizes = {collective.ranks * i // _PREFIXES for i in range(1, _PREFIXES)} - {0}
        cuts += [_bound_of_cut(topology.ranks[:size], collective, topology) for size in sorted(sizes)]
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
    collective: Collective, topology: Topology, effort: Effort, progress: Callable[[str], None] | None
) -> list[Bound]:
    """Return the bounds that the duals of tree packing prove.

    Prices go by class of links first, link by link where that may be better, and by direction where bandwidths differ.
    """
    machine = survey(topology)
    out: list[Bound] = []
    if machine.graph.joins_all():
        columns = machine.pack_by_class(effort, progress)
        out += _undirected_bounds(machine, columns, collective)
        # Averaging prices over an orbit loses nothing, and a bound that whole trees reach cannot be improved.
        least = max(b.s_per_GB for b in out)  # 0 where one-way links, which have no price, join all GPUs
        settled = machine.classes_are_orbits or (least and machine.is_reached_by_whole_trees(1 / least, effort))
        if not settled and len(machine.graph.pairs) <= _SINGLE_PAIRS:
            out += _undirected_bounds(machine, machine.pack_by_link(effort, progress), collective)
    if not topology.is_symmetric:
        out += _tree_prices(collective, topology, effort, progress)
    return out


def _undirected_bounds(machine: Survey, columns: Columns, collective: Collective) -> list[Bound]:
    """Return what prices by pair of devices prove, with growing denominators until (the last bound) nothing is lost."""
    out: list[Bound] = []
    for denominator in DENOMINATORS:
        exact = exact_prices(machine.graph, columns.prices, denominator)
        rows = [[a, b, fraction_to_json(p)] for (a, b), p in exact.items()]
        out.append(_bound_of("prices", {"prices": rows}, collective, machine.topology))
        if float(out[-1].s_per_GB) * columns.value >= 1 - _CLOSE:
            break
    return out


def _tree_prices(
    collective: Collective, topology: Topology, effort: Effort, progress: Callable[[str], None] | None
) -> list[Bound]:
    """Return what the duals of packing in- and out-trees prove, for machines on which directions or switches are uneven."""
    name = collective.name
    if len(topology.ranks) > _ROOTED_RANKS or name in ("gather", "scatter"):
        return []
    # In-trees are out-trees of the reversed machine.
    reduces_only = name in ("reduce", "reduce-scatter")
    facing = topology.reversed() if reduces_only else topology
    roots = [collective.root or 0] if name in ("broadcast", "reduce") else range(collective.ranks)
    packing = RootedPacking(facing, list(roots), name == "allreduce", shifts(facing))
    prices = packing.run(effort, 0.0, progress).prices
    if reduces_only:
        prices = {(b, a): p for (a, b), p in prices.items()}
    return directed_bounds("tree-prices", prices, collective, topology)


def _alltoall_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    cut_s_per_GB: Fraction,
) -> list[Bound]:
    """Return what the duals of concurrent multicommodity flow prove; of uniform prices where that is not solved."""
    machine = survey(topology)
    try:
        level = machine.level_paths(cut_s_per_GB, effort)
        if level is not None:
            if level.reached <= float(cut_s_per_GB * collective.ranks) * _NEAR_CUT:
                return []  # no prices can prove much more than the cut
            value, found = level.find_prices()
            prices = dict(zip(level.links, found.tolist(), strict=True))
            better = value > float(cut_s_per_GB * collective.ranks)
            return directed_bounds("prices", prices, collective, topology, value / collective.ranks) if better else []
        flow = machine.paths(collective, effort, progress).flow
    except InfeasibleError:
        return directed_bounds("prices", dict.fromkeys(topology.capacity_GBps, 1.0), collective, topology)
    if not flow.prices:
        return directed_bounds("prices", dict.fromkeys(topology.capacity_GBps, 1.0), collective, topology)
    return directed_bounds("prices", flow.prices, collective, topology, flow.value / collective.ranks)


def directed_bounds(
    kind: str,
    prices: Mapping[tuple[str, str], float],
    collective: Collective,
    topology: Topology,
    wanted_s_per_GB: float | None = None,
) -> list[Bound]:
    """Return what prices by directed link prove, with growing denominators until nothing is lost.

    That is when the bound is `wanted_s_per_GB`, or, without that figure, when it no longer changes.
    """
    top = max(prices.values(), default=0.0)
    if not top:
        return []
    least = min(p for p in prices.values() if p > 1e-9 * top)
    out: list[Bound] = []
    for denominator in DENOMINATORS:
        exact = {link: Fraction(p / least).limit_denominator(denominator) for link, p in prices.items()}
        rows = [[a, b, fraction_to_json(p)] for (a, b), p in exact.items() if p]
        out.append(_bound_of(kind, {"prices": rows}, collective, topology))
        expected = wanted_s_per_GB or (float(out[-2].s_per_GB) if len(out) > 1 else 0.0)
        if expected and abs(float(out[-1].s_per_GB) - expected) <= _CLOSE * expected:
            break
    return out
