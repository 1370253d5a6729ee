"""Allreduce in one step: every rank sends its whole vector to every other, and adds up what it
receives.
"""

from __future__ import annotations

from itertools import permutations

from ..ir.schedule import Schedule
from ..request import Request, Send, build_schedule, check_size, whole


def build(request: Request) -> list[Schedule]:
    """Return the one-shot schedule. InfeasibleError where two ranks have no route that avoids other
    GPUs.
    """
    n = request.collective.ranks
    check_size("one-shot", n, n * n)
    sends: list[Send] = [(0, src, dst, 0, "reduce") for src, dst in permutations(range(n), 2)]
    return [build_schedule(request, "one-shot", whole(request.collective), sends)]
