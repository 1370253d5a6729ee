"""Direct exchange: all pairs of ranks send to each other.

Collectives that copy or reduce take one step, allreduce two; or one, if every rank sends its whole
vector to every other (one-shot).

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it.
"""

from itertools import permutations

from ...topo.errors import InfeasibleError
from ..ir.collective import Collective
from ..ir.schedule import Schedule, compose, reverse
from ..request import Request, Send, build_schedule, check_size


def build(request: Request) -> list[Schedule]:
    """Return the schedule in which all pairs of ranks send to each other, for a request.

    Raise InfeasibleError if two ranks have no route that avoids other GPUs.
    """
    collective = request.collective
    n = collective.ranks
    check_size("direct", n, n * n)
    if collective.name == "allreduce":
        halves = (Collective(name, n) for name in ("reduce-scatter", "allgather"))
        return [compose(*(build(request.of(half))[0] for half in halves))]
    if collective.reduces:
        return [reverse(build(request.reversed())[0])]
    chunks = collective.even_chunks(1)
    sends: list[Send] = [
        (0, src, dst, c, "copy")
        for c, chunk in enumerate(chunks)
        for src in collective.holders(chunk)
        for dst in collective.receivers(chunk)
        if src != dst
    ]
    if not sends:
        raise InfeasibleError("direct needs at least two ranks")
    return [build_schedule(request, "direct", chunks, sends)]


def build_one_shot(request: Request) -> list[Schedule]:
    """Return the schedule of allreduce in which every rank sends its whole vector to every other.

    Raise InfeasibleError if two ranks have no route that avoids other GPUs.
    """
    n = request.collective.ranks
    check_size("one-shot", n, n * n)
    sends: list[Send] = [(0, src, dst, 0, "reduce") for src, dst in permutations(range(n), 2)]
    return [build_schedule(request, "one-shot", request.collective.even_chunks(1), sends)]
