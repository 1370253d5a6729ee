"""Allreduce in one step: everyone sends the whole vector to everyone, and each adds up for itself."""

from __future__ import annotations

from ...topo.errors import InfeasibleError
from ..ir.schedule import Schedule
from .base import MOST_TRANSFERS, Request, Send, build_schedule, only_for, whole


def build(request: Request) -> list[Schedule]:
    """The one-shot schedule. InfeasibleError where some pair has no route without another GPU in the way."""
    only_for(request, "one-shot", ["allreduce"])
    n = request.collective.ranks
    if n * n > MOST_TRANSFERS:
        raise InfeasibleError(f"one-shot: {n} ranks take {n * n} transfers, more than are planned for")
    sends: list[Send] = [(0, src, dst, 0, "reduce") for src in range(n) for dst in range(n) if src != dst]
    return [build_schedule(request, "one-shot", whole(request.collective), sends)]
