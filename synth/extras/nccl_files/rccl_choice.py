"""Choose the rings and chains of a graph file for RCCL, and decide whether it is worth writing.

A graph file is what RCCL reads by NCCL_GRAPH_FILE: channels, which are rings or chains through all
GPUs of a host. Stock RCCL is RCCL without one.

Candidates are the best channels at the machine's own rates, and those that are also good at RCCL's
constants (the rates that its sources assume for links) with links between CPUs at one, two and four
times theirs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ....topo.routes import Router
from ...bounds.single_path import Bounds
from ...channels.channels import CHAIN, RING
from ...channels.rounding import Rounding
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...request import Request
from ..stock.model import KINDS, NotModelled
from ..stock.on_paper import USUAL_SIZE_bytes
from ..stock.rccl import RcclHost, model_rccl
from .guard import BETWEEN_CPUS, WORTH_WRITING
from .nccl_graph import (
    NcclGraphs,
    Sized,
    bound_request,
    limit_channels,
    match_counts,
    prepare_finders,
    rate_graphs,
    repeat_channels,
)
from .rccl_guard import CHAIN_SHARE, RcclComparison, RcclGuard
from .rccl_limits import RcclVersion, find_rccl_version
from .robust import LinkRates, find_least_rates, list_link_rates, list_routes, search_at

# Shares of the best rate at the machine's own rates that may be given up to be safe.
_OWN_SHARES = tuple(Fraction(percent, 100) for percent in (100, 97, 90))
# Share of a target that floating point and rounded rates may lose.
_REACHED = 0.998


@dataclass(frozen=True)
class ChosenRccl:
    """The graphs chosen for a file, and how they compare with stock RCCL.

    `bounds` are over the hardware's routes; `host` is the model of RCCL, or says why there is none.
    `guard` compares channels with stock by that model, and `comparison` has its result for
    `graphs`; both are None if RCCL's graph cannot be made of the topology. `version` has RCCL's
    limits.
    """

    graphs: NcclGraphs
    bounds: Bounds
    version: RcclVersion
    host: RcclHost | NotModelled
    guard: RcclGuard | None = None
    comparison: RcclComparison | None = None

    @property
    def is_worth_writing(self) -> bool:
        """Whether the file is faster than stock, or provably not slower if stock is not known."""
        return self.comparison is not None and self.comparison.is_safe


def choose_rccl_graphs(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
    guarded: bool = True,
) -> ChosenRccl:
    """Return the best graphs for a collective on one host.

    They are those with the highest algbw at the machine's own rates. If `guarded`, and these may be
    slower than stock, others are tried, and the first that are not are returned; if there are none,
    `is_worth_writing` of the result is False. `effort` limits the search, `progress` is given lines
    about it. Raise InfeasibleError if no file can have them.
    """
    request, bounds = bound_request(collective, router, effort, progress)
    version, host = find_rccl_version(router.topology), model_rccl(router.topology)
    most = limit_channels(collective, version)
    finders = prepare_finders(request)
    first = _fill(match_counts(request, finders, most), version)
    if isinstance(host, NotModelled):
        graphs = rate_graphs(request, bounds.single_path, first)
        return ChosenRccl(graphs, bounds, version, host)
    guard = RcclGuard(request, host, list_routes(router))
    # RCCL takes rings more often than NCCL, so numbers of channels that suit rings are tried too.
    gathering = request.of(Collective("allgather", collective.ranks))
    second = _fill(match_counts(gathering, finders, most), version)
    rated = [(sized, guard.compare(sized)) for sized in (first, second)]
    sized, compared = max(rated, key=lambda each: (each[1].is_safe, each[1].picked_GBps))
    graphs = rate_graphs(request, bounds.single_path, sized)
    best = ChosenRccl(graphs, bounds, version, host, guard, compared)
    if not guarded or best.is_worth_writing or not _may_gain(guard, finders, collective):
        return best
    for sized in _list_candidates(request, guard, finders, most):
        filled = _fill(sized, version)
        compared = guard.compare(filled)
        if compared.is_safe:
            graphs = rate_graphs(request, bounds.single_path, filled)
            return replace(best, graphs=graphs, comparison=compared)
    return best


def _fill(sized: Sized, version: RcclVersion) -> Sized:
    """Return the channels repeated, each equally often, as long as RCCL takes more."""
    count = max(len(each.orders) for each in sized.values())
    times = max(1, version.usual // count)
    return {shape: repeat_channels(each, count * times) for shape, each in sized.items()}


def _may_gain(guard: RcclGuard, finders: list[Rounding], collective: Collective) -> bool:
    """Return whether a file may exist that is safe: the optimum above stock, or all proved."""
    shapes = [finder.shape for finder in finders]
    optima = {shape: guard.find_optimum(shape, 1) for shape in shapes}
    if not guard.is_known:
        others = {shape: guard.find_other(shape, 1) for shape in shapes}
        return all(0 < others[shape] * CHAIN_SHARE <= optima[shape] for shape in shapes)
    if collective.name != "allreduce":
        return optima[RING] >= guard.host.rate_stock(RING) * WORTH_WRITING
    picked = guard.host.pick_stock(USUAL_SIZE_bytes)
    return max(optima.values()) >= guard.host.rate_stock(picked) * WORTH_WRITING


def _list_candidates(
    request: Request, guard: RcclGuard, finders: list[Rounding], most: int
) -> Iterator[Sized]:
    """Yield channels that may be safe, at the machine's own rates or at RCCL's too."""
    own = list_link_rates(request.router)
    if all(rates == own for rates in guard.rates.values()):
        yield from _list_counts(finders, most)
        return
    for share in _OWN_SHARES:
        robust = [_find_robust(request, guard, finder, share, own) for finder in finders]
        if all(
            each.optimum >= finder.optimum * _REACHED
            for each, finder in zip(robust, finders, strict=True)
        ):
            yield match_counts(request, robust, most)
            yield from _list_counts(robust, most)
            return


def _find_robust(
    request: Request, guard: RcclGuard, finder: Rounding, share: Fraction, own: LinkRates
) -> Rounding:
    """Return a search in which the optimum of `finder` means that all targets are reached.

    They are `share` of that optimum at the machine's own rates, and stock's rates at RCCL's.
    """
    shape, best = finder.shape, Fraction(finder.optimum)
    # The optimum of rings is that of the collective, twice an allreduce's for the others.
    counted = best / (2 if shape == RING and request.collective.name != "allreduce" else 1)
    kept = CHAIN_SHARE if shape == CHAIN and not guard.is_known else 1
    targets = [(guard.rates[f], guard.find_other(shape, f) * kept / counted) for f in BETWEEN_CPUS]
    return search_at(request, find_least_rates([(own, share), *targets]), shape)


def _list_counts(finders: list[Rounding], most: int) -> Iterator[Sized]:
    for count in range(1, most + 1):
        yield {each.shape: each.name(each.round(count)) for each in finders}


def describe_rccl_choice(chosen: ChosenRccl) -> list[str]:
    """Return lines on stock RCCL and why a file was `chosen`: for its comment, and to print."""
    compared = chosen.comparison
    if compared is None or (not compared.is_known and not compared.is_safe):
        return [f"stock RCCL is not known: {chosen.host.reason}"]
    file = _list_rates(compared.rates)
    if not compared.is_known:
        return [
            f"written as proved optimal: by RCCL's own count {file}, and none can have more, also "
            "with links between CPUs 2 and 4 times as fast; stock RCCL is not known",
            "its table of machines may have this one, and then also sets a tuning model, MSCCL and "
            "LL128, which a graph file leaves off: compare small sizes before use",
        ]
    times = ", ".join(f"{float(compared.find_ratio(f)):.3g}" for f in BETWEEN_CPUS)
    return [
        f"by RCCL's own count stock has {_list_rates(compared.others)}; the file {file}: {times} "
        "times stock with links between CPUs at 1, 2, 4 times its constants"
    ]


def explain_rccl_refusal(chosen: ChosenRccl) -> str | None:
    """Return a line on why a `chosen` file is not worth writing; None if it is."""
    compared = chosen.comparison
    if chosen.is_worth_writing:
        return None
    if compared is None or not compared.is_known:
        why = f"stock RCCL is not known ({chosen.host.reason})"
        proof = "and the file is not proved to be as good as any"
        return f"no file written: {why}, {proof}"
    file, stock = _list_rates(compared.rates), _list_rates(compared.others)
    return (
        f"no file written: stock RCCL is as good, or above with other links between CPUs: by its "
        f"own count it has {stock}, the file {file}"
    )


def list_rccl_json(chosen: ChosenRccl) -> dict[str, object]:
    """Return JSON data on why a file was chosen.

    `basis` is "above stock", "proved optimal", or null without a file; `over_stock` are the ratios
    to stock with links between CPUs 1, 2 and 4 times as fast.
    """
    compared = chosen.comparison
    known = compared is not None and compared.is_known
    out: dict[str, object] = {
        "library": "rccl",
        "stock_model": None,
        "stock_not_modelled": None if known else chosen.host.reason,
        "basis": None,
    }
    if compared is not None and compared.is_safe:
        out["basis"] = "above stock" if known else "proved optimal"
    if compared is not None and known:
        rates = {shape: compared.others[shape, 1] for shape in KINDS}
        out["stock_model"] = {
            "algbw_GBps": {KINDS[shape]: float(rate) for shape, rate in rates.items()},
            "picked": KINDS[compared.host.pick_large(rates)],
        }
        out["over_stock"] = {str(f): float(compared.find_ratio(f)) for f in BETWEEN_CPUS}
    return out


def _list_rates(rates: dict[tuple[str, int], Fraction]) -> str:
    return " and ".join(
        f"{KINDS[shape]} {float(rate):.4g} GB/s"
        for (shape, factor), rate in rates.items()
        if factor == 1
    )
