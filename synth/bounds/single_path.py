"""The bound on schedules on the hardware's routes: each ordered pair of GPUs has a single path.

It is proved by a cut, or by prices on links (certificate.py). Assumed: data is relayed, combined
and copied at GPUs only; switches neither add nor copy. Any GPU may relay data that it has received,
whatever the route of the pair. If a switch computes what the collective needs (cost/loads.py), the
two bounds are the same. They are also the same, though not proved to be the best, on machines of
more than SINGLE_PATH_RANKS GPUs, and for trees whose direction counts (all but allreduce on links
as wide in both directions, alltoall, gather and scatter) of more than SINGLE_PATH_ROOTS. Every
multipath bound holds for single paths.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from ...topo.errors import TimeLimitError
from ...topo.graph import Topology
from ...topo.routes import Router
from ..cost.loads import computes_in_network
from ..ir.collective import Collective
from ..ir.demands import Demands
from ..machine.routes import OwnRoutes
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.steiner import MAX_TERMINALS
from ..packing.single_path import PAIRS, PATHS, TREES, SinglePathPacking
from .certificate import Bound, Bounds, bound_of, keep_crossed
from .cuts import cut_bound
from .demand_bounds import load_demand_bounds
from .multipath import bound, directed_bounds

__all__ = ["Bounds", "find_bounds", "find_single_path_bound", "has_single_paths"]
# With more GPUs, no prices over hardware routes are sought: their number grows with the square.
SINGLE_PATH_RANKS = 256
# With more GPUs, listing the links that routes cross takes seconds, for every reader of a plan.
_CROSSED_RANKS = 600
# With more GPUs, no prices of in- and out-trees are sought: each turn prices a tree for every root.
SINGLE_PATH_ROOTS = 64
# A bound counts as a different one if it proves this many times as much time.
_TIGHTER = 1 + Fraction(1, 10**9)
_BY_PATHS = ("alltoall", "gather", "scatter")
# Collectives in which a rank's part is a share of the buffer.
_IN_PARTS = ("allgather", "reduce-scatter", *_BY_PATHS)


def find_bounds(
    collective: Collective,
    router: Router,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bounds:
    """Return the multipath and the single-path bound of a collective on the router's topology.

    Each may use half of the work and time that `effort` allows (None: the usual limit of a plan).
    All GPUs that are no members may relay, copy and add. `progress` is called with lines of text.
    Raise InfeasibleError if the topology does not connect the members.
    """
    effort = effort if effort is not None else Effort()
    if isinstance(collective, Demands):
        return load_demand_bounds().find_demand_bounds(collective, router, effort, progress)
    half = effort.grant(effort.left_s / effort.scale / 2, 0.5)
    multipath = bound(collective, router.topology, half, progress)
    return Bounds(
        multipath, find_single_path_bound(collective, router, multipath, effort, progress)
    )


def find_single_path_bound(
    collective: Collective,
    router: Router,
    multipath: Bound,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """Return the greatest lower bound found on the time of schedules on the hardware's routes.

    It is `multipath`, the bound for any use of the links, unless prices over the hardware's routes
    prove more, or a cut that counts only the links that routes cross.
    """
    topology, best = router.topology, multipath
    effort = (effort if effort is not None else Effort()).watch()
    for priced in _prove_by_prices(collective, router, effort, progress):
        # A later kind must prove more.
        best = priced if priced.s_per_GB > best.s_per_GB * _TIGHTER else best
    if has_single_paths(topology, collective, _CROSSED_RANKS):
        cut = _prove_by_cut(collective, router, effort)
        best = cut if cut is not None and cut.s_per_GB > best.s_per_GB * _TIGHTER else best
    return replace(best, is_cut_short=True) if effort.cut_short else best


def _prove_by_cut(collective: Collective, router: Router, effort: Effort) -> Bound | None:
    """Return the bound of a cut that counts only links on routes, None if routes cross all."""
    topology = router.topology
    try:
        narrowed = keep_crossed(router)
        if len(narrowed.links) == len(topology.links):
            return None
        inside = cut_bound(collective, narrowed).certificate
        return bound_of("route-cut", inside, collective, topology, router)
    except TimeLimitError:
        effort.record_cut("cuts of routes")
        return None


def _prove_by_prices(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return the best bound of each kind that prices over the hardware's routes prove."""
    topology, n, out = router.topology, collective.ranks, list[Bound]()
    if not has_single_paths(topology, collective):
        return out
    routes = OwnRoutes(router)
    for shape, kind in _list_shapes(collective, routes):
        packing = SinglePathPacking(routes, collective, shape)
        packing.generate(effort, "prices of single paths", progress)
        if packing.value > 0:
            wanted = packing.value / (n if collective.name in _IN_PARTS else 1)
            prices = packing.link_prices
            proved = directed_bounds(kind, prices, collective, topology, wanted, router)
            out += [max(proved, key=lambda b: b.s_per_GB)] if proved else []
    return out


def has_single_paths(
    topology: Topology, collective: Collective, max_ranks: int = SINGLE_PATH_RANKS
) -> bool:
    """Return whether a bound for the hardware's routes may differ from the one for any routes.

    It cannot if there are more than `max_ranks` GPUs (it is then not sought), if GPUs are linked to
    GPUs only, as schedules then use all paths between them, or if switches compute what the
    collective needs.
    """
    if len(topology.ranks) > max_ranks:
        return False
    direct = all(
        topology.by_id[a].kind == topology.by_id[b].kind == "gpu" for a, b in topology.capacity_GBps
    )
    return not direct and not computes_in_network(topology, collective)


def _list_shapes(collective: Collective, routes: OwnRoutes) -> list[tuple[str, str]]:
    """Return the shapes to be packed, each with the kind of its certificate."""
    if collective.name in _BY_PATHS:
        return [(PATHS, "route-prices")]
    if not collective.has_all_gpus:
        return [(TREES, "route-tree-prices")] if collective.ranks <= MAX_TERMINALS else []
    shapes = [(PAIRS, "route-prices")] if collective.name == "allreduce" else []
    if collective.ranks <= SINGLE_PATH_ROOTS and not (shapes and routes.is_mirrored):
        shapes.append((TREES, "route-tree-prices"))
    return shapes
