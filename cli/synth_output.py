"""What topo-synth prints: the contract's JSON, and tables for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .sizes import show_size

if TYPE_CHECKING:
    from ..synth.certificate import Bound
    from ..synth.collective import Collective
    from ..synth.ksync.pareto import Front, Row
    from ..synth.plan import Plan
    from ..topo.graph import Topology

WIDTH = 120
"""Columns of a table that is not printed to a terminal."""


# -- JSON ----------------------------------------------------------------------------------------------------------


def bound_json(limit: Bound) -> dict[str, Any]:
    """The bound with its certificate."""
    return {
        "algbw_GBps": float(limit.algbw_GBps),
        "algbw_GBps_exact": str(limit.algbw_GBps),
        "kind": limit.kind,
        "certificate": dict(limit.certificate),
    }


def head_json(collective: Collective, topology: Topology) -> dict[str, Any]:
    """What was asked for."""
    head = {"name": topology.name, "fingerprint": topology.fingerprint, "ranks": collective.ranks}
    return {"topology": head, "collective": collective.name, "root": collective.root}


def synthesis_json(
    plan: Plan | None,
    front: Front | None,
    collective: Collective,
    topology: Topology,
    size: int,
    seconds: float,
    declined: dict[str, str],
) -> dict[str, Any]:
    """The object that --json prints."""
    limit = plan.bound if plan is not None else front.bound if front is not None else None
    out = head_json(collective, topology) | _chosen_json(plan, collective, topology, size)
    out["bound"] = bound_json(limit) if limit is not None else None
    out["gap"] = float(plan.gap_of(plan.entry_for(size))) if plan is not None else None
    out["verified"] = plan is not None
    out["synthesis_s"] = seconds
    if plan is not None:
        out["plan_hash"] = plan.hash
        out["entries"] = [
            {
                "min_bytes": e.min_bytes,
                "max_bytes": e.max_bytes,
                "strategy": e.schedule.strategy,
                "segments": e.schedule.segments,
                "gap": float(plan.gap_of(e)),
            }
            for e in plan.entries
        ]
    if front is not None:
        out["complete"] = front.complete
        out["least_ratio"] = str(front.least_ratio)
        out["rows"] = [_row_json(row) for row in front.rows]
    if declined:
        out["declined"] = declined
    return out


def _chosen_json(plan: Plan | None, collective: Collective, topology: Topology, size: int) -> dict[str, Any]:
    """Of the schedule for the asked size; chunks in SCCL's units where they are even."""
    if plan is None:
        keys = ("chunks", "steps", "rounds", "trees", "segments", "predicted")
        return {"strategy": "exact", "size_bytes": size, **dict.fromkeys(keys)}
    from ..synth.cost import rounds

    schedule = plan.entry_for(size).schedule
    parts = len(collective.even_chunks(1))
    time_s = plan.cost_of(plan.entry_for(size)).time_s(size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    total = rounds(schedule, topology)
    return {
        "strategy": schedule.strategy,
        "size_bytes": size,
        "chunks": len(schedule.chunks) // parts if len(schedule.chunks) % parts == 0 else len(schedule.chunks),
        "steps": schedule.steps,
        "rounds": None if total is None else int(total) if total.denominator == 1 else float(total),
        "trees": schedule.trees,
        "segments": schedule.segments,
        "predicted": {
            "time_s": time_s,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(collective.bus_factor()),
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    keys = ("chunks", "steps", "rounds", "status", "latency_optimal", "bandwidth_optimal", "dominated", "form", "proof")
    return {**{key: getattr(row, key) for key in keys}, "synthesis_s": row.synthesis_s}


# -- for people ----------------------------------------------------------------------------------------------------


def limit_text(limit: Bound) -> str:
    """The bound as a number, and as a fraction where that is short."""
    exact = limit.algbw_GBps
    return f"{float(exact):.4g}" + (
        f" (exactly {exact})" if exact.denominator != 1 and exact.denominator < 10**6 else ""
    )


def why_text(limit: Bound) -> str:
    """What the bound rests on."""
    if limit.kind == "cut":
        inside = limit.certificate["inside"]
        listed = ", ".join(inside[:10]) + (" ..." if len(inside) > 10 else "")
        return f"bound by the cut around {{{listed}}}"
    return f"bound by prices on {len(limit.certificate['prices'])} links (linear programming dual)"


def print_tables(plan: Plan | None, front: Front | None, size: int, seconds: float, declined: dict[str, str]) -> None:
    """Everything for people, on standard output."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if front is not None:
        _print_front(console, front)
    if plan is not None:
        _print_plan(console, plan, size)
    for name, reason in declined.items():
        console.print(f"[dim]{name}: {reason}[/dim]", highlight=False, soft_wrap=True)
    console.print(f"synthesized and verified in {seconds:.2f} s", highlight=False)


def _print_plan(console: Any, plan: Plan, size: int) -> None:
    from rich.table import Table

    from ..synth.cost import rounds

    collective, topology = plan.collective, plan.topology
    console.print(
        f"[bold]{collective.name}[/bold] on [bold]{topology.name}[/bold] ({collective.ranks} ranks, fingerprint "
        f"{topology.fingerprint[:12]}): at most [bold]{limit_text(plan.bound)} GB/s[/bold] algbw; {why_text(plan.bound)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, left in (("sizes from", 0), ("to", 0), ("strategy", 1), ("chunks", 0), ("steps", 0), ("rounds", 0),
                        ("trees", 0), ("segments", 0), ("latency us", 0), ("GB/s at most", 0), ("gap", 0)):  # fmt: skip
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for entry in plan.entries:
        s, cost = entry.schedule, plan.cost_of(entry)
        total = rounds(s, topology)
        table.add_row(
            show_size(entry.min_bytes), show_size(entry.max_bytes) if entry.max_bytes is not None else "",
            s.strategy, str(len(s.chunks)), str(s.steps), "" if total is None else f"{float(total):g}",
            str(s.trees or ""), str(s.segments if s.segments > 1 else ""), f"{float(cost.alpha_us):.3g}",
            f"{1 / float(cost.beta_s_per_GB):.4g}", f"{max(0.0, float(plan.gap_of(entry))):.1%}",
            style="green" if entry.covers(size) else None,
        )  # fmt: skip
    console.print(table)
    entry = plan.entry_for(size)
    time_s = plan.cost_of(entry).time_s(size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    console.print(
        f"at {show_size(size)}: {entry.schedule.strategy}, predicted {time_s * 1e6:.4g} us, algbw {algbw:.4g} GB/s, "
        f"busbw {algbw * float(collective.bus_factor()):.4g} GB/s", highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_front(console: Any, front: Front) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("chunks", "steps", "rounds", "R/C", "status", "", "form", "proof", "seconds"):
        table.add_column(title, justify="left" if title in ("status", "", "form", "proof") else "right")
    for row in front.rows:
        marks = [
            "front" * (row in front.front),
            "fewest steps" * (row.latency_optimal and not row.dominated),
            "least R/C" * row.bandwidth_optimal,
            "dominated" * row.dominated,
        ]
        table.add_row(
            str(row.chunks), str(row.steps), str(row.rounds), str(row.ratio), row.status,
            ", ".join(m for m in marks if m), row.form, row.proof, f"{row.synthesis_s:.2f}",
            style="green" if row in front.front else "dim" if row.status != "feasible" else None,
        )  # fmt: skip
    console.print(table)
    console.print(
        f"least R/C that any schedule can have: {front.least_ratio}"
        + ("" if front.complete else "; the search was not exhaustive"), highlight=False,
    )  # fmt: skip
