"""Plans of many kinds: their hashes, bounds, and the schedule of each range of sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import topoplan
from goldens.store import INPUTS
from topoplan import Bound, JointPlan, Plan, TreeLimits

# The searches of each take a fraction of a second: a limit that ended one would give another plan
# on a busy machine.
_make = partial(topoplan.synthesize, time_limit_s=60)
# Collective, machine (a preset, or a file in inputs/), and what is asked of the plan.
REQUESTS: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    ("allreduce", "ring:4", {}),
    ("allreduce", "ring:8", {"strategy": "ring"}),
    ("allreduce", "dgx1", {"strategy": "packing"}),
    ("allreduce", "dgx1", {"strategy": "packing", "limits": TreeLimits(max_trees=4)}),
    ("allreduce", "dgx-a100", {}),
    ("allreduce", "dgx-a100:2", {}),
    ("allreduce", "mi300x", {}),
    ("allreduce", "pcie-2socket", {"strategy": "packing"}),
    ("allreduce", "spark-ring:4", {}),
    ("allreduce", "mesh:3x3", {"strategy": "packing"}),
    ("allreduce", "switch:8", {"strategy": "halving-doubling"}),
    ("allreduce", "switch:8", {"strategy": "recursive-doubling"}),
    ("allreduce", "switch:7", {"strategy": "double-tree"}),
    ("allreduce", "full:4", {"strategy": "one-shot"}),
    ("allreduce", "star:5", {"strategy": "parameter-server"}),
    ("allreduce", "dgx-a100:2", {"strategy": "hierarchical"}),
    ("allreduce", "ring:4", {"reproducible": True}),
    ("allreduce", "mesh:2x2", {"spare": "links"}),
    ("allreduce", "mi300x", {"group": (0, 1)}),
    ("allreduce", "full:4", {"group": (0, 1, 2), "helpers": "none"}),
    ("allreduce", "dgx1", {"strategy": "packing", "size": "64K"}),
    ("allreduce", "slow-link", {}),
    ("allreduce", "three-hosts", {}),
    ("allreduce", "adding-switch", {}),
    ("allreduce", "two-sockets", {}),
    ("allreduce", "one-way", {"strategy": "packing"}),
    ("allgather", "dgx1", {"strategy": "packing"}),
    ("allgather", "mesh:2x3", {"strategy": "greedy"}),
    ("allgather", "one-way", {}),
    ("reduce-scatter", "ring:4", {"strategy": "exact"}),
    ("reduce-scatter", "three-hosts", {}),
    ("reduce-scatter", "switch:4", {"reproducible": True}),
    ("broadcast", "path:4", {"strategy": "packing", "root": 1}),
    ("allreduce", "path:4", {"strategy": "chains"}),
    ("broadcast", "slow-link", {}),
    ("reduce", "adding-switch", {"root": 3}),
    ("gather", "two-sockets", {"root": 2}),
    ("scatter", "three-hosts", {}),
    ("alltoall", "full:4", {"strategy": "direct"}),
    ("alltoall", "slow-link", {}),
)  # fmt: skip
GROUPS = ("tp:allreduce:64M=0,1|2,3 dp:allreduce:16M=0,2|1,3", "full:4")


def find_machine(name: str) -> str:
    """Return the path of a machine in inputs/, or the preset's name itself."""
    path = INPUTS / f"{name}.json"
    return str(path) if path.exists() else name


def record() -> dict[str, Any]:
    """Return the figures of each plan."""
    plans = {
        _name(*request): _describe(_make(request[0], find_machine(request[1]), **request[2]))
        for request in REQUESTS
    }
    joint = topoplan.synthesize_joint(*GROUPS, time_limit_s=60)
    return {**plans, " on ".join(GROUPS): _describe_joint(joint)}


def _name(collective: str, machine: str, options: dict[str, Any]) -> str:
    return " ".join([collective, machine, *(f"{key}={value}" for key, value in options.items())])


def _describe(plan: Plan) -> dict[str, Any]:
    bounds = {
        "any": plan.bound,
        "single path": plan.bound_one_way,
        "alone": plan.bound_alone,
        "with helpers": plan.bound_with_helpers,
    }
    return {
        "hash": plan.hash,
        "bounds": {name: _show(bound) for name, bound in bounds.items() if bound is not None},
        "entries": [
            f"{entry.min_bytes} to {entry.max_bytes}: {entry.schedule.label}, "
            f"{len(entry.schedule.chunks)} chunks, {entry.schedule.steps} steps, "
            f"{len(entry.schedule.transfers)} transfers, gap {plan.gap_of(entry)}"
            for entry in plan.entries
        ],
        "alternatives": [schedule.label for schedule in plan.alternatives],
        "spares": len(plan.spares),
        "bracketing": plan.bracketing,
    }


def _show(bound: Bound) -> str:
    return f"{bound.algbw_GBps} GB/s by {bound.kind}"


def _describe_joint(joint: JointPlan) -> dict[str, Any]:
    return {
        "hash": joint.hash,
        "limit_s": str(joint.limit_s),
        "gap": str(joint.gap),
        "groups": [f"{group.call}: {group.schedule.label}" for group in joint.groups],
    }
