"""Decide which flows to measure at once: on cables, on switches, and where links may be shared.

A bundle (SegmentBundle) is a cable or a switched network, with a segment for each subnet on it. A
trial is two flows among four hosts at once: if each slows the other down, they share a link.
"""

from collections.abc import Sequence

from ....topo.extras.cables import PortKey, SegmentBundle
from ....topo.extras.cables.tiers import list_trials

# A flow of one round: from a port to a port.
FlowKey = tuple[PortKey, PortKey]
# Flows and trials on one switched network, chosen: a fifth of a second each, within seconds.
_MAX_FLOWS, _MAX_TRIALS = 12, 9
# Measurements of a cable, of which the highest counts: a busy host only makes them slower.
_REPEATS = 2


def plan_rounds(bundles: Sequence[SegmentBundle]) -> list[list[FlowKey]]:
    """Return the rounds that measure cables and switched networks: lists of flows run at once.

    `bundles` are the cables and switched networks between hosts; a flow is (from port, to port).
    Cables are measured twice in each direction. No two cables of a round share a host, so that each
    runs as if alone. The rounds of switched networks follow.
    """
    rounds: list[list[FlowKey]] = []
    cables = [x for x in bundles if x.is_cable]
    for cable in cables:
        hosts = set(cable.hosts)
        for pair in (cable.hosts, cable.hosts[::-1]):
            fitting = (x for x in rounds if not any({a[0], b[0]} & hosts for a, b in x))
            free = next(fitting, None)
            if free is None:
                rounds.append(free := [])
            free += cable.list_flows(*pair)
    rounds *= _REPEATS
    for bundle in bundles:
        if not bundle.is_cable:
            rounds += _plan_switched(bundle)
    return rounds


def _plan_switched(bundle: SegmentBundle) -> list[list[FlowKey]]:
    """Return rounds in which each host sends once alone, and trials of two flows.

    Trials use one subnet, that of most hosts. Of several, all are measured at the same time, too.
    """
    ports = max(bundle.segments, key=lambda x: len(x.ports)).ports
    following = [*ports[1:], ports[0]]
    pairs = list(zip(ports, following, strict=True))[:_MAX_FLOWS]
    rounds: list[list[FlowKey]] = [[pair] for pair in pairs]
    if len(bundle.segments) > 1:
        rounds += [list(bundle.list_flows(a[0], b[0])) for a, b in pairs]
    port_of = dict(ports)
    trials = list_trials(sorted(port_of), _MAX_TRIALS)
    return rounds + [[((a, port_of[a]), (b, port_of[b])) for a, b in trial] for trial in trials]
