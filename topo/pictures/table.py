"""A topology as tables for people: devices, how GPUs reach each other, links by kind, notes."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from ..gpudirect import lines, verdicts
from ..graph import Device, Topology
from ..matrix import LABELS, Way, ways
from .cables import FAMILY_NAMES, cables, kind_name, rate_text

MOST_GPUS = 16
"""With more GPUs than this the matrix becomes a summary."""

_MOST_DEVICES = 64
_MOST_NOTES = 200
MOST_STEPS = 3_200_000  # a cluster of 1,024 GPUs needs 3.1 million
_PLAIN_ID = re.compile(r"gpu\d{1,3}")
_COLUMNS, _WIDEST = 100, 400  # columns where there is no terminal; no table is wider than the other


def write(topology: Topology, colour: bool = False) -> str:
    """The tables as text, with terminal colours where asked for."""
    buffer = io.StringIO()
    columns = shutil.get_terminal_size((_COLUMNS, 24)).columns
    console = Console(file=buffer, width=_WIDEST, force_terminal=colour, highlight=False, emoji=False, markup=False)
    ranks = len(topology.ranks)
    console.print(Text(topology.name, style="bold"))
    console.print(f"{ranks} rank{'' if ranks == 1 else 's'}, fingerprint {topology.fingerprint}")
    if topology.source:
        console.print(Text(f"source: {topology.source}"), soft_wrap=True)
    console.print()
    console.print(_devices(topology))
    if ranks > 1:
        _print_gpus(console, topology, columns)
    if topology.links:
        console.print(_links(topology))
        measured = _measured(topology)
        if measured.row_count:
            console.print(measured)
    _print_gpudirect(console, topology)
    notes = _notes(topology)
    for note in notes[:_MOST_NOTES]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    if len(notes) > _MOST_NOTES:
        console.print(f"and {len(notes) - _MOST_NOTES} more notes, which --json has")
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines).rstrip() + "\n"


def _table(title: str | None, *columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _devices(topology: Topology) -> Table:
    """A row a device; where there are many, a row a kind."""
    if len(topology.devices) > _MOST_DEVICES:
        table = _table("Devices", "kind", "count", right=("count",))
        for kind, count in Counter(_what(d) for d in topology.devices).items():
            table.add_row(kind, str(count))
        return table
    table = _table("Devices", "rank", "id", "kind", "NUMA", "bus id", "name", right=("rank", "NUMA"))
    rank = {ident: str(i) for i, ident in enumerate(topology.ranks)}
    for device in topology.devices:
        node = "" if device.numa_node is None else str(device.numa_node)
        name = device.extra.get("name")
        cells = (rank.get(device.id, ""), device.id, _what(device), node, device.bus_id or "", str(name or ""))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _what(device: Device) -> str:
    return FAMILY_NAMES[device.family] if device.family else device.kind


def _print_gpus(console: Console, topology: Topology, columns: int) -> None:
    rows = ways(topology, MOST_STEPS)
    seen = Counter(way for i, row in enumerate(rows) for j, way in enumerate(row) if i != j)
    if len(rows) < len(topology.ranks):
        told = (
            f"GPU to GPU: pairs counted from the first {len(rows)} of {len(topology.ranks)} GPUs, all would take long"
        )
        console.print(Text(told, style="bold"))
        console.print(_summary(seen))
    elif len(rows) <= MOST_GPUS:
        console.print(Text("GPU to GPU: the way, and GB/s of the route used alone", style="bold"))
        console.print(_matrix(rows, _headings(topology), stacked=_line_width(rows) > columns))
    else:
        console.print(Text(f"GPU to GPU: pairs counted, since there are more than {MOST_GPUS} GPUs", style="bold"))
        console.print(_summary(seen))
    meant = dict.fromkeys(way.label.rstrip("0123456789") for way in seen)
    known = {label.rstrip("#"): (label, meaning) for label, meaning in LABELS.items()}
    for label, meaning in (known[m] for m in meant):
        console.print(Text(f"  {label:6} {meaning}", style="dim"))
    console.print()


def _headings(topology: Topology) -> list[str]:
    """What GPUs are called in the matrix: GPU3 for gpu3, even if it is rank 2; by their ranks where ids are others."""
    if all(_PLAIN_ID.fullmatch(ident) for ident in topology.ranks):
        return [ident.upper() for ident in topology.ranks]
    return [f"GPU{i}" for i in range(len(topology.ranks))]


def _matrix(rows: list[list[Way]], headings: list[str], stacked: bool) -> Table:
    """Row i, column j: how GPU i sends to GPU j; where lines would be too long, with the rate below the label."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading.removeprefix("GPU") if stacked else heading, no_wrap=True)
    for heading, row in zip(headings, rows, strict=True):
        table.add_row(heading, *(_cell(way, "\n" if stacked else " ") for way in row))
    return table


def _cell(way: Way, between: str) -> str:
    return way.label if way.GBps is None else f"{way.label}{between}{rate_text(way.GBps)}"


def _line_width(rows: list[list[Way]]) -> int:
    """How long a line of the matrix is with every cell in one line."""
    return 6 + sum(1 + max(len(_cell(row[j], " ")) for row in rows) for j in range(len(rows)))


def _summary(seen: Counter[Way]) -> Table:
    table = _table(None, "way", "GB/s", "ordered pairs", right=("GB/s", "ordered pairs"))
    for way, count in sorted(seen.items(), key=lambda item: -item[1]):
        table.add_row(way.label, "" if way.GBps is None else rate_text(way.GBps), str(count))
    return table


def _print_gpudirect(console: Console, topology: Topology) -> None:
    """Verdicts, where there are facts to judge by: a preset says nothing of drivers."""
    try:
        judged = (
            verdicts(topology) if topology.extra.get("facts") or any("gdr" in d.extra for d in topology.devices) else ()
        )
    except InputError as error:
        console.print(Text(f"GPUDirect: {error}"), soft_wrap=True)
        return
    if judged:
        console.print(Text("GPUDirect", style="bold"))
        for line in lines(judged):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()


def _links(topology: Topology) -> Table:
    table = _table("Links", "kind", "cables", "GB/s each way", "lanes", right=("cables", "GB/s each way", "lanes"))
    found = Counter((c.kind, c.GBps, c.count, c.one_way) for c in cables(topology))
    for (kind, GBps, count, one_way), number in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])):
        rate = rate_text(GBps) + (" one way" if one_way else "")
        table.add_row(Text(kind_name(kind)), str(number), rate, str(count))
    return table


def _measured(topology: Topology) -> Table:
    """A row a link that was measured, both directions in one where they are alike: declared, measured, believed."""
    right = ("declared GB/s", "measured GB/s", "believed GB/s")
    table = _table("Measured", "from", "to", "kind", *right, "how", "reason", right=right)
    rows: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for link in topology.links:
        declared, measured = link.extra.get("declared"), link.extra.get("measured")
        if isinstance(measured, Mapping) and isinstance(declared, Mapping):
            seen = ("" if measured.get("limit") else "at least ") + str(measured.get("GBps"))
            rates = str(declared.get("GBps")), seen, rate_text(link.bandwidth_GBps)
            cells = (kind_name(link.kind), *rates, str(measured.get("how")), str(link.extra.get("reason") or ""))
            rows.setdefault((*sorted((link.src, link.dst)), *cells), []).append((link.src, link.dst))
    for row, ends in list(rows.items())[:_MOST_DEVICES]:
        both = "" if len(ends) == 1 else " and back"
        table.add_row(Text(ends[0][0]), Text(ends[0][1] + both), *(Text(cell) for cell in row[2:]))
    return table


def _notes(topology: Topology) -> list[str]:
    notes = topology.extra.get("notes")
    return [str(note) for note in notes] if isinstance(notes, (list, tuple)) else []
