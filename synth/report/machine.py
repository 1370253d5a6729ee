"""The first half of a report: the machine, how its GPUs reach each other, and what the doctor
finds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction

from ...topo.doctor import Examination
from ...topo.doctor.finding import Finding
from ...topo.graph import Topology
from ...topo.matrix import LABELS, Connection, find_connections
from ...topo.pictures import svg
from ...topo.pictures.cables import (
    FAMILY_NAMES,
    Cable,
    describe_rates,
    find_cables,
    find_widths,
    format_rate,
    get_kind_name,
)
from ...topo.pictures.collapse import collapse
from ...topo.pictures.table import MAX_GPUS, list_adding
from ..pictures.drawing import quote
from .html import make_details, make_figure, make_paragraph, make_section, make_table

# Links that are looked at to count pairs of GPUs; beyond, the first rows stand for all.
_MOST_STEPS = 60_000
_MOST_NOTES, _MOST_FINDINGS, _MOST_EVIDENCE, _MOST_DEVICES = 30, 40, 6, 80
# Pixels; wider pictures scroll sideways where there is less room than that, since nobody could read
# them any more.
_FITS_A_PHONE = 820
# Pixels beyond which alike boxes are drawn once; the share of its width to which a wide picture may
# shrink.
_DRAWN_WHOLE, _LEAST_SCALE = 2_400, 0.7
# With more GPUs, cells of their matrix have the rate below the way.
_MOST_IN_A_LINE = 8
_MOST_PICTURE_BYTES = 900_000


def write_machine(machine: Topology) -> str:
    """Return the section about the machine: its picture, devices, links and notes."""
    picture, left_out = _draw(machine)
    parts: list[str] = []
    if len(picture) <= _MOST_PICTURE_BYTES:
        caption = "GB/s in one direction" + (f"; {left_out}" if left_out else "")
        look = "fit" if _read_width(picture) <= _FITS_A_PHONE else "wide"
        parts.append(f'<div class="machine">{make_figure(picture, caption, look)}</div>')
    else:
        parts.append(
            make_paragraph(
                "too large to draw; topo-probe --format dot writes it for Graphviz", soft=True
            )
        )
    parts += [
        _list_links(machine),
        *(make_paragraph(line, soft=True) for line in describe_rates(machine)),
    ]
    parts += [make_paragraph(line, soft=True) for line in list_adding(machine)]
    parts += _list_ways(machine)
    parts.append(_list_devices(machine))
    listed = [str(note) for note in machine.notes]
    if listed:
        more = [f"and {len(listed) - _MOST_NOTES} more"] if len(listed) > _MOST_NOTES else []
        items = "".join(f"<li>{quote(note)}</li>" for note in [*listed[:_MOST_NOTES], *more])
        parts.append(
            make_details(
                f"{len(listed)} notes on what could not be read or was assumed", f"<ul>{items}</ul>"
            )
        )
    return make_section("machine", "The machine", *parts)


def _draw(machine: Topology) -> tuple[str, str | None]:
    """Return the machine as SVG, and what is left out of it: most of many GPUs, alike boxes where
    it gets wide.
    """
    collapsed = collapse(machine)
    picture = svg.write(collapsed.topology)
    if _read_width(picture) > _DRAWN_WHOLE:
        fewer = collapse(machine, max_boxes=1)
        if fewer.left_out:
            collapsed, picture = fewer, svg.write(fewer.topology)
    width = _read_width(picture)
    size = f' style="min-width:{round(width * _LEAST_SCALE)}px"' if width > _FITS_A_PHONE else ""
    return picture.replace(' xmlns="http://www.w3.org/2000/svg"', size, 1), collapsed.left_out


def _read_width(picture: str) -> int:
    found = re.search(r'width="(\d+)"', picture)
    return int(found[1]) if found else 0


def write_findings(examination: Examination) -> str:
    """Return the section with the doctor's findings, worst first."""
    parts = [make_paragraph(examination.summary)]
    parts += [_write_finding(finding) for finding in examination.findings[:_MOST_FINDINGS]]
    if len(examination.findings) > _MOST_FINDINGS:
        parts.append(
            make_paragraph(
                f"and {len(examination.findings) - _MOST_FINDINGS} more; topo-probe --check lists "
                "them"
            )
        )
    skipped: dict[str, list[str]] = defaultdict(list)
    for name, lack in examination.skipped:
        skipped[lack].append(name)
    if skipped:
        items = "".join(
            f"<li>{quote(', '.join(names))}: {quote(lack)}</li>" for lack, names in skipped.items()
        )
        parts.append(
            make_details(
                f"{len(examination.skipped)} checks could not be made", f"<ul>{items}</ul>"
            )
        )
    return make_section("findings", "Findings", *parts)


def _write_finding(finding: Finding) -> str:
    evidence = [*finding.evidence[:_MOST_EVIDENCE]]
    if len(finding.evidence) > _MOST_EVIDENCE:
        evidence.append(f"and {len(finding.evidence) - _MOST_EVIDENCE} more of the kind")
    items = "".join(f"<li>{quote(line)}</li>" for line in evidence)
    return (
        f'<div class="finding {finding.severity}"><b>{finding.severity}</b> '
        f"{quote(finding.message)}"
        + (f'<ul class="soft">{items}</ul>' if items else "")
        + f"<div>What to do: {quote(finding.advice)}</div></div>"
    )


def _list_links(machine: Topology) -> str:
    classes: dict[tuple[str, Fraction, int, bool], list[Cable]] = defaultdict(list)
    for cable in find_cables(machine):
        classes[cable.kind, cable.GBps, cable.count, cable.directed].append(cable)
    widths = find_widths(machine)
    rows = []
    for (kind, GBps, count, one_way), cables in sorted(
        classes.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        ways = "one way" if one_way else "each way"
        lanes = dict.fromkeys(widths.get((c.a, c.b, c.kind), str(count)) for c in cables)
        rows.append(
            (
                get_kind_name(kind),
                f"{len(cables):,}",
                f"{format_rate(GBps)} {ways}",
                ", ".join(lanes),
            )
        )
    return make_table(("links", "how many", "GB/s", "lanes"), rows[:_MOST_DEVICES], right=(1, 2, 3))


def _list_ways(machine: Topology) -> list[str]:
    """Return how GPUs reach each other: as a matrix, or counted where there are many."""
    if len(machine.ranks) < 2:
        return []
    rows = find_connections(machine, _MOST_STEPS)
    pairs = Counter(way for i, row in enumerate(rows) for j, way in enumerate(row) if i != j)
    used = dict.fromkeys(way.label.rstrip("0123456789") for way in pairs)
    meaning = {label.rstrip("#"): f"{label}: {text}" for label, text in LABELS.items()}
    legend = make_paragraph(
        "; ".join(meaning[label] for label in used if label in meaning), soft=True
    )
    if len(rows) == len(machine.ranks) <= MAX_GPUS:
        titles = ["from \\ to", *(str(i) for i in range(len(rows)))]
        cells = [
            (
                str(i),
                *(
                    _show_connection(way, "\n" if len(rows) > _MOST_IN_A_LINE else " ")
                    for way in row
                ),
            )
            for i, row in enumerate(rows)
        ]
        head = "<h3>From GPU to GPU: connection, and GB/s of the route used alone</h3>"
        return [head, make_table(titles, cells), legend]
    counted = (
        "" if len(rows) == len(machine.ranks) else f", counted from the first {len(rows)} GPUs"
    )
    listed = sorted(pairs.items(), key=lambda item: -item[1])[:_MOST_DEVICES]
    cells = [
        (way.label, "" if way.GBps is None else format_rate(way.GBps), f"{number:,}")
        for way, number in listed
    ]
    table = make_table(("way", "GB/s alone", "pairs"), cells, right=(1, 2))
    return [f"<h3>From GPU to GPU{counted}</h3>", table, legend]


def _show_connection(way: Connection, between: str) -> str:
    if way.label == "X":
        return "\u00b7"
    return way.label if way.GBps is None else f"{way.label}{between}{format_rate(way.GBps)}"


def _list_devices(machine: Topology) -> str:
    rank = {ident: str(i) for i, ident in enumerate(machine.ranks)}
    if len(machine.devices) > _MOST_DEVICES:
        kinds = Counter(FAMILY_NAMES[d.family] if d.family else d.kind for d in machine.devices)
        rows: Iterable[tuple[str, ...]] = [(kind, f"{number:,}") for kind, number in kinds.items()]
        return make_table(("devices", "how many"), rows, right=(1,))
    rows = [
        (
            rank.get(d.id, ""), d.id, FAMILY_NAMES[d.family] if d.family else d.kind,
            "" if d.numa_node is None else str(d.numa_node), d.bus_id or "", str(d.extra.get("name") or ""),
        )
        for d in machine.devices
    ]  # fmt: skip
    table = make_table(("rank", "id", "kind", "NUMA", "bus id", "name"), rows, right=(0, 3))
    return make_details(f"{len(machine.devices)} devices", table)
