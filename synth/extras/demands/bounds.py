"""The bounds of demands, proved by the prices that a packing of their trees ends with.

Demands are pieces of data, the ranks that hold each one, and those that need it. A packing is the
linear program that divides the pieces among trees (packing.py); its duals are prices of links. The
multipath bound is for any use of the links, the single-path bound for the hardware's routes alone.
Pieces that the same ranks hold and the same ranks need are one class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....topo.graph import Topology
from ....topo.routes import Router
from ...bounds.certificate import SINGLE_PATH, Bound, Bounds, bound_of, join_devices
from ...bounds.multipath import directed_bounds, find_nearest_gpu
from ...cost.loads import list_computing
from ...ir.demands import Demands
from ...machine.routes import OwnRoutes
from ...numeric.effort import Effort
from .cuts import find_cut_bound, is_large
from .packing import DemandPacking

# The kind of these certificates; that of the single-path bound has SINGLE_PATH in front.
KIND = "tree-prices"
# Share of the work and of the time left for the bound on any use of the links.
_SHARE = 0.5


def find_demand_bounds(
    demands: Demands,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None = None,
    packing: DemandPacking | None = None,
) -> Bounds:
    """Return the multipath and the single-path bound of demands on a router's topology.

    All GPUs may relay. `effort` limits the work and the time; `progress` is called with lines of
    text. `packing` is a finished one on the hardware's routes, if there is one already. With many
    GPUs or classes of pieces (`is_large`) both are the bound of a cut; where switches copy what
    several ranks need, both are the multipath bound. Raise InfeasibleError if a piece cannot reach
    its receivers.
    """
    topology = router.topology
    granted = effort.grant(effort.left_s / effort.scale * _SHARE, _SHARE)
    multipath = find_multipath_bound(demands, topology, granted, progress)
    if is_large(demands, topology) or list_computing(topology, demands):
        return Bounds(multipath, multipath)
    watched = effort.watch()
    if packing is None:
        packing = DemandPacking(demands, topology, OwnRoutes(router))
        packing.run(watched, progress)
    single_path = replace(_prove(packing, router), is_cut_short=bool(watched.cut_short))
    return Bounds(multipath, max(multipath, single_path, key=lambda bound: bound.s_per_GB))


def find_multipath_bound(
    demands: Demands,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """Return the bound of demands for any use of the topology's links.

    If switches copy what several ranks need, it is that of the machine in which each such switch is
    one with its nearest GPU. With many GPUs or classes of pieces it is that of a cut. `effort`
    limits the work and the time; `progress` is called with lines of text. Raise InfeasibleError if
    a piece cannot reach a rank that needs it.
    """
    if is_large(demands, topology):
        return find_cut_bound(demands, topology)
    gpu_of = {
        device: find_nearest_gpu(device, topology) for device in list_computing(topology, demands)
    }
    packing = DemandPacking(demands, join_devices(topology, gpu_of), None)
    watched = effort.watch()
    packing.run(watched, progress)
    best = _prove(packing, None)
    if gpu_of:
        joined = [list(pair) for pair in gpu_of.items()]
        best = bound_of(KIND, {**best.certificate, "joined": joined}, demands, topology)
    return replace(best, is_cut_short=bool(watched.cut_short))


def _prove(packing: DemandPacking, router: Router | None) -> Bound:
    """Return the best bound that a packing's prices prove, once made exact."""
    wanted_s_per_GB = packing.value * float(packing.unit_GB)
    kind = KIND if router is None else SINGLE_PATH + KIND
    prices, demands = packing.link_prices, packing.demands
    proved = directed_bounds(kind, prices, demands, packing.topology, wanted_s_per_GB, router)
    return max(proved, key=lambda bound: bound.s_per_GB)
