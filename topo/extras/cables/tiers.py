"""Infer the tiers of switches behind one network from flows that ran at the same time.

Two flows slow each other down if they leave one leaf switch for others, or come to one leaf from
others, over an uplink that is narrower than both together. The leaves are the division of the hosts
that explains most of what was measured. A trial is two flows at the same time; hosts are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from .facts import FabricFacts, Flow
from .segments import Segment

# Two flows together at less than this share of what each carries alone shared a link.
_SHARED = 0.8


@dataclass(frozen=True)
class Tiers:
    """The tiers of a switched network: its leaf switches and the rate of their uplinks.

    `leaves` are sets of host numbers. `uplink_GBps` is that of one leaf, in each direction; None
    without leaves.
    """

    leaves: tuple[frozenset[int], ...] = ()
    uplink_GBps: float | None = None


@dataclass(frozen=True)
class _Trial:
    """Two flows at the same time: their hosts, and the rate of both together over that alone."""

    sources: tuple[int, int]
    targets: tuple[int, int]
    share: float
    total_GBps: float


def list_trials(hosts: Sequence[int], limit: int) -> list[tuple[tuple[int, int], ...]]:
    """Return trials: pairs of flows (source host, target host) among four of `hosts`.

    They are to be run and measured by the hosts, one trial after the other. There are at most
    `limit`, spread over all `hosts`.
    """
    trials: list[tuple[tuple[int, int], ...]] = []
    for four in combinations(hosts, 4):
        a, b, c, d = four
        trials += [((a, c), (b, d)), ((a, b), (c, d)), ((a, b), (d, c))]
    step = max(1, -(-len(trials) // limit))
    return trials[::step]


def find_tiers(facts: FabricFacts, segment: Segment) -> Tiers:
    """Return the leaves of a switched network; none if no two flows slowed each other down.

    `segment` is the network, with its ports; the flows of trials are in `facts.rounds`.
    """
    port_of = dict(segment.ports)
    trials = [
        trial
        for flows in facts.rounds
        if len(flows) == 2
        and all(
            port_of.get(x.host) == x.port and port_of.get(x.to_host) == x.to_port for x in flows
        )
        and (trial := _read_trial(facts, flows)) is not None
    ]
    leaves = {host: host for host in segment.hosts}
    missed = _count_missed(trials, leaves)
    while True:  # merging what explains as much: a single host is seldom a leaf
        merged = [
            {host: (a if leaf == b else leaf) for host, leaf in leaves.items()}
            for a, b in combinations(sorted(set(leaves.values())), 2)
        ]
        best = min(merged, key=lambda x: _count_missed(trials, x), default=leaves)
        if not merged or _count_missed(trials, best) > missed:
            break
        leaves, missed = best, _count_missed(trials, best)
    groups = [
        frozenset(host for host, of in leaves.items() if of == leaf)
        for leaf in sorted(set(leaves.values()))
    ]
    shared = [x.total_GBps for x in trials if x.share < _SHARED and _is_shared(x, leaves)]
    if len(groups) == len(leaves) or len(groups) == 1 or not shared:
        return Tiers()
    return Tiers(tuple(groups), median(shared))


def _read_trial(facts: FabricFacts, flows: Sequence[Flow]) -> _Trial | None:
    alone = [_find_alone(facts, x) or x.GBps for x in flows]
    hosts = [flows[0].host, flows[1].host, flows[0].to_host, flows[1].to_host]
    if len(set(hosts)) < 4 or not sum(alone):
        return None
    total = sum(x.GBps for x in flows)
    return _Trial((hosts[0], hosts[1]), (hosts[2], hosts[3]), total / sum(alone), total)


def _find_alone(facts: FabricFacts, flow: Flow) -> float:
    """Return what the two ports of a flow can carry: the most that each sent or received alone."""
    single = [flows[0] for flows in facts.rounds if len(flows) == 1]
    out = [x.GBps for x in single if (x.host, x.port) == (flow.host, flow.port)]
    into = [x.GBps for x in single if (x.to_host, x.to_port) == (flow.to_host, flow.to_port)]
    return min(max(out, default=0.0), max(into, default=0.0))


def _is_shared(trial: _Trial, leaves: Mapping[int, int]) -> bool:
    """Return whether two flows would share an uplink if hosts had these leaves."""
    a, b = (leaves[host] for host in trial.sources)
    c, d = (leaves[host] for host in trial.targets)
    return (a == b and a not in (c, d)) or (c == d and c not in (a, b))


def _count_missed(trials: Sequence[_Trial], leaves: Mapping[int, int]) -> int:
    return sum((x.share < _SHARED) != _is_shared(x, leaves) for x in trials)
