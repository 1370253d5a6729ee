"""topo-run with a joint plan: all groups' calls at once, as a table and as JSON.

A joint plan has a plan for each of several groups of ranks, which run at the same time and share
the links. The kind of a group is what it is for, such as tp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ....synth.ir.collective import spell_ranks
from ....synth.sizes import show_size
from ....topo.errors import InputError
from ....topo.output_head import output_head
from ....topo.printable import printable
from ...running.added import FILES, MODES
from ...running.plan_sets import Outcome

if TYPE_CHECKING:
    import argparse

    from ....runtime.extras.joint.measure import JointTimes
    from ....runtime.measuring.bench_options import BenchOptions
    from ....runtime.ranks.transport import Transport
    from ....synth.extras.joint.plan import JointPlan

# What a joint plan decides itself, or what is measured of single plans alone.
_REFUSED = ("compress", "plot", "csv", "place", "topology", "stock")


def load(args: argparse.Namespace) -> LoadedJointPlan:
    """Return the verified joint plan that is among the plans of the arguments.

    Raise InputError for other plans beside it, and for options that it has no use for.
    """
    if len(args.plans) > 1:
        raise InputError(f"{len(args.plans)} plans, one of them joint; run it alone")
    for name in (*_REFUSED, *MODES.list_all(), *FILES.list_all()):
        if getattr(args, name):
            raise InputError(f"--{name} with a joint plan: it is for single plans; leave it out")
    from ....synth.extras.joint.plan import JointPlan

    return LoadedJointPlan(JointPlan.load(args.plans[0]))


@dataclass(frozen=True)
class LoadedJointPlan:
    """A joint plan as topo-run runs it, a LoadedSet (cli/running/plan_sets.py)."""

    joint: JointPlan

    @property
    def ranks(self) -> int:
        """The number of ranks that run it: one for each GPU of its topology."""
        return len(self.joint.topology.ranks)

    def measure(
        self, options: BenchOptions, transport: Transport, say: Callable[[str], None]
    ) -> Outcome:
        """Make all groups' calls at once, and return their times, as text and as JSON data.

        All ranks of the transport must call it. `say` is called with each line of progress.
        """
        from ....runtime.extras.joint.measure import run_joint

        timeout = timedelta(seconds=options.timeout_s)
        times = run_joint(self.joint, options, transport, timeout, say)
        return Outcome(
            "\n".join(_list_lines(self.joint, times, transport.links.name)),
            _to_json(self.joint, times, transport.links.name),
            any(row.wrong for row in times.groups),
        )


def _list_lines(joint: JointPlan, times: JointTimes, backend: str) -> list[str]:
    """Return the groups' times, then those of all of them together."""
    titles = ("group", "collective", "size", "schedule", "plan us", "stock us", "#wrong")
    rows = [
        (
            f"{row.group.call.kind} {spell_ranks(row.group.call.collective.members)}",
            row.group.call.collective.name,
            show_size(row.group.call.size_bytes),
            row.schedule,
            f"{row.plan_us:.1f}",
            "-" if row.stock_us is None else f"{row.stock_us:.1f}",
            str(row.wrong),
        )
        for row in times.groups
    ]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [
        printable(
            f"# {len(joint.groups)} groups at once on {joint.topology.name}, "
            f"{len(joint.topology.ranks)} ranks, {backend}; times until a group's call has ended"
        )
    ]
    for mark, row in [("#", titles), *((" ", row) for row in rows)]:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(printable(mark + "  ".join(cells)))
    stock = "" if times.stock_us is None else f", stock collectives {times.stock_us:.1f} us"
    ratio = "" if times.ratio is None else f", {times.ratio:.2f} times as long"
    lines.append(f"# together: {times.plan_us:.1f} us{stock}{ratio}")
    if times.raced_us:
        raced = ", ".join(f"{label} {us:.0f}" for label, us in times.raced_us.items())
        lines.append(f"# raced together, us: {raced}")
    elif times.ratio is not None and times.ratio < 1:
        lines.append(
            "# stock is faster at these sizes: leave the joint plan out, or plan for larger ones"
        )
    if times.bound_us is not None:
        share = times.bound_us / times.plan_us
        lines.append(f"# joint bound: {times.bound_us:.1f} us, {share:.3f} of the plans' time")
    return lines


def _to_json(joint: JointPlan, times: JointTimes, backend: str) -> dict[str, Any]:
    """Return the object of --json."""
    groups: list[dict[str, Any]] = [
        {
            "kind": row.group.call.kind,
            "members": list(row.group.call.collective.members),
            "helpers": list(row.group.helpers),
            "collective": row.group.call.collective.name,
            "size_bytes": row.group.call.size_bytes,
            "schedule": row.schedule,
            "plan_us": row.plan_us,
            "stock_us": row.stock_us,
            "wrong": row.wrong,
        }
        for row in times.groups
    ]
    return output_head("topoplan-run") | {
        "backend": backend,
        "ranks": len(joint.topology.ranks),
        "plan_hash": joint.hash,
        "plan_us": times.plan_us,
        "stock_us": times.stock_us,
        "ratio": times.ratio,
        "bound_us": times.bound_us,
        "bound_fraction": times.bound_fraction,
        "raced_us": times.raced_us,
        "groups": groups,
    }
