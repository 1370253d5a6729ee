"""Decide from measurements between GPUs which rates of links to believe.

The declared rate of a link is the one that the topology has without any measurement; a flow is data
that one rank sends to another; an experiment is the flows that ran at one time.

Measurements are of flows between GPUs; plans need rates of links. The rules, in order:

1. Data takes the declared route (routes.py). A link can carry at least the sum of the flows that
   crossed it in any one experiment. The highest such sum is its measured value.
2. Something limits every flow. It can only be a link whose load in that experiment was within a
   tenth (NEAR) of its highest load. Such links are the flow's suspects; no fairness between flows
   is assumed. A sole suspect is proved: its load is its rate (the median over such experiments).
   All other measured values are lower bounds.
3. A link that was measured above its declared rate carries at least that, so the measured rate is
   believed, unless the difference may be noise (`Measurements.noise`). Above 1.15 of the declared
   rate (FAR_ABOVE) it is flagged, and a declared value that a source states stays: the measurement
   is in doubt, or the data took another route. A value that is assumed, or that NCCL counts, is
   less than links can carry. Above twice the declared rate (PLACEHOLDER) any declared value is
   wrong, such as those that virtual machines make up, and the measured one is believed.
4. A proved link that never carried NEAR of its declared rate is believed as measured, and flagged
   below 0.7 (FAR_BELOW). Within a tenth the declared value stays: headers and acknowledgements take
   the same few percent of every link, so no plan would change, while links that differ by noise
   would lose the symmetry that synthesis depends on. The protocol's overhead is part of the host
   costs of a calibrated topology.
5. A flow that no believed link explains is blamed on the suspects nearest to their declared rates:
   for the planner it must be slow somewhere. If several are equally near, all are believed slow; no
   traffic can tell them apart.
6. Believed values are rounded down to three digits. Links of one kind and declared rate that are
   within a twentieth take the highest value, so that equal links stay equal and none is believed to
   carry less than it did. None is believed to carry more than that above what was declared or
   measured.
7. Latencies stay as declared. Half a round trip is mostly software, and routes minimize latency:
   measured latencies on some links and declared ones on others would move routes. They are reported
   by pair, and on links that are a pair's whole route.
8. No measurement is believed for a link that the data did not cross (`Measurements.trusted`):
   between processes of one host gloo moves data through host memory, whatever links connect the
   GPUs.

If no rates were declared (`declared=False`: the topology's rates are placeholders), every measured
link is believed, by its load in experiments with simultaneous flows if there were any, since plans
send simultaneously. Rates of one kind within a factor of 1.5 take the lowest (processes of one host
differ by noise only), and the latency of a pair is divided among the links of its route.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...devices import Link
from ...exact import fraction_to_json
from ...graph import Topology
from ...notes import Source, read_source
from ...routes import Router, route_links
from .flows import NEAR, Evidence, Hop, HopEvidence, Measurements, find_evidence, get_declared_GBps

# Ratios of measured to declared rates, used by rules 3 and 4.
FAR_ABOVE, PLACEHOLDER = Fraction(115, 100), Fraction(2)
FAR_BELOW = Fraction(7, 10)
# Ratios within which measured rates are levelled (rule 6), with and without declared rates.
_EQUAL, _EQUAL_UNDECLARED = Fraction(21, 20), Fraction(3, 2)
_MAX_NOTES = 8  # of one kind: a slow fabric would otherwise bury the other notes


def believe(topology: Topology, measurements: Measurements, declared: bool = True) -> Topology:
    """Return the topology with each link at its declared or its measured rate.

    The module's docstring has the rules. `declared` is False if the topology's rates are mere
    placeholders. Every link's `extra` gets `believed` (which rate was taken: "declared" or
    "measured"), the `reason`, `declared` ({GBps, us, source}; not for placeholders) and, if a
    measured pair crosses the link, `measured` ({GBps, source, how, limit}, and us if a pair's route
    is this link alone). `limit` is True if GBps is proved to be the link's rate, False if it is
    only a lower bound. Suspicious values are among the topology's notes, values by pair in
    `extra["measured"]`.
    """
    evidence = (
        find_evidence(topology, measurements)
        if declared
        else _find_undeclared_evidence(topology, measurements)
    )
    parallel: dict[Hop, Fraction] = defaultdict(Fraction)
    for link in topology.links:
        parallel[link.src, link.dst] += get_declared_GBps(link)
    verdicts = [
        _decide(
            link,
            evidence.hops.get((link.src, link.dst)),
            get_declared_GBps(link) / parallel[link.src, link.dst],
            measurements,
            declared,
        )
        for link in topology.links
    ]
    # Rule 6 levels rates over all links together, so it runs only after every link has its verdict.
    verdicts = _level_rates(verdicts) if declared else _lower_rates(verdicts)
    ranks = topology.ranks
    latency = {(ranks[a], ranks[b]): us for (a, b), us in measurements.latency_us.items()}
    links = tuple(
        _apply_verdict(v, latency.get((v.link.src, v.link.dst)), measurements.medium)
        for v in verdicts
    )
    if not declared:
        assumed = _share_latencies(topology, measurements)
        links = tuple(
            replace(x, latency_us=assumed.get((x.src, x.dst), x.latency_us)) for x in links
        )
    extra = {
        **topology.extra,
        "notes": [
            *topology.notes,
            *measurements.notes,
            *_shorten([v.note for v in verdicts if v.note]),
            *_shorten(evidence.unexplained if measurements.trusted == "all" else ()),
        ],
        "measured": {
            "over": measurements.medium,
            "pairs": [
                {"src": ranks[a], "dst": ranks[b], **values}
                for (a, b), values in sorted(measurements.pairs.items())
            ],
            # What flows get at once says something of a machine whose links they crossed.
            **(
                {"at_once": measurements.list_at_once()}
                if measurements.fans and measurements.trusted == "all"
                else {}
            ),
        },
    }
    return replace(topology, links=links, extra=extra)


@dataclass(frozen=True)
class _Verdict:
    """The believed rate of one link, and why; `declared` is None if that rate is a placeholder.

    `levelled` is the rate in GB/s that links alike have in common (rule 6), None without any.
    """

    link: Link
    declared: Fraction | None
    measured: Fraction | None
    evidence: HopEvidence | None
    believed: str
    reason: str
    note: str | None = None
    limit: bool = False
    levelled: Fraction | None = None

    @property
    def rate(self) -> Fraction:
        """The believed rate in GB/s."""
        if self.levelled is not None:
            return self.levelled
        if self.believed == "measured" and self.measured is not None:
            return round_down(self.measured)
        return get_declared_GBps(self.link)


def _find_undeclared_evidence(topology: Topology, measurements: Measurements) -> Evidence:
    """Find evidence on links without declared rates, if possible from simultaneous flows."""
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
    """Return the verdict on a link; `share` is its part of the hop's rate among parallel links."""
    rate = get_declared_GBps(link) if declared else None
    if evidence is None:
        return _Verdict(link, rate, None, None, "declared", "no measured pair crosses it")
    measured = evidence.GBps * share
    facts = (link, rate, measured, evidence)
    trusted = measurements.trusted
    if trusted != "all" and not trusted == link.kind == "network":
        return _Verdict(*facts, "declared", measurements.otherwise)
    if rate is None:
        return _Verdict(*facts, "measured", "nothing is declared")
    return _Verdict(
        *facts,
        *_choose(link, evidence, measured, share, measurements.noise),
        limit=evidence.proved_by is not None,
    )


def _choose(
    link: Link, evidence: HopEvidence, measured: Fraction, share: Fraction, noise: Fraction
) -> tuple[str, str, str | None]:
    """Return the believed rate's kind, the reason, and a note or None (rules 3, 4 and 5)."""
    declared = get_declared_GBps(link)
    finding = f"{link.src} -> {link.dst}: measured {_format_GBps(measured)} GB/s ({evidence.how})"
    if measured > PLACEHOLDER * declared:
        return (
            "measured",
            "it carried more than twice what is declared",
            f"{finding}, far above the declared {_format_GBps(declared)}",
        )
    is_far = measured > FAR_ABOVE * declared
    if is_far and _find_declared_source(link).kind == "stated":
        return (
            "declared",
            "more than a link can carry was measured, so the measured value is in doubt",
            f"{finding}, more than the declared {_format_GBps(declared)}: measure again; or the "
            "data took another route",
        )
    if round_down(measured) > (1 + noise) * declared:
        return (
            "measured",
            "it carried more than is declared",
            f"{finding}, more than the {_format_GBps(declared)} that nothing states; or the data "
            "took another route"
            if is_far
            else None,
        )
    if measured > declared:
        return "declared", "measured as declared, or more by no more than noise", None
    if max(measured, evidence.max_GBps * share) >= NEAR * declared:
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
    note = f"{finding}, {float(measured / declared):.0%} of the declared {_format_GBps(declared)}"
    return "measured", reason, note if measured < FAR_BELOW * declared else None


def _find_declared_source(link: Link) -> Source:
    """Return where the declared rate of a link is from, even if a measured one has replaced it."""
    declared = link.extra.get("declared")
    text = declared.get("source") if isinstance(declared, Mapping) else link.source
    return read_source(str(text or ""))


def _apply_verdict(verdict: _Verdict, latency_us: Fraction | None, medium: str) -> Link:
    """Return the link with the believed rate, and in `extra` the rates that it was chosen from."""
    link, source = verdict.link, f"measured over {medium}"
    extra = {k: v for k, v in link.extra.items() if k not in ("declared", "measured")}
    declared: dict[str, Any] = {}
    if verdict.declared is not None:
        earlier = link.extra.get("declared")
        declared = {
            "GBps": fraction_to_json(verdict.declared),
            "us": fraction_to_json(link.latency_us),
            "source": link.source or "the topology",
            **({} if earlier is None else {"as": earlier}),
        }
        # Rates believed in an earlier run still have the original declared rate.
        extra["declared"] = declared = dict(earlier) if isinstance(earlier, Mapping) else declared
    if verdict.measured is not None and verdict.evidence is not None:
        extra["measured"] = {
            "GBps": float(round_down(verdict.measured)),
            "source": source,
            "how": verdict.evidence.how,
            "limit": verdict.limit,
            **({} if latency_us is None else {"us": float(latency_us)}),
        }
    extra |= {"believed": verdict.believed, "reason": verdict.reason}
    return replace(
        link,
        bandwidth_GBps=verdict.rate,
        source=source if verdict.believed == "measured" else declared.get("source", link.source),
        extra=extra,
    )


def _level_rates(verdicts: list[_Verdict]) -> list[_Verdict]:
    """Return the verdicts with nearly equal measured rates made equal, the highest (rule 6).

    A link that was measured and is believed as declared takes part only in a rate above that.
    """
    levelled = list(verdicts)
    for links in _list_comparable(verdicts):
        highest: Fraction | None = None
        for i in sorted(links, key=lambda i: verdicts[i].rate, reverse=True):
            verdict = verdicts[i]
            if highest is None or verdict.rate * _EQUAL < highest:
                highest = verdict.rate if verdict.believed == "measured" else None
            elif verdict.believed == "measured":
                levelled[i] = replace(verdict, levelled=highest)
            elif verdict.rate < highest:
                reason = "links of its kind that were measured like it carried more"
                levelled[i] = replace(verdict, believed="measured", reason=reason, levelled=highest)
    return levelled


def _lower_rates(verdicts: list[_Verdict]) -> list[_Verdict]:
    """Return verdicts without declared rates, nearly equal rates made equal: the lowest."""
    lowered = list(verdicts)
    for links in _list_comparable(verdicts):
        lowest = Fraction(0)
        for i in sorted(links, key=lambda i: verdicts[i].rate):
            lowest = lowest if verdicts[i].rate <= lowest * _EQUAL_UNDECLARED else verdicts[i].rate
            lowered[i] = replace(verdicts[i], levelled=lowest)
    return lowered


def _list_comparable(verdicts: list[_Verdict]) -> list[list[int]]:
    """Return the places of the measured links of each kind and declared rate."""
    comparable: dict[object, list[int]] = defaultdict(list)
    for i, v in enumerate(verdicts):
        if v.measured is not None:
            comparable[v.link.kind, v.declared].append(i)
    return list(comparable.values())


def _share_latencies(topology: Topology, measurements: Measurements) -> dict[Hop, Fraction]:
    """Return latencies of hops without declared ones: a pair's latency divided among its route.

    Short routes come first, so that longer ones divide only what known hops leave over.
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
    """Round a positive value down to `digits` significant decimal digits."""
    unit = Fraction(1)
    while value / unit >= 10**digits:
        unit *= 10
    while value / unit < 10 ** (digits - 1):
        unit /= 10
    return value // unit * unit


def _format_GBps(GBps: Fraction) -> str:
    return f"{float(GBps):.3g}"


def _shorten(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MAX_NOTES
    rest = [f"and {more} more such findings; see the links"] if more > 0 else []
    return [*lines[:_MAX_NOTES], *rest]
