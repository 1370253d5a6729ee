"""Compare rings and chains with stock RCCL's, in RCCL's own graph of a host.

Stock RCCL is RCCL without a graph file. If its table of machines (rome_models.cc) may decide, which
rings and trees it uses is not known. Channels that are proved to be as good as any cannot be slower
all the same: rings as any rings, chains as any chains, or as any trees if the table may have trees
that branch. All comparisons are made with links between CPUs at one, two and four times RCCL's
constants.

Algbw is the bytes of the buffer over the time of a call.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from ...bounds.single_path import find_bounds
from ...channels.channels import CHAIN, RING, Channels
from ...channels.columns import pack_orders
from ...ir.collective import Collective
from ...request import Request
from ..stock.model import make_graph
from ..stock.rccl import RcclHost
from .guard import BETWEEN_CPUS, WORTH_WRITING, count_link_rates
from .robust import LinkRates, rebuild_request

# Share of a bound from which it counts as reached: bounds are computed in floating point.
PROVED = 1 - Fraction(1, 10**7)
# Share of their bound that chains must reach at least where the file's rings are above that bound:
# RCCL then takes rings for all but small calls.
CHAIN_SHARE = Fraction(95, 100)
# Work of each bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 4.0, 0.2

Key = tuple[str, int]


@dataclass(frozen=True)
class RcclComparison:
    """The algbw of a file's channels and of stock's, for an allreduce in GB/s.

    `rates` are the file's, by (shape, factor on links between CPUs), where a shape is "ring" or
    "chain". `others` are those of stock if `is_known`, else upper bounds of them; 0 where nothing
    is known. `rings_only` is whether the collective runs on rings alone.
    """

    host: RcclHost = field(repr=False)
    rates: dict[Key, Fraction]
    others: dict[Key, Fraction] = field(repr=False)
    is_known: bool
    rings_only: bool

    @property
    def least(self) -> Fraction:
        """The smallest ratio of any shape, at any rates, to stock's rate or, if that is not known,
        to its upper bound; 0 if nothing is known.
        """
        ratios = (
            rate / self.others[key] if self.others[key] else Fraction(0)
            for key, rate in self.rates.items()
        )
        return min(ratios)

    @property
    def picked_GBps(self) -> Fraction:
        """The algbw, as for an allreduce, of the file's shape that RCCL picks, in GB/s."""
        return self._pick(self.rates, 1)

    def find_ratio(self, between_cpus: int) -> Fraction:
        """Return the ratio of the picked shape's rate to stock's, which must be known.

        Links between CPUs have `between_cpus` times their rates.
        """
        return self._pick(self.rates, between_cpus) / self._pick(self.others, between_cpus)

    def _pick(self, rates: dict[Key, Fraction], between_cpus: int) -> Fraction:
        # RCCL's tuner sees the rates of its own graph, with its constants.
        shapes = {shape: rate for (shape, factor), rate in rates.items() if factor == 1}
        picked = RING if self.rings_only else self.host.pick_large(shapes)
        return rates[picked, between_cpus]

    def _is_proved(self, key: Key) -> bool:
        """Return whether stock's rings, or chains, cannot be faster at a multiple between CPUs."""
        other, rings = self.others[key], self.rates.get((RING, key[1]), Fraction(0))
        has_slack = key[0] == CHAIN and rings >= other * PROVED
        return other > 0 and self.rates[key] >= other * (CHAIN_SHARE if has_slack else PROVED)

    @property
    def is_safe(self) -> bool:
        """Whether no shape can be slower than stock's; if stock is known, the gain must be 1 %."""
        if not self.is_known:
            return all(map(self._is_proved, self.rates))
        ratios = [self.find_ratio(factor) for factor in BETWEEN_CPUS]
        return min(self.least, *ratios) >= 1 and ratios[0] >= WORTH_WRITING


class RcclGuard:
    """A model of stock RCCL on a host, against which channels are compared.

    `request` has the collective and the machine, `host` is the model. `pairs` are the ordered pairs
    of ranks that channels may send between. `is_known` is whether stock's channels are known;
    `rates` are the rates of links by RCCL's constants, by the factor on those between CPUs.
    """

    def __init__(
        self, request: Request, host: RcclHost, pairs: Collection[tuple[int, int]]
    ) -> None:
        self.host, self._request = host, request
        self.is_known = host.stock is not None
        self.rates = {factor: count_link_rates(host, pairs, factor) for factor in BETWEEN_CPUS}
        self._others: dict[Key, Fraction] = {}

    def compare(self, given: dict[str, Channels]) -> RcclComparison:
        """Compare the `given` rings and chains, by shape, with stock's."""
        keys = [(shape, factor) for shape in given for factor in BETWEEN_CPUS]
        graphs = {shape: make_graph(self.host.gpus, each) for shape, each in given.items()}
        return RcclComparison(
            self.host,
            {key: self.host.rate(graphs[key[0]], key[1]) for key in keys},
            {key: self.find_other(*key) for key in keys},
            self.is_known,
            self._request.collective.name != "allreduce",
        )

    def find_other(self, shape: str, between_cpus: int) -> Fraction:
        """Return the algbw of stock's rings or chains, or an upper bound of it, in GB/s.

        It is that of an allreduce; 0 if nothing is proved. Links between CPUs have `between_cpus`
        times their rates.
        """
        if self.is_known:
            return self.host.rate_stock(shape, between_cpus)
        key = shape, between_cpus
        if key not in self._others:
            rates = self.rates[between_cpus]
            same = next(f for f in BETWEEN_CPUS if self.rates[f] == rates)
            if same != between_cpus:
                self._others[key] = self.find_other(shape, same)
            else:
                is_provable, may_branch = self.host.is_provable, self.host.may_branch
                self._others[key] = (
                    self._bound(shape, rates, may_branch) if is_provable else Fraction(0)
                )
        return self._others[key]

    def find_allreduce(self, between_cpus: int) -> Fraction:
        """Return the algbw in GB/s of stock's allreduce, or an upper bound on any if it is unknown.

        Stock's is that of the faster of its rings and chains. Links between CPUs have
        `between_cpus` times their rates.
        """
        if self.is_known:
            return max(self.find_other(shape, between_cpus) for shape in (RING, CHAIN))
        return self._bound(CHAIN, self.rates[between_cpus], may_branch=True)

    def find_optimum(self, shape: str, between_cpus: int) -> Fraction:
        """Return the highest possible algbw in GB/s of an allreduce over rings or chains (`shape`).

        0 if no optimum is proved. Links between CPUs have `between_cpus` times their rates.
        """
        return self._bound(shape, self.rates[between_cpus], may_branch=False)

    def _bound(self, shape: str, rates: LinkRates, may_branch: bool) -> Fraction:
        reducing = Collective("allreduce", self._request.collective.ranks)
        request = rebuild_request(self._request.of(reducing), rates)
        request.effort = effort = self._request.effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
        if shape == CHAIN and may_branch:
            return find_bounds(reducing, request.router, effort).single_path.algbw_GBps
        packed = pack_orders(request, [shape])
        return Fraction(packed.algbw_GBps) if packed.proved else Fraction(0)
