"""Verdicts as text, JSON, rows and Prometheus' metrics.

A verdict is on one file: its measurements, and the rings and trees of its communicators, with their
shares of the machine's bound, the highest algbw that is possible there. Answers say why a run
hangs, fails or is slow.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ....topo.answers import describe_answers
from ....topo.metrics import write_metrics
from ....topo.output_head import output_head
from ...bounds.assumptions import join_assumptions
from ...describe import CUT_SHORT, help_text
from .advice import describe_limit, gbps, percent, size_text
from .file_contents import FileFinding
from .options import ROUNDING, Limits, Options
from .paper import write_model
from .rates import Rate
from .verdict import (
    UNKNOWN,
    ChannelVerdict,
    FileVerdict,
    MeasuredRow,
    MeasuredVerdict,
    count_ranks,
)

# Most rows of a table of measurements: the largest sizes, at which bandwidth decides.
_MAX_ROWS = 12
# Values of `Measurement.how` for results of topo-run, which get separate rows.
_RACED = ("plan", "stock")
# Share of a variant's rate below which another variant of the size gets a separate row.
_SLOWER = 0.97
# The metrics for Prometheus, and their help.
METRICS = {
    "topo_judge_algbw_gbps": "Measured algorithm bandwidth in GB/s (1e9 bytes a second).",
    "topo_judge_busbw_gbps": "Measured bus bandwidth in GB/s, as nccl-tests define it.",
    "topo_judge_bound_gbps": "Certified upper bound on the algorithm bandwidth in GB/s.",
    "topo_judge_channels_gbps": "Algorithm bandwidth in GB/s that the rings or trees can reach.",
    "topo_judge_option_gbps": "Algorithm bandwidth in GB/s that an alternative would reach.",
    "topo_judge_share": "Share of the single-path bound that the measurement or channels reach.",
    "topo_judge_finding": "1 for each finding on a file.",
    "topo_judge_passed": "1 if every share is at least the one asked for, else 0.",
}


def write_text(
    verdicts: Sequence[FileVerdict], least: float | None, *, in_full: bool = False
) -> str:
    """Return the verdicts as text; `least` is the required share of the bound, None if none is.

    Of the answers to why, all have cause and remedy if `in_full`, else the first one.
    """
    return "\n".join("".join(f"{x}\n" for x in _list_lines(v, least, in_full)) for v in verdicts)


def _list_lines(verdict: FileVerdict, least: float | None, in_full: bool) -> list[str]:
    contents, machine = verdict.contents, verdict.machine
    lines = [
        f"{contents.where}: {contents.kind}{f', {contents.library}' if contents.library else ''}"
    ]
    topology = machine.topology
    if topology is not None:
        lines.append(f"  topology: {topology.name}, {len(topology.ranks)} GPUs ({machine.source})")
    elif not verdict.is_answer:
        lines.append(f"  topology: none: {machine.source}")
    lines += _list_finding_lines(f"verdict: {verdict.verdict.name}", verdict.verdict)
    lines += _list_answer_lines(verdict, in_full)
    for channels in verdict.communicators:
        lines += _list_channel_lines(channels)
    for measured in verdict.measured:
        lines += _list_measured_lines(measured)
    for finding in verdict.findings[1:]:
        lines += _list_finding_lines(f"also {finding.name}", finding)
    lines += [f"  note: {note}" for note in verdict.notes]
    if topology is None and not verdict.is_answer:  # the line on the topology has said why
        lines[2:] = [line.replace(machine.source, "no topology") for line in lines[2:]]
    if least is not None:
        lines += [
            f"  {'fails' if share < least else 'passes'}: {what}: {percent(share)} of the bound; "
            f"at least {percent(least)} was asked for"
            for what, share in verdict.shares
        ]
    return lines


def _list_answer_lines(verdict: FileVerdict, in_full: bool) -> list[str]:
    answers, lines = verdict.answers, list[str]()
    if verdict.is_answer:
        first, *others = answers
        lines = [f"      {first.sure} certainty; found in {first.source}"]
        answers, count = tuple(others), 0
    else:
        count = 1
    count = len(answers) if in_full else count
    return [*lines, *(f"  {line}" for line in describe_answers(answers, in_full=count))]


def _list_finding_lines(head: str, finding: FileFinding) -> list[str]:
    at = f" (line {finding.line})" if finding.line else ""
    advice = [f"      -> {finding.advice}"] if finding.advice else []
    return [f"  {head}: {finding.message}{at}", *advice]


def _describe_limits(collective: str, limits: Limits) -> str:
    helped = f" {help_text(limits.helpers)}" if limits.helped_GBps is not None else ""
    text = (
        f"  {collective}: at most {gbps(limits.one_way_GBps)} GB/s algbw{helped}"
        f"{join_assumptions(limits.assumes)} "
        f"({f'{CUT_SHORT}; ' if limits.is_cut_short else ''}{limits.assumption})"
    )
    if limits.helpers:
        alone = limits.alone_GBps
        text += "; none without help" if alone is None else f"; {gbps(alone)} without help"
    elif limits.helped_GBps is not None:
        text += f"; {gbps(limits.helped_GBps)} with the help of the GPUs that are idle"
    if limits.any_way_GBps > limits.one_way_GBps:
        text += f"; {gbps(limits.any_way_GBps)} with multipath"
    if limits.in_network_GBps is not None and limits.in_network_GBps > limits.any_way_GBps:
        text += f"; {gbps(limits.in_network_GBps)} if switches add (NVLS, SHARP)"
    if limits.counts_nvls and limits.nvls_GBps not in (None, limits.in_network_GBps):
        text += f"; {gbps(limits.nvls_GBps or 0)} if NVSwitches alone add (NVLS)"
    return text + (f"; it depends on {limits.rates}" if limits.rates else "")


def _list_option_lines(options: Options) -> list[str]:
    return [
        *(f"    {gbps(o.algbw_GBps):>8} GB/s  {o.name}: {o.what}" for o in options.options),
        *(f"    not available: {reason}" for reason in options.missing),
    ]


def _list_channel_lines(channels: ChannelVerdict) -> list[str]:
    c = channels.communicator
    nodes = f" on {c.nodes} nodes" if c.nodes and c.nodes > 1 else ""
    alike = f", {c.alike} alike" if c.alike > 1 else ""
    how = f", GPUs {channels.rank_map.how}" if channels.rank_map else ""
    ranks = f"{'at least ' if c.has_more else ''}{count_ranks(c.ranks)}"
    lines = [
        f"  communicator of {ranks}{nodes}{alike}: {len(c.rings)} rings, {len(c.trees)} trees{how}"
    ]
    if most := Counter(c.transports).most_common(6):
        lines.append(f"    connections: {', '.join(f'{n} via {name}' for name, n in most)}")
    if channels.why_not:
        lines.append(f"    not judged: {channels.why_not}")
    for name, rates in channels.rates.items():
        limits = channels.limits[name]
        lines.append(_describe_limits(name, limits))
        is_sure = channels.taken in ("RING", "TREE") and len(rates) > 1
        for rate in rates:
            takes = " (NCCL's choice)" if is_sure and rate is channels.judged(name) else ""
            lines.append(
                f"    {gbps(rate.algbw_GBps):>8} GB/s  {rate.shape} of the file, "
                f"{percent(float(rate.algbw_GBps / limits.one_way_GBps))} of the bound{takes}; "
                f"{describe_limit(rate)}"
            )
        lines += _list_option_lines(channels.options[name])
    return lines


def _list_measured_lines(measured: MeasuredVerdict) -> list[str]:
    """Return the table of a collective's measurements: the fastest variant of each size.

    A variant that is slower has its own row. If there are many sizes, only the largest and
    the one with the peak are listed.
    """
    ranks = count_ranks(measured.ranks) if measured.ranks else "an unknown number of ranks"
    head = f"  {measured.title} on {ranks}, measured"
    if measured.limits is None or measured.why_not:
        lines = [f"{head}; not compared with a bound: {measured.why_not}"]
    else:
        lines = [
            f"{head}; GPUs {measured.rank_map.how if measured.rank_map else ''}",
            _describe_limits(measured.collective, measured.limits),
        ]
        if measured.is_held_against_nvls:
            lines.append(
                f"    shares are of the {gbps(measured.held_GBps)} GB/s with NVLS, which was "
                f"{'on or off: unknown' if measured.nvls == UNKNOWN else measured.nvls}"
            )
    lines.append(f"    {'size':>10} {'algbw':>9} {'busbw':>9} {'of bound':>9} {'plan':>9}")
    fastest: dict[tuple[int, str], MeasuredRow] = {}
    # The first of equally fast rows is shown; a sort keeps their order.
    for row in sorted(measured.rows, key=lambda row: -row.measured.algbw_GBps):
        m = row.measured
        best = fastest.setdefault((m.size_bytes, m.how if m.how in _RACED else ""), row).measured
        if m.how != best.how and m.algbw_GBps < _SLOWER * best.algbw_GBps:
            fastest.setdefault((m.size_bytes, m.how), row)
    rows = sorted(fastest.values(), key=lambda row: (row.measured.size_bytes, row.measured.how))
    shown, peak = rows[-_MAX_ROWS:], measured.peak
    if peak in rows and peak not in shown:
        shown = [peak, *shown]
    if len(shown) < len(rows):
        lines.append(f"    ({len(rows) - len(shown)} smaller sizes are in the JSON)")
    for row in shown:
        m = row.measured
        is_named = m.how in _RACED or measured.has_variants
        share = "" if row.share is None else "above" if row.share > ROUNDING else percent(row.share)
        plan = "" if row.plan_GBps is None else gbps(row.plan_GBps)
        lines.append(
            f"    {size_text(m.size_bytes):>10} {gbps(m.algbw_GBps):>9} {gbps(m.busbw_GBps):>9} "
            f"{share:>9} {plan:>9}{f' {m.how}' if is_named else ''}"
            f"{'  <- peak' if row is peak else ''}{'  wrong results' if m.wrong else ''}"
        )
    return lines + (_list_option_lines(measured.options) if measured.options else [])


def write_json(
    verdicts: Sequence[FileVerdict],
    least: float | None,
    refused: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return the verdicts as one JSON object (docs/judge.md).

    `least` is the required share of the bound, None if none is; `refused` holds the files that
    could not be judged, as (name, reason).
    """
    shares = _list_shares(verdicts)
    topologies = [t for v in verdicts if (t := v.judged_topology) is not None]
    out: dict[str, Any] = {
        **output_head("topoplan-judge"),
        "stock_model": write_model(topologies[0]) if topologies else None,
        "files": [_verdict_json(verdict) for verdict in verdicts],
        "answers": [
            {"file": v.contents.where, **answer.to_json()} for v in verdicts for answer in v.answers
        ],
        "refused": [{"file": name, "message": message} for name, message in refused],
        "share": min(shares, default=None),
    }
    if least is not None:
        out |= {"least": least, "passed": bool(shares) and min(shares) >= least}
    return out


def write_gate(
    verdicts: Sequence[FileVerdict], least: float, refused: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return what a build needs to pass or fail, as one JSON object (docs/judge.md).

    `least` is the required share of the bound; `refused` holds the files that could not be judged,
    as (name, reason).
    """
    whole = write_json(verdicts, least, refused)
    return {
        **output_head("topoplan-judge-gate"),
        "passed": whole["passed"] and not refused,
        "at_least": least,
        "share": whole["share"],
        "files": [
            {key: file[key] for key in ("file", "share", "verdict")} for file in whole["files"]
        ],
        "refused": whole["refused"],
    }


def _list_shares(verdicts: Sequence[FileVerdict]) -> list[float]:
    return [share for verdict in verdicts for _, share in verdict.shares]


def list_rows(verdicts: Sequence[FileVerdict]) -> list[dict[str, Any]]:
    """Return a row for each measurement, and for the rings and trees of each communicator.

    A row has file, collective, ranks, size_bytes, how, algbw_GBps, busbw_GBps and share; those of
    rings and trees have None for a size and busbw, and their shape as `how`.
    """
    rows = []
    for file in map(_verdict_json, verdicts):
        for communicator in file["communicators"]:
            for judged in communicator["collectives"]:
                rows += [
                    {
                        "file": file["file"],
                        "collective": judged["collective"],
                        "ranks": communicator["ranks"],
                        "size_bytes": None,
                        "how": rate["shape"],
                        "algbw_GBps": rate["algbw_GBps"],
                        "busbw_GBps": None,
                        "share": rate["share"],
                    }
                    for rate in judged["rates"]
                ]
        for measured in file["measured"]:
            head = {"file": file["file"]} | {k: measured[k] for k in ("collective", "ranks")}
            rows += [head | row for row in measured["rows"]]
    return rows


def _verdict_json(verdict: FileVerdict) -> dict[str, Any]:
    contents, topology = verdict.contents, verdict.machine.topology
    return {
        "file": contents.where,
        "kind": contents.kind,
        "library": contents.library,
        "topology": topology
        and {
            "name": topology.name,
            "fingerprint": topology.fingerprint,
            "ranks": len(topology.ranks),
        },
        "topology_source": verdict.machine.source,
        "communicators": [_channels_json(c) for c in verdict.communicators],
        "measured": [_measured_json(m) for m in verdict.measured],
        "verdict": _finding_json(verdict.verdict),
        "findings": [_finding_json(f) for f in verdict.findings],
        "answers": [answer.to_json() for answer in verdict.answers],
        "notes": verdict.notes,
        "share": min((share for _, share in verdict.shares), default=None),
    }


def _finding_json(finding: FileFinding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "message": finding.message,
        "advice": finding.advice or None,
        "line": finding.line,
    }


def _limits_json(limits: Limits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    in_network, helped, alone = limits.in_network_GBps, limits.helped_GBps, limits.alone_GBps
    part = {
        "alone_GBps": None if alone is None else float(alone),
        "with_help_GBps": None if helped is None else float(helped),
        "helpers": list(limits.helpers),
    }
    return {
        "one_way_GBps": float(limits.one_way_GBps),
        "any_way_GBps": float(limits.any_way_GBps),
        "in_network_GBps": None if in_network is None else float(in_network),
        "nvls_GBps": None if limits.nvls_GBps is None else float(limits.nvls_GBps),
        "kind": limits.kind,
        "assumption": limits.assumption,
        "rests_on": limits.rates,
        "assumes": [str(each) for each in limits.assumes],
        **({"cut_short": True} if limits.is_cut_short else {}),
        **({} if helped is None and alone is None else part),
    }


def _options_json(options: Options | None) -> list[dict[str, Any]]:
    return [
        {"name": o.name, "algbw_GBps": float(o.algbw_GBps), "what": o.what}
        for o in (options.options if options else ())
    ]


def _rate_json(rate: Rate, limits: Limits, is_judged: bool) -> dict[str, Any]:
    return {
        "shape": rate.shape,
        "channels": rate.channels,
        "algbw_GBps": float(rate.algbw_GBps),
        "share": float(rate.algbw_GBps / limits.one_way_GBps),
        "judged": is_judged,
        "limiting_link": {
            "src": rate.link[0],
            "dst": rate.link[1],
            "bandwidth_GBps": float(rate.link_GBps),
            "load": float(rate.load),
            "alike": rate.alike,
            "crossings": list(rate.crossings),
        },
    }


def _channels_json(channels: ChannelVerdict) -> dict[str, Any]:
    c, rank_map = channels.communicator, channels.rank_map
    return {
        "ranks": c.ranks,
        "nodes": c.nodes,
        "alike": c.alike,
        "gpus": rank_map and [rank_map.topology.ranks[i] for i in rank_map.gpu_of],
        "placed": rank_map and rank_map.how,
        "rings": [list(order) for order in c.rings],
        "trees": [list(tree) for tree in c.trees],
        "promised": c.promised,
        "patterns": [
            {"pattern": p.number} | {k: v for k, v in vars(p).items() if k != "number"}
            for p in c.patterns
        ],
        "transports": dict(c.transports),
        "takes": channels.taken or None,
        "not_judged": channels.why_not or None,
        "collectives": [
            {
                "collective": name,
                "bound": _limits_json(channels.limits[name]),
                "rates": [
                    _rate_json(r, channels.limits[name], r is channels.judged(name)) for r in rates
                ],
                "share": channels.share(name),
                "options": _options_json(channels.options[name]),
            }
            for name, rates in channels.rates.items()
        ],
    }


def _measured_json(measured: MeasuredVerdict) -> dict[str, Any]:
    peak = measured.peak
    return {
        "collective": measured.collective,
        "ranks": measured.ranks,
        **({"run": measured.run} if measured.run else {}),
        "bound": _limits_json(measured.limits),
        "not_judged": measured.why_not or None,
        "placed": measured.rank_map and measured.rank_map.how,
        "share": peak.share,
        "held_against": "nvls" if measured.is_held_against_nvls else "one-way",
        "nvls": measured.nvls,
        "above_bound": measured.is_above,
        "peak": {
            "size_bytes": peak.measured.size_bytes,
            "algbw_GBps": peak.measured.algbw_GBps,
            **({"how": peak.measured.how} if measured.has_variants else {}),
        },
        "rows": [
            {
                "size_bytes": row.measured.size_bytes,
                "how": row.measured.how or None,
                "time_us": row.measured.time_us,
                "algbw_GBps": row.measured.algbw_GBps,
                "busbw_GBps": row.measured.busbw_GBps,
                "share": row.share,
                "plan_GBps": row.plan_GBps,
                "wrong": row.measured.wrong,
            }
            for row in measured.rows
        ],
        "options": _options_json(measured.options),
    }


def write_prometheus(verdicts: Sequence[FileVerdict], least: float | None) -> str:
    """Return the verdicts as metrics, each with HELP and TYPE; no series is written twice.

    With `least`, the required share of the bound, one metric says whether all shares reach it.
    """
    samples = [sample for verdict in verdicts for sample in _list_samples(verdict)]
    if least is not None:
        passed = min(_list_shares(verdicts), default=0.0) >= least
        samples.append(("passed", {"least": f"{least:g}"}, float(passed)))
    return write_metrics(
        ((f"topo_judge_{name}", labels, value) for name, labels, value in samples), METRICS
    )


def _list_samples(verdict: FileVerdict) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield metrics without their prefix topo_judge_, with their labels and values."""
    file = {"file": verdict.contents.where}
    for m in verdict.measured:
        labels = {**file, "collective": m.collective, "ranks": str(m.ranks)}
        labels |= {"run": str(m.run)} if m.run else {}
        for row in m.rows:
            at = {**labels, "size_bytes": str(row.measured.size_bytes), "how": row.measured.how}
            yield "algbw_gbps", at, row.measured.algbw_GBps
            yield "busbw_gbps", at, row.measured.busbw_GBps
        for bound in ("one_way", "any_way", "in_network") if m.limits else ():
            if (value := getattr(m.limits, f"{bound}_GBps")) is not None:
                yield "bound_gbps", {**labels, "bound": bound.replace("_", "-")}, float(value)
        if m.peak.share is not None:
            yield "share", {**labels, "by": "measurement"}, m.peak.share
        yield from _list_options(labels, m.options)
    for number, c in enumerate(verdict.communicators):
        for name, rates in c.rates.items():
            labels = {**file, "collective": name, "ranks": str(c.communicator.ranks)}
            limit, own = c.limits[name].one_way_GBps, {"communicator": str(number)}
            yield "bound_gbps", {**labels, "bound": "one-way"}, float(limit)
            for rate in rates:
                at = {**labels, **own, "shape": rate.shape}
                yield "channels_gbps", at, float(rate.algbw_GBps)
            if (share := c.share(name)) is not None:
                yield "share", {**labels, "by": "channels", **own}, share
            yield from _list_options(labels, c.options[name])
    for finding in verdict.findings:
        yield "finding", {**file, "name": finding.name}, 1.0


def _list_options(
    labels: dict[str, str], options: Options | None
) -> Iterator[tuple[str, dict[str, str], float]]:
    for o in options.options if options is not None else ():
        yield "option_gbps", {**labels, "option": o.name, "what": o.what}, float(o.algbw_GBps)
