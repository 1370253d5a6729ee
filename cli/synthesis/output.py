"""The JSON that topo-synth prints for programs; tables.py has the tables for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...synth.describe import reach_at
from ...topo.pictures.cables import describe_rates

if TYPE_CHECKING:
    from ...synth.bounds.certificate import Bound
    from ...synth.bounds.single_path import Bounds
    from ...synth.explain import Explanation
    from ...synth.export.formats import Export
    from ...synth.ir.collective import Collective
    from ...synth.ksync.pareto import Front, Row
    from ...synth.place.placement import Placement
    from ...synth.plan import Entry, Plan
    from ...topo.graph import Topology


@dataclass
class Report:
    """The results of a run of topo-synth; `bounds` where a front was sought.

    `table` lists the forests that packing considered, `declined` why strategies have no schedule,
    `healthy` is the plan of the machine before --without-link and the like changed it, `cut_short`
    lists the searches that the time limit stopped. `root_as_given` is the root in the numbering of
    the machine before it changed. `in_network` is the bound where switches add that could, and of
    which the topology does not say that they do.
    """

    collective: Collective
    topology: Topology
    size: int
    plan: Plan | None = None
    front: Front | None = None
    bounds: Bounds | None = None
    seconds: float = 0.0
    declined: dict[str, str] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)
    healthy: Plan | None = None
    explanation: Explanation | None = None
    placement: Placement | None = None
    cut_short: list[str] = field(default_factory=list)
    root_as_given: int | None = None
    in_network: Bound | None = None


def bound_json(limit: Bound) -> dict[str, Any]:
    """Return the bound with its certificate."""
    return {
        "algbw_GBps": float(limit.algbw_GBps),
        "algbw_GBps_exact": str(limit.algbw_GBps),
        "kind": limit.kind,
        "certificate": dict(limit.certificate),
    }


def switches_json(report: Report) -> dict[str, Any]:
    """Return what the bound assumes of switches, and the bound where those add that could."""
    from ...synth.bounds.in_network import describe_assumption

    out: dict[str, Any] = {"bound_assumes": describe_assumption(report.topology)}
    if report.in_network is not None:
        out["bound_in_network"] = bound_json(report.in_network)
    return out


def head_json(report: Report) -> dict[str, Any]:
    """Return what was asked for. `root` is a rank of the plan, `root_as_given` the same GPU's on
    the machine as given.
    """
    collective, topology = report.collective, report.topology
    head: dict[str, Any] = {
        "name": topology.name,
        "fingerprint": topology.fingerprint,
        "ranks": collective.ranks,
    }
    rates = describe_rates(topology)
    if rates:
        head["rates"] = rates
    out = {"topology": head, "collective": collective.name, "root": collective.root}
    if collective.root is not None:
        out |= {
            "root_device": topology.ranks[collective.root],
            "root_as_given": report.root_as_given,
        }
    return out


def synthesis_json(report: Report) -> dict[str, Any]:
    """Return the object that --json prints."""
    from ...synth.cost.host_costs import describe_host

    plan, front = report.plan, report.front
    limit = plan.bound if plan is not None else front.bound if front is not None else None
    one_way = (
        plan.bound_one_way
        if plan is not None
        else report.bounds.single_path
        if report.bounds is not None
        else None
    )
    out = head_json(report) | _chosen_json(report)
    out["bound"] = bound_json(limit) if limit is not None else None
    out["bound_one_way"] = bound_json(one_way) if one_way is not None else None
    out |= switches_json(report)
    out["gap"] = float(plan.gap_of(plan.entry_for(report.size))) if plan is not None else None
    out["gap_any_way"] = (
        float(plan.gap_any_way_of(plan.entry_for(report.size))) if plan is not None else None
    )
    out["verified"] = plan is not None
    out["synthesis_s"] = report.seconds
    out["search_complete"] = not report.cut_short
    if report.cut_short:
        out["cut_short"] = report.cut_short
    if plan is not None:
        out["plan_hash"] = plan.hash
        if plan.bracketing is not None:
            out["reproducible"] = {"bracketing": plan.bracketing}
        out["entries"] = [
            {
                "min_bytes": e.min_bytes,
                "max_bytes": e.max_bytes,
                "strategy": e.schedule.strategy,
                "segments": e.schedule.segments,
                "trees": e.schedule.trees,
                "depth": e.schedule.depth,
                "gap": float(plan.gap_of(e)),
                "gap_any_way": float(plan.gap_any_way_of(e)),
                "at_size": at_size_json(plan, e, report.size),
            }
            for e in plan.entries
        ]
        out["host_costs"] = describe_host(report.topology)
    if front is not None:
        out["complete"] = front.complete
        out["least_ratio"] = str(front.least_ratio)
        out["rows"] = [_row_json(row) for row in front.rows]
    if report.table:
        out["forests"] = report.table
    if report.healthy is not None:
        out["healthy"] = healthy_json(report.healthy, report)
    if report.explanation is not None:
        out["explain"] = report.explanation.to_json()
    if report.placement is not None:
        names = ("order", "for", "time_s", "given_time_s", "gain", "optimal")
        out["explain"]["rank_order"] = {name: report.placement.to_json()[name] for name in names}
    if report.declined:
        out["declined"] = report.declined
    return out


def list_rows(report: Report) -> list[dict[str, Any]]:
    """Return the rows of the table as --csv writes them: of the front where one was sought, else of
    the plan.
    """
    if report.front is not None:
        return [_row_json(row) for row in report.front.rows]
    plan, rows = report.plan, []
    for entry in plan.entries if plan is not None else ():
        assert plan is not None
        schedule, limit = entry.schedule, plan.limit_GBps(entry)
        at = at_size_json(plan, entry, report.size)
        rows.append(
            {
                "collective": report.collective.name,
                "topology": report.topology.name,
                "ranks": report.collective.ranks,
                "min_bytes": entry.min_bytes,
                "max_bytes": entry.max_bytes,
                "strategy": schedule.strategy,
                "chunks": len(schedule.chunks),
                "steps": schedule.steps,
                "trees": schedule.trees,
                "segments": schedule.segments,
                "latency_us": float(plan.cost_of(entry).alpha_us),
                "algbw_GBps_at_most": None if limit is None else float(limit),
                "bound_GBps": float(plan.bound_one_way.algbw_GBps),
                "gap": float(plan.gap_of(entry)),
                "size_bytes": at["size_bytes"],
                "predicted_algbw_GBps": at["algbw_GBps"],
            }
        )
    return rows


def export_json(report: Report, made: Export) -> dict[str, Any]:
    """Return the object that --json prints with a --format other than plans."""
    out = head_json(report) | {"format": made.format, made.key: made.figures}
    if made.bounds is not None:
        out |= {
            "bound": bound_json(made.bounds.multipath),
            "bound_one_way": bound_json(made.bounds.single_path),
        }
    return out | {"synthesis_s": report.seconds, "search_complete": not report.cut_short}


def at_size_json(plan: Plan, entry: Entry, size: int) -> dict[str, Any]:
    """Return a size in an entry's range, and what the entry is predicted to reach at it.

    It is the size that is reported on where the entry has it, else the end of the entry's range.
    """
    size, algbw_GBps = reach_at(plan, entry, size)
    return {"size_bytes": size, "algbw_GBps": algbw_GBps}


def healthy_json(healthy: Plan, report: Report) -> dict[str, Any]:
    """Return the figures of the machine before it changed, and the ratios of the changed machine's
    to them.
    """
    entry = healthy.entry_for(report.size)
    time_s = healthy.time_s(entry, report.size)
    out: dict[str, Any] = {
        "topology": healthy.topology.name,
        "bound_GBps": float(healthy.bound_one_way.algbw_GBps),
        "strategy": entry.schedule.strategy,
        "predicted_time_s": time_s,
    }
    if report.plan is not None:
        now_s = report.plan.time_s(report.plan.entry_for(report.size), report.size)
        out["bound_ratio"] = float(
            report.plan.bound_one_way.algbw_GBps / healthy.bound_one_way.algbw_GBps
        )
        out["time_ratio"] = now_s / time_s if time_s else None
    return out


def _chosen_json(report: Report) -> dict[str, Any]:
    """Return the figures of the schedule for the requested size; chunks in SCCL's units where they
    are even.
    """
    plan, collective, size = report.plan, report.collective, report.size
    if plan is None:
        keys = ("chunks", "steps", "rounds", "trees", "depth", "segments", "predicted")
        return {"strategy": "exact", "size_bytes": size, **dict.fromkeys(keys)}
    from ...synth.cost.affine import rounds

    schedule = plan.entry_for(size).schedule
    parts = len(collective.even_chunks(1))
    time_s = plan.time_s(plan.entry_for(size), size)
    algbw = size / time_s / 1e9 if time_s else 0.0
    total = rounds(schedule, plan.router)
    return {
        "strategy": schedule.strategy,
        "size_bytes": size,
        "chunks": len(schedule.chunks) // parts
        if len(schedule.chunks) % parts == 0
        else len(schedule.chunks),
        "steps": schedule.steps,
        "rounds": None if total is None else int(total) if total.denominator == 1 else float(total),
        "trees": schedule.trees,
        "depth": schedule.depth,
        "segments": schedule.segments,
        "predicted": {
            "time_s": time_s,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(collective.bus_factor()),
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    keys = (
        "chunks",
        "steps",
        "rounds",
        "status",
        "latency_optimal",
        "bandwidth_optimal",
        "dominated",
        "form",
        "proof",
    )
    return {**{key: getattr(row, key) for key in keys}, "synthesis_s": row.synthesis_s}
