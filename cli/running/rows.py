"""The rows of topo-run as a table, JSON and CSV: one per size of buffer.

The stock collective is the backend's own (gloo's, NCCL's, MPI's), without a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...synth.fault_text import LOST, describe_fault, describe_worth
from ...synth.ir.collective import spell_ranks
from ...synth.sizes import show_size
from ...topo.output_head import output_head
from ...topo.pictures.fit import choose_columns, wrap_line
from ...topo.printable import printable
from ..shared.common import find_width

if TYPE_CHECKING:
    from ...runtime.measuring.bench import BenchRow
    from ...runtime.measuring.bench_data import BenchSettings
    from ...runtime.measuring.bench_options import BenchOptions
    from ...synth.plan import Plan

# The columns, and their units.
_TITLES = {
    "size": "(B)",
    "count": "(elements)",
    "type": "",
    "place": "",
    "schedule": "",
    "plan": "(us)",
    "stock": "(us)",
    "ratio": "",
    "predicted": "(us)",
    "algbw": "(GB/s)",
    "busbw": "(GB/s)",
    "bound": "(%)",
    "#wrong": "",
    "on the wire": "(B)",
    "relayed": "(B)",
    "error": "(rms)",
}
# Minimum widths if no terminal sets a limit, so that tables of several runs align.
_WIDTHS = dict(zip(_TITLES, (11, 11, 9, 5, 19, 11, 11, 6, 11, 9, 9, 7, 7, 12, 11, 8), strict=True))
# Columns to omit on a narrow terminal, in this order.
_LEAVE_OUT = (
    "count",
    "type",
    "predicted",
    "algbw",
    "schedule",
    "on the wire",
    "relayed",
    "stock",
    "place",
    "ratio",
)
# Fields of a run that are no columns of its CSV rows.
_NO_COLUMNS = ("average_busbw_GBps", "rows", "group", "helpers", "relayed_bytes", "recoveries")


@dataclass(frozen=True)
class Run:
    """The measurements of one collective, with its plan if there is one.

    Without a plan (None), only the stock collective was measured. `options` are what was asked for,
    `settings` the same, checked, with the collective; `backend` is gloo, nccl or mpi; `rows` has a
    row for each size (two with --place both). `stock_engine` names what ran the stock collective,
    such as nccl2. `recoveries` are the lost links after which calls went on, None if calls end at
    the first. `why_messages_alone` says why schedules were only sent as messages though the user
    asked for another way; else None.
    """

    options: BenchOptions
    settings: BenchSettings
    backend: str
    stock_engine: str
    plan: Plan | None
    rows: Sequence[BenchRow]
    recoveries: Sequence[dict[str, Any]] | None = None
    why_messages_alone: str | None = None

    @property
    def average_busbw_GBps(self) -> dict[str, float | None]:
        """The mean busbw in GB/s over all rows, keyed "plan" and "stock"; None if not timed.

        busbw is nccl-tests' bus bandwidth: size by time, times a factor of the collective.
        """
        factor = float(self.settings.collective.bus_factor())
        rates = {
            name: [
                row.size_bytes / us * 1e-3 * factor
                for row in self.rows
                if (us := getattr(row, f"{name}_us"))
            ]
            for name in ("plan", "stock")
        }
        return {name: sum(x) / len(x) if x else None for name, x in rates.items()}


def print_run(run: Run) -> None:
    """Print the table of a run on standard output; on a terminal, only the columns that fit."""
    from ...synth.bounds.in_network import describe_assumption, describe_possible, list_possible

    options, plan, settings = run.options, run.plan, run.settings
    width = find_width() + 2 if sys.stdout.isatty() else None
    where, ranks = "", f"{settings.collective.ranks} ranks"
    if plan is not None:
        where, ranks = f" on {plan.topology.name}", _describe_parts(plan)
    # Only NCCL has engines of several names: "nccl (stock by nccl2)".
    by = "" if run.stock_engine == run.backend else f" (stock by {run.stock_engine})"
    lines = [
        f"{settings.collective.name}{where}, {ranks}, {run.backend}{by}, "
        f"{options.dtype}, {options.op}"
    ]
    if options.compress:
        once = "each contribution once, each complete sum once"
        lines.append(
            f"{options.compress} on the wire, rounded when sent: "
            f"{'partial sums too' if options.reduction == 'hops' else once}; sums in float32"
        )
    if plan is not None:
        lines.append(
            f"plan {plan.hash[:16]}, bound {float(plan.bound_one_way.algbw_GBps):.4g} GB/s algbw "
            "on its topology"
        )
        if list_possible(plan.topology):
            lines.append(
                f"that bound assumes that {describe_assumption(plan.topology)}; "
                f"{describe_possible(plan.topology)}"
            )
    lines.append(
        f"medians of {options.iterations} iterations; ratio = stock / plan: above 1 the "
        "plan is faster"
    )
    _print_notes(lines, width)
    for line in _lay_out(run, width):
        print(printable(line))
    averages = run.average_busbw_GBps.items()
    said = ", ".join(f"{name} {value:.4g} GB/s" for name, value in averages if value is not None)
    lines = [f"average busbw: {said}"] if said else []
    wrong = f"wrong elements: {sum(row.wrong for row in run.rows)}"
    faults = map(_describe_recovery, run.recoveries or ())
    _print_notes([*lines, *faults, *_list_above_bound(run.rows), wrong], width)


def _describe_recovery(row: dict[str, Any]) -> str:
    # Between the calls of plans, such as at the end, ranks go on without one.
    bound = (
        "without a plan"
        if row["bound_GBps"] is None
        else f"bound {row['bound_GBps']:.4g} GB/s algbw on what is left"
    )
    began = f"at {row['at']:.2f} s {describe_fault(row)}: "
    if row["kind"] == LOST:
        resent = show_size(row["resent_bytes"])
        return f"{began}went on {row['seconds']:.2f} s later, {resent} sent again, {bound}"
    return f"{began}planned {row['seconds']:.2f} s later, {describe_worth(row)}, {bound}"


def _describe_parts(plan: Plan) -> str:
    """Return a plan's members and helpers in words."""
    helpers = plan.used_helpers
    helping = f", helper{'s' if len(helpers) > 1 else ''} {spell_ranks(helpers)}" if helpers else ""
    return f"{plan.collective.spelled_ranks}{helping}"


def _print_notes(lines: Sequence[str], width: int | None) -> None:
    for line in lines:
        for part in wrap_line(line, None if width is None else width - 2):
            print(f"# {printable(part)}")


def _lay_out(run: Run, width: int | None) -> list[str]:
    columns = [
        name
        for name in _TITLES
        if (run.options.compress or name not in ("on the wire", "error"))
        and (name != "relayed" or (run.plan is not None and run.plan.used_helpers))
        and (run.options.place or name != "place")
    ]
    cells = [[_show_cell(run, row, name) for name in columns] for row in run.rows]
    heads = [list(columns), [_TITLES[name] for name in columns]]
    least = [_WIDTHS[name] if width is None else 0 for name in columns]
    widths = [
        max(at_least, *map(len, column))
        for at_least, *column in zip(least, *heads, *cells, strict=True)
    ]
    kept = list(range(len(columns)))
    if width is not None:
        kept = choose_columns(columns, [heads[1], *cells], _LEAVE_OUT, width - 1, gap=1)
    return [
        (mark + " ".join(line[i].rjust(widths[i]) for i in kept)).rstrip()
        for mark, line in [("#", heads[0]), ("#", heads[1]), *((" ", line) for line in cells)]
    ]


def _show_cell(run: Run, row: BenchRow, column: str) -> str:
    fraction = row.bound_fraction
    cells = {
        "size": row.size_bytes,
        "count": row.size_bytes // run.settings.dtype.itemsize,
        "type": run.options.dtype,
        "place": row.place,
        "schedule": row.schedule,
        "plan": _number(row.plan_us, 1),
        "stock": _number(row.stock_us, 1),
        "ratio": _number(row.ratio, 2),
        "predicted": _number(row.predicted_us, 1),
        "algbw": f"{row.algbw_GBps:.4g}",
        "busbw": f"{row.busbw_GBps:.4g}",
        "bound": _number(None if fraction is None else fraction * 100, 2),
        "#wrong": row.wrong,
        "on the wire": row.wire_bytes or 0,
        "relayed": sum(row.relayed_bytes or ()),
        "error": f"{row.rms_error:.1e}",
    }
    return str(cells[column])


def _list_above_bound(rows: Sequence[BenchRow]) -> list[str]:
    """Return a line that explains why some rows exceed the bound; none if none does."""
    above = [show_size(row.size_bytes) for row in rows if (row.bound_fraction or 0) > 1]
    sizes = ", ".join(above[:4]) + (" ..." if len(above) > 4 else "")
    text = (
        f"above 100 % at {sizes}: the bound is for links at their declared rates; an "
        "emulated link lets a first burst through at once, and data in a cache, or a link "
        "that is wider than declared, is faster as well"
    )
    return [text] if above else []


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def write_json(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the object of --json: that of the only run, or those of several under "runs"."""
    objects = [_write_run(run) for run in runs]
    body = objects[0] if len(objects) == 1 else {"runs": objects}
    return output_head("topoplan-run") | body


def _write_run(run: Run) -> dict[str, Any]:
    plan, collective = run.plan, run.settings.collective
    return {
        "collective": collective.name,
        "ranks": collective.ranks,
        "backend": run.backend,
        "stock_engine": run.stock_engine,
        "dtype": run.options.dtype,
        "op": run.options.op,
        "compress": run.options.compress,
        "topology": plan
        and {
            "name": plan.topology.name,
            "fingerprint": plan.topology.fingerprint,
            "ranks": len(plan.topology.ranks),
        },
        "plan_hash": plan and plan.hash,
        **({} if plan is None or plan.collective.has_all_gpus else _write_parts(run, plan)),
        "average_busbw_GBps": run.average_busbw_GBps,
        "rows": [_write_row(row) for row in run.rows],
        **({} if run.recoveries is None else {"recoveries": list(run.recoveries)}),
    }


def _write_parts(run: Run, plan: Plan) -> dict[str, Any]:
    """Return the parts of a plan for some GPUs, and the bytes relayed at the largest size."""
    return {
        "group": list(plan.collective.members),
        "helpers": plan.used_helpers,
        "relayed_bytes": run.rows[-1].relayed_bytes if run.rows else None,
    }


def _write_row(row: BenchRow) -> dict[str, Any]:
    """Return a row's fields, those of helpers only where there may be any."""
    return {k: v for k, v in asdict(row).items() if k != "relayed_bytes" or v is not None}


def list_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the rows of all runs as dicts for --csv, each with the fields common to its run."""
    out = []
    for run in runs:
        whole = _write_run(run) | {"topology": run.plan and run.plan.topology.name}
        head = {k: v for k, v in whole.items() if k not in _NO_COLUMNS}
        rows = ((head | _write_row(row), row.relayed_bytes) for row in run.rows)
        out += [
            row if relayed is None else row | {"relayed_bytes": sum(relayed)}
            for row, relayed in rows
        ]
    return out
