"""Plans, schedules and bounds as text: the tables of topo-synth, and the texts of `describe()`.

An entry of a plan is the schedule for a range of buffer sizes. If a collective is of a group, some
of the machine's GPUs, helpers are other GPUs that relay, copy and add for it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from .ir.collective import spell_ranks
from .ir.schedule_text import WIDTH, join_lines
from .sizes import show_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..topo.graph import Topology
    from .bounds.certificate import Bound
    from .bounds.single_path import Bounds
    from .plan import Entry, Plan

# 1 GiB: the size at which an entry without an upper end is reported.
_LARGE = 1 << 30
# Most helpers to name: about a line.
_MAX_NAMED = 16
# What is said of a bound that the time limit kept from being as low as it could be.
CUT_SHORT = "search cut short, so the true limit may be lower"
# The columns of a plan's table.
_TITLES = (
    *("sizes from", "to", "strategy", "chunks", "steps", "rounds", "trees", "segments"),
    *("latency us", "GB/s at most", "gap", "at size"),
)
# Columns that a narrow terminal omits, in this order.
_LEAVE_OUT = ("rounds", "trees", "segments", "chunks", "steps", "latency us", "at size", "to")


def describe_plan(plan: Plan, size: int) -> str:
    """Return the lines and the table of `print_plan` with lines before and after them.

    Those before are on link rates that are NCCL's or RCCL's own figures. Those after are what the
    plan's sections say (`list_section_lines`), which switches the bound takes to add, and the root.
    `size` is the buffer's size in bytes to predict for.
    """
    from ..topo.pictures.cables import describe_rates
    from ..topo.pictures.console import SafeConsole
    from .bounds.in_network import describe_assumption
    from .cost.loads import computes_in_network

    buffer = io.StringIO()
    print_plan(SafeConsole(file=buffer, width=WIDTH, color_system=None), plan, size)
    lines = [*describe_rates(plan.topology), *buffer.getvalue().splitlines()]
    lines += list_section_lines(plan)
    if computes_in_network(plan.topology):
        lines.append(f"that bound assumes: {describe_assumption(plan.topology)}")
    root = plan.collective.root
    if root is not None:
        lines.append(f"root: {plan.topology.ranks[root]}, rank {root}")
    return join_lines(lines)


def list_section_lines(plan: Plan) -> list[str]:
    """Return what a plan's sections say of it, such as which order of additions it promises.

    Sections (section.py) are fields that extras, optional features, add to a plan.
    """
    return [line for section in plan.extensions for line in section.list_lines(plan)]


def limit_text(limit: Bound) -> str:
    """Return a bound's algbw, buffer size by time, in GB/s without a unit: "42.67 (exactly 128/3)".

    The fraction is only added if it is short. A bound whose search was cut short says so instead:
    "115 (search cut short, so the true limit may be lower)".
    """
    exact = limit.algbw_GBps
    if limit.is_cut_short:
        return f"{float(exact):.4g} ({CUT_SHORT})"
    is_short = 1 < exact.denominator < 10**6
    return f"{float(exact):.4g}" + (f" (exactly {exact})" if is_short else "")


def why_text(limit: Bound) -> str:
    """Return what proves a bound, in words: its cut's devices, or how many links have prices."""
    if "inside" in limit.certificate:
        inside = limit.certificate["inside"]
        listed = ", ".join(inside[:10]) + (" ..." if len(inside) > 10 else "")
        own = " and the system's own routes" if limit.kind.startswith("route-") else ""
        return f"bound by the cut around {{{listed}}}{own}"
    by = f"bound by prices on {len(limit.certificate['prices'])} links"
    if limit.kind.startswith("route-"):
        return f"{by} and the system's own routes (linear programming dual)"
    separate = ", with separate prices for each direction" if limit.kind == "tree-prices" else ""
    return f"{by} (linear programming dual{separate})"


def bounds_text(bounds: Bounds, topology: Topology, helpers: Sequence[int] | None = None) -> str:
    """Return the bounds on a topology in words: one line if they are the same, else two.

    They name the rates that they depend on and that nothing states. For a group, `helpers` are the
    ranks that may help it.
    """
    from .bounds.assumptions import join_assumptions, list_assumptions

    how = "" if helpers is None else f" {help_text(helpers)}"
    multipath, single = (
        (
            f"at most {limit_text(bound)} GB/s algbw{how}"
            f"{join_assumptions(list_assumptions(bound, topology))}",
            why_text(bound),
        )
        for bound in (bounds.multipath, bounds.single_path)
    )
    if bounds.single_path == bounds.multipath:
        return "; ".join(multipath)
    return (
        f"{multipath[0]} if senders could divide data over all routes; {multipath[1]}\n"
        f"{single[0]} with one route per pair of GPUs, as hardware sends; {single[1]}"
    )


def assumption_lines(bounds: Bounds, topology: Topology) -> list[str]:
    """Return a line for each rate that the bounds depend on and that nothing states, with why."""
    from .bounds.assumptions import explain_assumptions, list_assumptions

    both = (bounds.multipath, bounds.single_path)
    return explain_assumptions(x for bound in both for x in list_assumptions(bound, topology))


def help_text(helpers: Sequence[int]) -> str:
    """Return "without help", or "with the help of ranks 2, 3"."""
    if not helpers:
        return "without help"
    listed = spell_ranks(helpers[:_MAX_NAMED]) + (" ..." if len(helpers) > _MAX_NAMED else "")
    return f"with the help of rank{'s' * (len(helpers) > 1)} {listed}"


def help_lines(
    helpers: Sequence[int], alone: Bound | None, with_helpers: Bound | None
) -> list[str]:
    """Return the line that compares a group's bound with the one without, or with, help.

    `helpers` are the ranks that may help; without any, `with_helpers` is for the help of all other
    GPUs. `alone` is None if the members reach each other only through other GPUs.
    """
    if with_helpers is None:
        return []
    if alone is None:
        return ["without help: no schedule, as they reach each other only through other GPUs"]
    ratio = float(with_helpers.algbw_GBps / alone.algbw_GBps)
    worth = f"{ratio:.3g} times as much with help" if ratio > 1 else "help adds nothing"
    if with_helpers.is_cut_short or alone.is_cut_short:
        worth = "what help adds is not known"
    if helpers:
        return [f"without help: at most {limit_text(alone)} GB/s algbw; {why_text(alone)}; {worth}"]
    return [
        f"with the help of all other GPUs: at most {limit_text(with_helpers)} GB/s algbw; "
        f"{why_text(with_helpers)}; {worth}"
    ]


def reach_at(plan: Plan, entry: Entry, size: int) -> tuple[int, float]:
    """Return a size in bytes in an entry's range, and the predicted algbw in GB/s at that size.

    The size is `size` if the entry covers it, else the end of the entry's range.
    """
    if not entry.covers(size):
        end = _LARGE if entry.max_bytes is None else entry.max_bytes - 1
        size = max(entry.min_bytes, end)
    time_s = plan.time_s(entry, size)
    return size, size / time_s / 1e9 if time_s else 0.0


def print_plan(console: Console, plan: Plan, size: int) -> None:
    """Print the bound, a row for each range of sizes, and the prediction for `size` bytes.

    A terminal that is too narrow for all columns of the table gets fewer.
    """
    from rich.markup import escape

    from ..topo.pictures.fit import print_table
    from .bounds.single_path import Bounds
    from .cost.affine import rounds
    from .cost.host_costs import describe_host, host_of, step_us

    collective, topology, soft_wrap = plan.collective, plan.topology, not console.is_terminal
    is_group = not collective.has_all_gpus
    of_all = f" of {len(topology.ranks)}" if is_group else ""
    helpers = plan.helpers if is_group else None
    bounds = Bounds(plan.bound, plan.bound_one_way)
    console.print(
        f"[bold]{collective.name}[/bold] on [bold]{escape(topology.name)}[/bold] "
        f"({collective.spelled_ranks}{of_all}, fingerprint {topology.fingerprint[:12]}): "
        f"{escape(bounds_text(bounds, topology, helpers))}",
        highlight=False,
        soft_wrap=soft_wrap,
    )
    for line in (
        *help_lines(helpers or (), plan.bound_alone, plan.bound_with_helpers),
        *assumption_lines(bounds, topology),
    ):
        console.print(line, highlight=False, soft_wrap=soft_wrap, markup=False)
    titles = (*_TITLES, "helpers") if is_group else _TITLES
    rows: list[tuple[Sequence[str], str | None]] = []
    for entry in plan.entries:
        s, total = entry.schedule, rounds(entry.schedule, plan.router)
        # A pipeline's limit and gap apply at large sizes; the last column includes the time to fill
        # the pipeline.
        limit, (end, reached) = plan.limit_GBps(entry), reach_at(plan, entry, size)
        cells = (
            show_size(entry.min_bytes),
            "" if entry.max_bytes is None else show_size(entry.max_bytes),
            s.strategy,
            str(len(s.chunks)),
            str(s.steps),
            "" if total is None else f"{float(total):g}",
            str(s.trees or ""),
            str(s.segments if s.segments > 1 else ""),
            f"{float(plan.cost_of(entry).alpha_us):.3g}",
            "" if limit is None else f"{float(limit):.4g}",
            f"{max(0.0, float(plan.gap_of(entry))):.1%}",
            f"{reached:.4g} at {show_size(end).replace(' ', '').rstrip('iB')}",
            *([str(len(s.helpers) or "")] if is_group else []),
        )
        rows.append((cells, "green" if entry.covers(size) else None))
    print_table(
        console,
        titles,
        _show_segments(
            titles, rows, [entry.schedule.label for entry in plan.entries], console.width
        ),
        _LEAVE_OUT,
        ("strategy",),
    )
    entry = plan.entry_for(size)
    time_s = plan.time_s(entry, size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    console.print(
        f"at {show_size(size)}: {entry.schedule.strategy}, predicted {show_us(time_s)} us, algbw "
        f"{algbw:.4g} GB/s, busbw {algbw * float(collective.bus_factor()):.4g} GB/s",
        highlight=False,
        soft_wrap=soft_wrap,
    )
    if host_of(topology) is not None or step_us(topology):
        console.print(
            f"host costs: {describe_host(topology)}",
            highlight=False,
            soft_wrap=soft_wrap,
            markup=False,
        )


def _show_segments(
    titles: Sequence[str],
    rows: list[tuple[Sequence[str], str | None]],
    labels: Sequence[str],
    width: int,
) -> list[tuple[Sequence[str], str | None]]:
    """Return a plan's rows, with segments next to strategies if their column does not fit.

    A segmented strategy then reads `packing x64`: without it, rows that differ only in segments
    would look the same. No further column is omitted to make room for this.
    """
    from ..topo.pictures.fit import choose_columns

    place = titles.index("strategy")
    labelled: list[tuple[Sequence[str], str | None]] = [
        ([*cells[:place], label, *cells[place + 1 :]], style)
        for (cells, style), label in zip(rows, labels, strict=True)
    ]
    columns, columns_labelled = (
        choose_columns(titles, [cells for cells, _ in listed], _LEAVE_OUT, width)
        for listed in (rows, labelled)
    )
    has_room = titles.index("segments") in columns or columns_labelled != columns
    return rows if has_room else labelled


def show_us(time_s: float) -> str:
    """Return a time in microseconds without an exponent.

    From 10,000 up it is an integer, below that it has four significant digits.
    """
    return f"{time_s * 1e6:,.0f}" if time_s * 1e6 >= 10_000 else f"{time_s * 1e6:.4g}"
