"""Verdicts as Prometheus' text format (version 0.0.4), for a textfile collector."""

from __future__ import annotations

from collections.abc import Sequence

from .verdict import Verdict

_METRICS = {
    "topo_judge_algbw_gbps": "Measured algorithm bandwidth in GB/s (1e9 bytes a second).",
    "topo_judge_busbw_gbps": "Measured bus bandwidth in GB/s, as nccl-tests define it.",
    "topo_judge_bound_gbps": "Certified upper bound on the algorithm bandwidth in GB/s.",
    "topo_judge_channels_gbps": "Algorithm bandwidth in GB/s that the rings or trees found can "
    "reach.",
    "topo_judge_option_gbps": "Algorithm bandwidth in GB/s that something else would reach.",
    "topo_judge_share": "What is judged, as a share of the bound for one way a pair of GPUs.",
    "topo_judge_finding": "1 for each finding on a file.",
    "topo_judge_passed": "1 where every share is at least what was asked for, else 0.",
}
Sample = tuple[str, dict[str, str], float]


def write_prometheus(verdicts: Sequence[Verdict], least: float | None) -> str:
    """Return the verdicts as metrics, each with HELP and TYPE; no series stands twice."""
    samples: list[Sample] = []
    for verdict in verdicts:
        samples += _list_samples(verdict)
    if least is not None:
        shares = [share for verdict in verdicts for _, share in verdict.shares]
        samples.append(
            (
                "topo_judge_passed",
                {"least": f"{least:g}"},
                float(bool(shares) and min(shares) >= least),
            )
        )
    lines: list[str] = []
    for name, text in _METRICS.items():
        series: dict[str, float] = {}
        for metric, labels, value in samples:
            if metric == name:
                series.setdefault(
                    ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items()), value
                )
        if series:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value:.9g}" for labels, value in series.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _escape(label: str) -> str:
    """Return a label's value with what the format reserves escaped."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _list_samples(verdict: Verdict) -> list[Sample]:
    """Return all samples of one file."""
    out: list[Sample] = []
    file = {"file": verdict.reading.where}
    for m in verdict.measured:
        of = {**file, "collective": m.collective, "ranks": str(m.ranks)}
        for row in m.rows:
            at = {**of, "size_bytes": str(row.measured.size_bytes), "how": row.measured.how}
            out.append(("topo_judge_algbw_gbps", at, row.measured.algbw_GBps))
            out.append(("topo_judge_busbw_gbps", at, row.measured.busbw_GBps))
        if m.limits is not None:
            out.append(
                ("topo_judge_bound_gbps", {**of, "bound": "one-way"}, float(m.limits.one_way_GBps))
            )
            out.append(
                ("topo_judge_bound_gbps", {**of, "bound": "any-way"}, float(m.limits.any_way_GBps))
            )
            if m.limits.in_network_GBps is not None:
                out.append(
                    (
                        "topo_judge_bound_gbps",
                        {**of, "bound": "in-network"},
                        float(m.limits.in_network_GBps),
                    )
                )
        if m.peak.share is not None:
            out.append(("topo_judge_share", {**of, "by": "measurement"}, m.peak.share))
        for option in m.options.options if m.options is not None else ():
            labels = {**of, "option": option.name, "what": option.what}
            out.append(("topo_judge_option_gbps", labels, float(option.algbw_GBps)))
    for number, c in enumerate(verdict.channelled):
        for name, rates in c.rates.items():
            of = {**file, "collective": name, "ranks": str(c.communicator.ranks)}
            out.append(
                (
                    "topo_judge_bound_gbps",
                    {**of, "bound": "one-way"},
                    float(c.limits[name].one_way_GBps),
                )
            )
            for rate in rates:
                labels = {**of, "communicator": str(number), "shape": rate.shape}
                out.append(("topo_judge_channels_gbps", labels, float(rate.algbw_GBps)))
            share = c.share(name)
            if share is not None:
                out.append(
                    (
                        "topo_judge_share",
                        {**of, "by": "channels", "communicator": str(number)},
                        share,
                    )
                )
            for option in c.options[name].options:
                labels = {**of, "option": option.name, "what": option.what}
                out.append(("topo_judge_option_gbps", labels, float(option.algbw_GBps)))
    out += [("topo_judge_finding", {**file, "name": f.name}, 1.0) for f in verdict.findings]
    return out
