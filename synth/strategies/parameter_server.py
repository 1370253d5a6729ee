"""Parameter servers: every rank sends its vector to servers, which return the sum.

This is the scheme of BytePS (OSDI 2020). A server is a rank. There is one, or every rank serves a
share of the vector; the shares follow from a linear program over the links.

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it.
"""

from dataclasses import replace

from ...topo.errors import InfeasibleError
from ..forest.candidates import ForestBuilder, pareto
from ..ir.schedule import Schedule
from ..packing.trees import RootedTree, schedule_of
from ..request import Request, check_size


def build(request: Request) -> list[Schedule]:
    """Return schedules with the best single server and with all ranks as servers.

    Raise InfeasibleError if no rank has routes to all others.
    """
    n = request.collective.ranks
    check_size("parameter-server", n, 2 * n * n)
    servers = [server for rank in range(n) if (server := _star(request, rank)) is not None]
    if not servers:
        raise InfeasibleError(
            "parameter-server: no rank has routes to all others that pass no other GPU"
        )
    builder = ForestBuilder(request)
    for server in servers:
        builder.add_weighed([server], "one server")
    builder.candidates = pareto(builder.candidates)
    if len(servers) > 1:
        builder.add_weighed(servers, "all ranks serve")
    schedules = [
        schedule_of(p.forest, request.collective, request.topology, "parameter-server")
        for p in pareto(builder.candidates)
    ]
    return [replace(schedule, trees=None, depth=None) for schedule in schedules]


def _star(request: Request, server: int) -> RootedTree | None:
    """Return the star around a server, None if it has no route to or from some rank."""
    n, router = request.collective.ranks, request.router
    up = [None if r == server else router.route(r, server) for r in range(n)]
    down = [None if r == server else router.route(server, r) for r in range(n)]
    if sum(route is None for route in (*up, *down)) > 2:  # the two from the server to itself
        return None
    return RootedTree(server, tuple(up), tuple(down))
