"""An examination, the findings of the doctor's checks of a machine, as metrics for Prometheus.

A finding is one problem; its severity is error, warning or note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...metrics import Sample, write_metrics
from . import Examination
from .alike import ComparedHost
from .view import SEVERITIES

# The metrics, and their help.
METRICS = {
    "topo_check_passed": "1 if no finding is as severe as the one asked for, else 0.",
    "topo_check_findings": "Number of findings of a severity.",
    "topo_check_finding": "1 for each finding, by its kind and what it is about.",
    "topo_check_checks": "Number of checks that were made, or skipped for lack of data.",
    "topo_check_gpus": "Number of GPUs of a host.",
    "topo_check_nics": "Number of NICs of a host.",
}


def list_failures(examination: Examination, fail_on: str) -> list[str]:
    """Return the messages of the findings that are at least as severe as the severity `fail_on`."""
    failing = SEVERITIES[: list[str](SEVERITIES).index(fail_on) + 1]
    return [finding.message for finding in examination.findings if finding.severity in failing]


def write_prometheus(examination: Examination, hosts: Sequence[ComparedHost], fail_on: str) -> str:
    """Return the text of an examination's metrics, with whether it has failures by `fail_on`.

    `fail_on` is the least severity of a failure. `hosts` are those of the machine, for the numbers
    of their GPUs and NICs.
    """
    return write_metrics(_list_samples(examination, hosts, fail_on), METRICS)


def _list_samples(
    examination: Examination, hosts: Sequence[ComparedHost], fail_on: str
) -> Iterator[Sample]:
    passed = not list_failures(examination, fail_on)
    yield "topo_check_passed", {"fail_on": fail_on}, float(passed)
    counts = Counter(finding.severity for finding in examination.findings)
    for severity in SEVERITIES:
        yield "topo_check_findings", {"severity": severity}, counts[severity]
    for finding in examination.findings:
        labels = {"severity": finding.severity, "what": finding.what}
        labels |= {"about": " ".join(finding.about), "message": finding.message}
        yield "topo_check_finding", labels, 1.0
    yield "topo_check_checks", {"made": "yes"}, len(examination.checked)
    yield "topo_check_checks", {"made": "no"}, len(examination.skipped)
    for host in hosts:
        yield "topo_check_gpus", {"host": host.label}, len(host.view.gpus)
        yield "topo_check_nics", {"host": host.label}, len(host.view.nics)
