"""Allreduce in one step: every rank sends its whole vector to every other, and adds up what it
receives.
"""

from __future__ import annotations

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from ..request import MOST_TRANSFERS, Request, Send, build_schedule, only_for, whole


def build(request: Request) -> list[Schedule]:
    """Return the one-shot schedule. InfeasibleError where two ranks have no route that avoids other
    GPUs.
    """
    only_for(request, "one-shot", ["allreduce"])
    n = request.collective.ranks
    if n * n > MOST_TRANSFERS:
        raise InfeasibleError(
            f"one-shot: {n} ranks take {n * n} transfers, more than are planned for"
        )
    sends: list[Send] = [
        (0, src, dst, 0, "reduce") for src in range(n) for dst in range(n) if src != dst
    ]
    return [build_schedule(request, "one-shot", whole(request.collective), sends)]
