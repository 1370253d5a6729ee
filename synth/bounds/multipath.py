"""Lower bounds on the time of a collective on a topology, each with a certificate as its proof.

They hold for any use of the links: data between two GPUs may be divided over several paths. A
certificate is a cut, or prices on links (certificate.py). Cuts are found by maximum flows on
integers (OR-tools), prices by linear programs (HiGHS through SciPy) whose duals are rounded to
fractions. The value of a bound is what its certificate proves exactly, however imprecise the floats
were.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import networkx as nx

from ...topo.clock import pace
from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.exact import fraction_to_json
from ...topo.graph import Topology
from ...topo.routes import Router
from ..cost.loads import computes_in_network, list_computing
from ..ir.collective import Collective
from ..machine.symmetry import shifts
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.steiner import MAX_TERMINALS
from ..packing.generate import TreePacking, exact_prices
from ..packing.paths import PathPacking
from ..packing.rooted import RootedPacking, group_packing
from ..packing.survey import MAX_PAIRS, Survey, survey
from .certificate import Bound, bound_of, join_devices, join_helpers
from .cuts import bound_of_cut, cut_bound

# Prices are rounded to fractions of at most one of these denominators, the smallest one without
# loss: 12 and 60 are multiples of the denominators that usual link rates lead to.
DENOMINATORS = (1, 12, 60, 1000, 10**6)
# From this relative error of floats on, rounding has weakened a bound.
_CLOSE = 1e-9
# With more GPUs, or more pairs of linked devices, prices are only sought by class of links: on
# damaged machines of 144 to 1,024 GPUs they proved the same, in .1 s instead of 16 to 52 s.
_SINGLE_RANKS, _SINGLE_PAIRS = 128, 1000
# With more GPUs, no prices of in- and out-trees are sought.
_ROOTED_RANKS = 48
# With more GPUs, the machine without its slow links is not used for a bound; the work allowed for
# that bound, in seconds of an idle core, and its share of the time.
_MENDED_RANKS, _MENDED_WORK_S, _MENDED_CLOCK = 256, 6.0, 0.4
# With more links than the first, prices are not sought unless there is time to find and prove them:
# .02 to .09 ms a link on full:500.
_MANY_LINKS, _LINK_S = 50_000, 5e-5
# If paths take at most this many times the cut's time, prices can hardly improve on the cut.
_NEAR_CUT = 1.002
# Most devices that a message lists.
_LISTED = 8


def check_connected(collective: Collective, topology: Topology) -> None:
    """Raise InfeasibleError unless data can reach all ranks that must have it.

    The error names the GPUs that are cut off. Raise TimeLimitError if the running command's time
    ends meanwhile.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(topology.by_id)
    graph.add_edges_from(pace(topology.capacity_GBps, "checking that links join all GPUs"))
    gpus = {topology.ranks[member] for member in collective.members}
    hub = topology.ranks[collective.members[0] if collective.root is None else collective.root]
    reach, reaching = nx.descendants(graph, hub) | {hub}, nx.ancestors(graph, hub) | {hub}
    # Data must get from the hub (the root, or any member if there is none) to all members, or from
    # all to it, or both.
    sides = []
    if collective.name not in ("reduce", "gather"):
        sides.append(("no path leads to", reach, reach))
    if collective.name not in ("broadcast", "scatter"):
        sides.append(("no path leads back from", reaching, topology.by_id.keys() - reaching))
    for how, side, cut in sides:
        lost = sorted(gpus - side, key=topology.ranks.index)
        if lost:
            listed = ", ".join(lost[:_LISTED]) + (" ..." if len(lost) > _LISTED else "")
            hint = ' (a link has one direction unless it says "bidirectional": true)'
            inside = [d.id for d in topology.devices if d.id in cut]
            count = f", ... {len(inside)} in all" if len(inside) > _LISTED else ""
            raise InfeasibleError(
                f"{collective.name} on {topology.name!r} is impossible: from {hub} {how} {listed}: "
                f"no link leads out of the cut {{{', '.join(inside[:_LISTED])}{count}}}; add the "
                f"links{'' if topology.is_symmetric else hint}"
            )


def bound(
    collective: Collective,
    topology: Topology,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    by_link: bool = True,
) -> Bound:
    """Return the multipath bound: the greatest lower bound on time found within `effort`.

    There must be at least two ranks. GPUs that are no members may relay, copy and add. `effort`
    defaults to the usual limit of a plan; `progress` is called with lines of text. `by_link=False`
    is a quick form for allreduce: links that play the same role in the machine then have one price.
    The bound's `is_cut_short` says whether the clock stopped a search for it. Raise InfeasibleError
    if the topology is not connected.
    """
    effort = (effort if effort is not None else Effort()).watch()
    bounds: list[Bound] = []
    try:
        check_connected(collective, topology)
        bounds.append(cut_bound(collective, topology))
        if _has_time_for_prices(topology, effort):
            bounds += _price_bounds(collective, topology, effort, progress, bounds[0], by_link)
    except TimeLimitError:  # of a step that no search's allowance stops
        effort.record_cut("prices of links" if bounds else "cuts")
        bounds = bounds or [_bound_of_hub(collective, topology)]
    return replace(max(bounds, key=lambda b: b.s_per_GB), is_cut_short=bool(effort.cut_short))


def _has_time_for_prices(topology: Topology, effort: Effort) -> bool:
    """Return whether prices can be found and proved in the time left; record it if not."""
    links = len(topology.links)
    if links <= _MANY_LINKS or effort.clock_s > links * _LINK_S:
        return True
    effort.record_cut("prices of links")
    return False


def _bound_of_hub(collective: Collective, topology: Topology) -> Bound:
    """Return the bound of the cut around the root's GPU, or around the first member's.

    It is quick for any number of links.
    """
    hub = topology.ranks[collective.members[0] if collective.root is None else collective.root]
    receives = collective.name in ("reduce", "gather", "allgather")
    return bound_of_cut(topology.by_id.keys() - {hub} if receives else {hub}, collective, topology)


def _price_bounds(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    cut: Bound,
    by_link: bool,
) -> list[Bound]:
    """Return the bounds that prices prove, of the kinds that the collective has on the machine."""
    bounds = _mended_bounds(collective, topology, effort, progress)
    if computes_in_network(topology, collective):
        bounds += _joined_prices(collective, topology, effort, progress, by_link=by_link)
    elif collective.ranks > MAX_TERMINALS and not collective.has_all_gpus:
        bounds += _joined_helpers(collective, topology, effort, progress, by_link=by_link)
    elif collective.name == "alltoall" and not collective.has_all_gpus:
        bounds += _group_path_prices(collective, topology, effort, progress)
    elif not collective.has_all_gpus:
        bounds += _tree_prices(collective, topology, effort, progress)
    elif collective.name == "allreduce":
        bounds += _allreduce_prices(collective, topology, effort, progress, by_link=by_link)
    elif collective.name == "alltoall":
        bounds += _alltoall_prices(collective, topology, effort, progress, cut.s_per_GB)
    elif not _balanced(topology):
        bounds += _tree_prices(collective, topology, effort, progress)
    return bounds


def _mended_bounds(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return the bound that the certificate of the machine without its slow links proves here.

    The list is empty if no links are slow, or if there are too many GPUs. The mended machine
    usually has symmetries that this one lacks, so its certificate is found at once.
    """
    mended = survey(topology).mended if collective.ranks <= _MENDED_RANKS else None
    if mended is None:
        return []
    usual = bound(collective, mended, effort.grant(_MENDED_WORK_S, _MENDED_CLOCK), progress)
    return [bound_of(usual.kind, usual.certificate, collective, topology)]


def _joined_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    *,
    by_link: bool,
) -> list[Bound]:
    """Return the bounds that prices prove for the machine with computing switches joined to GPUs.

    In it, each device that adds or copies is one with its nearest GPU.
    """
    gpu_of = {
        device: find_nearest_gpu(device, topology)
        for device in list_computing(topology, collective)
    }
    joined = bound(collective, join_devices(topology, gpu_of), effort, progress, by_link=by_link)
    return [_separate(joined, gpu_of, collective, topology)]


def _joined_helpers(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    *,
    by_link: bool,
) -> list[Bound]:
    """Return the bound of the machine in which each helper is one with the nearest member.

    It is for groups whose cheapest trees take too long to find.
    """
    members = [topology.ranks[member] for member in collective.members]
    # Over wide links a member is near: those of its own box are.
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(topology.by_id)
    widths = topology.capacity_GBps.items()
    graph.add_weighted_edges_from((b, a, float(1 / c)) for (a, b), c in widths)
    search: Any = nx.multi_source_dijkstra(graph, members)
    gpu_of = {
        gpu: search[1].get(gpu, members)[0] for gpu in topology.ranks if gpu not in set(members)
    }
    whole, machine = join_helpers(collective, topology, gpu_of)
    joined = bound(whole, machine, effort, progress, by_link=by_link)
    return [_separate(joined, gpu_of, collective, topology)]


def _separate(
    joined: Bound, gpu_of: Mapping[str, str], collective: Collective, topology: Topology
) -> Bound:
    """Return what a bound of the machine with joined devices proves for the machine itself."""
    # Devices may be joined with helpers, which are joined with members in turn.
    then = dict(joined.certificate.get("joined", ()))
    last = {device: then.get(gpu, gpu) for device, gpu in gpu_of.items()} | then
    if joined.kind == "cut":  # it is a cut of the whole machine too
        inside = set(joined.certificate["inside"])
        inside |= {device for device, gpu in last.items() if gpu in inside}
        return bound_of_cut(inside, collective, topology)
    certificate = {**joined.certificate, "joined": [list(pair) for pair in last.items()]}
    return bound_of(joined.kind, certificate, collective, topology)


def find_nearest_gpu(device: str, topology: Topology) -> str:
    """Return the GPU that is the fewest links away from a device, the lowest rank of equals.

    Devices and GPUs are ids. If links lead from the device to no GPU, it is that of rank 0.
    """
    layer, reached = {device}, {device}
    while layer:
        if gpus := layer.intersection(topology.ranks):
            return min(gpus, key=topology.ranks.index)
        layer = {near for d in layer for near in topology.out_neighbours[d]} - reached
        reached |= layer
    return topology.ranks[0]


def _balanced(topology: Topology) -> bool:
    """Return whether every device except GPUs has as much bandwidth in as out.

    If so, cuts are tight (Edmonds; splitting off).
    """
    surplus: dict[str, Fraction] = defaultdict(Fraction)
    for (a, b), c in topology.capacity_GBps.items():
        surplus[b] += c
        surplus[a] -= c
    return all(not surplus[d.id] for d in topology.devices if d.kind != "gpu")


def _allreduce_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    *,
    by_link: bool,
) -> list[Bound]:
    """Return the bounds that the duals of tree packing prove.

    Prices are by class of links first, link by link if that may be better, and by direction if
    bandwidths differ.
    """
    machine = survey(topology)
    out: list[Bound] = []
    if machine.graph.joins_all():
        out += _undirected_bounds(machine, machine.pack_by_class(effort, progress), collective)
        # Averaging prices over an orbit loses nothing, and a bound that whole trees reach cannot be
        # improved. `least` is 0 if links without a reverse, which have no price, join all GPUs.
        least = max(b.s_per_GB for b in out)
        settled = (
            not by_link
            or machine.classes_are_orbits
            or (least and machine.is_reached_by_whole_trees(1 / least, effort))
        )
        few = collective.ranks <= _SINGLE_RANKS and len(machine.graph.links) <= _SINGLE_PAIRS
        if few and not settled:
            out += _undirected_bounds(machine, machine.pack_by_link(effort, progress), collective)
    if not topology.is_symmetric:
        out += _tree_prices(collective, topology, effort, progress)
    return out


def _undirected_bounds(
    machine: Survey, packing: TreePacking, collective: Collective
) -> list[Bound]:
    """Return the bounds that prices by pair of devices prove, with growing denominators.

    The last bound is the first without a loss by rounding.
    """
    out: list[Bound] = []
    for denominator in DENOMINATORS:
        exact = exact_prices(machine.graph, packing.pair_prices, denominator)
        rows = [[a, b, fraction_to_json(p)] for (a, b), p in exact.items()]
        out.append(bound_of("prices", {"prices": rows}, collective, machine.topology))
        if float(out[-1].s_per_GB) >= packing.value * (1 - _CLOSE):
            break
    return out


def _tree_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return the bounds that the duals of packing in- and out-trees prove.

    They are for machines on which directions or switches are uneven.
    """
    name, is_group = collective.name, not collective.has_all_gpus
    too_large = len(topology.ranks) > _ROOTED_RANKS or (
        is_group and collective.ranks > MAX_TERMINALS
    )
    if too_large or name in ("gather", "scatter"):
        return []
    # In-trees are out-trees of the reversed machine.
    reduces_only = name in ("reduce", "reduce-scatter")
    facing = topology.reversed() if reduces_only else topology
    if is_group:
        packing = group_packing(facing, collective)
    else:
        rooted = name in ("broadcast", "reduce")
        roots = [collective.root or 0] if rooted else range(collective.ranks)
        packing = RootedPacking(facing, list(roots), name == "allreduce", shifts(facing))
    packing.run(effort, 0.0, progress)
    prices = packing.link_prices
    if reduces_only:
        prices = {(b, a): p for (a, b), p in prices.items()}
    return directed_bounds("tree-prices", prices, collective, topology)


def _group_path_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> list[Bound]:
    """Return the bounds of paths between the members, which all GPUs may relay."""
    members = list(collective.members)
    if len(members) ** 2 > MAX_PAIRS:
        return []
    packing = PathPacking(topology, members, targets=members)
    packing.run(effort, progress)
    prices, n = packing.link_prices, collective.ranks
    return directed_bounds("prices", prices, collective, topology, packing.value / n)


def _alltoall_prices(
    collective: Collective,
    topology: Topology,
    effort: Effort,
    progress: Callable[[str], None] | None,
    cut_s_per_GB: Fraction,
) -> list[Bound]:
    """Return the bounds that the duals of concurrent multicommodity flow prove.

    If that program is not solved, uniform prices are used.
    """
    machine, n = survey(topology), collective.ranks
    prices: Mapping[tuple[str, str], float] = {}
    value = 0.0
    try:
        level = machine.level_paths(cut_s_per_GB, effort)
        if level is None:
            flow = machine.paths(collective, effort, progress)
            prices, value = flow.link_prices, flow.value
        else:
            cut = float(cut_s_per_GB * n)
            if level.reached <= cut * _NEAR_CUT:
                return []  # no prices can prove much more than the cut
            value, duals = level.find_prices()
            if value <= cut:
                return []
            prices = dict(zip(level.links, duals.tolist(), strict=True))
    except InfeasibleError:
        pass  # too many pairs for either: use uniform prices
    if not prices:
        prices, value = dict.fromkeys(topology.capacity_GBps, 1.0), 0.0
    return directed_bounds("prices", prices, collective, topology, value / n)


def directed_bounds(
    kind: str,
    prices: Mapping[tuple[str, str], float],
    collective: Collective,
    topology: Topology,
    wanted_s_per_GB: float = 0.0,
    router: Router | None = None,
) -> list[Bound]:
    """Return the bounds that float prices of directed links prove, once made exact.

    Prices are rounded to fractions, with a greater denominator for each next bound. The last bound
    is the first that loses nothing by rounding: it equals `wanted_s_per_GB`, or, if that is 0, no
    longer changes. The list is empty if all prices are 0. `kind` is the certificate's; `router`, if
    given, says that the bounds are for its routes.
    """
    out: list[Bound] = []
    for rows in round_prices(prices):
        out.append(bound_of(kind, {"prices": rows}, collective, topology, router))
        expected = wanted_s_per_GB or (float(out[-2].s_per_GB) if len(out) > 1 else 0.0)
        if expected and abs(float(out[-1].s_per_GB) - expected) <= _CLOSE * expected:
            break
    return out


def round_prices(prices: Mapping[tuple[str, str], float]) -> Iterator[list[list[Any]]]:
    """Yield the rows of certificates with float prices by directed link as fractions.

    These have a greater denominator in each next certificate. There are none if all prices are 0.
    """
    top = max(prices.values(), default=0.0)
    if not top:
        return
    least = min(p for p in prices.values() if p > _CLOSE * top)
    for denominator in DENOMINATORS:
        exact = {
            link: Fraction(p / least).limit_denominator(denominator) for link, p in prices.items()
        }
        yield [[a, b, fraction_to_json(p)] for (a, b), p in exact.items() if p]
