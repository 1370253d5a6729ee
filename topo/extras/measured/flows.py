"""Infer from measured flows the load of each link, and the link that limited each flow.

A flow is data that one rank sends to another; a hop is all links from one device to the next. The
rules are in believe.py, whose `believe` decides by them between declared and measured rates.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median_low
from typing import Any

from ...devices import Link
from ...exact import parse_fraction
from ...graph import Topology
from ...routes import Router, route_links

# Measured values within this ratio count as equal; chosen, not measured.
NEAR = Fraction(9, 10)
# A flow is reported if its links carry less than this share of what they carry at other times;
# above that it may be noise.
UNEXPLAINED = Fraction(3, 4)

Pair = tuple[int, int]
Hop = tuple[str, str]


@dataclass(frozen=True)
class Experiment:
    """Simultaneous flows, with the GB/s of each, keyed (sending rank, receiving rank).

    `how` is `alone` (one flow), `both` (two ranks, both directions), `together` (many flows),
    `fan-out` (flows out of one rank) or `fan-in` (flows into one rank).
    """

    how: str
    rates_GBps: Mapping[Pair, Fraction]


@dataclass(frozen=True)
class Measurements:
    """Everything that one run measured between the GPUs of a topology, for `believe`.

    `latency_us` is half the round trip of a small message, keyed (sending rank, receiving rank).
    `medium` is the transport, or the tool, that measured. `trusted` states which links the data
    really crossed: `all`, `network` (only links of that kind) or `none`; `otherwise` is the reason
    if not `all`. `pairs`, with the same keys, has JSON values to store in the topology unchanged;
    `notes` is added to its notes. `noise` is the share by which a rate may exceed what a link
    carries: fits of times to sizes are disturbed either way, while bytes over the time that they
    took are what really crossed the links. `fans` are flows out of one GPU, or into one, at once,
    which the GPU itself may limit: no link is judged by them.
    """

    experiments: tuple[Experiment, ...]
    latency_us: Mapping[Pair, Fraction] = field(default_factory=dict)
    medium: str = "gloo"
    trusted: str = "all"
    otherwise: str = ""
    pairs: Mapping[Pair, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    noise: Fraction = Fraction(1, 20)
    fans: tuple[Experiment, ...] = ()

    def list_at_once(self) -> list[dict[str, Any]]:
        """Return JSON values of what flows got at once, beside what the fastest of them got alone.

        Each has the `flows` ("0>2", by ranks), their `kind`, which is the experiment's `how`,
        `together_GBps`, the sum, and `alone_GBps`. They become `extra["measured"]["at_once"]`.
        Experiments with flows that were not measured alone are left out.
        """
        alone = {
            pair: rate
            for experiment in self.experiments
            if experiment.how == "alone"
            for pair, rate in experiment.rates_GBps.items()
        }
        at_once = [x for x in (*self.experiments, *self.fans) if len(x.rates_GBps) > 1]
        return [
            {
                "flows": [f"{a}>{b}" for a, b in x.rates_GBps],
                "kind": x.how,
                "together_GBps": float(f"{float(sum(x.rates_GBps.values())):.4g}"),
                "alone_GBps": float(f"{float(max(alone[pair] for pair in x.rates_GBps)):.4g}"),
            }
            for x in at_once
            if x.rates_GBps.keys() <= alone.keys()
        ]


@dataclass
class HopEvidence:
    """The evidence on one hop: all links from one device to the next, in one direction.

    `max_GBps` is the highest load, the sum of flows that crossed it at once, and `how` the kind of
    experiment with it, or with the first proof. `proofs` are its loads in GB/s in experiments in
    which only this hop can have limited a flow: they equal its rate, up to measurement noise.
    `proved_by` describes the first such flow, None if there is none. `blamed` explains, for a hop
    believed slow without proof, which flow it limited and which other hops might have; else None.
    """

    max_GBps: Fraction
    how: str
    proofs: list[Fraction] = field(default_factory=list)
    proved_by: str | None = None
    blamed: str | None = None

    @property
    def GBps(self) -> Fraction:
        """The measured rate in GB/s.

        It is the median of the proofs, else the highest load, which is a lower bound.
        """
        return median_low(self.proofs) if self.proofs else self.max_GBps


@dataclass(frozen=True)
class Evidence:
    """What experiments show of all hops, and of the flows that they cannot explain.

    `hops` are by (from device id, to device id); those that no flow crossed are missing.
    `unexplained` has a text for each experiment in which no link of a flow's route explains its
    rate, on the flow that is explained least.
    """

    hops: Mapping[Hop, HopEvidence]
    unexplained: tuple[str, ...]


def get_declared_GBps(link: Link) -> Fraction:
    """Return the declared rate of a link in GB/s, even if a measured one has replaced it."""
    declared = link.extra.get("declared")
    return (
        parse_fraction(declared["GBps"])
        if isinstance(declared, Mapping) and "GBps" in declared
        else link.bandwidth_GBps
    )


def find_evidence(topology: Topology, measurements: Measurements) -> Evidence:
    """Return the highest load of each hop in the measurements, and which hop limited which flow.

    A flow's data takes the declared route of its pair. These are rules 1, 2 and 5 of believe.py.
    """
    return _EvidenceSearch(topology, measurements).collect()


class _EvidenceSearch:
    def __init__(self, topology: Topology, measurements: Measurements) -> None:
        self.topology = topology
        router = Router(topology)
        self.declared: dict[Hop, Fraction] = defaultdict(Fraction)
        for link in topology.links:
            self.declared[link.src, link.dst] += get_declared_GBps(link)
        self.routes = {
            pair: route_links(route)
            for pair in sorted({pair for e in measurements.experiments for pair in e.rates_GBps})
            if (route := router.route(*pair)) is not None
        }
        self.experiments = measurements.experiments
        self.loads = [self._sum_loads(e) for e in self.experiments]
        self.hops: dict[Hop, HopEvidence] = {}
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            for hop, load in loads.items():
                if hop not in self.hops or load > self.hops[hop].max_GBps:
                    self.hops[hop] = HopEvidence(load, experiment.how)

    def _sum_loads(self, experiment: Experiment) -> dict[Hop, Fraction]:
        loads: dict[Hop, Fraction] = defaultdict(Fraction)
        for pair, rate in experiment.rates_GBps.items():
            for hop in self.routes.get(pair, ()):
                loads[hop] += rate
        return loads

    def collect(self) -> Evidence:
        """Return the evidence on all hops, and the flows that no link explains."""
        open_cases: list[tuple[list[Hop], str]] = []
        texts: list[str] = []
        for experiment, loads in zip(self.experiments, self.loads, strict=True):
            unexplained = []
            for pair in (pair for pair in experiment.rates_GBps if pair in self.routes):
                # Only a hop near its highest load can have limited the flow.
                suspects = [
                    hop for hop in self.routes[pair] if loads[hop] >= NEAR * self.hops[hop].max_GBps
                ]
                flow = f"{self._format_pair(pair)} ({experiment.how})"
                if len(suspects) == 1:
                    evidence = self.hops[suspects[0]]
                    evidence.proofs.append(loads[suspects[0]])
                    if evidence.proved_by is None:
                        evidence.proved_by, evidence.how = flow, experiment.how
                elif suspects:
                    open_cases.append((suspects, flow))
                else:
                    unexplained.append(pair)
            texts += self._describe_worst(experiment, loads, unexplained)
        # Clear cases first: a flow that an already slow link explains blames no other.
        for suspects, flow in sorted(open_cases, key=lambda case: len(case[0])):
            if not any(self._explains(hop) for hop in suspects):
                self._blame(suspects, flow)
        return Evidence(self.hops, tuple(texts))

    def _explains(self, hop: Hop) -> bool:
        """Return whether the believed rate of a hop is no more than its highest load."""
        evidence = self.hops[hop]
        return (
            evidence.proved_by is not None
            or evidence.blamed is not None
            or evidence.max_GBps >= NEAR * self.declared[hop]
        )

    def _blame(self, suspects: list[Hop], flow: str) -> None:
        used = {hop: self.hops[hop].max_GBps / self.declared[hop] for hop in suspects}
        blamed = [hop for hop in suspects if used[hop] >= NEAR * max(used.values())]
        for hop in blamed:
            others = ", ".join(f"{a} -> {b}" for a, b in suspects if (a, b) != hop)
            alike = (
                "nothing tells them apart"
                if len(blamed) > 1
                else "as declared this one is the narrowest"
            )
            self.hops[hop].blamed = f"this link or {others} limited {flow}; {alike}"

    def _describe_worst(
        self, experiment: Experiment, loads: Mapping[Hop, Fraction], unexplained: list[Pair]
    ) -> list[str]:
        """Describe the flow that its links explain least, if it differs by more than the noise."""
        shares = [
            max(loads[hop] / self.hops[hop].max_GBps for hop in self.routes[pair])
            for pair in unexplained
        ]
        share = min(shares, default=UNEXPLAINED)
        if share >= UNEXPLAINED:
            return []
        worst, flows = unexplained[shares.index(share)], len(experiment.rates_GBps)
        among = f", one of {flows} flows" if flows > 1 else ""
        return [
            f"{self._format_pair(worst)} ({experiment.how}{among}): every link on its route "
            f"carried at most {float(share):.0%} of what it carries at other times; the hosts "
            "limit it, or something that the topology does not show"
        ]

    def _format_pair(self, pair: Pair) -> str:
        src, dst = (self.topology.ranks[rank] for rank in pair)
        return f"{src} -> {dst}"
