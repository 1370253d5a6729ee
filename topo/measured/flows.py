"""Find what flows between GPUs tell of links: how much each carried, which one limited whom, and
what no link explains.

The rules are in believe.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median_low
from typing import Any

from ..devices import Link
from ..exact import parse_fraction
from ..graph import Topology
from ..routes import Router, route_links

# Measured values above this share of each other count as the same.
NEAR = Fraction(9, 10)
# A flow is reported if all its links carry less than this share of what they carry at other times;
# above it may be noise.
STRANGE = Fraction(3, 4)

Pair = tuple[int, int]
Hop = tuple[str, str]


@dataclass(frozen=True)
class Experiment:
    """Flows of one moment and the GB/s of each, by (sending rank, receiving rank).

    `how` is `alone`, `both` (two ranks, both directions) or `together`.
    """

    how: str
    rates_GBps: Mapping[Pair, Fraction]


@dataclass(frozen=True)
class Measurements:
    """All that was measured: `experiments`, and half the round trip of a small message
    (`latency_us`).

    `medium` names the transport. `trusted` says which links the data really crossed: `all`,
    `network` (links of that kind alone) or `none`; `otherwise` is the reason where it did not.
    `pairs` is kept in the topology's JSON as it is, `notes` among its notes.
    """

    experiments: tuple[Experiment, ...]
    latency_us: Mapping[Pair, Fraction] = field(default_factory=dict)
    medium: str = "gloo"
    trusted: str = "all"
    otherwise: str = ""
    pairs: Mapping[Pair, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class HopEvidence:
    """Evidence on one hop: the most that it carried in an experiment, and of which sort that
    experiment was.

    `proofs` are the loads of experiments in which it alone can have limited `proved_by`: its rate,
    up to what measuring disturbs. `blamed` tells, for a hop that is believed slow without proof,
    which flow that explains and which others might.
    """

    most_GBps: Fraction
    how: str
    proofs: list[Fraction] = field(default_factory=list)
    proved_by: str | None = None
    blamed: str | None = None

    @property
    def GBps(self) -> Fraction:
        """The measured value: the median of the proofs, else the most that was carried, which is a
        lower bound.
        """
        return median_low(self.proofs) if self.proofs else self.most_GBps


@dataclass(frozen=True)
class Evidence:
    """Evidence by hop (src, dst), and texts on flows that were slower than all links of their route
    allow.
    """

    hops: Mapping[Hop, HopEvidence]
    strange: tuple[str, ...]


def get_declared_GBps(link: Link) -> Fraction:
    """Return the declared rate of a link, also of one whose measured rate is believed."""
    declared = link.extra.get("declared")
    return (
        parse_fraction(declared["GBps"])
        if isinstance(declared, Mapping) and "GBps" in declared
        else link.bandwidth_GBps
    )


def find_evidence(topology: Topology, measurements: Measurements) -> Evidence:
    """Return what the experiments say of hops, against the declared rates: rules 1, 2 and 5 of
    believe.py.
    """
    return _EvidenceSearch(topology, measurements).collect()


class _EvidenceSearch:
    """One run of `find_evidence`."""

    def __init__(self, topology: Topology, measurements: Measurements) -> None:
        self.topology = topology
        router = Router(topology)
        self.declared: dict[Hop, Fraction] = defaultdict(Fraction)
        for link in topology.links:
            self.declared[link.src, link.dst] += get_declared_GBps(link)
        pairs = {pair for e in measurements.experiments for pair in e.rates_GBps}
        route_of = {pair: router.route(*pair) for pair in sorted(pairs)}
        self.routes = {
            pair: route_links(route) for pair, route in route_of.items() if route is not None
        }
        self.experiments = measurements.experiments
        self.loads = [self._sum_loads(e) for e in self.experiments]
        self.hops: dict[Hop, HopEvidence] = {}
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            for hop, load in loads.items():
                if hop not in self.hops or load > self.hops[hop].most_GBps:
                    self.hops[hop] = HopEvidence(load, experiment.how)

    def _sum_loads(self, experiment: Experiment) -> dict[Hop, Fraction]:
        """Return the GB/s that each hop carried in an experiment."""
        loads: dict[Hop, Fraction] = defaultdict(Fraction)
        for pair, rate in experiment.rates_GBps.items():
            for hop in self.routes.get(pair, ()):
                loads[hop] += rate
        return loads

    def collect(self) -> Evidence:
        """Return the evidence on all hops, and the flows that no link explains."""
        open_cases: list[tuple[list[Hop], str]] = []
        strange: list[str] = []
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            unexplained = []
            for pair in experiment.rates_GBps:
                if pair not in self.routes:
                    continue
                # only a hop that carried about its most can have limited the flow
                suspects = [
                    hop
                    for hop in self.routes[pair]
                    if loads[hop] >= NEAR * self.hops[hop].most_GBps
                ]
                flow = f"{self._format_pair(pair)} ({experiment.how})"
                if len(suspects) == 1:
                    self._prove(self.hops[suspects[0]], loads[suspects[0]], experiment.how, flow)
                elif suspects:
                    open_cases.append((suspects, flow))
                else:
                    unexplained.append(pair)
            strange += self._describe_strange(experiment, loads, unexplained)
        # clear cases first: a flow that an already slow link explains blames no other
        for suspects, flow in sorted(open_cases, key=lambda case: len(case[0])):
            if not any(self._explains(hop) for hop in suspects):
                self._blame(suspects, flow)
        return Evidence(self.hops, tuple(strange))

    def _prove(self, evidence: HopEvidence, load: Fraction, how: str, flow: str) -> None:
        """Record that a hop alone can have limited a flow."""
        evidence.proofs.append(load)
        if evidence.proved_by is None:
            evidence.proved_by, evidence.how = flow, how

    def _explains(self, hop: Hop) -> bool:
        """Return whether a hop, as it is believed, carries no more than it was seen to carry."""
        evidence = self.hops[hop]
        known_slow = evidence.proved_by is not None or evidence.blamed is not None
        return known_slow or evidence.most_GBps >= NEAR * self.declared[hop]

    def _blame(self, suspects: list[Hop], flow: str) -> None:
        """Blame those suspects that are nearest to their declared rates."""
        used = {hop: self.hops[hop].most_GBps / self.declared[hop] for hop in suspects}
        most = max(used.values())
        blamed = [hop for hop in suspects if used[hop] >= NEAR * most]
        for hop in blamed:
            others = ", ".join(f"{a} -> {b}" for a, b in suspects if (a, b) != hop)
            alike = (
                "nothing tells them apart"
                if len(blamed) > 1
                else "as declared this one is the narrowest"
            )
            self.hops[hop].blamed = f"this link or {others} limited {flow}; {alike}"

    def _describe_strange(
        self, experiment: Experiment, loads: Mapping[Hop, Fraction], unexplained: list[Pair]
    ) -> list[str]:
        """Return a text on the flow of an experiment that its links explain least, if that is far
        from the noise.
        """
        share = {
            pair: max(loads[h] / self.hops[h].most_GBps for h in self.routes[pair])
            for pair in unexplained
        }
        worst = min(unexplained, key=lambda pair: share[pair], default=None)
        if worst is None or share[worst] >= STRANGE:
            return []
        among = (
            f", one of {len(experiment.rates_GBps)} flows" if len(experiment.rates_GBps) > 1 else ""
        )
        return [
            f"{self._format_pair(worst)} ({experiment.how}{among}): every link on its way carried "
            "at most "
            f"{float(share[worst]):.0%} of what it carries at other times; the hosts limit it, or "
            "something that the topology "
            "does not show"
        ]

    def _format_pair(self, pair: Pair) -> str:
        """Return a pair of ranks as text."""
        src, dst = (self.topology.ranks[rank] for rank in pair)
        return f"{src} -> {dst}"
