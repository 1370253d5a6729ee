"""topo-run with a joint plan: all groups' calls at once, as a table and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...synth.ir.collective import spell_ranks
from ...synth.sizes import show_size
from ...topo.errors import InputError
from ...topo.files import read_start
from ...topo.output_head import output_head
from ...topo.printable import printable

if TYPE_CHECKING:
    import argparse

    from ...runtime.measuring.joint import JointTimes
    from ...synth.groups.joint_plan import JointPlan

# A joint plan names its format at its beginning.
_HEAD_BYTES = 4096
# What a joint plan decides itself, or what is measured of single plans alone.
_REFUSED = ("compress", "calibrate", "trace", "plot", "csv", "place", "topology", "stock")


def load_joint(args: argparse.Namespace) -> JointPlan | None:
    """Return the verified joint plan that the arguments name; None if they name none.

    Raise InputError for options that it has no use for.
    """
    if not any(map(_is_joint, args.plans)):
        return None
    if len(args.plans) > 1:
        raise InputError(f"{len(args.plans)} plans, one of them joint; run it alone")
    for name in _REFUSED:
        if getattr(args, name):
            raise InputError(f"--{name} with a joint plan: it is for single plans; leave it out")
    from ...synth.groups.joint_plan import JointPlan

    return JointPlan.load(args.plans[0])


def _is_joint(name: str) -> bool:
    from ...synth.plan_file import JOINT_FORMAT

    return f'"{JOINT_FORMAT}"'.encode() in read_start(name, _HEAD_BYTES)


def print_joint(joint: JointPlan, times: JointTimes, backend: str) -> None:
    """Print the groups' times, then those of all of them together."""
    print(
        printable(
            f"# {len(joint.groups)} groups at once on {joint.topology.name}, "
            f"{len(joint.topology.ranks)} ranks, {backend}; times until a group's call has ended"
        )
    )
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
    for mark, row in [("#", titles), *((" ", row) for row in rows)]:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print(printable(mark + "  ".join(cells)))
    stock = "" if times.stock_us is None else f", stock collectives {times.stock_us:.1f} us"
    ratio = "" if times.ratio is None else f", {times.ratio:.2f} times as long"
    print(f"# together: {times.plan_us:.1f} us{stock}{ratio}")
    if times.raced_us:
        raced = ", ".join(f"{label} {us:.0f}" for label, us in times.raced_us.items())
        print(f"# raced together, us: {raced}")
    elif times.ratio is not None and times.ratio < 1:
        print("# stock is faster at these sizes: leave the joint plan out, or plan for larger ones")
    if times.bound_us is not None:
        share = times.bound_us / times.plan_us
        print(f"# joint bound: {times.bound_us:.1f} us, {share:.3f} of the plans' time")


def write_joint(joint: JointPlan, times: JointTimes, backend: str) -> str:
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
    return json.dumps(
        output_head("topoplan-run")
        | {
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
    )
