"""The tables that topo-synth prints for people: the plan, the trees considered, a Pareto front, an
explanation.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

from ...synth.describe import bounds_text, limit_text, print_plan, reproducible_text, show_us
from ...topo.pictures.cables import describe_rates, format_rate
from ...topo.pictures.fit import print_table
from ...topo.printable import printable, printable_lines
from ..shared.sizes import show_size
from .output import Report, healthy_json

__all__ = ["bounds_text", "cut_text", "print_tables", "root_text", "switch_lines"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...synth.explain import Explanation, Part
    from ...synth.export.formats import Export
    from ...synth.ksync.pareto import Front
    from ...synth.place.placement import Placement
    from ...synth.plan import Plan

_LONGEST_ORDER = 60
# Columns of a table that is not printed to a terminal, where COLUMNS does not say otherwise.
WIDTH = 200


def cut_text(cut_short: list[str]) -> str:
    """What is said of searches that the time limit stopped."""
    listed = ", ".join(dict.fromkeys(cut_short))
    return f"search cut short by --time-limit; the gap may be loose ({listed})"


def print_export(report: Report, made: Export, file: TextIO) -> None:
    """Print what a text of another format than plans reaches."""
    collective, topology = report.collective, report.topology
    bound = "" if made.bounds is None else f": {bounds_text(made.bounds)}"
    head = f"{collective.name} on {topology.name}, {collective.ranks} ranks{bound}"
    for line in [head, *made.lines, *describe_rates(topology)]:
        print(printable_lines(line), file=file)
    if report.cut_short:
        print(cut_text(report.cut_short), file=file)


def switch_lines(report: Report) -> list[str]:
    """Return what is said of the switches that the bound rests on: nothing where there are none, or
    they all just pass on.
    """
    from ...synth.bounds.in_network import describe_assumption, describe_possible
    from ...synth.cost.innetwork import computes_in_network

    if report.in_network is not None:
        return [
            f"that bound assumes that {describe_assumption(report.topology)}; "
            f"{describe_possible(report.topology)}, and then "
            f"the bound is {limit_text(report.in_network)} GB/s algbw"
        ]
    return (
        [f"that bound assumes: {describe_assumption(report.topology)}"]
        if computes_in_network(report.topology)
        else []
    )


def root_text(report: Report) -> str:
    """Return which GPU the root is, in the plan's numbering and in that of the machine as given
    where they differ.
    """
    root = report.collective.root
    assert root is not None
    given = (
        ""
        if root == report.root_as_given
        else f" of the plan, {report.root_as_given} of the machine as given"
    )
    return f"root: {report.topology.ranks[root]}, rank {root}{given}"


def order_text(placement: Placement) -> str:
    """Return what the order of ranks means to who stays with the stock collective; plans are for
    the order as it is.
    """
    if placement.gain <= 1:
        if placement.is_optimal:
            return "rank order: gloo's own algorithm is as fast as in any other (proved)"
        return "rank order: no other was found in which gloo's own algorithm is faster"
    order = ",".join(map(str, placement.order))
    listed = f": {order}" if len(order) <= _LONGEST_ORDER else ""
    gain = f"{float(placement.gain):.2f} times as fast"
    return f"rank order: gloo's own algorithm is {gain} in another one{listed} (topo-place --for stock)"


def print_tables(report: Report, *, with_forests: bool) -> None:
    """Print everything for people on standard output."""
    from ...topo.pictures.console import SafeConsole

    console = SafeConsole(
        width=None if sys.stdout.isatty() else shutil.get_terminal_size((WIDTH, 24)).columns
    )
    for line in describe_rates(report.topology):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal, markup=False)
    if report.front is not None:
        _print_front(console, report.front)
    if report.plan is not None:
        print_plan(console, report.plan, report.size)
        if report.plan.bracketing is not None:
            text = reproducible_text(report.plan.bracketing)
            console.print(text, highlight=False, soft_wrap=not console.is_terminal, markup=False)
    for line in switch_lines(report):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal, markup=False)
    if report.collective.root is not None:
        console.print(
            root_text(report), highlight=False, soft_wrap=not console.is_terminal, markup=False
        )
    if report.healthy is not None:
        _print_healthy(console, report.healthy, report)
    if report.table and with_forests:
        _print_forests(console, report.table)
    if report.explanation is not None:
        _print_explanation(console, report.explanation)
    if report.placement is not None:
        console.print(
            order_text(report.placement),
            highlight=False,
            soft_wrap=not console.is_terminal,
            markup=False,
        )
    for name, reason in report.declined.items() if with_forests or report.plan is None else ():
        said = reason if reason.startswith(name) else f"{name}: {reason}"
        console.print(
            said, style="dim", highlight=False, soft_wrap=not console.is_terminal, markup=False
        )
    if report.cut_short:
        console.print(
            f"[yellow]{cut_text(report.cut_short)}[/yellow]",
            highlight=False,
            soft_wrap=not console.is_terminal,
        )
    console.print(f"synthesized and verified in {report.seconds:.2f} s", highlight=False)


def _print_healthy(console: Any, healthy: Plan, report: Report) -> None:
    figures = healthy_json(healthy, report)
    console.print(
        f"before the change, {healthy.topology.name}: at most {figures['bound_GBps']:.4g} GB/s, "
        f"{figures['strategy']} "
        f"predicted {show_us(figures['predicted_time_s'])} us at {show_size(report.size)}; now "
        "the bound is "
        f"{figures['bound_ratio']:.1%} of that, the time {figures['time_ratio']:.3g} times as long",
        highlight=False, soft_wrap=not console.is_terminal, markup=False,
    )  # fmt: skip


def _print_forests(console: Any, rows: list[dict[str, Any]]) -> None:
    columns = [
        (title, title in ("found by", ""))
        for title in ("trees", "depth", "GB/s at most", "gap", "found by", "")
    ]
    lines: list[tuple[Sequence[str], str | None]] = []
    for row in rows:
        gap = "" if row["gap"] is None else "0" if row["gap"] <= 1e-6 else f"{row['gap']:.2%}"
        trees = "" if row["trees"] is None else str(row["trees"])
        cells = (
            trees,
            str(row["depth"]),
            f"{row['algbw_GBps']:.4g}",
            gap,
            row["how"],
            "kept" * row["kept"],
        )
        lines.append((cells, None if row["kept"] else "dim"))
    print_table(console, columns, lines, ("found by", "depth"), title="trees considered")


def _print_explanation(console: Any, explanation: Explanation) -> None:
    from rich.markup import escape

    from ...synth.explain import SIZES

    parts = explanation.parts
    if explanation.kind == "cut":
        what = f"the cut from {_name_part(parts[0])} to {_name_part(parts[1])}"
    elif len(parts) > 1 and all(len(p.gpus) == 1 for p in parts):
        what = f"the links between all {len(parts)} GPUs, each of which must be reached"
    else:
        what = (
            "the priced links"
            if len(parts) < 2
            else "the links between "
            + ", ".join(_name_part(p) for p in parts[:8])
            + (" ..." if len(parts) > 8 else "")
        )
    console.print(
        f"bottleneck: {what}; together they carry {format_rate(explanation.across_GBps)} GB/s "
        + ("in the directions that have a price" if explanation.directed else "one way"),
        highlight=False, soft_wrap=not console.is_terminal, markup=False,
    )  # fmt: skip
    together = any(x.together_GBps is not None for x in explanation.levers[:8])
    titles = (
        "link",
        "GB/s",
        "alike",
        "bound rises per GB/s more",
        "bound with 10 % more",
        "all alike with 10 % more",
    )
    links: list[tuple[Sequence[str], str | None]] = []
    for x in explanation.levers[:8]:
        cells = [
            escape(printable(f"{x.a} - {x.b}")),
            f"{float(x.bandwidth_GBps):.4g}",
            str(x.alike),
            f"{float(x.gain_GBps):.4g}" if x.helps_alone else "none alone",
            "" if x.wider_GBps is None else f"{float(x.wider_GBps):.5g}",
        ]
        if together:
            cells.append(
                "" if x.together_GBps is None else f"{float(x.together_GBps):.5g} (all {x.peers})"
            )
        links.append((cells, None))
    columns = [(title, title == "link") for title in (titles if together else titles[:-1])]
    print_table(
        console, columns, links, (titles[3], titles[2], titles[5]), title="links to improve first"
    )
    best = [
        max((row[i] for row in explanation.reached.values()), default=0.0)
        for i in range(len(SIZES))
    ]
    reached: list[tuple[Sequence[str], str | None]] = []
    for name, row in sorted(explanation.reached.items(), key=lambda item: -item[1][-1]):
        figures = [
            f"[green]{x:.3g}[/green]" if x == best[i] else f"{x:.3g}" for i, x in enumerate(row)
        ]
        reached.append(((name, *figures), None))
    sizes = [show_size(size).replace(" ", "") for size in SIZES]
    columns = [("strategy", True), *((size, False) for size in sizes)]
    print_table(console, columns, reached, sizes[1:-1:2], title="algbw in GB/s by size")


def _name_part(part: Part) -> str:
    """Return the devices on one side of the bottleneck, up to eight by name."""
    members = part.gpus or part.others
    return (
        "{"
        + ", ".join(members[:8])
        + (f", ... {len(members)} in all" if len(members) > 8 else "")
        + "}"
    )


def _print_front(console: Any, front: Front) -> None:
    titles = ("chunks", "steps", "rounds", "R/C", "status", "", "form", "proof", "seconds")
    columns = [(title, title in ("status", "", "form", "proof")) for title in titles]
    rows: list[tuple[Sequence[str], str | None]] = []
    for row in front.rows:
        marks = [
            "front" * (row in front.front),
            "fewest steps" * (row.latency_optimal and not row.dominated),
            "least R/C" * row.bandwidth_optimal,
            "dominated" * row.dominated,
        ]
        cells = (
            str(row.chunks), str(row.steps), str(row.rounds), str(row.ratio), row.status,
            ", ".join(m for m in marks if m), row.form, row.proof, f"{row.synthesis_s:.2f}",
        )  # fmt: skip
        rows.append(
            (cells, "green" if row in front.front else "dim" if row.status != "feasible" else None)
        )
    print_table(console, columns, rows, ("proof", "form", "seconds"))
    console.print(
        f"lower bound on R/C of any schedule: {front.least_ratio}"
        + ("" if front.complete else "; the search was not exhaustive"), highlight=False,
    )  # fmt: skip
