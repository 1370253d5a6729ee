"""Verdicts for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .advice import describe_limit, gbps, percent
from .limits import Limits
from .options import Options
from .rates import Rate
from .verdict import Channelled, Measured, Row, Verdict

_MOST_ROWS = 12
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def write_text(verdicts: Sequence[Verdict], least: float | None) -> str:
    """Return the verdicts as text."""
    lines: list[str] = []
    for verdict in verdicts:
        lines += _text_of(verdict, least)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def size_text(size_bytes: int) -> str:
    """Return a size in whole binary units, where it has any."""
    for unit, name in _UNITS:
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def _text_of(verdict: Verdict, least: float | None) -> list[str]:
    """Return the lines on one file."""
    reading = verdict.reading
    library = f", {reading.library}" if reading.library else ""
    lines = [f"{reading.where}: {reading.kind}{library}"]
    machine = verdict.machine
    if machine.topology is None:
        lines.append(f"  topology: none: {machine.source}")
    else:
        name = machine.topology.name
        lines.append(f"  topology: {name}, {len(machine.topology.ranks)} GPUs ({machine.source})")
    for channelled in verdict.channelled:
        lines += _text_of_channels(channelled)
    for measured in verdict.measured:
        lines += _text_of_measured(measured)
    for finding in verdict.findings:
        at = f" (line {finding.line})" if finding.line else ""
        lines.append(f"  {finding.name}: {finding.message}{at}")
        if finding.advice:
            lines.append(f"      -> {finding.advice}")
    lines += [f"  note: {note}" for note in verdict.notes]
    for what, share in verdict.shares if least is not None else []:
        assert least is not None
        word = "fails" if share < least else "passes"
        lines.append(
            f"  {word}: {what}: {percent(share)} of the bound; at least {percent(least)} was "
            "asked for"
        )
    return lines


def _limits_text(collective: str, limits: Limits) -> str:
    """Return the bounds of a collective in a line."""
    text = f"  {collective}: at most {gbps(limits.one_way_GBps)} GB/s algbw ({limits.assumption})"
    if limits.any_way_GBps > limits.one_way_GBps:
        text += f"; {gbps(limits.any_way_GBps)} for any use of the links"
    if limits.in_network_GBps is not None and limits.in_network_GBps > limits.any_way_GBps:
        text += f"; {gbps(limits.in_network_GBps)} if switches add (NVLS, SHARP)"
    return text + (f"; it rests on {limits.rates}" if limits.rates else "")


def _options_text(options: Options) -> list[str]:
    """Return what else could be had, a line each."""
    lines = [
        f"    {gbps(option.algbw_GBps):>8} GB/s  {option.name}: {option.what}"
        for option in options.options
    ]
    return [*lines, *(f"    not found: {missing}" for missing in options.missing)]


def _text_of_channels(channelled: Channelled) -> list[str]:
    """Return the lines on a communicator."""
    c = channelled.communicator
    alike = f", {c.alike} alike" if c.alike > 1 else ""
    nodes = f" on {c.nodes} nodes" if c.nodes and c.nodes > 1 else ""
    how = f", GPUs {channelled.placed.how}" if channelled.placed else ""
    lines = [
        f"  communicator of {c.ranks} ranks{nodes}{alike}: {len(c.rings)} rings, {len(c.trees)} "
        f"trees{how}"
    ]
    if c.transports:
        by_count = sorted(c.transports.items(), key=lambda item: -item[1])
        lines.append(
            "    connections: " + ", ".join(f"{count} via {name}" for name, count in by_count[:6])
        )
    if channelled.why_not:
        lines.append(f"    not judged: {channelled.why_not}")
    for name, rates in channelled.rates.items():
        limits = channelled.limits[name]
        lines.append(_limits_text(name, limits))
        for rate in rates:
            known = channelled.taken in ("RING", "TREE") and len(rates) > 1
            takes = " (what NCCL takes)" if known and rate is channelled.judged(name) else ""
            share = percent(float(rate.algbw_GBps / limits.one_way_GBps))
            lines.append(
                f"    {gbps(rate.algbw_GBps):>8} GB/s  {rate.shape} as found, {share} of the "
                f"bound{takes}; "
                f"{describe_limit(rate)}"
            )
        lines += _options_text(channelled.options[name])
    return lines


def _text_of_measured(measured: Measured) -> list[str]:
    """Return the table of a collective's measurements: the fastest way of each size, the peak in
    any case.
    """
    head = f"  {measured.collective} on {measured.ranks or 'an unknown number of'} ranks, measured"
    lines = []
    if measured.limits is None:
        lines.append(f"{head}; not held against a bound: {measured.why_not}")
    else:
        how = measured.placed.how if measured.placed else ""
        lines += [f"{head}; GPUs {how}", _limits_text(measured.collective, measured.limits)]
    lines.append(f"    {'size':>10} {'algbw':>9} {'busbw':>9} {'of bound':>9} {'plan':>9}")
    kept: dict[tuple[int, str], Row] = {}
    for row in measured.rows:
        key = (
            row.measured.size_bytes,
            row.measured.how if row.measured.how in ("plan", "stock") else "",
        )
        if key not in kept or row.measured.algbw_GBps > kept[key].measured.algbw_GBps:
            kept[key] = row
    rows = sorted(kept.values(), key=lambda row: (row.measured.size_bytes, row.measured.how))
    left = len(rows) - _MOST_ROWS
    shown = rows[-_MOST_ROWS:] if left > 0 else rows
    peak = measured.peak
    if peak in rows and peak not in shown:
        shown = [peak, *shown]
    if len(shown) < len(rows):
        lines.append(f"    ({len(rows) - len(shown)} smaller sizes are in --json)")
    for row in shown:
        m = row.measured
        share = "" if row.share is None else percent(row.share)
        plan = "" if row.plan_GBps is None else gbps(row.plan_GBps)
        wrong = "  wrong results" if m.wrong else ""
        mark = "  <- peak" if row is peak else ""
        said = f" {m.how}" if m.how in ("plan", "stock") else ""
        lines.append(
            f"    {size_text(m.size_bytes):>10} {gbps(m.algbw_GBps):>9} {gbps(m.busbw_GBps):>9} "
            f"{share:>9} {plan:>9}"
            f"{said}{mark}{wrong}"
        )
    if measured.options is not None:
        lines += _options_text(measured.options)
    return lines


# -- JSON
# --------------------------------------------------------------------------------------------------------------


def write_json(
    verdicts: Sequence[Verdict], least: float | None, refused: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the verdicts as one JSON object (docs/judge.md); `refused` are files that could not be
    judged, and why.
    """
    shares = [share for verdict in verdicts for _, share in verdict.shares]
    out: dict[str, Any] = {"files": [_json_of(verdict) for verdict in verdicts]}
    out["refused"] = [{"file": name, "message": message} for name, message in refused]
    out["share"] = min(shares, default=None)
    if least is not None:
        out["least"] = least
        out["passed"] = bool(shares) and min(shares) >= least
    return out


def list_rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return a row for each measurement, and for the rings and trees of each communicator."""
    rows = []
    for verdict in verdicts:
        for channelled in map(_json_of_channels, verdict.channelled):
            for one in channelled["collectives"]:
                for rate in one["rates"]:
                    head = {
                        "file": verdict.reading.where,
                        "collective": one["collective"],
                        "ranks": channelled["ranks"],
                    }
                    figures = {
                        "algbw_GBps": rate["algbw_GBps"],
                        "busbw_GBps": None,
                        "share": rate["share"],
                    }
                    rows.append({**head, "size_bytes": None, "how": rate["shape"], **figures})
        for measured in map(_json_of_measured, verdict.measured):
            head = {
                "file": verdict.reading.where,
                "collective": measured["collective"],
                "ranks": measured["ranks"],
            }
            rows += [head | row for row in measured["rows"]]
    return rows


def _json_of(verdict: Verdict) -> dict[str, Any]:
    """Return the object of one file."""
    reading, topology = verdict.reading, verdict.machine.topology
    return {
        "file": reading.where,
        "kind": reading.kind,
        "library": reading.library,
        "topology": None
        if topology is None
        else {
            "name": topology.name,
            "fingerprint": topology.fingerprint,
            "ranks": len(topology.ranks),
        },
        "topology_source": verdict.machine.source,
        "communicators": [_json_of_channels(c) for c in verdict.channelled],
        "measured": [_json_of_measured(m) for m in verdict.measured],
        "findings": [
            {"name": f.name, "message": f.message, "advice": f.advice or None, "line": f.line}
            for f in verdict.findings
        ],
        "notes": verdict.notes,
        "share": min((share for _, share in verdict.shares), default=None),
    }


def _json_of_limits(limits: Limits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    return {
        "one_way_GBps": float(limits.one_way_GBps),
        "any_way_GBps": float(limits.any_way_GBps),
        "in_network_GBps": None
        if limits.in_network_GBps is None
        else float(limits.in_network_GBps),
        "kind": limits.kind,
        "assumption": limits.assumption,
        "rests_on": limits.rates,
    }


def _json_of_options(options: Options | None) -> list[dict[str, Any]]:
    if options is None:
        return []
    return [
        {"name": o.name, "algbw_GBps": float(o.algbw_GBps), "what": o.what} for o in options.options
    ]


def _json_of_rate(rate: Rate, limits: Limits, taken: bool) -> dict[str, Any]:
    return {
        "shape": rate.shape,
        "channels": rate.channels,
        "algbw_GBps": float(rate.algbw_GBps),
        "share": float(rate.algbw_GBps / limits.one_way_GBps),
        "judged": taken,
        "limiting_link": {
            "src": rate.link[0],
            "dst": rate.link[1],
            "bandwidth_GBps": float(rate.link_GBps),
            "load": float(rate.load),
            "alike": rate.alike,
            "crossings": list(rate.crossings),
        },
    }


def _json_of_channels(channelled: Channelled) -> dict[str, Any]:
    """Return the object of a communicator."""
    c, placed = channelled.communicator, channelled.placed
    return {
        "ranks": c.ranks,
        "nodes": c.nodes,
        "alike": c.alike,
        "gpus": None if placed is None else [placed.topology.ranks[i] for i in placed.gpu_of],
        "placed": None if placed is None else placed.how,
        "rings": [list(order) for order in c.rings],
        "trees": [list(tree) for tree in c.trees],
        "promised": c.promised,
        "patterns": [
            {
                "pattern": p.number,
                "channels": p.channels,
                "intra_GBps": p.intra_GBps,
                "inter_GBps": p.inter_GBps,
                "type_intra": p.type_intra,
                "type_inter": p.type_inter,
            }
            for p in c.patterns
        ],
        "transports": dict(c.transports),
        "takes": channelled.taken or None,
        "not_judged": channelled.why_not or None,
        "collectives": [
            {
                "collective": name,
                "bound": _json_of_limits(channelled.limits[name]),
                "rates": [
                    _json_of_rate(r, channelled.limits[name], r is channelled.judged(name))
                    for r in rates
                ],
                "share": channelled.share(name),
                "options": _json_of_options(channelled.options[name]),
            }
            for name, rates in channelled.rates.items()
        ],
    }


def _json_of_measured(measured: Measured) -> dict[str, Any]:
    """Return the object of a collective's measurements."""
    peak = measured.peak
    return {
        "collective": measured.collective,
        "ranks": measured.ranks,
        "bound": _json_of_limits(measured.limits),
        "not_judged": measured.why_not or None,
        "placed": None if measured.placed is None else measured.placed.how,
        "share": peak.share,
        "above_bound": measured.is_above,
        "peak": {"size_bytes": peak.measured.size_bytes, "algbw_GBps": peak.measured.algbw_GBps},
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
        "options": _json_of_options(measured.options),
    }
