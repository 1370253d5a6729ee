"""topo-synth --groups: a joint plan for groups of ranks that run at the same time.

It has a plan for each group, and shares of every link for them, so that all end together.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from ....topo.output_head import output_head
from ...shared.progress import ProgressReporter
from ...synthesis.job import NO_GAP, WIDTH, measure_cpu_s
from ...synthesis.options import PROG

if TYPE_CHECKING:
    import argparse

    from ....synth.extras.joint.bound import JointBound
    from ....synth.extras.joint.plan import GroupPlan
    from ....synth.extras.joint.synthesize import JointSynthesis
    from ....topo.graph import Topology


def run(args: argparse.Namespace) -> None:
    """Synthesize the joint plan that the parsed arguments ask for, print it, and write it to -o.

    Raise InputError for groups that do not fit the topology.
    """
    from ....synth.extras.joint.describe import print_joint
    from ....synth.extras.joint.joint_calls import choose_any_helpers, read_calls
    from ....synth.extras.joint.synthesize import plan_jointly
    from ....synth.numeric.effort import Effort
    from ....topo.loader.resolve import load_for_planning
    from ....topo.pictures.console import SafeConsole

    started, cpu_started_s = time.monotonic(), measure_cpu_s()
    topology, router = load_for_planning(args.topology)
    calls = read_calls(args.groups, topology, args.collective, args.size)
    helpers = choose_any_helpers(args.helpers or "rest", calls, topology)
    progress = ProgressReporter(PROG, args)
    with progress.follow("synthesizing ...", args.time_limit) as work:
        result = plan_jointly(calls, router, helpers, Effort(args.time_limit), work.say)
    if args.output:
        result.plan.save(args.output, overwrite=args.force)
    if args.json:
        times = {
            "synthesis_s": time.monotonic() - started,
            "cpu_s": measure_cpu_s() - cpu_started_s,
        }
        print(json.dumps(_to_json(result) | times))
    else:
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        console = SafeConsole(width=None if sys.stdout.isatty() else columns)
        print_joint(console, result.plan, result.separate)
        if result.cut_short:
            console.print(
                "search cut short by --time-limit; the gap may be loose "
                f"({', '.join(result.cut_short)})",
                style="yellow",
                highlight=False,
            )
        console.print(f"synthesized and verified in {result.seconds:.2f} s", highlight=False)
    if args.output:
        progress.tell(f"joint plan written to {args.output}")


def _to_json(result: JointSynthesis) -> dict[str, Any]:
    plan, topology = result.plan, result.plan.topology
    return output_head("topoplan-synth") | {
        "topology": {
            "name": topology.name,
            "fingerprint": topology.fingerprint,
            "ranks": len(topology.ranks),
        },
        "helpers": list(plan.helpers),
        "predicted": {"time_s": plan.time_s},
        "limit_s": float(plan.limit_s),
        "bound": _bound_json(plan.bound, topology),
        "bound_one_way": _bound_json(plan.bound_one_way, topology),
        "gap": float(plan.gap),
        "separate": {
            "together_s": float(result.separate.together_s),
            "in_turn_s": float(result.separate.in_turn_s),
        },
        "groups": [_group_json(group) for group in plan.groups],
        "verified": True,
        "search_complete": not result.cut_short and float(plan.gap) <= NO_GAP,
        "plan_hash": plan.hash,
        **({"cut_short": list(result.cut_short)} if result.cut_short else {}),
    }


def _bound_json(bound: JointBound, topology: Topology) -> dict[str, Any]:
    from ....synth.bounds.assumptions import list_assumptions

    return {
        "time_s": float(bound.time_s),
        "time_s_exact": str(bound.time_s),
        "kind": bound.kind,
        "certificate": dict(bound.certificate),
        "assumes": [str(assumption) for assumption in list_assumptions(bound, topology)],
    }


def _group_json(group: GroupPlan) -> dict[str, Any]:
    call, schedule = group.call, group.schedule
    algbw = call.size_bytes / group.time_s / 1e9
    return {
        "kind": call.kind,
        "members": list(call.collective.members),
        "collective": call.collective.name,
        "root": call.collective.root,
        "size_bytes": call.size_bytes,
        "weight": float(call.weight),
        "helpers": list(group.helpers),
        "trees": schedule.trees,
        "depth": schedule.depth,
        "steps": schedule.steps,
        "segments": schedule.segments,
        "limit_s": float(group.limit_s),
        "predicted": {
            "time_s": group.time_s,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(call.collective.bus_factor()),
        },
    }
