"""What people are told of plans and schedules: the tables of topo-synth, and the texts of
`describe()`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ..topo.errors import InputError
from ..topo.printable import printable
from .sizes import parse_size, show_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from .bounds.certificate import Bound
    from .bounds.single_path import Bounds
    from .ir.schedule import Schedule
    from .plan import Entry, Plan

# Columns that a table may have; it takes what it needs.
WIDTH = 200
# Bytes at which a range without an end is reported on.
_LARGE = 1 << 30
_MOST_ROWS = 64
# The table of a plan, and which columns are aligned to the left.
_COLUMNS = (("sizes from", False), ("to", False), ("strategy", True), ("chunks", False), ("steps", False),
            ("rounds", False), ("trees", False), ("segments", False), ("latency us", False), ("GB/s at most", False),
            ("gap", False), ("at size", False))  # fmt: skip
# Columns that a narrow terminal goes without, in this order.
_LEAVE_OUT = ("rounds", "trees", "segments", "chunks", "steps", "latency us", "at size", "to")


def describe_plan(plan: Plan, size: int) -> str:
    """Return what `print_plan` prints, with what a plan promises and assumes beside it."""
    from ..topo.pictures.cables import describe_rates
    from ..topo.pictures.console import SafeConsole
    from .bounds.in_network import describe_assumption
    from .cost.innetwork import computes_in_network

    buffer = io.StringIO()
    print_plan(SafeConsole(file=buffer, width=WIDTH, color_system=None), plan, size)
    lines = [*describe_rates(plan.topology), *buffer.getvalue().splitlines()]
    if plan.bracketing is not None:
        lines.append(reproducible_text(plan.bracketing))
    if computes_in_network(plan.topology):
        lines.append(f"that bound assumes: {describe_assumption(plan.topology)}")
    if plan.collective.root is not None:
        lines.append(
            f"root: {plan.topology.ranks[plan.collective.root]}, rank {plan.collective.root}"
        )
    return _join(lines)


def describe_schedule(schedule: Schedule) -> str:
    """Return a schedule's figures, and a row for each of its first transfers."""
    from rich.table import Table

    from ..topo.pictures.console import SafeConsole

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("step", "from", "to", "chunk", "share", "operation", "through"):
        left = title in ("operation", "through")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for t in schedule.transfers[:_MOST_ROWS]:
        share = str(schedule.chunks[t.chunk].share)
        table.add_row(
            str(t.step), str(t.src), str(t.dst), str(t.chunk), share, t.op, ", ".join(t.route)
        )
    buffer = io.StringIO()
    SafeConsole(file=buffer, width=WIDTH, color_system=None, markup=False).print(table)
    figures = [
        f"{schedule.label}: {describe_collective(schedule)}",
        count(len(schedule.chunks), "chunk"),
        count(schedule.steps, "step"),
        count(len(schedule.transfers), "transfer"),
    ]
    if schedule.trees:
        figures.append(count(schedule.trees, "tree"))
    if schedule.segments > 1:
        how = "step by step" if schedule.stepwise else "as a pipeline"
        figures.append(f"each chunk in {schedule.segments} segments, {how}")
    left_out = len(schedule.transfers) - _MOST_ROWS
    more = [f"... and {left_out:,} more transfers"] if left_out > 0 else []
    return _join([", ".join(figures), *buffer.getvalue().splitlines(), *more])


def describe_collective(schedule: Schedule) -> str:
    """Return what a schedule carries out, in a few words."""
    collective = schedule.collective
    root = "" if collective.root is None else f", root {collective.root}"
    return f"{collective.name} over {count(collective.ranks, 'rank')}{root}"


def count(number: int, what: str) -> str:
    """Return "1 step", "2 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _join(lines: Iterable[str]) -> str:
    """Return lines as one text, without blanks at their ends; see `printable`."""
    return "\n".join(printable(line.rstrip()) for line in lines)


def reproducible_text(bracketing: str) -> str:
    """Return what is said of a reproducible plan."""
    return f"reproducible: every element is added up as {bracketing}; bound and gap are of all schedules, reproducible or not"


def limit_text(limit: Bound) -> str:
    """Return the bound as a number, and as a fraction where that is short."""
    exact = limit.algbw_GBps
    return f"{float(exact):.4g}" + (
        f" (exactly {exact})" if exact.denominator != 1 and exact.denominator < 10**6 else ""
    )


def why_text(limit: Bound) -> str:
    """Return what proves the bound, in words."""
    if limit.kind == "cut":
        inside = limit.certificate["inside"]
        listed = ", ".join(inside[:10]) + (" ..." if len(inside) > 10 else "")
        return f"bound by the cut around {{{listed}}}"
    if limit.kind.startswith("route-"):
        priced = len(limit.certificate["prices"])
        return f"bound by prices on {priced} links and the system's own routes (linear programming dual)"
    method = "linear programming dual" + (
        ", with separate prices for each direction" if limit.kind == "tree-prices" else ""
    )
    return f"bound by prices on {len(limit.certificate['prices'])} links ({method})"


def bounds_text(bounds: Bounds) -> str:
    """Return what is said of the bounds: one line where they are the same, else two."""
    lines = [f"at most {limit_text(bounds.multipath)} GB/s algbw; {why_text(bounds.multipath)}"]
    if bounds.single_path != bounds.multipath:
        lines[0] = (
            f"at most {limit_text(bounds.multipath)} GB/s algbw if senders could divide data over "
            "all ways; " + (why_text(bounds.multipath))
        )
        lines.append(
            f"at most {limit_text(bounds.single_path)} GB/s algbw with one way a pair of GPUs, as "
            "hardware sends; " + why_text(bounds.single_path)
        )
    return "\n".join(lines)


def reach_at(plan: Plan, entry: Entry, size: int) -> tuple[int, float]:
    """Return a size in bytes in an entry's range, and the algbw in GB/s that the entry is predicted
    to reach at it.

    It is the given size where the entry has it, else the end of the entry's range.
    """
    if not entry.covers(size):
        size = (
            max(entry.min_bytes, _LARGE)
            if entry.max_bytes is None
            else max(entry.min_bytes, entry.max_bytes - 1)
        )
    time_s = plan.time_s(entry, size)
    return size, size / time_s / 1e9 if time_s else 0.0


def print_plan(console: Console, plan: Plan, size: int) -> None:
    """Print what topo-synth says of a plan: the bound, a row for each range of sizes, the
    prediction for `size` bytes.
    """
    from rich.markup import escape

    from ..topo.pictures.fit import print_table
    from .bounds.single_path import Bounds
    from .cost.affine import rounds
    from .cost.host_costs import describe_host, host_of, step_us

    collective, topology = plan.collective, plan.topology
    console.print(
        f"[bold]{collective.name}[/bold] on [bold]{escape(topology.name)}[/bold] "
        f"({collective.ranks} ranks, fingerprint "
        f"{topology.fingerprint[:12]}): "
        f"{escape(bounds_text(Bounds(plan.bound, plan.bound_one_way)))}",
        highlight=False, soft_wrap=not console.is_terminal,
    )  # fmt: skip
    rows: list[tuple[Sequence[str], str | None]] = []
    for entry in plan.entries:
        s, cost = entry.schedule, plan.cost_of(entry)
        total = rounds(s, plan.router)
        # A pipeline's limit and its gap are for large sizes; what its filling leaves at a size
        # stands in a column of its own.
        limit, (end, reached) = plan.limit_GBps(entry), reach_at(plan, entry, size)
        cells = (
            show_size(entry.min_bytes), show_size(entry.max_bytes) if entry.max_bytes is not None else "",
            s.strategy, str(len(s.chunks)), str(s.steps), "" if total is None else f"{float(total):g}",
            str(s.trees or ""), str(s.segments if s.segments > 1 else ""), f"{float(cost.alpha_us):.3g}",
            "" if limit is None else f"{float(limit):.4g}", f"{max(0.0, float(plan.gap_of(entry))):.1%}",
            f"{reached:.4g} at {show_size(end).replace(' ', '').rstrip('iB')}",
        )  # fmt: skip
        rows.append((cells, "green" if entry.covers(size) else None))
    print_table(
        console,
        _COLUMNS,
        _show_segments(rows, [e.schedule.label for e in plan.entries], console.width),
        _LEAVE_OUT,
    )
    entry = plan.entry_for(size)
    time_s = plan.time_s(entry, size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    console.print(
        f"at {show_size(size)}: {entry.schedule.strategy}, predicted {show_us(time_s)} us, algbw "
        f"{algbw:.4g} GB/s, "
        f"busbw {algbw * float(collective.bus_factor()):.4g} "
        "GB/s", highlight=False, soft_wrap=not console.is_terminal,
    )  # fmt: skip
    if host_of(topology) is not None or step_us(topology):
        console.print(
            f"host costs: {describe_host(topology)}",
            highlight=False,
            soft_wrap=not console.is_terminal,
            markup=False,
        )


def _show_segments(
    rows: list[tuple[Sequence[str], str | None]], labels: Sequence[str], width: int
) -> list[tuple[Sequence[str], str | None]]:
    """Return a plan's rows with segments behind strategies (`packing x64`) where there is no room
    for a column of them.

    Without them, rows that differ in nothing else would look alike. No further column goes for it.
    """
    from ..topo.pictures.fit import choose_columns

    titles = [title for title, _ in _COLUMNS]
    kept = choose_columns(titles, [cells for cells, _ in rows], _LEAVE_OUT, width)
    if titles.index("segments") in kept:
        return rows
    place = titles.index("strategy")
    more: list[tuple[Sequence[str], str | None]] = [
        ([*cells[:place], label, *cells[place + 1 :]], style)
        for (cells, style), label in zip(rows, labels, strict=True)
    ]
    return (
        more
        if choose_columns(titles, [cells for cells, _ in more], _LEAVE_OUT, width) == kept
        else rows
    )


def show_us(time_s: float) -> str:
    """Return a time in microseconds without an exponent: four digits where it is small, whole where
    it is large.
    """
    return f"{time_s * 1e6:,.0f}" if time_s * 1e6 >= 10_000 else f"{time_s * 1e6:.4g}"


def count_bytes(size: int | str) -> int:
    """Return a size as a number of bytes. InputError where it is no text that `parse_size` reads,
    or below 0.
    """
    if isinstance(size, str):
        return parse_size(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InputError(
            f"size is {size!r}; expected bytes as a whole number, or a text such as '64M'"
        )
    return size
