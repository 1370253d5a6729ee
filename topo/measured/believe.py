"""Declared, measured, believed: what was measured between GPUs, brought back to the links of a
topology.

What one measures is flows between GPUs; what one wants to know is links. The rules, in their order:

1. Data takes the declared route (routes.py). A link carries at least the sum of the flows that crossed it in any one
   experiment; the most that any experiment showed is its measured value.
2. Something limits every flow. It can only have been a link that carried, in that experiment, as much as it was ever seen
   to carry, up to a tenth (NEAR): such links are the flow's suspects, and links that carry more at other times are none.
   No fairness between flows is assumed. A sole suspect is proved: what it carried is its rate (the median of such
   experiments). All other measured values are lower bounds.
3. A link with more than 1.15 of its declared rate (FAR_ABOVE) is flagged, and the declared value stays: links do not carry
   more than they can, so the measurement is in doubt, or the data went another way. At more than twice (PLACEHOLDER) it is
   the declared value that is wrong, such as what virtual machines put in place of the truth, and the measured one is believed.
4. A proved link that never carried NEAR of its declared rate is believed as measured, and flagged below 0.7 (FAR_BELOW).
   Within a tenth the declared value stays. Headers and acknowledgements take some percent of every link alike, so no plan
   would change, while links that differ by noise alone would cost the symmetry that plans are found by. The host costs of a
   calibrated topology (`topo-run --calibrate`) hold what the protocol takes.
5. A flow that no believed link explains is laid to those of its suspects that are nearest to their declared rates: for the
   planner it must be slow somewhere. Several that are alike in that are believed slow together; no traffic tells them apart.
6. Believed values have three digits, rounded down; of links of one kind and declared rate those within a twentieth take
   the lowest, so that alike links stay alike. No link is believed to carry more than is declared or was seen to cross it.
7. Latencies stay as declared. Half a round trip is mostly software's, and routes are found by the least latency: measured
   ones on some links and declared ones on others would move them. They are reported by pair, and with links that are a
   pair's whole route.
8. Nothing is believed of a link that the data did not use (`Measurements.trusted`): between processes of one host gloo
   moves data through the host's memory, whatever lies between the GPUs.

Where nothing was declared (`declared=False`: the rates in the topology are placeholders) every
measured link is believed, with what it carried while several flows were sent together if there was
such an experiment: plans send at the same time. Those of one kind within a factor of 1.5 take the
lowest (processes of one host are alike but for noise), and the latency of a pair is shared out
among the links of its route.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..devices import Link
from ..exact import fraction_to_json
from ..graph import Topology
from ..routes import Router, route_links
from .flows import NEAR, Evidence, Hop, HopEvidence, Measurements, find_evidence, get_declared_GBps

FAR_ABOVE, PLACEHOLDER = Fraction(115, 100), Fraction(2)
FAR_BELOW = Fraction(7, 10)
_ALIKE, _ALIKE_UNDECLARED = Fraction(21, 20), Fraction(3, 2)
_MOST_NOTES = 8


def believe(topology: Topology, measurements: Measurements, declared: bool = True) -> Topology:
    """Return the topology with the rates that are believed.

    Every link gets in `extra` what is `declared` ({GBps, us, source}), what was `measured` ({GBps,
    source, how, limit} and us where a pair's route is this link alone; `limit`: it is the link's
    rate, not just a lower bound), which is `believed` and the `reason`. Suspicious values are in
    the topology's notes, values measured by pair in `extra["measured"]`.
    """
    evidence = (
        find_evidence(topology, measurements)
        if declared
        else _find_undeclared_evidence(topology, measurements)
    )
    parallel: dict[Hop, Fraction] = defaultdict(Fraction)
    for link in topology.links:
        parallel[link.src, link.dst] += get_declared_GBps(link)
    verdicts = []
    for link in topology.links:
        hop = link.src, link.dst
        share = get_declared_GBps(link) / parallel[hop]
        verdicts.append(_decide(link, evidence.hops.get(hop), share, measurements, declared))
    # rates are levelled over all links together (rule 6), so only after every link has its verdict
    latency = _find_hop_latencies(topology, measurements)
    assumed = {} if declared else _share_latencies(topology, measurements)
    links = tuple(
        _apply_verdict(v, rate, latency.get((v.link.src, v.link.dst)), measurements.medium)
        for v, rate in zip(verdicts, _level_rates(verdicts), strict=True)
    )
    if not declared:
        links = tuple(
            replace(x, latency_us=assumed.get((x.src, x.dst), x.latency_us)) for x in links
        )
    ranks = topology.ranks
    pairs = [
        {"src": ranks[a], "dst": ranks[b], **values}
        for (a, b), values in sorted(measurements.pairs.items())
    ]
    notes = [*topology.notes, *measurements.notes]
    notes += [
        *_shorten(v.note for v in verdicts if v.note),
        *(_shorten(evidence.strange) if measurements.trusted == "all" else []),
    ]
    extra = {
        **topology.extra,
        "notes": notes,
        "measured": {"over": measurements.medium, "pairs": pairs},
    }
    return replace(topology, links=links, extra=extra)


@dataclass(frozen=True)
class _Verdict:
    """What is believed of one link, and why. `declared` is None where the topology's rate is a
    placeholder.
    """

    link: Link
    declared: Fraction | None
    measured: Fraction | None
    evidence: HopEvidence | None
    believed: str
    reason: str
    note: str | None = None
    limit: bool = False


def _find_undeclared_evidence(topology: Topology, measurements: Measurements) -> Evidence:
    """Return evidence on links without declared rates: from experiments with several flows at once
    where there are any.
    """
    at_once = tuple(e for e in measurements.experiments if e.how == "together")
    busy = find_evidence(topology, replace(measurements, experiments=at_once))
    return Evidence({**find_evidence(topology, measurements).hops, **busy.hops}, ())


def _decide(
    link: Link,
    evidence: HopEvidence | None,
    share: Fraction,
    measurements: Measurements,
    declared: bool,
) -> _Verdict:
    """Return the verdict on a link; `share` is the link's part of its hop, where links are
    parallel.
    """
    rate = get_declared_GBps(link) if declared else None
    if evidence is None:
        return _Verdict(link, rate, None, None, "declared", "no measured pair crosses it")
    measured = evidence.GBps * share
    if measurements.trusted == "none" or (
        measurements.trusted == "network" and link.kind != "network"
    ):
        return _Verdict(link, rate, measured, evidence, "declared", measurements.otherwise)
    if rate is None:
        return _Verdict(link, rate, measured, evidence, "measured", "nothing is declared")
    return _Verdict(
        link,
        rate,
        measured,
        evidence,
        *_choose(link, evidence, rate, measured, share),
        limit=evidence.proved_by is not None,
    )


def _choose(
    link: Link, evidence: HopEvidence, declared: Fraction, measured: Fraction, share: Fraction
) -> tuple[str, str, str | None]:
    """Return which rate is believed, the reason, and what is to be noted (rules 3, 4 and 5)."""
    finding = f"{link.src} -> {link.dst}: measured {_format_GBps(measured)} GB/s ({evidence.how})"
    if measured > PLACEHOLDER * declared:
        return (
            "measured",
            "it carried more than twice what is declared",
            f"{finding}, far above the declared {_format_GBps(declared)}",
        )
    if measured > FAR_ABOVE * declared:
        note = f"{finding}, more than the declared {_format_GBps(declared)}: measure again; or the data went another way"
        return (
            "declared",
            "more than a link can carry was measured, so the measured value is in doubt",
            note,
        )
    if max(measured, evidence.most_GBps * share) >= NEAR * declared:
        return (
            "declared",
            "measured within a tenth; headers and acknowledgements take as much of every link",
            None,
        )
    if evidence.proved_by is not None:
        reason = f"no other link can have limited {evidence.proved_by}"
    elif evidence.blamed is not None:
        reason = evidence.blamed
    else:
        return (
            "declared",
            "the measured value is a lower bound: nothing shows this link to have limited it",
            None,
        )
    slow = measured < FAR_BELOW * declared
    return (
        "measured",
        reason,
        f"{finding}, {_format_percent(measured / declared)} of the declared "
        f"{_format_GBps(declared)}"
        if slow
        else None,
    )


def _apply_verdict(
    verdict: _Verdict, rate: Fraction, latency_us: Fraction | None, medium: str
) -> Link:
    """Return the link with the believed rate, and in `extra` what it was chosen from."""
    link, source = verdict.link, f"measured over {medium}"
    extra = {k: v for k, v in link.extra.items() if k not in ("declared", "measured")}
    declared: dict[str, Any] = {}
    if verdict.declared is not None:
        earlier = link.extra.get("declared")
        declared = {
            "GBps": fraction_to_json(verdict.declared),
            "us": fraction_to_json(link.latency_us),
        }
        declared["source"] = link.source or "the topology"
        if isinstance(earlier, Mapping):
            declared = dict(earlier)
        elif earlier is not None:
            declared["as"] = earlier
        extra["declared"] = declared
    if verdict.measured is not None and verdict.evidence is not None:
        extra["measured"] = {"GBps": float(round_down(verdict.measured)), "source": source}
        extra["measured"] |= {"how": verdict.evidence.how, "limit": verdict.limit}
        if latency_us is not None:
            extra["measured"]["us"] = float(latency_us)
    extra |= {"believed": verdict.believed, "reason": verdict.reason}
    if verdict.believed == "measured":
        return replace(link, bandwidth_GBps=rate, source=source, extra=extra)
    return replace(
        link, bandwidth_GBps=rate, source=declared.get("source", link.source), extra=extra
    )


def _level_rates(verdicts: list[_Verdict]) -> list[Fraction]:
    """Return the rate of each link, measured ones that are nearly alike made alike (rule 6)."""
    rates = [get_declared_GBps(v.link) for v in verdicts]
    links_of_sort: dict[object, list[int]] = defaultdict(list)
    for i, v in enumerate(verdicts):
        if v.believed == "measured" and v.measured is not None:
            rates[i] = round_down(v.measured)
            links_of_sort[v.link.kind, v.declared].append(i)
    for alike in links_of_sort.values():
        factor = _ALIKE if verdicts[alike[0]].declared is not None else _ALIKE_UNDECLARED
        lowest = Fraction(0)
        for i in sorted(alike, key=lambda i: rates[i]):
            lowest = lowest if rates[i] <= lowest * factor else rates[i]
            rates[i] = lowest
    return rates


def _find_hop_latencies(topology: Topology, measurements: Measurements) -> dict[Hop, Fraction]:
    """Return half a round trip between two GPUs that one link joins, by hop."""
    ends = {
        pair: (topology.ranks[pair[0]], topology.ranks[pair[1]]) for pair in measurements.latency_us
    }
    return {
        hop: measurements.latency_us[pair]
        for pair, hop in ends.items()
        if hop in topology.capacity_GBps
    }


def _share_latencies(topology: Topology, measurements: Measurements) -> dict[Hop, Fraction]:
    """Return latencies where nothing is declared: the least of a pair, shared by its links that
    have none yet.

    Short routes come first.
    """
    router = Router(topology)
    routes = ((router.route(*pair), us) for pair, us in sorted(measurements.latency_us.items()))
    routed = [(route_links(route), us) for route, us in routes if route is not None]
    known: dict[Hop, Fraction] = {}
    for length in sorted({len(hops) for hops, _ in routed}):
        of_this_length: dict[Hop, Fraction] = {}
        for hops, us in routed:
            new = [hop for hop in hops if hop not in known]
            if len(hops) == length and new:
                rest = max(Fraction(0), us - sum(known.get(hop, Fraction(0)) for hop in hops))
                share = round_down(rest / len(new)) if rest else rest
                of_this_length |= {hop: min(of_this_length.get(hop, share), share) for hop in new}
        known |= of_this_length
    return known


def round_down(value: Fraction, digits: int = 3) -> Fraction:
    """Return the largest fraction of `digits` significant decimal digits that is not above `value`
    (which is above 0).
    """
    unit = Fraction(1)
    while value / unit >= 10**digits:
        unit *= 10
    while value / unit < 10 ** (digits - 1):
        unit /= 10
    return value // unit * unit


def _format_GBps(GBps: Fraction) -> str:
    """Return a rate as text."""
    return f"{float(GBps):.3g}"


def _format_percent(share: Fraction) -> str:
    """Return a share as text."""
    return f"{float(share):.0%}"


def _shorten(lines: Iterable[str]) -> list[str]:
    """Return the first few texts, and how many more there are."""
    every = list(lines)
    more = len(every) - _MOST_NOTES
    return [
        *every[:_MOST_NOTES],
        *([f"and {more} more such evidence; see the links"] if more > 0 else []),
    ]
