"""Choose the rings and chains of a graph file, and decide whether the file is worth writing.

A graph file is what NCCL reads by NCCL_GRAPH_FILE, for one host here. It lists channels: rings, and
chains, which are paths through all GPUs that NCCL calls trees. Stock NCCL or RCCL is the library
without a graph file.

Candidates are the best channels at the machine's own rates, those that are also good at NCCL's
constants (the rates that its sources assume for links) with links between CPUs at one, two and four
times theirs, and stock's own. NCCL's routes with NCCL_NVB_DISABLE=1 are tried where they differ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ....topo.errors import InfeasibleError
from ....topo.routes import Router
from ...bounds.single_path import Bounds
from ...channels.channels import CHAIN, RING, Channels
from ...channels.rounding import Rounding
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...request import Request
from ..stock.library import find_nccl
from ..stock.model import NotModelled, make_graph
from ..stock.nccl import NcclHost
from ..stock.nccl_version import NcclVersion
from ..stock.routes import NcclRouter
from ..stock.search import StockGraph
from .guard import (
    BETWEEN_CPUS,
    WORTH_WRITING,
    Comparison,
    compare,
    count_link_rates,
    pick_stock,
)
from .nccl_graph import (
    FileChannels,
    NcclGraphs,
    Sized,
    bound_request,
    describe_channels,
    find_graphs,
    limit_channels,
    match_counts,
    prepare_finders,
    rate_graphs,
    repeat_channels,
)
from .robust import find_least_rates, list_link_rates, list_routes, search_at

# Share of the best rate from which candidates count as equally good.
_EQUAL = Fraction(99, 100)
# Shares of the best rate at the machine's own rates that may be given up to be above stock at all.
_OWN_SHARES = tuple(Fraction(percent, 100) for percent in (100, 97, 94, 90, 85))
# Share of a target that floating point may lose.
_REACHED = 0.9999
# Gain for which a file may need NCCL_NVB_DISABLE=1: a job that lacks the setting loses by the file.
_WORTH_SETTING = Fraction(105, 100)


@dataclass(frozen=True)
class ChosenGraphs:
    """The graphs chosen for a file, and how they compare with stock NCCL.

    `bounds` are over the routes of `graphs`; `library` is the model of stock, or says why there is
    none. `comparison` is None if stock is not modelled.
    """

    graphs: NcclGraphs
    bounds: Bounds
    library: NcclHost | NotModelled
    comparison: Comparison | None = None

    @property
    def nvb(self) -> bool:
        """Whether NCCL may route over another GPU's NVLinks: False needs NCCL_NVB_DISABLE=1."""
        return isinstance(self.library, NotModelled) or self.library.nvb

    @property
    def is_worth_writing(self) -> bool:
        """Whether the file is faster than stock NCCL; True if stock is not modelled."""
        return self.comparison is None or self.comparison.is_safe


_Rated = tuple[NcclGraphs, Comparison]


def choose_graphs(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
    version: NcclVersion,
    size_bytes: int,
    guard: bool = True,
) -> ChosenGraphs:
    """Return the best graphs for a collective on one host, for a buffer of `size_bytes`.

    With `guard`, prefer graphs that beat stock NCCL also at the link rates that NCCL's own model
    assumes; `is_worth_writing` of the result says whether there are any. Without it, take the best
    at the topology's own rates, whatever NCCL's model says.

    The best have nearly the highest algbw at the topology's own rates, and nearly the highest ratio
    to stock at NCCL's constants: the smaller of these two shares decides. Among those within 1 % of
    the best, the smallest ratio to stock over all rates of links between CPUs decides.

    `router` has the hardware's routes, `version` is NCCL's. `effort` limits the search, `progress`
    receives messages. Raise InfeasibleError if no file can have the graphs.
    """
    library = find_nccl(router.topology)
    if isinstance(library, NotModelled):
        request, bounds = bound_request(collective, router, effort, progress)
        return ChosenGraphs(find_graphs(request, bounds.single_path, version), bounds, library)
    own = NcclRouter(router)
    chosen = [
        _choose_on(
            bound_request(collective, each, effort, progress),
            library if each is own else NcclHost(router.topology, library.model, nvb=False),
            version,
            size_bytes,
            guard,
        )
        for each in ([own, router] if own.relays else [own])
    ]
    return max(chosen, key=_judge_setting)


def _judge_setting(chosen: ChosenGraphs) -> tuple[bool, Fraction]:
    assert chosen.comparison is not None
    needed = Fraction(1) if chosen.nvb else _WORTH_SETTING
    is_worth = chosen.comparison.is_safe and chosen.comparison.gain >= needed
    return is_worth, chosen.comparison.gain / needed


def _choose_on(
    bounded: tuple[Request, Bounds],
    library: NcclHost,
    version: NcclVersion,
    size_bytes: int,
    guard: bool,
) -> ChosenGraphs:
    """Return the best graphs on the routes of a request."""
    request, bounds = bounded
    rings_only = request.collective.name != "allreduce"
    most = limit_channels(request.collective, version)
    seen, rated = set[tuple[tuple[str, Channels], ...]](), list[_Rated]()

    def rate(candidates: Iterable[Sized]) -> None:
        for sized in candidates:
            if tuple(sized.items()) in seen:
                continue
            seen.add(tuple(sized.items()))
            try:
                graphs = rate_graphs(request, bounds.single_path, sized)
            except InfeasibleError:  # a hop of stock's, or of NCCL's graph, that the topology lacks
                continue
            for each in (graphs, replace(graphs, counted_GBps=_count_rates(graphs, library))):
                file = _make_graphs(describe_channels(each, version), library)
                compared = compare(library, file, rings_only, size_bytes)
                rated.append((each, compared))
                if compared.is_safe:
                    break

    search = _CandidateSearch(request, library)
    least = library.model.channels
    rate([match_counts(request, search.finders, most, least)])
    fastest = rated[0][0].fraction
    needed = WORTH_WRITING if library.nvb else _WORTH_SETTING
    picked = pick_stock(library, rings_only, size_bytes)
    reachable = search.find_counted_optimum() / library.rate_stock(picked)
    if guard and reachable >= needed and not _is_good_enough(rated, fastest, reachable):
        robust = list(search.find_robust())
        rate(match_counts(request, each, most, least) for each in robust)
        for each in (search.finders, *robust[-1:]):
            if not _is_good_enough(rated, fastest, WORTH_WRITING):
                rate(_list_counts(each, library, most))
    graphs, compared = _choose(rated)
    return ChosenGraphs(graphs, bounds, library, compared)


def _is_good_enough(rated: Sequence[_Rated], fastest: Fraction, reachable: Fraction) -> bool:
    """Return whether a file is safe, as good as the fastest, and gains nearly what is reachable."""
    return any(
        compared.is_safe
        and graphs.fraction >= fastest * _EQUAL
        and compared.gain >= reachable * _EQUAL
        for graphs, compared in rated
    )


def _choose(rated: Sequence[_Rated]) -> _Rated:
    """Return the best of what is safe, if anything is.

    It is near the best both at the machine's own rates and at NCCL's constants; among equals the
    one with the largest least ratio to stock.
    """
    rated = [each for each in rated if each[1].is_safe] or rated
    fastest = max(graphs.fraction for graphs, _ in rated)
    most = max(compared.gain for _, compared in rated)
    shares = [min(graphs.fraction / fastest, each.gain / most) for graphs, each in rated]
    near = [
        each for each, share in zip(rated, shares, strict=True) if share >= max(shares) * _EQUAL
    ]
    return max(near, key=lambda each: (each[1].least, each[0].fraction, not each[0].counted_GBps))


def _make_graphs(file: FileChannels, library: NcclHost) -> dict[str, StockGraph]:
    return {
        shape: make_graph(library.gpus, channels, file.speeds_GBps[shape], file.types[shape])
        for shape, channels in file.channels.items()
    }


def _count_rates(graphs: NcclGraphs, library: NcclHost) -> dict[str, Fraction]:
    """Return the algbw of each shape at NCCL's constants, in GB/s."""
    given = (each for each in (graphs.rings, graphs.chains) if each is not None)
    return {each.shape: library.rate(make_graph(library.gpus, each)) for each in given}


def _list_counts(finders: list[Rounding], library: NcclHost, most: int) -> Iterator[Sized]:
    """Yield every number of channels, with rings as found and with those of stock."""
    rings = library.model.list_used(RING)
    for count in range(1, most + 1):
        sized = {each.shape: each.name(each.round(count)) for each in finders}
        yield sized
        if count % len(rings.orders) == 0:
            yield {**sized, RING: repeat_channels(rings, count)}


class _CandidateSearch:
    """Searches for rings and chains at the machine's own rates, and at NCCL's constants.

    `finders` are those at its own.
    """

    def __init__(self, request: Request, library: NcclHost) -> None:
        self.finders = prepare_finders(request)
        self._request, self._library = request, library
        self._own = list_link_rates(request.router)
        pairs = list_routes(request.router)
        self._counted = {
            factor: count_link_rates(library, pairs, factor) for factor in BETWEEN_CPUS
        }
        self._optima: dict[tuple[str, int], Fraction] = {}

    def find_counted_optimum(self) -> Fraction:
        """Return the best algbw of an allreduce at NCCL's constants, in GB/s."""
        is_allreduce = self._request.collective.name == "allreduce"
        rates = {finder.shape: self._find_optimum(finder, 1) for finder in self.finders}
        return max(rates.values()) if is_allreduce else rates[RING] / 2

    def find_robust(self) -> Iterator[list[Rounding]]:
        """Yield searches for channels that are good at several rates, where that differs.

        First for channels near the best at the machine's own rates, at NCCL's constants and with
        faster links between CPUs; then for those that are above stock at all of NCCL's, and
        otherwise as near as possible to the best at the machine's own.
        """
        if any(rates != self._own for rates in self._counted.values()):
            yield [self._find_near(finder) for finder in self.finders]
            yield [self._find_above(finder) for finder in self.finders]

    def _find_near(self, finder: Rounding) -> Rounding:
        targets = {factor: self._find_optimum(finder, factor) for factor in BETWEEN_CPUS}
        return self._find_all(finder, Fraction(1), targets)

    def _find_above(self, finder: Rounding) -> Rounding:
        shape, reached = finder.shape, finder.optimum * _REACHED
        targets = {f: _find_target(self._request, shape, self._library, f) for f in BETWEEN_CPUS}
        tried = (self._find_all(finder, share, targets) for share in _OWN_SHARES)
        return next((each for each in tried if each.optimum >= reached), finder)

    def _find_all(
        self, finder: Rounding, share: Fraction, targets: dict[int, Fraction]
    ) -> Rounding:
        """Return a search in which the optimum of `finder` means that all targets are reached.

        They are `share` of that optimum at the machine's own rates, and `targets` at NCCL's.
        """
        best = Fraction(finder.optimum)
        counted = [(self._counted[factor], target / best) for factor, target in targets.items()]
        return search_at(
            self._request, find_least_rates([(self._own, share), *counted]), finder.shape
        )

    def _find_optimum(self, finder: Rounding, between_cpus: int) -> Fraction:
        rates, key = self._counted[between_cpus], (finder.shape, between_cpus)
        if rates == self._own:
            return Fraction(finder.optimum)
        if key not in self._optima:
            same = next((f for f in BETWEEN_CPUS if self._counted[f] == rates), between_cpus)
            if same != between_cpus:
                return self._find_optimum(finder, same)
            searched = search_at(self._request, rates, finder.shape)
            self._optima[key] = Fraction(searched.optimum)
        return self._optima[key]


def _find_target(request: Request, shape: str, library: NcclHost, between_cpus: int) -> Fraction:
    """Return what the rings or chains of a collective must reach for the file to be safe."""
    target = library.rate_stock(RING, between_cpus)
    if shape == CHAIN:
        target = max(target, library.rate_stock(CHAIN, between_cpus))
        target *= WORTH_WRITING if between_cpus == 1 else 1
    return target * (1 if request.collective.name == "allreduce" else 2)
