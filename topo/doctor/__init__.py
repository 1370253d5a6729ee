"""The doctor: what is wrong with a machine, worked out from its topology and facts alone.

So it serves a machine at hand, a JSON file, NCCL's XML and whatever else a topology was read from. Each check says in
its docstring by which rule it judges; what nobody claimed is not judged. `examine` says which checks could be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from ..errors import InputError
from ..facts import Facts, facts_of
from ..graph import Topology
from . import driver, links, nics, p2p, pcie, places, rates
from .case import SEVERITIES, Case, Check, Finding

__all__ = ["CHECKS", "Examination", "Finding", "examine", "findings", "report"]

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *links.CHECKS,
    *p2p.CHECKS,
    *pcie.CHECKS,
    *places.CHECKS,
    *nics.CHECKS,
    *rates.CHECKS,
)
"""Every check, in the order in which findings of one severity are told."""

_MOST_EVIDENCE = {"error": 6, "warning": 6, "note": 2}
_WIDTH = 120


@dataclass(frozen=True)
class Examination:
    """What was found, worst first; the checks that were made; and those that were not, each with what is wanting."""

    findings: tuple[Finding, ...]
    made: tuple[str, ...]
    not_made: tuple[tuple[str, str], ...]

    @property
    def summary(self) -> str:
        """One line: "2 errors, 1 warning in 20 checks", or "nothing wrong found in 20 checks"."""
        counts = [(sum(f.severity == severity for f in self.findings), severity) for severity in SEVERITIES]
        told = ", ".join(f"{n} {severity}{'s' * (n > 1)}" for n, severity in counts if n)
        return f"{told or 'nothing wrong found'} in {len(self.made)} check{'s' * (len(self.made) != 1)}"


def findings(topology: Topology) -> tuple[Finding, ...]:
    """What is wrong with a machine, errors first, then warnings, then notes. Raises nothing, whatever a file held."""
    return examine(topology).findings


def examine(topology: Topology) -> Examination:
    """The findings, and which checks could be made. Facts that cannot be read are a finding of their own."""
    found: list[Finding] = []
    try:
        facts = facts_of(topology.extra, topology.name)
    except InputError as error:
        facts = Facts()
        advice = "correct the facts in the file, or take them out; all else is judged without them"
        message = "the facts that the topology keeps cannot be read"
        found.append(Finding("warning", "unreadable-facts", (), message, (str(error),), advice))
    case = Case(topology, facts)
    wanting = {check.name: check.wants(case) for check in CHECKS}
    for check in CHECKS:
        if wanting[check.name] is None:
            found += check.find(case)
    return Examination(
        tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))),
        tuple(name for name, want in wanting.items() if want is None),
        tuple((name, want) for name, want in wanting.items() if want is not None),
    )


def report(examination: Examination) -> list[str]:
    """Plain lines for people: each finding with its evidence and advice, a summary, and what was not checked and why."""
    lines = [line for finding in examination.findings for line in _told(finding)]
    lines.append(examination.summary)
    wanting: dict[str, list[str]] = {}
    for name, want in examination.not_made:
        wanting.setdefault(want, []).append(name)
    if wanting:
        told = "; ".join(f"{', '.join(checks)} ({want})" for want, checks in wanting.items())
        lines += wrap(f"not checked: {told}", _WIDTH, subsequent_indent="    ")
    return lines


def _told(finding: Finding) -> Sequence[str]:
    most = _MOST_EVIDENCE[finding.severity]
    more = len(finding.evidence) - most
    return (
        f"{finding.severity}: {finding.message} [{finding.what}]",
        *(f"    {line}" for line in finding.evidence[:most]),
        *((f"    and {more} more of the kind",) if more > 0 else ()),
        f"    advice: {finding.advice}",
    )
