"""Choose trees for RCCL_TREES with rings beside them, and decide whether they are worth setting.

RCCL_TREES is an environment variable that gives RCCL trees through all GPUs of a host, a graph file
(NCCL_GRAPH_FILE) one that gives it rings and chains; stock RCCL has neither. With RCCL_TREES RCCL
runs every allreduce over the trees, so they must be above stock and above what a graph file
reaches. The rings of the other collectives then come from a graph file without trees, as RCCL's own
would be those of its plain search.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter

from ....topo.routes import Router
from ...channels.channels import RING, Channels
from ...channels.rounding import prepare
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...request import Request
from ..stock.constants import kBps_PER_GBps
from ..stock.model import find_slowest_kBps, make_graph
from ..stock.rccl import RcclHost
from ..stock.rccl_search import find_rccl_chains, find_rccl_rings_without_table
from .binary_trees import Parents
from .guard import BETWEEN_CPUS, WORTH_WRITING
from .nccl_graph import NcclGraphs, bound_request, rate_graphs, repeat_channels
from .rccl_choice import ChosenRccl, choose_rccl_graphs
from .rccl_env import GRAPH_FILE, RcclEnv, find_rccl_env, list_channel_counts
from .rccl_guard import PROVED, RcclGuard


@dataclass(frozen=True)
class ChosenEnv:
    """The variables chosen for RCCL, the rings for other collectives, and whether to set them.

    `env` has the trees, `request` what they were searched for; `graphs` is the graph file that they
    compete with. `rings` is a graph without chains, None if there is none. `searched_GBps` is the
    algbw of an allreduce over the rings that RCCL would search for without it; None if not known.
    `reason` is why nothing should be written, None if it should; `lines` explain the choice.
    """

    env: RcclEnv
    request: Request
    graphs: ChosenRccl
    rings: NcclGraphs | None
    searched_GBps: Fraction | None
    reason: str | None
    lines: tuple[str, ...]


def choose_rccl_env(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
) -> ChosenEnv:
    """Return the best trees and rings for a collective on one host.

    The trees are those with the highest algbw found; if they may be slower than stock or a graph
    file, the result has a `reason` and no rings. `effort` limits the search, `progress` is given
    lines about it. Raise InfeasibleError if RCCL could not use any.
    """
    request, bounds = bound_request(collective, router, effort, progress)
    bound = bounds.single_path
    env = find_rccl_env(request, bound)
    graphs = choose_rccl_graphs(collective, router, effort, progress)
    chosen = ChosenEnv(env, request, graphs, None, None, None, ())
    guard = graphs.guard
    refusal = _refuse_trees(env, graphs)
    if guard is None or refusal is not None:
        return replace(chosen, reason=refusal)
    for channels in list_channel_counts(router.topology, len(env.trees)):
        beside = _find_rings(request, guard, channels // 2)
        if beside is not None:
            rings = rate_graphs(request, bound, {RING: beside})
            searched = _rate_searched_rings(guard.host, channels)
            made = replace(env, channels=channels)
            lines = _describe(made, guard, rings, searched)
            return replace(chosen, env=made, rings=rings, searched_GBps=searched, lines=lines)
    return replace(
        chosen,
        reason="no file written: with RCCL_TREES the rings of allgather, reduce-scatter and "
        "broadcast could be slower than stock RCCL's",
    )


def _refuse_trees(env: RcclEnv, graphs: ChosenRccl) -> str | None:
    """Return in a line why the trees are not worth setting; None if they are."""
    if not env.trees:
        return (
            "no file written: RCCL_TREES is for allreduce alone; a graph file (nccl-graph) has "
            f"rings for {env.collective.name}"
        )
    guard, compared = graphs.guard, graphs.comparison
    if guard is None or compared is None or not (guard.is_known or guard.host.is_provable):
        return f"no file written: stock RCCL is not known ({graphs.host.reason})"
    rates = {f: rate_trees(guard.host, env.trees, f) for f in BETWEEN_CPUS}
    if graphs.is_worth_writing:
        file = max(compared.rates[key] for key in compared.rates if key[1] == 1)
        if rates[1] < file * WORTH_WRITING:
            return (
                f"no file written: trees have {float(rates[1]):.4g} GB/s by RCCL's own count, a "
                f"graph file (nccl-graph) {float(file):.4g}"
            )
    others = {f: guard.find_allreduce(f) for f in BETWEEN_CPUS}
    share = PROVED if not guard.is_known else Fraction(1)
    is_safe = all(0 < others[f] * share <= rates[f] for f in BETWEEN_CPUS)
    if is_safe and (not guard.is_known or rates[1] >= others[1] * WORTH_WRITING):
        return None
    what = "stock RCCL has" if guard.is_known else "stock RCCL is not known, and may have"
    return (
        f"no file written: by RCCL's own count trees have {float(rates[1]):.4g} GB/s, {what} "
        f"{float(others[1]):.4g}, and links between CPUs may be faster than counted"
    )


def rate_trees(host: RcclHost, trees: Sequence[Parents], between_cpus: int) -> Fraction:
    """Return the algbw in GB/s of an allreduce over trees with equal shares, by RCCL's constants.

    Links between CPUs are `between_cpus` times as fast.
    """
    index = {gpu.rank: gpu.index for gpu in host.gpus}
    hops: Counter[tuple[int, int]] = Counter()
    for parents in trees:
        edges = [(index[a], index[b]) for a, b in enumerate(parents) if b >= 0]
        hops.update((*edges, *((b, a) for a, b in edges)))
    slowest_kBps = find_slowest_kBps(hops, host.gpu_paths, between_cpus)
    return len(trees) * slowest_kBps / kBps_PER_GBps


def _find_rings(request: Request, guard: RcclGuard, count: int) -> Channels | None:
    """Return rings for so many channels that cannot be slower than stock's; None if not found.

    RCCL also searches for as many chains, and must find them to load the rings.
    """
    if find_rccl_chains(guard.host.system, guard.host.gpu_paths, count).channels != count:
        return None
    finder = prepare(request, RING)
    share = Fraction(1) if guard.is_known else PROVED
    best: tuple[Fraction, Channels] | None = None
    for divisor in (d for d in range(1, count + 1) if count % d == 0):
        rings = repeat_channels(finder.name(finder.round(divisor)), count)
        rates = guard.compare({RING: rings})
        if all(0 < rates.others[key] * share <= rate for key, rate in rates.rates.items()):
            best = max(
                best or (Fraction(0), rings), (rates.rates[RING, 1], rings), key=itemgetter(0)
            )
    return best[1] if best else None


def _rate_searched_rings(host: RcclHost, channels: int) -> Fraction:
    """Return the algbw of an allreduce over the rings that RCCL finds beside RCCL_TREES, in GB/s.

    It doubles them and repeats them up to the number of channels.
    """
    graph = find_rccl_rings_without_table(host.system, host.gpu_paths)
    orders = repeat_channels(Channels(RING, graph.orders), channels).orders
    return host.rate(replace(graph, orders=orders))


def _describe(
    env: RcclEnv, guard: RcclGuard, rings: NcclGraphs, searched: Fraction
) -> tuple[str, ...]:
    assert rings.rings is not None
    host = guard.host
    reached = host.rate(make_graph(host.gpus, rings.rings))
    counted, other = rate_trees(host, env.trees, 1), guard.find_allreduce(1)
    stock = (
        f"stock has {float(other):.4g} GB/s for allreduce, the trees {float(counted):.4g}"
        if guard.is_known
        else f"the trees have {float(counted):.4g} GB/s for allreduce, proved to be the most"
    )
    return (
        f"by RCCL's own count {stock}",
        "RCCL then runs every allreduce over the trees; allgather, reduce-scatter and broadcast "
        f"over the rings of {GRAPH_FILE}: {2 * float(reached):.4g} GB/s for "
        "allgather",
        f"without that file they fall to RCCL's plain search: {2 * float(searched):.4g} GB/s for "
        "allgather",
    )
