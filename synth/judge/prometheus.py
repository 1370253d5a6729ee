"""Verdicts in Prometheus' text format (version 0.0.4), for a textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .options import Options
from .verdict import FileVerdict

_METRICS = {
    "topo_judge_algbw_gbps": "Measured algorithm bandwidth in GB/s (1e9 bytes a second).",
    "topo_judge_busbw_gbps": "Measured bus bandwidth in GB/s, as nccl-tests define it.",
    "topo_judge_bound_gbps": "Certified upper bound on the algorithm bandwidth in GB/s.",
    "topo_judge_channels_gbps": "Algorithm bandwidth in GB/s that the rings or trees can reach.",
    "topo_judge_option_gbps": "Algorithm bandwidth in GB/s that an alternative would reach.",
    "topo_judge_share": "Share of the single-path bound that the measurement or channels reach.",
    "topo_judge_finding": "1 for each finding on a file.",
    "topo_judge_passed": "1 if every share is at least the one asked for, else 0.",
}
# A metric without its prefix topo_judge_, its labels and its value.
Sample = tuple[str, dict[str, str], float]


def write_prometheus(verdicts: Sequence[FileVerdict], least: float | None) -> str:
    """Return the verdicts as metrics, each with HELP and TYPE; no series is written twice."""
    samples = [sample for verdict in verdicts for sample in _list_samples(verdict)]
    if least is not None:
        shares = [share for verdict in verdicts for _, share in verdict.shares]
        passed = min(shares, default=0.0) >= least
        samples.append(("passed", {"least": f"{least:g}"}, float(passed)))
    lines: list[str] = []
    for name, text in _METRICS.items():
        series: dict[str, float] = {}
        for metric, labels, value in samples:
            if f"topo_judge_{metric}" == name:
                escaped = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
                series.setdefault(escaped, value)
        if series:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value:.9g}" for labels, value in series.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _list_samples(verdict: FileVerdict) -> Iterator[Sample]:
    file = {"file": verdict.reading.where}
    for m in verdict.measured:
        labels = {**file, "collective": m.collective, "ranks": str(m.ranks)}
        for row in m.rows:
            at = {**labels, "size_bytes": str(row.measured.size_bytes), "how": row.measured.how}
            yield "algbw_gbps", at, row.measured.algbw_GBps
            yield "busbw_gbps", at, row.measured.busbw_GBps
        for bound in ("one_way", "any_way", "in_network") if m.limits else ():
            value = getattr(m.limits, f"{bound}_GBps")
            if value is not None:
                yield "bound_gbps", {**labels, "bound": bound.replace("_", "-")}, float(value)
        if m.peak.share is not None:
            yield "share", {**labels, "by": "measurement"}, m.peak.share
        yield from _list_options(labels, m.options)
    for number, c in enumerate(verdict.communicators):
        for name, rates in c.rates.items():
            labels = {**file, "collective": name, "ranks": str(c.communicator.ranks)}
            limit = float(c.limits[name].one_way_GBps)
            yield "bound_gbps", {**labels, "bound": "one-way"}, limit
            own = {"communicator": str(number)}
            for rate in rates:
                yield (
                    "channels_gbps",
                    {**labels, **own, "shape": rate.shape},
                    float(rate.algbw_GBps),
                )
            share = c.share(name)
            if share is not None:
                yield "share", {**labels, "by": "channels", **own}, share
            yield from _list_options(labels, c.options[name])
    for finding in verdict.findings:
        yield "finding", {**file, "name": finding.name}, 1.0


def _list_options(labels: dict[str, str], options: Options | None) -> Iterator[Sample]:
    for option in options.options if options is not None else ():
        more = {"option": option.name, "what": option.what}
        yield "option_gbps", {**labels, **more}, float(option.algbw_GBps)
