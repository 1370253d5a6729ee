"""Lower bounds on the time of a collective on a topology, each with the certificate that proves it.

Cuts are found by maximum flows on whole numbers (OR-tools), prices by linear programs (HiGHS
through SciPy) whose duals are rounded to fractions. The value of a bound is what its certificate
proves exactly, however good the floats were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

import networkx as nx

from ...topo.errors import InfeasibleError
from ...topo.exact import fraction_to_json
from ...topo.graph import Topology
from ...topo.routes import Router
from ..cost.innetwork import computes_in_network
from ..effort import Effort
from ..forest.generate import Columns, exact_prices
from ..forest.machine.symmetry import shifts
from ..forest.rooted import RootedPacking
from ..forest.survey import Survey, survey
from ..ir.collective import Collective
from .certificate import Bound, bound_of, join_devices
from .cuts import bound_of_cut, cut_bound

# Prices are rounded to fractions of at most one of these denominators, the smallest that loses
# nothing.
DENOMINATORS = (1, 12, 60, 1000, 10**6)
_CLOSE = 1e-9
# With more pairs of linked devices, prices are only sought by class of links.
_SINGLE_PAIRS = 4000
# With more GPUs, no prices of in- and out-trees are sought.
_ROOTED_RANKS = 48
# With more GPUs, no bound of the machine without its slow links is sought; work allowed for it.
_MENDED_RANKS, _MENDED_WORK_S = 256, 6.0

# A time at most this often the cut's counts as met by it: no other bound is sought then.
_NEAR_CUT = 1.002


def check_connected(collective: Collective, topology: Topology) -> None:
    """Raise InfeasibleError, naming the GPUs that are cut off, unless data can reach all ranks that
    must have it.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(d.id for d in topology.devices)
    graph.add_edges_from(topology.capacity_GBps)
    gpus = set(topology.ranks)
    hub = topology.ranks[collective.root or 0]
    reach, reached = nx.descendants(graph, hub) | {hub}, nx.ancestors(graph, hub) | {hub}
    # Data must get from the hub (the root, or any GPU where there is none) to all GPUs, or from all
    # to it, or both.
    out_needed = collective.name not in ("reduce", "gather")
    in_needed = collective.name not in ("broadcast", "scatter")
    for needed, side, how in (
        (out_needed, reach, "no way leads to"),
        (in_needed, reached, "no way leads back from"),
    ):
        if needed and not gpus <= side:
            lost = sorted(gpus - side, key=topology.ranks.index)
            listed = ", ".join(lost[:8]) + (" ..." if len(lost) > 8 else "")
            one_way = (
                ""
                if topology.is_symmetric
                else ' (a link is one-way unless it says "bidirectional": true)'
            )
            outside = reach if side is reach else set(topology.by_id) - reached
            raise InfeasibleError(
                f"{collective.name} on {topology.name!r} is impossible: from {hub} {how} "
                f"{listed}: no link leads out of the "
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
    """Return the greatest lower bound on time found within the work that is allowed, for at least
    two ranks.

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


def _mended_bounds(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return what the certificate of the machine without its slow links proves: no more is possible
    than there.

    Mostly that machine has symmetries that this one lacks, so its bound is found at once.
    """
    mended = survey(topology).mended if collective.ranks <= _MENDED_RANKS else None
    if mended is None:
        return []
    found = bound(collective, mended, effort.grant(_MENDED_WORK_S, 0.4), progress)
    return [bound_of(found.kind, found.certificate, collective, topology)]


def _joined_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return what prices prove for the machine in which each device that adds or copies is one with
    its nearest GPU.
    """
    gpu_of = {
        d.id: _find_nearest_gpu(d.id, topology)
        for d in topology.devices
        if d.kind != "gpu" and d.can_copy
    }
    joined = join_devices(topology, gpu_of)
    found = bound(collective, joined, effort, progress)
    if found.kind == "cut":  # which is one of the whole machine too
        inside = set(found.certificate["inside"])
        return [
            bound_of_cut(
                inside | {device for device, gpu in gpu_of.items() if gpu in inside},
                collective,
                topology,
            )
        ]
    certificate = {**found.certificate, "joined": [list(pair) for pair in gpu_of.items()]}
    return [bound_of(found.kind, certificate, collective, topology)]


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
    """Return whether every device but GPUs has as much bandwidth in as out: then cuts are tight
    (Edmonds; splitting off).
    """
    surplus: dict[str, Fraction] = defaultdict(Fraction)
    for (a, b), c in topology.capacity_GBps.items():
        surplus[b] += c
        surplus[a] -= c
    return all(not surplus[d.id] for d in topology.devices if d.kind != "gpu")


# -- prices
# --------------------------------------------------------------------------------------------------------


def _allreduce_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return the bounds that the duals of tree packing prove.

    Prices go by class of links first, link by link where that may be better, and by direction where
    bandwidths differ.
    """
    machine = survey(topology)
    out: list[Bound] = []
    if machine.graph.joins_all():
        columns = machine.pack_by_class(effort, progress)
        out += _undirected_bounds(machine, columns, collective)
        # Averaging prices over an orbit loses nothing, and a bound that whole trees reach cannot be
        # improved.
        least = max(
            b.s_per_GB for b in out
        )  # 0 where one-way links, which have no price, join all GPUs
        settled = machine.classes_are_orbits or (
            least and machine.is_reached_by_whole_trees(1 / least, effort)
        )
        if not settled and len(machine.graph.pairs) <= _SINGLE_PAIRS:
            out += _undirected_bounds(machine, machine.pack_by_link(effort, progress), collective)
    if not topology.is_symmetric:
        out += _tree_prices(collective, topology, effort, progress)
    return out


def _undirected_bounds(machine: Survey, columns: Columns, collective: Collective) -> list[Bound]:
    """Return what prices by pair of devices prove, with growing denominators until (the last bound)
    nothing is lost.
    """
    out: list[Bound] = []
    for denominator in DENOMINATORS:
        exact = exact_prices(machine.graph, columns.prices, denominator)
        rows = [[a, b, fraction_to_json(p)] for (a, b), p in exact.items()]
        out.append(bound_of("prices", {"prices": rows}, collective, machine.topology))
        if float(out[-1].s_per_GB) * columns.value >= 1 - _CLOSE:
            break
    return out


def _tree_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return what the duals of packing in- and out-trees prove, for machines on which directions or
    switches are uneven.
    """
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
    """Return what the duals of concurrent multicommodity flow prove; of uniform prices where that
    is not solved.
    """
    machine = survey(topology)
    try:
        level = machine.level_paths(cut_s_per_GB, effort)
        if level is not None:
            if level.reached <= float(cut_s_per_GB * collective.ranks) * _NEAR_CUT:
                return []  # no prices can prove much more than the cut
            value, found = level.find_prices()
            prices = dict(zip(level.links, found.tolist(), strict=True))
            better = value > float(cut_s_per_GB * collective.ranks)
            return (
                directed_bounds("prices", prices, collective, topology, value / collective.ranks)
                if better
                else []
            )
        flow = machine.paths(collective, effort, progress).flow
    except InfeasibleError:
        return directed_bounds(
            "prices", dict.fromkeys(topology.capacity_GBps, 1.0), collective, topology
        )
    if not flow.prices:
        return directed_bounds(
            "prices", dict.fromkeys(topology.capacity_GBps, 1.0), collective, topology
        )
    return directed_bounds(
        "prices", flow.prices, collective, topology, flow.value / collective.ranks
    )


def directed_bounds(
    kind: str,
    prices: Mapping[tuple[str, str], float],
    collective: Collective,
    topology: Topology,
    wanted_s_per_GB: float | None = None,
    router: Router | None = None,
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
        exact = {
            link: Fraction(p / least).limit_denominator(denominator) for link, p in prices.items()
        }
        rows = [[a, b, fraction_to_json(p)] for (a, b), p in exact.items() if p]
        out.append(bound_of(kind, {"prices": rows}, collective, topology, router))
        expected = wanted_s_per_GB or (float(out[-2].s_per_GB) if len(out) > 1 else 0.0)
        if expected and abs(float(out[-1].s_per_GB) - expected) <= _CLOSE * expected:
            break
    return out
