"""What a stock ring would take, predicted: ranks in their order, or else the first order with
routes, costed as plans are.

This is a model, not a measurement: what a library does that does not look at the machine (gloo, or
a hand-written ring). NCCL searches rings of its own, and may be faster.
"""

from __future__ import annotations

from fractions import Fraction

from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ...topo.routes import Router
from ..cost.affine import Cost, costs_between_gpus, tighten
from ..cost.host_costs import HostCosts, host_of
from ..cost.segmentation import time_us
from ..cost.simulate import MAX_GROUPS
from ..effort import Effort
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule
from ..ir.transform import compose
from ..request import Request, Send, build_schedule, segment_counts

# Times that data goes around the ring.
_RINGS = {"allreduce": 2, "allgather": 1, "reduce-scatter": 1}
_MOST_SEARCHED, _MOST_TRIED, _MOST_NAMED = 64, 20_000, 16
_CHAINS = ("broadcast", "reduce")


class StockRing:
    """Predicts a collective by a ring in rank order (broadcast and reduce: a pipelined chain).
    InfeasibleError where there is none: another collective, or two ranks in turn without a route.
    """

    def __init__(self, collective: Collective, router: Router) -> None:
        self._topology, self._collective, self._router = router.topology, collective, router
        self._host = host_of(router.topology)
        self._costs: list[Cost] = []
        self._order = find_order(router)
        said = "rank order"
        if self._order != tuple(range(collective.ranks)):
            listed = ", ".join(map(str, self._order[:_MOST_NAMED])) + (
                " ..." if collective.ranks > _MOST_NAMED else ""
            )
            said = f"the order {listed}, the first that has routes"
        self._schedule: Schedule | None = None
        if collective.name in _RINGS:
            self.what = f"ring in {said}, one direction"
            self._costs = [self._cost_ring()]
        elif collective.name in _CHAINS:
            self.what = f"chain in {said}, in as many segments as are best"
            self._costs = self._cost_chain()
        else:
            raise InfeasibleError(f"{collective.name} has no ring")

    def time_s(self, size_bytes: int) -> float:
        """Return the predicted seconds for a buffer."""
        if self._host is not None and self._schedule is not None:
            return _play(self._schedule, self._topology, self._host, size_bytes)
        return min(cost.time_s(size_bytes) for cost in self._costs)

    def algbw_GBps(self, size_bytes: int) -> float:
        """Return the predicted algbw for a buffer."""
        time_s = self.time_s(size_bytes)
        return size_bytes / time_s / 1e9 if time_s else 0.0

    def _cost_ring(self) -> Cost:
        """Return the cost of all steps, which are alike: every rank sends a share to the next."""
        n, times = self._collective.ranks, _RINGS[self._collective.name]
        request = Request(Collective("allgather", n), self._topology, Effort(), router=self._router)
        chunks = tuple(Chunk(Fraction(1, n), source=rank) for rank in range(n))
        order = self._order
        sends: list[Send] = [(0, order[i], order[(i + 1) % n], order[i], "copy") for i in range(n)]
        step = build_schedule(request, "stock ring", chunks, sends)
        cost = costs_between_gpus(step, self._topology, [1])[0]
        steps = times * (n - 1)
        if self._host is not None and steps * n <= MAX_GROUPS:
            self._schedule = build_ring(self._collective, self._router, order)
        return Cost(cost.alpha_us * steps, cost.beta_s_per_GB * steps)

    def _cost_chain(self) -> list[Cost]:
        n, start = self._collective.ranks, self._order.index(self._collective.root or 0)
        order = [self._order[(start + i) % n] for i in range(n)]
        if self._collective.name == "reduce":
            order = order[::-1]
        op = "copy" if self._collective.name == "broadcast" else "reduce"
        request = Request(self._collective, self._topology, Effort(), router=self._router)
        sends: list[Send] = [(s, order[s], order[s + 1], 0, op) for s in range(n - 1)]  # type: ignore[misc]
        chain = build_schedule(request, "stock chain", (Chunk(Fraction(1)),), sends)
        return costs_between_gpus(tighten(chain, self._topology), self._topology, segment_counts(1))


def find_order(router: Router) -> tuple[int, ...]:
    """Return rank order where each rank has a route to the next, else the first order of ranks
    (from 0 on) in which it has.

    Raises InfeasibleError where there is none, or none was found among _MOST_TRIED beginnings.
    """
    n = len(router.topology.ranks)
    if all(router.route(rank, (rank + 1) % n) is not None for rank in range(n)):
        return tuple(range(n))
    if n > _MOST_SEARCHED:
        raise InfeasibleError(f"rank order has no routes, and of {n} GPUs no other order is sought")
    order, choices, tried = [0], [list(range(n - 1, 0, -1))], 0
    while choices and tried < _MOST_TRIED:
        if len(order) == n and router.route(order[-1], 0) is not None:
            return tuple(order)
        if not choices[-1]:
            choices.pop()
            order.pop()
            continue
        rank = choices[-1].pop()
        tried += 1
        if router.route(order[-1], rank) is not None:
            order.append(rank)
            choices.append([other for other in range(n - 1, 0, -1) if other not in order])
    raise InfeasibleError("no order of the ranks was found in which each has a route to the next")


def build_ring(collective: Collective, router: Router, order: tuple[int, ...]) -> Schedule:
    """Return the ring in an order of ranks as a schedule, step by step."""
    n = collective.ranks
    request = Request(collective, router.topology, Effort(), router=router)

    def build_half(name: str, shift: int) -> Schedule:
        scattering = name == "reduce-scatter"
        chunks = tuple(
            Chunk(Fraction(1, n), target=rank) if scattering else Chunk(Fraction(1, n), source=rank)
            for rank in range(n)
        )
        op = "reduce" if scattering else "copy"
        sends: list[Send] = [
            (s, order[(place + shift + s) % n], order[(place + shift + s + 1) % n], rank, op)  # type: ignore[misc]
            for place, rank in enumerate(order)
            for s in range(n - 1)
        ]
        return build_schedule(request.of(Collective(name, n)), "stock ring", chunks, sends)

    if collective.name == "allgather":
        return build_half("allgather", 0)
    scatter = build_half("reduce-scatter", 1)
    return (
        scatter
        if collective.name == "reduce-scatter"
        else compose(scatter, build_half("allgather", 0))
    )


def _play(schedule: Schedule, topology: Topology, host: HostCosts, size_bytes: int) -> float:
    return time_us(schedule, topology, host, size_bytes) * 1e-6
