"""Format a topology as tables: devices, connections between GPUs, links by kind, notes."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from ...extras import TABLES, Names
from ..devices import Device, InNetwork
from ..matrix import LABELS, Connection, find_connections
from ..notes import explain_no_gpus
from ..printable import printable
from .cables import (
    FAMILY_NAMES,
    describe_rates,
    find_cables,
    format_rate,
    get_kind_name,
    group_alike,
)
from .collapse import number_ranks, show_hosts_once
from .console import SafeConsole, safe_text
from .part_of_table import TablePart

if TYPE_CHECKING:
    from ..graph import Topology

# GPUs: a larger matrix does not fit a terminal, so pairs are counted instead.
MAX_GPUS = 16
_MAX_DEVICES = 64  # devices; more are counted by kind
_MAX_NOTES = 200
# Maximum number of sources of rates in a row of links.
_MAX_SOURCES = 3
# Links visited to find all routes, so that a table never takes minutes: a cluster of 1,024 GPUs
# needs 3.1 million.
MAX_STEPS = 3_200_000
_PLAIN_ID = re.compile(r"gpu\d{1,3}")
_COLUMNS = 100  # if there is no terminal
_WIDEST = 400  # columns if lines are not wrapped


def write(topology: Topology, colour: bool = False, wraps: bool = False) -> str:
    """Return a topology as tables of devices, connections between GPUs and links, and its notes.

    `colour` adds colours, `wraps` breaks lines at the terminal's width. Without GPUs the result is
    one line on the devices, and one on the reason if it is known. Extras (optional parts of
    topoplan) add their parts (TablePart) before the notes.
    """
    if not topology.ranks:
        return _explain_missing_gpus(topology)
    buffer = io.StringIO()
    columns = shutil.get_terminal_size((_COLUMNS, 24)).columns
    console = SafeConsole(
        file=buffer,
        width=columns if wraps else _WIDEST,
        colour=colour,
        force_terminal=wraps,
        highlight=False,
        emoji=False,
        markup=False,
    )
    ranks = len(topology.ranks)
    console.print(safe_text(topology.name, style="bold"))
    console.print(f"{ranks} rank{'' if ranks == 1 else 's'}, fingerprint {topology.fingerprint}")
    if topology.source:
        console.print_line(f"source: {topology.source}")
    console.print()
    shown = show_hosts_once(topology)
    console.print(_list_devices(shown.topology))
    if shown.left_out is not None:
        console.print(
            safe_text(f"one host of each kind is listed; {shown.left_out}"), soft_wrap=True
        )
    for line in list_adding(topology):
        console.print_line(line)
    if ranks > 1:
        _print_gpus(console, topology, columns)
    if topology.links:
        console.print(_list_links(topology))
        for line in describe_rates(topology):
            console.print_line(line)
        measured = _list_measured(topology)
        if measured.row_count:
            console.print(measured)
    _print_parts(console, topology, columns)
    for note in topology.notes[:_MAX_NOTES]:
        console.print_line(f"note: {note}")
    if len(topology.notes) > _MAX_NOTES:
        console.print(f"and {len(topology.notes) - _MAX_NOTES} more notes")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).rstrip() + "\n"


def _explain_missing_gpus(topology: Topology) -> str:
    kinds = Counter(map(_describe_kind, topology.devices)).items()
    listed = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in kinds)
    why = explain_no_gpus(topology.notes)
    return f"{printable(topology.name)}: no GPUs; {listed or 'nothing else'}\n" + (
        f"{printable(why)}\n" if why else ""
    )


def _make_table(title: str | None, *columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in `right` are right-aligned."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _list_devices(topology: Topology) -> Table:
    """List the devices, or their number by kind if there are many."""
    if len(topology.devices) > _MAX_DEVICES:
        table = _make_table("Devices", "kind", "count", right=("count",))
        for kind, count in Counter(map(_describe_kind, topology.devices)).items():
            table.add_row(kind, str(count))
        return table
    table = _make_table(
        "Devices", "rank", "id", "kind", "NUMA", "bus id", "name", right=("rank", "NUMA")
    )
    rank = {ident: str(i) for ident, i in number_ranks(topology).items()}
    for device in topology.devices:
        cells = (
            rank.get(device.id, ""),
            device.id,
            _describe_kind(device),
            "" if device.numa_node is None else str(device.numa_node),
            device.bus_id or "",
            str(device.extra.get("name") or ""),
        )
        table.add_row(*map(safe_text, cells))
    return table


def list_adding(topology: Topology) -> list[str]:
    """Return lines that say which switches can add data that passes through, each with its source.

    Switches with the same answer share a line; those whose ability is unknown are left out.
    """
    by_answer: dict[InNetwork, list[str]] = defaultdict(list)
    for device in topology.devices:
        if device.in_network is not None:
            by_answer[device.in_network].append(device.id)
        elif device.kind == "switch" and device.can_reduce:
            by_answer[InNetwork("yes", "can_reduce")].append(device.id)
    return [
        f"sums in {', '.join(ids[:4])}{' ...' if len(ids) > 4 else ''}: {answer.reduce}"
        + (f" ({answer.source})" if answer.source else "")
        for answer, ids in by_answer.items()
    ]


def _describe_kind(device: Device) -> str:
    return FAMILY_NAMES[device.family] if device.family else device.kind


def _print_gpus(console: SafeConsole, topology: Topology, columns: int) -> None:
    """Print the connections between GPUs: as a matrix, or counted if there are many."""
    rows = find_connections(topology, MAX_STEPS)
    pairs = Counter(cell for i, row in enumerate(rows) for j, cell in enumerate(row) if i != j)
    table = _count_pairs(pairs)
    if len(rows) < len(topology.ranks):
        heading = f"pairs of the first {len(rows)} of {len(topology.ranks)} GPUs, to save time"
    elif len(rows) > MAX_GPUS:
        heading = f"pairs counted, since there are more than {MAX_GPUS} GPUs"
    elif console.is_terminal and _measure_line(rows, "\n") > columns:
        heading = "pairs counted, since lines would be too long for a matrix"
    else:
        heading = "connection, and GB/s of the route used alone"
        table = _make_matrix(rows, _name_gpus(topology), stacked=_measure_line(rows) > columns)
    console.print(safe_text(f"GPU to GPU: {heading}", style="bold"))
    console.print(table)
    used_labels = dict.fromkeys(cell.label.rstrip("0123456789") for cell in pairs)
    meanings = {label.rstrip("#"): (label, meaning) for label, meaning in LABELS.items()}
    for label, meaning in (meanings[used] for used in used_labels):
        console.print(safe_text(f"  {label:6} {meaning}", style="dim"))
    console.print()


def _name_gpus(topology: Topology) -> list[str]:
    """Name GPUs in the matrix by ids such as gpu3 (which may be rank 2), else by their ranks."""
    if all(_PLAIN_ID.fullmatch(ident) for ident in topology.ranks):
        return [ident.upper() for ident in topology.ranks]
    return [f"GPU{i}" for i in range(len(topology.ranks))]


def _make_matrix(rows: list[list[Connection]], headings: list[str], stacked: bool) -> Table:
    """Make the matrix with the connection from GPU i to GPU j in row i, column j.

    `stacked` puts rates below labels, since lines would be too long otherwise.
    """
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading.removeprefix("GPU") if stacked else heading, no_wrap=True)
    for heading, row in zip(headings, rows, strict=True):
        table.add_row(heading, *(_format_cell(cell, "\n" if stacked else " ") for cell in row))
    return table


def _format_cell(cell: Connection, between: str) -> str:
    return cell.label if cell.GBps is None else f"{cell.label}{between}{format_rate(cell.GBps)}"


def _measure_line(rows: list[list[Connection]], between: str = " ") -> int:
    """Return the width of the matrix; `between` separates label and rate, "\\n" if stacked."""
    lengths = [
        [max(map(len, _format_cell(cell, between).split("\n"))) for cell in row] for row in rows
    ]
    return 6 + sum(1 + max(line[j] for line in lengths) for j in range(len(lengths)))


def _count_pairs(pairs: Counter[Connection]) -> Table:
    table = _make_table(None, "link", "GB/s", "ordered pairs", right=("GB/s", "ordered pairs"))
    for cell, count in pairs.most_common():
        table.add_row(cell.label, "" if cell.GBps is None else format_rate(cell.GBps), str(count))
    return table


def _print_parts(console: SafeConsole, topology: Topology, columns: int) -> None:
    """Print what extras say of the topology."""
    added = Names(TABLES)
    for name in added.describe():
        part: TablePart | None = added.find(name)(topology, columns - 2)
        if part is None:
            continue
        if part.heading is None:
            for line in part.lines:
                console.print_line(line)
            continue
        console.print(safe_text(part.heading, style="bold"))
        for line in part.lines:
            console.print(safe_text(f"  {line}"), soft_wrap=True)
        console.print()


def _list_links(topology: Topology) -> Table:
    right = ("cables", "GB/s each direction", "lanes")
    table = _make_table("Links", "kind", *right, "by", right=right)
    for look, cables in group_alike(find_cables(topology)):
        sources = list(dict.fromkeys(x.source for c in cables for x in c.links if x.source))
        table.add_row(
            safe_text(look.label),
            str(len(cables)),
            format_rate(look.GBps) + (" one direction" if look.directed else ""),
            ", ".join(dict.fromkeys(c.width for c in cables)),
            safe_text(
                "; ".join(sources[:_MAX_SOURCES]) + (" ..." if len(sources) > _MAX_SOURCES else "")
            ),
        )
    return table


def _list_measured(topology: Topology) -> Table:
    """List measured links with declared, measured and believed rates.

    Both directions share a row if they are equal.
    """
    right = ("declared GB/s", "measured GB/s", "believed GB/s")
    table = _make_table("Measured", "from", "to", "kind", *right, "how", "reason", right=right)
    rows: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for link in topology.links:
        declared, measured = link.extra.get("declared"), link.extra.get("measured")
        if isinstance(measured, Mapping) and isinstance(declared, Mapping):
            cells = (
                get_kind_name(link.kind),
                str(declared.get("GBps")),
                ("" if measured.get("limit") else "at least ") + str(measured.get("GBps")),
                format_rate(link.bandwidth_GBps),
                str(measured.get("how")),
                str(link.extra.get("reason") or ""),
            )
            key = (*sorted((link.src, link.dst)), *cells)
            rows[key].append((link.src, link.dst))
    for (_, _, *rest), ends in islice(rows.items(), _MAX_DEVICES):
        src, dst = ends[0]
        back = "" if len(ends) == 1 else " and back"
        table.add_row(*map(safe_text, (src, dst + back, *rest)))
    return table
