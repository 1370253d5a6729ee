"""The strategy widest-ring: a ring that goes on from each GPU by the widest link to a new one."""

from topoplan import InfeasibleError, Request, Schedule, Send, build_schedule


def build(request: Request) -> list[Schedule]:
    """Return an allreduce: each chunk goes around the ring once to be added up, once as the sum."""
    if request.collective.name != "allreduce":
        raise InfeasibleError(f"it has only allreduce, not {request.collective.name}")
    gpus, widths = request.topology.ranks, request.topology.capacity_GBps
    ring, left = list(request.collective.members[:1]), set(request.collective.members[1:])
    while left:
        ring.append(max(left, key=lambda x: (widths.get((gpus[ring[-1]], gpus[x]), 0), -x)))
        left.remove(ring[-1])
    n, sends = len(ring), list[Send]()
    for step in range(n - 1):
        for place, (rank, after) in enumerate(zip(ring, ring[1:] + ring[:1], strict=True)):
            sends.append((step, rank, after, (place - step) % n, "reduce"))
            sends.append((step + n - 1, rank, after, (place - step + 1) % n, "copy"))
    return [build_schedule(request, "widest-ring", request.collective.even_chunks(n), sends)]
