"""Write a report as one HTML page: the machine, findings, and a section for each collective."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from ....topo.extras.doctor import Examination, Finding
from ....topo.extras.pictures import svg
from ....topo.extras.pictures.part import draw_part, read_width
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.matrix import LABELS, Connection, find_connections
from ....topo.pictures.cables import (
    FAMILY_NAMES,
    describe_rates,
    find_cables,
    format_rate,
    group_alike,
)
from ....topo.pictures.table import MAX_GPUS, list_adding
from ....topo.printable import quote
from ....topo.version import VERSION
from ...describe import CUT_SHORT
from ...pictures.plan_curves import predict_algbw_GBps
from ..heat_map import MAX_GPUS as MAX_HEAT_MAP
from ..heat_map import TITLE_HEIGHT, draw_heat_map
from ..worth.worth import BACKEND, FILE, HOOK, Worth, find_worth
from .gather import Report
from .html import (
    crop_picture,
    make_beside,
    make_details,
    make_figure,
    make_page,
    make_paragraph,
    make_section,
    make_table,
)
from .plans import SHOWN_SIZE, write_section
from .recoveries import write_recoveries

# The names of one device of a kind, and of several.
_NAMES = {
    "gpu": ("GPU", "GPUs"),
    "cpu": ("socket", "sockets"),
    "switch": ("switch", "switches"),
    "nic": ("NIC", "NICs"),
}
# Most steps along links to classify pairs of GPUs; beyond, the first rows represent all.
_MAX_STEPS = 60_000
# Most lines of a page on one subject; further ones are only counted.
_MAX_NOTES, _MAX_FINDINGS, _MAX_EVIDENCE, _MAX_DEVICES = 30, 40, 6, 80
# Pixels; wider pictures scroll sideways on smaller screens, where they would be illegible
# otherwise.
_FITS_A_PHONE = 820
# The smallest scale of wide pictures.
_MIN_SCALE = 0.7
# Wider pictures, in pixels, do not fit beside the tables.
_FITS_BESIDE = 1150
# Most GPUs for which cells of the matrix have label and rate in one line.
_MAX_IN_A_LINE = 8
# What to use, in a tile's few words.
_USES = {FILE: "use a graph file", HOOK: "use the hook", BACKEND: "use the backend"}
# Most bytes of a picture, since pages are also sent by mail.
_MAX_PICTURE_BYTES = 900_000


def write_page(report: Report, *, made: datetime | None = None) -> str:
    """Return the report as a self-contained HTML page; `made` is its time (default: now).

    `gather_report` or `report_plan` makes the report.
    """
    machine = report.machine
    made = made if made is not None else datetime.now(timezone.utc)
    names = ["machine", "findings", *(section.collective.name for section in report.sections)]
    plan = "" if report.plan_file is None else f"plan {report.plan_file}; "
    about = f"{plan}{_count_devices(machine)}; fingerprint {machine.fingerprint}"
    names += ["recoveries"] * (report.recoveries is not None)
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    body = [
        f"<h1>{quote(machine.name)}</h1>",
        make_paragraph(about, soft=True),
        f"<nav>{links}</nav>",
        _write_facts(report),
        write_machine(machine),
        _write_findings(report.examination),
        *(
            write_section(s, report.topology, with_pictures=i == 0)
            for i, s in enumerate(report.sections)
        ),
    ]
    if report.recoveries is not None:
        body.append(write_recoveries(report.recoveries))
    if not report.sections:
        body.append(make_paragraph("With fewer than two GPUs there is no collective to plan."))
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


def _count_devices(machine: Topology) -> str:
    counts = Counter(device.kind for device in machine.devices)
    named = ((counts[kind], names) for kind, names in _NAMES.items() if counts[kind])
    return ", ".join(f"{count:,} {names[count > 1]}" for count, names in named)


def _write_facts(report: Report) -> str:
    number = len(report.machine.ranks)
    facts = [(f"{number:,}", "GPU" if number == 1 else "GPUs")]
    worth = _find_worth(report)
    if worth is not None:
        facts.insert(0, _shorten_worth(worth))
    if report.sections:
        first = report.sections[0]
        name = first.collective.name
        if first.bounds is not None:
            bound = float(first.bounds.single_path.algbw_GBps)
            plan, help_ = first.plan, ""
            alone = None if plan is None else plan.bound_alone
            if plan is not None and not plan.collective.has_all_gpus:
                help_ = " with help" if plan.helpers else " without help"
            cut = f" ({CUT_SHORT})" if first.bounds.single_path.is_cut_short else ""
            facts.append((f"{bound:.4g} GB/s", f"bound of {name}{help_}, algbw{cut}"))
            if alone is not None and plan is not None and plan.helpers:
                facts.append((f"{float(alone.algbw_GBps):.4g} GB/s", "without help"))
        # 1 GiB, as the caption says.
        algbw = 0.0 if first.plan is None else predict_algbw_GBps(first.plan, SHOWN_SIZE << 2)
        if algbw:
            facts.append((f"{algbw:.4g} GB/s", f"{name} of 1 GiB, predicted"))
    counts = Counter(finding.severity for finding in report.examination.findings)
    listed = ", ".join(
        f"{counts[s]} {s}{'s' * (counts[s] > 1)}" for s in ("error", "warning", "note") if counts[s]
    )
    what = "finding" if counts.total() == 1 else "findings"
    facts.append((str(counts.total()), f"{what} ({listed})" if listed else what))
    cells = "".join(
        f"<div><b>{quote(value)}</b><span>{quote(what)}</span></div>" for value, what in facts
    )
    if worth is None:
        return f'<div class="facts">{cells}</div>'
    data = f' data-worth="{quote(json.dumps(worth.to_json()))}"'
    line = f"{worth.line[0].upper()}{worth.line[1:]}."
    return f'<div class="facts"{data}>{cells}</div>\n{make_paragraph(line, soft=True)}'


def _shorten_worth(worth: Worth) -> tuple[str, str]:
    """Return what the plan is worth as the texts of a tile; the whole line stands below."""
    if worth.ratio is None:
        return "not known", "what the plan gains over stock"
    least = "at least " * worth.is_limit
    use = "no advice" if worth.advice is None else _USES.get(worth.advice, worth.verdict)
    return f"{least}{worth.ratio:.2f}x", f"the plan over {worth.stock_name}: {use}"


def _find_worth(report: Report) -> Worth | None:
    """Return what the first plan is worth at 1 GiB; None without a plan."""
    plan = next((section.plan for section in report.sections), None)
    return None if plan is None else find_worth(plan, SHOWN_SIZE << 2)


def write_machine(machine: Topology) -> str:
    """Return the section about the machine: its picture, devices, links and notes."""
    about = [*describe_rates(machine), *list_adding(machine)]
    links = [_list_links(machine), *(make_paragraph(line, soft=True) for line in about)]
    connections, heat_map = _list_connections(machine)
    picture, left_out = _draw(machine)
    if len(picture) <= _MAX_PICTURE_BYTES:
        caption = "GB/s in one direction" + (f"; {left_out}" if left_out else "")
        look = "fit" if read_width(picture) <= _FITS_A_PHONE else "wide"
        drawn = f'<div class="machine">{make_figure(picture, caption, look)}</div>'
    else:
        text = "too large to draw; topo-probe's format dot writes it for Graphviz"
        drawn = make_paragraph(text, soft=True)
    rest = [_list_devices(machine)]
    if machine.notes:
        title = f"{len(machine.notes)} notes on what could not be read or was assumed"
        lines = _cut([str(note) for note in machine.notes], _MAX_NOTES)
        rest.append(make_details(title, _make_list(lines)))
    if read_width(picture) > _FITS_BESIDE:
        left, right = ([*links, *connections], [heat_map]) if heat_map else (links, connections)
        parts = [drawn, make_beside(left, right), *rest]
    elif heat_map:
        parts = [make_beside([drawn, *links], [*connections, heat_map]), *rest]
    else:
        parts = [make_beside([drawn], [*links, *connections]), *rest]
    return make_section("machine", "The machine", *parts)


def _cut(lines: Sequence[str], most: int, of_what: str = "") -> list[str]:
    return [*lines[:most], *([f"and {len(lines) - most} more{of_what}"] * (len(lines) > most))]


def _draw(machine: Topology) -> tuple[str, str | None]:
    """Return the machine as SVG for a page, and a text on the parts left out, None if none are."""
    picture, left_out = draw_part(machine)
    width = read_width(picture)
    size = f' style="min-width:{round(width * _MIN_SCALE)}px"' if width > _FITS_A_PHONE else ""
    # Inside a page of HTML a picture needs no namespace, and the page has its title.
    picture = picture.replace(' xmlns="http://www.w3.org/2000/svg"', size, 1)
    return crop_picture(picture, svg.TITLE_HEIGHT, svg.SIDE), left_out


def _write_findings(examination: Examination) -> str:
    """Return the section with the doctor's findings, worst first."""
    parts = [make_paragraph(examination.summary)]
    findings = [_write_finding(finding) for finding in examination.findings[:_MAX_FINDINGS]]
    parts.append(f'<div class="columns">{"".join(findings)}</div>' if findings else "")
    left = len(examination.findings) - _MAX_FINDINGS
    if left > 0:
        parts.append(make_paragraph(f"and {left} more; topo-probe's check lists them"))
    skipped = group_by_key((lack, name) for name, lack in examination.skipped)
    if skipped:
        lacks = (f"{', '.join(names)}: {lack}" for lack, names in skipped.items())
        title = f"{len(examination.skipped)} checks could not be made"
        parts.append(make_details(title, _make_list(lacks)))
    return make_section("findings", "Findings", *parts)


def _write_finding(finding: Finding) -> str:
    evidence = _cut(finding.evidence, _MAX_EVIDENCE, " of the kind")
    return (
        f'<div class="finding {finding.severity}"><b>{finding.severity}</b> '
        f"{quote(finding.message)}{_make_list(evidence, soft=True) if evidence else ''}"
        f"<div>What to do: {quote(finding.advice)}</div></div>"
    )


def _make_list(lines: Iterable[str], *, soft: bool = False) -> str:
    look = ' class="soft"' if soft else ""
    return f"<ul{look}>{''.join(f'<li>{quote(line)}</li>' for line in lines)}</ul>"


def _list_links(machine: Topology) -> str:
    rows = [
        (
            look.label,
            f"{len(cables):,}",
            f"{format_rate(look.GBps)} in {'one' if look.directed else 'each'} direction",
            ", ".join(dict.fromkeys(cable.width for cable in cables)),
        )
        for look, cables in group_alike(find_cables(machine))
    ]
    return make_table(("links", "how many", "GB/s", "width"), rows[:_MAX_DEVICES], right=(1, 2, 3))


def _list_connections(machine: Topology) -> tuple[list[str], str]:
    """Return how GPUs reach each other, and a heat map if they are too many for a table of text."""
    if len(machine.ranks) < 2:
        return [], ""
    rows = find_connections(machine, _MAX_STEPS)
    pairs = Counter(x for i, row in enumerate(rows) for j, x in enumerate(row) if i != j)
    used = dict.fromkeys(x.label.rstrip("0123456789") for x in pairs)
    meaning = {label.rstrip("#"): f"{label}: {text}" for label, text in LABELS.items()}
    legend = make_paragraph("; ".join(meaning[x] for x in used if x in meaning), soft=True)
    is_whole = len(rows) == len(machine.ranks)
    if is_whole and len(rows) < MAX_GPUS:
        titles = ["from\u00a0\\\u00a0to", *map(str, range(len(rows)))]
        between = "\n" if len(rows) > _MAX_IN_A_LINE else " "
        cells = [
            (str(i), *(_show_connection(x, between) for x in row)) for i, row in enumerate(rows)
        ]
        heading = "<h3>From GPU to GPU: connection, and GB/s of the route used alone</h3>"
        return [heading, make_table(titles, cells, keep_sparse=True), legend], ""
    counted = "" if is_whole else f", counted from the first {len(rows)} GPUs"
    cells = [
        (x.label, "" if x.GBps is None else format_rate(x.GBps), f"{number:,}")
        for x, number in pairs.most_common(_MAX_DEVICES)
    ]
    parts = [
        f"<h3>From GPU to GPU{counted}</h3>",
        make_table(("connection", "GB/s alone", "pairs"), cells, right=(1, 2)),
        legend,
    ]
    # A square of one shade says less than the table's one row.
    if not is_whole or len(rows) > MAX_HEAT_MAP or len({x.GBps for x in pairs}) < 2:
        return parts, ""
    picture = crop_picture(draw_heat_map(machine, alone=False, merge=True), TITLE_HEIGHT)
    caption = "GB/s from GPU (row) to GPU (column)"
    return parts, make_figure(picture, caption, "map")


def _show_connection(connection: Connection, between: str) -> str:
    if connection.label == "X":
        return "\u00b7"
    rate = "" if connection.GBps is None else f"{between}{format_rate(connection.GBps)}"
    return f"{connection.label}{rate}"


def _list_devices(machine: Topology) -> str:
    kinds = [FAMILY_NAMES[d.family] if d.family else d.kind for d in machine.devices]
    if len(machine.devices) > _MAX_DEVICES:
        counts = ((kind, f"{number:,}") for kind, number in Counter(kinds).items())
        return make_table(("devices", "how many"), counts, right=(1,))
    rank = {ident: str(i) for i, ident in enumerate(machine.ranks)}
    rows = [
        (
            rank.get(d.id, ""), d.id, kind, "" if d.numa_node is None else str(d.numa_node),
            d.bus_id or "", str(d.extra.get("name") or ""),
        )
        for d, kind in zip(machine.devices, kinds, strict=True)
    ]  # fmt: skip
    table = make_table(("rank", "id", "kind", "NUMA", "bus id", "name"), rows, right=(0, 3))
    return make_details(f"{len(machine.devices)} devices", table)
