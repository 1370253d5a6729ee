"""The first half of a report: the machine, the connections of its GPUs, and the findings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from ...topo.doctor import Examination, Finding
from ...topo.graph import Topology
from ...topo.matrix import LABELS, Connection, find_connections
from ...topo.pictures import svg
from ...topo.pictures.cables import (
    FAMILY_NAMES,
    describe_rates,
    find_cables,
    format_rate,
    get_kind_name,
    group_alike,
)
from ...topo.pictures.collapse import collapse
from ...topo.pictures.table import MAX_GPUS, list_adding
from ...topo.printable import quote
from .html import make_details, make_figure, make_paragraph, make_section, make_table

# Most steps along links to classify pairs of GPUs; beyond, the first rows represent all.
_MAX_STEPS = 60_000
# Most lines of a page on one subject; further ones are only counted.
_MAX_NOTES, _MAX_FINDINGS, _MAX_EVIDENCE, _MAX_DEVICES = 30, 40, 6, 80
# Pixels; wider pictures scroll sideways on smaller screens, where they would be illegible
# otherwise.
_FITS_A_PHONE = 820
# Width in pixels beyond which one of several identical boxes is drawn, and the smallest scale of
# wide pictures.
_DRAWN_WHOLE, _MIN_SCALE = 2_400, 0.7
# Most GPUs for which cells of the matrix have label and rate in one line.
_MAX_IN_A_LINE = 8
# Most bytes of a picture, since pages are also sent by mail.
_MAX_PICTURE_BYTES = 900_000


def write_machine(machine: Topology) -> str:
    """Return the section about the machine: its picture, devices, links and notes."""
    picture, left_out = _draw(machine)
    parts: list[str] = []
    if len(picture) <= _MAX_PICTURE_BYTES:
        caption = "GB/s in one direction" + (f"; {left_out}" if left_out else "")
        look = "fit" if _read_width(picture) <= _FITS_A_PHONE else "wide"
        parts.append(f'<div class="machine">{make_figure(picture, caption, look)}</div>')
    else:
        text = "too large to draw; topo-probe's format dot writes it for Graphviz"
        parts.append(make_paragraph(text, soft=True))
    about = [*describe_rates(machine), *list_adding(machine)]
    parts += [_list_links(machine), *(make_paragraph(line, soft=True) for line in about)]
    parts += [*_list_connections(machine), _list_devices(machine)]
    listed = [str(note) for note in machine.notes]
    if listed:
        more = [f"and {len(listed) - _MAX_NOTES} more"] if len(listed) > _MAX_NOTES else []
        items = "".join(f"<li>{quote(note)}</li>" for note in [*listed[:_MAX_NOTES], *more])
        title = f"{len(listed)} notes on what could not be read or was assumed"
        parts.append(make_details(title, f"<ul>{items}</ul>"))
    return make_section("machine", "The machine", *parts)


def _draw(machine: Topology) -> tuple[str, str | None]:
    """Return the machine as SVG, and a text on the parts left out; None if it is complete.

    Most of many GPUs are left out, and identical boxes of a wide picture.
    """
    collapsed = collapse(machine)
    picture = svg.write(collapsed.topology)
    if _read_width(picture) > _DRAWN_WHOLE:
        fewer = collapse(machine, max_boxes=1)
        if fewer.left_out:
            collapsed, picture = fewer, svg.write(fewer.topology)
    width = _read_width(picture)
    size = f' style="min-width:{round(width * _MIN_SCALE)}px"' if width > _FITS_A_PHONE else ""
    # Inside a page of HTML a picture needs no namespace.
    return picture.replace(' xmlns="http://www.w3.org/2000/svg"', size, 1), collapsed.left_out


def _read_width(picture: str) -> int:
    match = re.search(r'width="(\d+)"', picture)
    return int(match[1]) if match else 0


def write_findings(examination: Examination) -> str:
    """Return the section with the doctor's findings, worst first."""
    parts = [make_paragraph(examination.summary)]
    parts += [_write_finding(finding) for finding in examination.findings[:_MAX_FINDINGS]]
    if len(examination.findings) > _MAX_FINDINGS:
        left = len(examination.findings) - _MAX_FINDINGS
        parts.append(make_paragraph(f"and {left} more; topo-probe's check lists them"))
    skipped: dict[str, list[str]] = defaultdict(list)
    for name, lack in examination.skipped:
        skipped[lack].append(name)
    if skipped:
        items = "".join(
            f"<li>{quote(', '.join(names))}: {quote(lack)}</li>" for lack, names in skipped.items()
        )
        title = f"{len(examination.skipped)} checks could not be made"
        parts.append(make_details(title, f"<ul>{items}</ul>"))
    return make_section("findings", "Findings", *parts)


def _write_finding(finding: Finding) -> str:
    evidence = [*finding.evidence[:_MAX_EVIDENCE]]
    if len(finding.evidence) > _MAX_EVIDENCE:
        evidence.append(f"and {len(finding.evidence) - _MAX_EVIDENCE} more of the kind")
    items = "".join(f"<li>{quote(line)}</li>" for line in evidence)
    return (
        f'<div class="finding {finding.severity}"><b>{finding.severity}</b> '
        f"{quote(finding.message)}"
        + (f'<ul class="soft">{items}</ul>' if items else "")
        + f"<div>What to do: {quote(finding.advice)}</div></div>"
    )


def _list_links(machine: Topology) -> str:
    rows = []
    for look, cables in group_alike(find_cables(machine)):
        rate = f"{format_rate(look.GBps)} in {'one' if look.directed else 'each'} direction"
        width = dict.fromkeys(cable.width for cable in cables)
        rows.append((get_kind_name(look.kind), f"{len(cables):,}", rate, ", ".join(width)))
    return make_table(("links", "how many", "GB/s", "width"), rows[:_MAX_DEVICES], right=(1, 2, 3))


def _list_connections(machine: Topology) -> list[str]:
    if len(machine.ranks) < 2:
        return []
    rows = find_connections(machine, _MAX_STEPS)
    pairs = Counter(x for i, row in enumerate(rows) for j, x in enumerate(row) if i != j)
    used = dict.fromkeys(x.label.rstrip("0123456789") for x in pairs)
    meaning = {label.rstrip("#"): f"{label}: {text}" for label, text in LABELS.items()}
    texts = (meaning[label] for label in used if label in meaning)
    legend = make_paragraph("; ".join(texts), soft=True)
    if len(rows) == len(machine.ranks) <= MAX_GPUS:
        titles = ["from \\ to", *map(str, range(len(rows)))]
        between = "\n" if len(rows) > _MAX_IN_A_LINE else " "
        cells = [
            (str(i), *(_show_connection(x, between) for x in row)) for i, row in enumerate(rows)
        ]
        head = "<h3>From GPU to GPU: connection, and GB/s of the route used alone</h3>"
        return [head, make_table(titles, cells), legend]
    some = f", counted from the first {len(rows)} GPUs"
    counted = "" if len(rows) == len(machine.ranks) else some
    listed = sorted(pairs.items(), key=lambda item: -item[1])[:_MAX_DEVICES]
    cells = [
        (x.label, "" if x.GBps is None else format_rate(x.GBps), f"{number:,}")
        for x, number in listed
    ]
    table = make_table(("connection", "GB/s alone", "pairs"), cells, right=(1, 2))
    return [f"<h3>From GPU to GPU{counted}</h3>", table, legend]


def _show_connection(connection: Connection, between: str) -> str:
    if connection.label == "X":
        return "\u00b7"
    rate = "" if connection.GBps is None else f"{between}{format_rate(connection.GBps)}"
    return f"{connection.label}{rate}"


def _list_devices(machine: Topology) -> str:
    rank = {ident: str(i) for i, ident in enumerate(machine.ranks)}
    if len(machine.devices) > _MAX_DEVICES:
        kinds = Counter(FAMILY_NAMES[d.family] if d.family else d.kind for d in machine.devices)
        rows: Iterable[tuple[str, ...]] = [(kind, f"{number:,}") for kind, number in kinds.items()]
        return make_table(("devices", "how many"), rows, right=(1,))
    rows = [
        (
            rank.get(d.id, ""), d.id, FAMILY_NAMES[d.family] if d.family else d.kind,
            "" if d.numa_node is None else str(d.numa_node), d.bus_id or "",
            str(d.extra.get("name") or ""),
        )
        for d in machine.devices
    ]  # fmt: skip
    table = make_table(("rank", "id", "kind", "NUMA", "bus id", "name"), rows, right=(0, 3))
    return make_details(f"{len(machine.devices)} devices", table)
