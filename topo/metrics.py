"""Prometheus' text of metrics, as node_exporter's text collector reads it from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# A sample: the metric's name, its labels, and its value.
Sample = tuple[str, Mapping[str, str], float]


def write_metrics(samples: Iterable[Sample], about: Mapping[str, str]) -> str:
    """Return the samples as gauges, each metric with a HELP and a TYPE line before its values.

    `about` maps the name of every metric in `samples` to its HELP text; metrics are written in its
    order, those without samples not at all. Of samples with equal names and labels the first
    counts.
    """
    series: dict[str, dict[str, float]] = {name: {} for name in about}
    for name, labels, value in samples:
        escaped = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        series[name].setdefault(escaped, value)
    lines: list[str] = []
    for name, values in series.items():
        if values:
            lines += [f"# HELP {name} {about[name]}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value:.9g}" for labels, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
