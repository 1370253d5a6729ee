"""Decide which flows to measure: on cables, on switches, and flows that may share links."""

from collections.abc import Sequence

from ...topo.fabric import PortKey, Segment
from ...topo.fabric.tiers import list_trials

# A flow of one round: from a port to a port.
FlowKey = tuple[PortKey, PortKey]
# Flows and trials on one switched network, chosen: a fifth of a second each, within seconds.
_MAX_FLOWS, _MAX_TRIALS = 12, 9
# Measurements of a cable, of which the highest counts: a busy host only makes them slower.
_REPEATS = 2


def plan_rounds(segments: Sequence[Segment]) -> list[list[FlowKey]]:
    """Return the rounds of flows that measure some segments, one round after the other.

    Cables are measured several times. No two flows of a round share a host, so that each runs as if
    alone, except for trials of switched networks.
    """
    rounds: list[list[FlowKey]] = []
    cables = [x for x in segments if x.is_cable]
    flows = [flow for x in cables for flow in (x.ports, x.ports[::-1])]
    for flow in flows:
        p, q = flow
        hosts = {p[0], q[0]}
        fitting = (x for x in rounds if not any({a[0], b[0]} & hosts for a, b in x))
        free = next(fitting, None)
        if free is None:
            rounds.append([(p, q)])
        else:
            free.append((p, q))
    rounds *= _REPEATS
    for segment in segments:
        if not segment.is_cable:
            rounds += _plan_switched(segment)
    return rounds


def _plan_switched(segment: Segment) -> list[list[FlowKey]]:
    """Return rounds in which each host sends once alone, and trials of two flows."""
    ports = segment.ports
    following = [*ports[1:], ports[0]]
    rounds: list[list[FlowKey]] = [[pair] for pair in zip(ports, following, strict=True)]
    port_of = {port[0]: port for port in reversed(ports)}
    trials = list_trials(sorted(port_of), _MAX_TRIALS)
    return rounds[:_MAX_FLOWS] + [[(port_of[a], port_of[b]) for a, b in trial] for trial in trials]
