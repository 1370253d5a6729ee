"""The doctor: checks for problems of a machine, based only on its topology and facts.

It works on this machine, a JSON file, NCCL's XML and any other source of a topology. Each check
states its rule in its docstring, and judges nothing that no file or fact claims. `examine` also
returns the checks that could not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from ..derived.parts import split_hosts
from ..errors import InputError
from ..facts import Facts, load_facts
from ..graph import Topology
from . import driver, links, nics, p2p, pcie, places, rates, stock
from .finding import SEVERITIES, Finding
from .hosts import check_fabrics, list_new_findings, merge_findings
from .view import Check, DoctorView

__all__ = ["CHECKS", "Examination", "Finding", "examine", "list_findings", "report"]

# Every check, in the order of the findings of one severity.
CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *links.CHECKS,
    *p2p.CHECKS,
    *pcie.CHECKS,
    *places.CHECKS,
    *nics.CHECKS,
    *rates.CHECKS,
    *stock.CHECKS,
)

_MAX_EVIDENCE = {"error": 6, "warning": 6, "note": 2}
# Columns of a report if the caller does not give the terminal's width.
_WIDTH = 120


@dataclass(frozen=True)
class Examination:
    """The result of an examination.

    `findings` come worst first, `checked` names the checks made, and `skipped` those that could not
    be made, each with the data that it lacks.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def summary(self) -> str:
        """One line: "2 errors, 1 warning in 20 checks", or "nothing wrong found in 20 checks"."""
        counts = [
            (sum(f.severity == severity for f in self.findings), severity)
            for severity in SEVERITIES
        ]
        listed = ", ".join(f"{n} {severity}{'s' * (n > 1)}" for n, severity in counts if n)
        return (
            f"{listed or 'nothing wrong found'} in {len(self.checked)} "
            f"check{'s' * (len(self.checked) != 1)}"
        )


def list_findings(topology: Topology) -> tuple[Finding, ...]:
    """Return the findings about a machine: errors first, then warnings, then notes.

    It never raises.
    """
    return examine(topology).findings


def examine(topology: Topology) -> Examination:
    """Make all checks that the data allows, and return their findings.

    Each host is examined by itself, with its own facts, and several hosts also as one machine.
    Unreadable facts are a finding, too.
    """
    parts = split_hosts(topology)
    if len(parts) == 1:
        return _examine_host(topology)
    hosts = [(part, _examine_host(part.topology)) for part in parts]
    # the machine as a whole has no facts: checks that need them were made on each host
    whole = _examine_host(
        replace(
            topology, extra={k: v for k, v in topology.extra.items() if k not in ("facts", "notes")}
        )
    )
    findings = [*merge_findings((part.id, e.findings) for part, e in hosts), *check_fabrics(parts)]
    findings += list_new_findings(whole.findings, findings)
    checked = dict.fromkeys(name for _, e in hosts for name in e.checked) | dict.fromkeys(
        whole.checked
    )
    skipped = {name: lack for _, e in hosts for name, lack in e.skipped if name not in checked}
    return Examination(_sort(findings), tuple(checked), tuple(skipped.items()))


def _examine_host(topology: Topology) -> Examination:
    findings: list[Finding] = []
    try:
        facts = load_facts(topology.extra, topology.name)
    except InputError as error:
        facts = Facts()
        findings.append(
            Finding(
                "warning",
                "unreadable-facts",
                (),
                "the facts that the topology keeps cannot be read",
                (str(error),),
                "correct the facts in the file, or take them out; all else is judged without them",
            )
        )
    view = DoctorView(topology, facts)
    asked = [check for check in CHECKS if check.can_ask(view)]
    for check in asked:
        findings += check.check(view)
    return Examination(
        _sort(findings),
        tuple(check.name for check in asked),
        tuple((check.name, check.lack) for check in CHECKS if check not in asked),
    )


def _sort(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def report(examination: Examination, width: int = _WIDTH) -> list[str]:
    """Return an examination as lines of text for a terminal of `width` columns.

    Each finding has its evidence and advice; then come a summary, and the checks skipped, with the
    reasons.
    """
    lines = [line for finding in examination.findings for line in _format_finding(finding)]
    lines.append(examination.summary)
    skipped: dict[str, list[str]] = {}
    for name, lack in examination.skipped:
        skipped.setdefault(lack, []).append(name)
    if skipped:
        listed = "; ".join(f"{', '.join(checks)} ({lack})" for lack, checks in skipped.items())
        lines += wrap(f"not checked: {listed}", width, subsequent_indent="    ")
    return lines


def _format_finding(finding: Finding) -> Sequence[str]:
    most = _MAX_EVIDENCE[finding.severity]
    more = len(finding.evidence) - most
    return (
        f"{finding.severity}: {finding.message} [{finding.what}]",
        *(f"    {line}" for line in finding.evidence[:most]),
        *((f"    and {more} more of the kind",) if more > 0 else ()),
        f"    advice: {finding.advice}",
    )
