"""A report as one page."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone

from ...topo.printable import quote
from ...topo.version import VERSION
from .gather import Report
from .html import make_page, make_paragraph
from .machine import write_findings, write_machine
from .plans import SHOWN_SIZE, write_section

_NAMES = {"gpu": "GPU", "cpu": "socket", "switch": "switch", "nic": "NIC"}


def write_page(report: Report, *, made: datetime | None = None) -> str:
    """Return the report as a self-contained HTML page; `made` is its time (default: now)."""
    machine = report.machine
    made = made if made is not None else datetime.now(timezone.utc)
    names = ["machine", "findings", *(section.collective.name for section in report.sections)]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    body = [f"<h1>{quote(machine.name)}</h1>"]
    plan = "" if report.plan_file is None else f"plan {report.plan_file}; "
    about = f"{plan}{_count_devices(report)}; fingerprint {machine.fingerprint}"
    body += [make_paragraph(about, soft=True), f"<nav>{links}</nav>", _write_facts(report)]
    body += [write_machine(machine), write_findings(report.examination)]
    if not report.sections:
        body.append(make_paragraph("With fewer than two GPUs there is no collective to plan."))
    body += [
        write_section(s, report.topology, with_pictures=i == 0)
        for i, s in enumerate(report.sections)
    ]
    body.append(
        make_paragraph(
            f"topoplan {VERSION}, {made:%Y-%m-%d %H:%M} UTC, in {report.seconds:.1f} s. GB/s are "
            "1e9 bytes a second in one direction; algbw is the buffer's bytes over the time of a "
            "call. Bounds are proved, and their arithmetic was checked; schedules were verified by "
            "a replay; times are predicted, not measured.",
            soft=True,
        )
    )
    return make_page(f"{machine.name}: topoplan report", body)


def _count_devices(report: Report) -> str:
    counts = Counter(device.kind for device in report.machine.devices)
    parts = []
    for kind, name in _NAMES.items():
        if counts[kind]:
            plural = "" if counts[kind] == 1 else "es" if name == "switch" else "s"
            parts.append(f"{counts[kind]:,} {name}{plural}")
    return ", ".join(parts)


def _write_facts(report: Report) -> str:
    number = len(report.machine.ranks)
    facts = [(f"{number:,}", "GPU" if number == 1 else "GPUs")]
    if report.sections:
        first = report.sections[0]
        name = first.collective.name
        if first.bounds is not None:
            bound = float(first.bounds.single_path.algbw_GBps)
            facts.append((f"{bound:.4g} GB/s", f"bound of {name}, algbw"))
        if first.plan is not None:
            # 1 GiB, as the caption says.
            size = SHOWN_SIZE << 2
            time_s = first.plan.time_s(first.plan.entry_for(size), size)
            if time_s:
                facts.append((f"{size / time_s / 1e9:.4g} GB/s", f"{name} of 1 GiB, predicted"))
    counts = Counter(finding.severity for finding in report.examination.findings)
    listed = ", ".join(
        f"{counts[s]} {s}{'s' * (counts[s] > 1)}" for s in ("error", "warning", "note") if counts[s]
    )
    total = sum(counts.values())
    what = "finding" if total == 1 else "findings"
    facts.append((str(total), f"{what} ({listed})" if listed else what))
    cells = "".join(
        f"<div><b>{quote(value)}</b><span>{quote(what)}</span></div>" for value, what in facts
    )
    return f'<div class="facts">{cells}</div>'
