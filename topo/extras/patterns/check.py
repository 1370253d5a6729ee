"""The doctor's check of patterns: flows at once that get less than one of them gets alone.

A flow is data that one rank sends to another; a pattern is a set of flows that were measured at
once, with their rates. The check takes a DoctorView (the topology, and the facts that a probe read)
and yields a Finding for each problem; the doctor makes those in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ....extras import CONSTRAINTS, Names
from ...graph import Topology
from ...routes import Router
from ..doctor.view import Check, DoctorView, Finding, format_GBps, join_names
from .facts import PATTERN, Pattern, list_measured, list_patterns

# Flows at once whose sum is below this share of what the fastest of them gets alone: nothing is
# gained by running them at once, and a tenth or two may be noise. Chosen, not measured.
_COLLAPSED = Fraction(3, 4)
# The option of topo-synth by which plans keep to fewer transfers at a time, where an extra has it.
_OPTION = "concurrent"


def check_patterns(view: DoctorView) -> Iterator[Finding]:
    """Report flows that together get less than 3/4 of what the fastest of them gets alone.

    It is a warning.
    Links that flows share give them in sum what they give one, whatever their capacities; what is
    lost beyond that is lost to running at once.
    """
    topology, is_planned = view.topology, _OPTION in Names(CONSTRAINTS).describe()
    ranks = len(topology.ranks)
    for pattern in (*list_patterns(view.facts, ranks), *list_measured(topology.extra, ranks)):
        share = pattern.together_GBps / pattern.alone_GBps
        if len(pattern.flows) < 2 or share >= _COLLAPSED:
            continue
        shared, limit = find_shared(pattern, topology)
        names = [f"{topology.ranks[a]} -> {topology.ranks[b]}" for a, b in pattern.flows]
        yield Finding(
            "warning",
            "collapse",
            tuple(shared),
            f"{len(pattern.flows)} flows at once ({pattern.how}: {join_names(names)}) get "
            f"{format_GBps(pattern.together_GBps)} together, {float(share):.0%} of the "
            f"{format_GBps(pattern.alone_GBps)} that one of them gets alone",
            (
                f"{pattern.spelled}: together {format_GBps(pattern.together_GBps)}, alone "
                f"{format_GBps(pattern.alone_GBps)} ({pattern.source})",
            ),
            "bounds and plans by capacities do not know this: plan for fewer transfers at a time"
            + (f" (topo-synth --{_OPTION} {limit})" if limit and is_planned else ""),
        )


def find_shared(pattern: Pattern, topology: Topology) -> tuple[list[str], str]:
    """Return the id of a device that all flows of a pattern use, and a limit that keeps them apart.

    The device is the GPU that all leave or all enter, else a switch on all routes, else another
    device on all of them; the list is empty if there is none. The limit is the value of topo-synth
    --concurrent that lets one transfer at a time use it (`gpu=1`, `ID=1`), "" if there is none.
    """
    router = Router(topology)
    routes = [router.route(*flow) or () for flow in pattern.flows]
    common = [d for d in topology.devices if all(d.id in route for route in routes)]
    sources, targets = ({flow[i] for flow in pattern.flows} for i in (0, 1))
    if len(sources) == 1 or len(targets) == 1:
        return [topology.ranks[(sources if len(sources) == 1 else targets).pop()]], "gpu=1"
    through = [d for d in common if d.kind != "gpu"]
    first = next((d for d in through if d.kind == "switch"), through[0] if through else None)
    if first is None:
        return [], ""
    return [first.id], f"{first.id}=1"


CHECKS = (
    Check(
        "flows at once",
        check_patterns,
        lambda view: (
            view.facts.list_names(PATTERN)
            or list_measured(view.topology.extra, len(view.topology.ranks))
        ),
        "no rates of flows that were measured at once",
    ),
)
