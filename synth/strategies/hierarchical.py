"""Hierarchical allreduce on equal boxes: inside each box, across boxes, and back.

Each box reduces to its rails, and the boxes exchange rail by rail. The boxes are found by their
links and solved once; across them every rail has trees of boxes: a pair of binary trees, a chain,
chains or stars from every box (synth/machine/boxes.py).

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it. A rail is the i-th GPU of every box.
"""

from dataclasses import replace

from ...topo.errors import InfeasibleError
from ..forest.candidates import ForestBuilder, pareto
from ..ir.schedule import Schedule
from ..packing.trees import schedule_of
from ..request import Request, segment_counts


def build(request: Request) -> list[Schedule]:
    """Return a schedule for each shape of trees across boxes that no other dominates.

    Boxes are equal groups of GPUs joined by slower links, such as hosts. Raise InfeasibleError if
    the machine is one box.
    """
    builder = ForestBuilder(request)
    if builder.survey.boxes is None:
        raise InfeasibleError(
            f"hierarchical: {request.topology.name} is one box (no slower links join equal groups "
            "of GPUs)"
        )
    builder.add_rail_trees()
    picked = pareto([p for p in builder.candidates if p.keeps(request.limits)])
    if not picked:
        raise InfeasibleError(
            "hierarchical: some rails of the boxes have no routes between them, or limits leave "
            "nothing"
        )
    schedules = [
        schedule_of(p.forest, request.collective, request.topology, "hierarchical") for p in picked
    ]
    return [replace(s, segments=m) for s in schedules for m in segment_counts(s.trees or 1)]
