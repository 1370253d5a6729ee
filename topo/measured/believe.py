"""Declared, measured, believed: what was measured between GPUs, brought back to the links of a topology.

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

Where nothing was declared (`declared=False`: the rates in the topology are placeholders) every measured link is believed,
with what it carried while several flows were sent together if there was such an experiment: plans send at the same time.
Those of one kind within a factor of 1.5 take the lowest (processes of one host are alike but for noise), and the latency of
a pair is shared out among the links of its route.
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
from .flows import NEAR, Evidence, Hop, Measurements, Seen, declared_GBps, weigh

FAR_ABOVE, PLACEHOLDER = Fraction(115, 100), Fraction(2)
FAR_BELOW = Fraction(7, 10)
_ALIKE, _ALIKE_UNDECLARED = Fraction(21, 20), Fraction(3, 2)
_MOST_NOTES = 8


def believe(topology: Topology, measurements: Measurements, declared: bool = True) -> Topology:
    """The topology with the rates that are believed.

    Every link gets in `extra` what is `declared` ({GBps, us, source}), what was `measured` ({GBps, source, how, limit} and
    us where a pair's route is this link alone; `limit`: it is the link's rate, not just a lower bound), which is `believed`
    and the `reason`. What is suspicious is in the topology's notes, what was measured by pair in `extra["measured"]`.
    """
    evidence = weigh(topology, measurements) if declared else _placeholders(topology, measurements)
    parallel: dict[Hop, Fraction] = defaultdict(Fraction)
    for link in topology.links:
        parallel[link.src, link.dst] += declared_GBps(link)
    verdicts = []
    for link in topology.links:
        hop = link.src, link.dst
        share = declared_GBps(link) / parallel[hop]
        verdicts.append(_verdict(link, evidence.hops.get(hop), share, measurements, declared))
    latency = _of_one_hop(topology, measurements)
    assumed = {} if declared else _shared_out(topology, measurements)
    links = tuple(
        _judged(v, rate, latency.get((v.link.src, v.link.dst)), measurements.medium)
        for v, rate in zip(verdicts, _levelled(verdicts), strict=True)
    )
    if not declared:
        links = tuple(replace(x, latency_us=assumed.get((x.src, x.dst), x.latency_us)) for x in links)
    ranks = topology.ranks
    pairs = [{"src": ranks[a], "dst": ranks[b], **told} for (a, b), told in sorted(measurements.pairs.items())]
    notes = [*topology.extra.get("notes", ()), *measurements.notes]
    notes += [
        *_short(v.note for v in verdicts if v.note),
        *(_short(evidence.strange) if measurements.trusted == "all" else []),
    ]
    extra = {**topology.extra, "notes": notes, "measured": {"over": measurements.medium, "pairs": pairs}}
    return replace(topology, links=links, extra=extra)


@dataclass(frozen=True)
class _Verdict:
    """What is believed of one link, and why. `declared` is None where the topology's rate is a placeholder."""

    link: Link
    declared: Fraction | None
    measured: Fraction | None
    seen: Seen | None
    believed: str
    reason: str
    note: str | None = None
    limit: bool = False


def _placeholders(topology: Topology, measurements: Measurements) -> Evidence:
    """Of links without declared rates: what they carried with several flows at once, where there was such an experiment."""
    at_once = tuple(e for e in measurements.experiments if e.how == "together")
    busy = weigh(topology, replace(measurements, experiments=at_once))
    return Evidence({**weigh(topology, measurements).hops, **busy.hops}, ())


def _verdict(link: Link, seen: Seen | None, share: Fraction, measurements: Measurements, declared: bool) -> _Verdict:
    """`share`: the link's part of its hop, where links are parallel."""
    rate = declared_GBps(link) if declared else None
    if seen is None:
        return _Verdict(link, rate, None, None, "declared", "no measured pair crosses it")
    measured = seen.GBps * share
    if measurements.trusted == "none" or (measurements.trusted == "network" and link.kind != "network"):
        return _Verdict(link, rate, measured, seen, "declared", measurements.otherwise)
    if rate is None:
        return _Verdict(link, rate, measured, seen, "measured", "nothing is declared")
    return _Verdict(
        link, rate, measured, seen, *_judge(link, seen, rate, measured, share), limit=seen.proved_by is not None
    )


def _judge(
    link: Link, seen: Seen, declared: Fraction, measured: Fraction, share: Fraction
) -> tuple[str, str, str | None]:
    """Which is believed, the reason, and what is to be noted (rules 3, 4 and 5)."""
    told = f"{link.src} -> {link.dst}: measured {_text(measured)} GB/s ({seen.how})"
    if measured > PLACEHOLDER * declared:
        return (
            "measured",
            "it carried more than twice what is declared",
            f"{told}, far above the declared {_text(declared)}",
        )
    if measured > FAR_ABOVE * declared:
        note = f"{told}, more than the declared {_text(declared)}: measure again; or the data went another way"
        return "declared", "more than a link can carry was measured, so the measured value is in doubt", note
    if max(measured, seen.most_GBps * share) >= NEAR * declared:
        return "declared", "measured within a tenth; headers and acknowledgements take as much of every link", None
    if seen.proved_by is not None:
        reason = f"no other link can have limited {seen.proved_by}"
    elif seen.blamed is not None:
        reason = seen.blamed
    else:
        return "declared", "the measured value is a lower bound: nothing shows this link to have limited it", None
    slow = measured < FAR_BELOW * declared
    return (
        "measured",
        reason,
        f"{told}, {_percent(measured / declared)} of the declared {_text(declared)}" if slow else None,
    )


def _judged(verdict: _Verdict, rate: Fraction, latency_us: Fraction | None, medium: str) -> Link:
    """The link with the believed rate, and in `extra` what it was chosen from."""
    link, source = verdict.link, f"measured over {medium}"
    extra = {k: v for k, v in link.extra.items() if k not in ("declared", "measured")}
    declared: dict[str, Any] = {}
    if verdict.declared is not None:
        before = link.extra.get("declared")
        declared = {"GBps": fraction_to_json(verdict.declared), "us": fraction_to_json(link.latency_us)}
        declared["source"] = link.source or "the topology"
        if isinstance(before, Mapping):
            declared = dict(before)
        elif before is not None:
            declared["as"] = before
        extra["declared"] = declared
    if verdict.measured is not None and verdict.seen is not None:
        extra["measured"] = {"GBps": float(rounded_down(verdict.measured)), "source": source}
        extra["measured"] |= {"how": verdict.seen.how, "limit": verdict.limit}
        if latency_us is not None:
            extra["measured"]["us"] = float(latency_us)
    extra |= {"believed": verdict.believed, "reason": verdict.reason}
    if verdict.believed == "measured":
        return replace(link, bandwidth_GBps=rate, source=source, extra=extra)
    return replace(link, bandwidth_GBps=rate, source=declared.get("source", link.source), extra=extra)


def _levelled(verdicts: list[_Verdict]) -> list[Fraction]:
    """Rule 6: the rate of each link, measured ones that are nearly alike made alike."""
    rates = [declared_GBps(v.link) for v in verdicts]
    sorts: dict[object, list[int]] = defaultdict(list)
    for i, v in enumerate(verdicts):
        if v.believed == "measured" and v.measured is not None:
            rates[i] = rounded_down(v.measured)
            sorts[v.link.kind, v.declared].append(i)
    for alike in sorts.values():
        factor = _ALIKE if verdicts[alike[0]].declared is not None else _ALIKE_UNDECLARED
        lowest = Fraction(0)
        for i in sorted(alike, key=lambda i: rates[i]):
            lowest = lowest if rates[i] <= lowest * factor else rates[i]
            rates[i] = lowest
    return rates


def _of_one_hop(topology: Topology, measurements: Measurements) -> dict[Hop, Fraction]:
    """Half a round trip between two GPUs that one link joins."""
    ends = {pair: (topology.ranks[pair[0]], topology.ranks[pair[1]]) for pair in measurements.latency_us}
    return {hop: measurements.latency_us[pair] for pair, hop in ends.items() if hop in topology.capacity_GBps}


def _shared_out(topology: Topology, measurements: Measurements) -> dict[Hop, Fraction]:
    """Rule 7 where nothing is declared: the least latency of a pair, shared by those of its links that have none yet, short
    routes first.
    """
    router = Router(topology)
    found = ((router.route(*pair), us) for pair, us in sorted(measurements.latency_us.items()))
    routed = [(route_links(route), us) for route, us in found if route is not None]
    known: dict[Hop, Fraction] = {}
    for length in sorted({len(hops) for hops, _ in routed}):
        now: dict[Hop, Fraction] = {}
        for hops, us in routed:
            new = [hop for hop in hops if hop not in known]
            if len(hops) == length and new:
                rest = max(Fraction(0), us - sum(known.get(hop, Fraction(0)) for hop in hops))
                now |= {hop: min(now.get(hop, rest), rounded_down(rest / len(new)) if rest else rest) for hop in new}
        known |= now
    return known


def rounded_down(value: Fraction, digits: int = 3) -> Fraction:
    """The largest fraction of so many significant decimal digits that is not above `value` (which is above 0)."""
    unit = Fraction(1)
    while value / unit >= 10**digits:
        unit *= 10
    while value / unit < 10 ** (digits - 1):
        unit /= 10
    return value // unit * unit


def _text(GBps: Fraction) -> str:
    return f"{float(GBps):.3g}"


def _percent(share: Fraction) -> str:
    return f"{float(share):.0%}"


def _short(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    more = len(every) - _MOST_NOTES
    return [*every[:_MOST_NOTES], *([f"and {more} more such evidence; see the links"] if more > 0 else [])]
