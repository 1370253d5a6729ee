"""Measure the links between the ranks of a job, and find those that have become slower.

A measurement is made of experiments: flows between pairs of ranks that fill links. Since the rate
of a flow depends on the hosts, too, it is only compared with an earlier measurement of the same
kind.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ....topo.extras.measured.flows import Hop, Pair
from ....topo.graph import Topology
from ....topo.routes import Router, route_links
from ...ranks.transport import Transport
from ..measuring.rates import CHUNKS, Endpoint, MessageLimits, estimate_rates_GBps

# A flow takes this long on a link in order: rates of shorter ones vary by .1 on two busy cores.
# Its bytes are limited, since both ends need memory for them.
_FLOW_S, _MAX_BYTES = 0.2, 16 << 20
# Chunks begin at this size, and grow by at most this factor until a flow takes long enough: the
# first ones may take no time, since a link lets bytes through at once after a pause.
_FIRST_CHUNK_BYTES, _MAX_GROWTH = 4 << 10, 4
# The median of so many repetitions counts.
REPEATS = 3
# Experiments that fill each link, if there are as many: one could be slow for another reason.
_COVERAGE = 2
# A link is filled by flows that together could use this fraction of its rate.
_FILLED = 0.9
# A link is slow below this fraction of its earlier rate: measurements vary by a tenth.
_SLOW = 0.85
# So many experiments fill a link that the best one need not be believed.
_MANY = 4
# Believed fractions are multiples of _STEP, so that equally slow links stay equal for the planner.
# A remainder below _UP of a step is dropped: a plan that sends too much over a slow link waits for
# it, one that sends too little loses a part of that.
_STEP, _UP = Fraction(1, 20), Fraction(3, 5)
# The tag of the flows, which no plan uses.
_TAG = 3


@dataclass(frozen=True)
class FlowTest:
    """An experiment: flows between `pairs` of ranks at once.

    `crossed` are the links on their routes, `filled` those that they use at full rate. Links are
    (from device id, to device id).
    """

    pairs: tuple[Pair, ...]
    crossed: frozenset[Hop]
    filled: frozenset[Hop]


def list_experiments(
    router: Router,
    unconnected: Collection[Pair] = frozenset(),
    labels: Sequence[int] | None = None,
) -> list[FlowTest]:
    """Return experiments that fill each link which flows between ranks can fill, mostly two each.

    A link faster than any pair's route is filled by several pairs. No flow is between ranks that
    are `unconnected`; these pairs have the smaller number first. `labels` are the ranks' numbers in
    the topology (default: all of them).
    """
    topology = router.topology
    labels = range(len(topology.ranks)) if labels is None else labels
    ranks = range(len(labels))
    routes = {
        (a, b): route_links(route)
        for a in ranks
        for b in ranks
        if a != b and (min(a, b), max(a, b)) not in unconnected
        if (route := router.route(labels[a], labels[b])) is not None
    }
    width = topology.capacity_GBps
    rate = {pair: min(width[link] for link in links) for pair, links in routes.items()}

    def describe(pairs: Collection[Pair]) -> FlowTest:
        load: dict[Hop, Fraction] = defaultdict(Fraction)
        for pair in pairs:
            for link in routes[pair]:
                load[link] += rate[pair]
        filled = (link for link, sum_GBps in load.items() if sum_GBps >= _FILLED * width[link])
        return FlowTest(tuple(pairs), frozenset(load), frozenset(filled))

    chosen: list[FlowTest] = []
    coverage: dict[Hop, int] = defaultdict(int)
    # Short routes show best which link is slow; pairs of all distances, so that many run at once.
    for pair in sorted(routes, key=lambda p: (len(routes[p]), (p[1] - p[0]) % len(ranks), p)):
        alone = describe([pair])
        if any(coverage[link] < _COVERAGE for link in alone.filled):
            chosen.append(alone)
            for link in alone.filled:
                coverage[link] += 1
    crossing: dict[Hop, list[Pair]] = defaultdict(list)
    for pair, links in sorted(routes.items()):
        for link in links:
            if not coverage[link]:
                crossing[link].append(pair)
    groups = {pairs for each in crossing.values() if len(pairs := _choose_at_once(each)) > 1}
    together = (describe(pairs) for pairs in sorted(groups))
    return chosen + [x for x in together if any(not coverage[link] for link in x.filled)]


def _choose_at_once(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return pairs in which each rank sends at most once and receives at most once."""
    senders: set[int] = set()
    receivers: set[int] = set()
    chosen = []
    for a, b in pairs:
        if a not in senders and b not in receivers:
            chosen.append((a, b))
            senders.add(a)
            receivers.add(b)
    return tuple(chosen)


def group_experiments(experiments: Sequence[FlowTest], topology: Topology) -> list[list[FlowTest]]:
    """Divide experiments into groups that can run at once: no rank, link or CPU in common.

    Ranks may send and receive at once, and links carry data in both directions.
    """
    groups: list[tuple[list[FlowTest], set[object]]] = []
    for x in experiments:
        ends = {(kind, rank) for pair in x.pairs for kind, rank in zip("sr", pair, strict=True)}
        devices = {device for link in x.crossed for device in link}
        cpus = {device for device in devices if topology.by_id[device].kind == "cpu"}
        needed = {*ends, *x.crossed, *cpus}
        group = next((each for each in groups if not needed & each[1]), None)
        if group is None:
            groups.append(([x], {*needed}))
        else:
            group[0].append(x)
            group[1].update(needed)
    return [chosen for chosen, _ in groups]


def find_slow_links(
    experiments: Sequence[FlowTest], ratios: Sequence[float]
) -> dict[Hop, Fraction]:
    """Return the links that are slow now, each with its rate as a fraction of the earlier one.

    `ratios` has the rate of each experiment now over its earlier one. A link is judged by the
    fastest of the experiments that fill it (with four or more by the second fastest, as one may
    have been disturbed earlier). If an experiment is slow and no such link explains it, those links
    are blamed that it crosses and no experiment fills.
    """
    fair = dict(zip(experiments, (min(1.0, ratio) for ratio in ratios), strict=True))
    links = {link for x in experiments for link in x.crossed}
    factors = dict.fromkeys(links, 1.0)
    filled = {link for x in experiments for link in x.filled}
    for link in filled:
        best = sorted((fair[x] for x in experiments if link in x.filled), reverse=True)
        factors[link] = best[1] if len(best) >= _MANY else best[0]
    for x in experiments:
        if fair[x] < _SLOW and min(factors[link] for link in x.crossed) >= _SLOW:
            for link in x.crossed - filled:
                factors[link] = max(fair[other] for other in experiments if link in other.crossed)
    return {
        link: max(_STEP, floor(Fraction(factor) / _STEP + 1 - _UP) * _STEP)
        for link, factor in factors.items()
        if factor < _SLOW
    }


class Probe:
    """Measures a transport's links over gloo, and compares with the first measurement.

    Making it is collective, and makes that measurement. `router` has the routes between the ranks.
    """

    def __init__(self, transport: Transport, router: Router) -> None:
        self.transport, self.topology = transport, router.topology
        labels = transport.control.labels
        self.experiments = list_experiments(router, transport.unconnected, labels)
        self._chunk_bytes: dict[FlowTest, int] = {}
        self._at_first = self._measure(self.experiments)

    def measure(
        self, links: Collection[Hop] | None = None, repeats: int = REPEATS
    ) -> dict[Hop, Fraction]:
        """Return which of `links` (None: all) are slow now, with the fraction left of the rate.

        Flows over `links` are measured `repeats` times. If `links` is None, flows over all links
        are measured once, and those over links that seem slow `repeats` times more. Collective; all
        ranks get the same result.
        """
        best, chosen = 1.0, self.experiments
        if links is None:
            ratios = self._find_ratios(chosen, 1)
            # What slows all experiments down is no link.
            best = min(1.0, max(ratios, default=1.0))
            links = find_slow_links(chosen, [x / best for x in ratios]).keys()
        # Of links that nothing fills only all experiments together can tell.
        if {link for x in chosen for link in x.filled}.issuperset(links):
            chosen = [x for x in chosen if not x.filled.isdisjoint(links)]
        slow = find_slow_links(chosen, [x / best for x in self._find_ratios(chosen, repeats)])
        return {link: slow[link] for link in slow if link in links}

    def _find_ratios(self, experiments: Sequence[FlowTest], repeats: int) -> list[float]:
        """Return each experiment's rate now over its rate at first."""
        rates = self._measure(experiments, repeats).items()
        return [rate / self._at_first[x] for x, rate in rates]

    def _measure(
        self, experiments: Sequence[FlowTest], repeats: int = REPEATS
    ) -> dict[FlowTest, float]:
        """Return each experiment's rate in GB/s, the same on all ranks."""
        transport, me = self.transport, self.transport.rank
        limits = MessageLimits(_FLOW_S, _MAX_BYTES)
        endpoint = _GroupEndpoint(transport.group, transport.device, limits)
        pairs = [pair for x in experiments for pair in x.pairs]
        own: list[dict[Pair, float]] = [{} for _ in range(repeats)]
        for group in group_experiments(experiments, self.topology):
            chunk_bytes = self._choose_chunk_bytes(endpoint, group)
            flows = [(pair, chunk_bytes) for x in group for pair in x.pairs]
            for rates in own:
                transport.meet()
                arrivals = endpoint.run_flows(me, flows)
                if arrivals is not None:
                    rates[arrivals.pair] = float(estimate_rates_GBps([arrivals])[arrivals.pair])
        every = transport.find_slowest_s(
            [rates.get(pair, 0.0) if pair[1] == me else 0.0 for rates in own for pair in pairs]
        )
        rate = {
            pair: statistics.median(every[number :: len(pairs)])
            for number, pair in enumerate(pairs)
        }
        return {x: sum(rate[pair] for pair in x.pairs) for x in experiments}

    def _choose_chunk_bytes(self, endpoint: Endpoint, group: Sequence[FlowTest]) -> int:
        """Return the bytes of a chunk with which the flows of a group take long enough."""
        known = [self._chunk_bytes[x] for x in group if x in self._chunk_bytes]
        if len(known) == len(group):
            return max(known)
        transport, chunk_bytes = self.transport, _FIRST_CHUNK_BYTES
        while True:
            transport.meet()
            flows = [(pair, chunk_bytes) for x in group for pair in x.pairs]
            arrivals = endpoint.run_flows(transport.rank, flows)
            took_s = 0.0 if arrivals is None else arrivals.seconds[-1]
            (slowest_s,) = transport.find_slowest_s([took_s])
            if slowest_s >= _FLOW_S or chunk_bytes * CHUNKS >= _MAX_BYTES:
                break
            growth = min(_MAX_GROWTH, max(2, round(_FLOW_S / max(slowest_s, 1e-9))))
            chunk_bytes = min(chunk_bytes * growth, _MAX_BYTES // CHUNKS)
        self._chunk_bytes |= dict.fromkeys(group, chunk_bytes)
        return chunk_bytes


class _GroupEndpoint(Endpoint):
    """A rank's end of measurements over a group that torch's functions need not know."""

    def __init__(self, group: Any, device: torch.device, limits: MessageLimits) -> None:
        super().__init__(device, limits)
        self._backend = group._get_backend(device)

    def _out(self, data: torch.Tensor, peer: int) -> Any:
        return SimpleNamespace(op=dist.isend, tensor=data, peer=peer)

    def _in(self, data: torch.Tensor, peer: int) -> Any:
        return SimpleNamespace(op=dist.irecv, tensor=data, peer=peer)

    def _post(self, operations: Sequence[Any]) -> list[Any]:
        backend = self._backend
        return [
            (backend.recv if x.op is dist.irecv else backend.send)([x.tensor], x.peer, _TAG)
            for x in operations
        ]


def describe_factors(factors: Mapping[Hop, Fraction]) -> dict[str, float]:
    """Return the fraction of its rate that is left to each link, by its name "A - B".

    `factors` has the fractions by direction, as (from device id, to device id); of two directions
    of a link the smaller one counts.
    """
    shown: dict[str, float] = {}
    for (a, b), factor in sorted(factors.items()):
        name = " - ".join(sorted((a, b)))
        shown[name] = min(float(factor), shown.get(name, 1.0))
    return shown
