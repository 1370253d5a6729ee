"""What flows between GPUs tell of links: how much each carried, which one limited whom, and what no link explains.

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

NEAR = Fraction(9, 10)
"""Measured values that differ by less than this are the same."""
STRANGE = Fraction(3, 4)
"""A flow whose links all carry that much less than at other times is reported; between this and NEAR it may be noise."""

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
    """What was measured: `experiments`, and half the round trip of a small message (`latency_us`).

    `medium` names the transport. `trusted` says on which links the data really was: `all`, `network` (links of that kind
    alone) or `none`; where it was not, `otherwise` is the reason. `pairs` is kept in the topology's JSON as it is, `notes`
    among its notes.
    """

    experiments: tuple[Experiment, ...]
    latency_us: Mapping[Pair, Fraction] = field(default_factory=dict)
    medium: str = "gloo"
    trusted: str = "all"
    otherwise: str = ""
    pairs: Mapping[Pair, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Seen:
    """Of one hop: the most that it carried in an experiment, and of which sort that was.

    `proofs` are the loads of experiments in which it alone can have limited `proved_by`: its rate, up to what measuring
    disturbs. `blamed` tells, for a hop that is believed slow without proof, which flow that explains and which others might.
    """

    most_GBps: Fraction
    how: str
    proofs: list[Fraction] = field(default_factory=list)
    proved_by: str | None = None
    blamed: str | None = None

    @property
    def GBps(self) -> Fraction:
        """The measured value: the median of the proofs, else the most that was carried, which is a lower bound."""
        return median_low(self.proofs) if self.proofs else self.most_GBps


@dataclass(frozen=True)
class Evidence:
    """By hop (src, dst), and flows that were slower than all links of their route allow, as texts."""

    hops: Mapping[Hop, Seen]
    strange: tuple[str, ...]


def declared_GBps(link: Link) -> Fraction:
    """The declared rate of a link, also of one whose measured rate is believed."""
    told = link.extra.get("declared")
    return parse_fraction(told["GBps"]) if isinstance(told, Mapping) and "GBps" in told else link.bandwidth_GBps


def weigh(topology: Topology, measurements: Measurements) -> Evidence:
    """Rules 1, 2 and 5 of believe.py: what the experiments say of hops, against the declared rates."""
    return _Search(topology, measurements).evidence()


class _Search:
    """One run of `weigh`."""

    def __init__(self, topology: Topology, measurements: Measurements) -> None:
        self.topology = topology
        router = Router(topology)
        self.declared: dict[Hop, Fraction] = defaultdict(Fraction)
        for link in topology.links:
            self.declared[link.src, link.dst] += declared_GBps(link)
        pairs = {pair for e in measurements.experiments for pair in e.rates_GBps}
        found = {pair: router.route(*pair) for pair in sorted(pairs)}
        self.routes = {pair: route_links(route) for pair, route in found.items() if route is not None}
        self.experiments = measurements.experiments
        self.loads = [self._loads(e) for e in self.experiments]
        self.hops: dict[Hop, Seen] = {}
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            for hop, load in loads.items():
                if hop not in self.hops or load > self.hops[hop].most_GBps:
                    self.hops[hop] = Seen(load, experiment.how)

    def _loads(self, experiment: Experiment) -> dict[Hop, Fraction]:
        loads: dict[Hop, Fraction] = defaultdict(Fraction)
        for pair, rate in experiment.rates_GBps.items():
            for hop in self.routes.get(pair, ()):
                loads[hop] += rate
        return loads

    def evidence(self) -> Evidence:
        """All of it."""
        open_cases: list[tuple[list[Hop], str]] = []
        strange: list[str] = []
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            lost = []
            for pair in experiment.rates_GBps:
                if pair not in self.routes:
                    continue
                suspects = [hop for hop in self.routes[pair] if loads[hop] >= NEAR * self.hops[hop].most_GBps]
                told = f"{self._name(pair)} ({experiment.how})"
                if len(suspects) == 1:
                    self._prove(self.hops[suspects[0]], loads[suspects[0]], experiment.how, told)
                elif suspects:
                    open_cases.append((suspects, told))
                else:
                    lost.append(pair)
            strange += self._strange(experiment, loads, lost)
        for suspects, told in sorted(open_cases, key=lambda case: len(case[0])):
            if not any(self._explains(hop) for hop in suspects):
                self._blame(suspects, told)
        return Evidence(self.hops, tuple(strange))

    def _prove(self, seen: Seen, load: Fraction, how: str, told: str) -> None:
        seen.proofs.append(load)
        if seen.proved_by is None:
            seen.proved_by, seen.how = told, how

    def _explains(self, hop: Hop) -> bool:
        """Whether the hop, as it is believed, carries no more than it was seen to carry."""
        seen = self.hops[hop]
        known_slow = seen.proved_by is not None or seen.blamed is not None
        return known_slow or seen.most_GBps >= NEAR * self.declared[hop]

    def _blame(self, suspects: list[Hop], told: str) -> None:
        used = {hop: self.hops[hop].most_GBps / self.declared[hop] for hop in suspects}
        most = max(used.values())
        blamed = [hop for hop in suspects if used[hop] >= NEAR * most]
        for hop in blamed:
            others = ", ".join(f"{a} -> {b}" for a, b in suspects if (a, b) != hop)
            alike = "nothing tells them apart" if len(blamed) > 1 else "as declared this one is the narrowest"
            self.hops[hop].blamed = f"this link or {others} limited {told}; {alike}"

    def _strange(self, experiment: Experiment, loads: Mapping[Hop, Fraction], lost: list[Pair]) -> list[str]:
        share = {pair: max(loads[h] / self.hops[h].most_GBps for h in self.routes[pair]) for pair in lost}
        worst = min(lost, key=lambda pair: share[pair], default=None)
        if worst is None or share[worst] >= STRANGE:
            return []
        among = f", one of {len(experiment.rates_GBps)} flows" if len(experiment.rates_GBps) > 1 else ""
        return [
            f"{self._name(worst)} ({experiment.how}{among}): every link on its way carried at most "
            f"{float(share[worst]):.0%} of what it carries at other times; the hosts limit it, or something that the topology "
            "does not show"
        ]

    def _name(self, pair: Pair) -> str:
        src, dst = (self.topology.ranks[rank] for rank in pair)
        return f"{src} -> {dst}"
