"""Predict the time of the stock collective, with the same cost model as for plans.

That is what NCCL, RCCL or gloo does without a plan or a graph file. On hosts that the models of
stock NCCL and RCCL cover these are the rings or chains that the library finds and picks, at the
topology's rates. Elsewhere it is one ring in rank order, or else in the first order with routes:
that stands for a library that ignores the machine (gloo, or a hand-written ring), and `reason` says
why the library is not modelled. Between hosts it is the most that flat rings, or trees over the
hosts, carry. At large sizes the rates are those of on_paper.py. All are predictions, not
measurements.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from ....topo.errors import InfeasibleError, InputError
from ....topo.extras.nccl_topology import is_amd
from ....topo.routes import Router
from ...bounds.group_bounds import SubMachine
from ...channels.channels import CHAIN, RING, Channels, schedule_channels
from ...cost.affine import Cost, costs_between_gpus, tighten
from ...cost.host_costs import host_of
from ...cost.segmentation import time_us
from ...cost.simulate import MAX_GROUPS
from ...ir.collective import Chunk, Collective
from ...ir.schedule import Schedule
from ...ir.transfers import Op
from ...numeric.effort import Effort
from ...plan import Plan
from ...request import Request, Send, build_schedule, segment_counts
from .library import find_library, reach
from .model import StockModel
from .nccl import NcclHost
from .on_paper import RINGS, StockRate
from .routes import NcclRouter

# The number of times that data travels around the ring.
_RINGS = {"allreduce": 2, "allgather": 1, "reduce-scatter": 1}
# Collectives that are a pipelined chain instead.
_CHAINS = ("broadcast", "reduce")
# Most ranks for a search of orders, most beginnings of orders to try, and most ranks to name.
_MAX_SEARCHED, _MAX_TRIED, _MAX_NAMED = 64, 20_000, 16


class StockRing:
    """A prediction of the stock collective: NCCL's or RCCL's own channels, or a ring in rank order.

    `collective` is of all GPUs of the router's topology. If the rank order has no routes, the first
    order that has is taken. Broadcast and reduce are a pipelined chain along the same order. If
    stock NCCL or RCCL is modelled, its own rings and chains are taken instead, except on hosts with
    measured costs. `name` and `what` describe the choice, `assumes` lists what a limit between
    hosts assumes, and `reason` is why no library is modelled, empty if one is. Raise
    InfeasibleError for other collectives, and if no order of ranks has routes.
    """

    _limit: StockRate | None = None
    assumes: tuple[str, ...] = ()

    def __init__(self, collective: Collective, router: Router) -> None:
        self._topology, self._collective, self._router = router.topology, collective, router
        self._host, self._order = host_of(router.topology), find_order(router)
        order = "rank order"
        if self._order != tuple(range(collective.ranks)):
            listed = ", ".join(map(str, self._order[:_MAX_NAMED]))
            more = " ..." if collective.ranks > _MAX_NAMED else ""
            order = f"the order {listed}{more}, the first that has routes"
        self._schedule: Schedule | None = None
        self._modelled: dict[str, list[Cost]] = {}
        self.name = "stock"
        self._model, self.reason = self._find_model()
        if self._limit is not None:
            self.name += " at best"
            self.what, self.assumes = self._limit.basis, self._limit.assumes
        elif self._modelled:
            self.what = f"the rings or chains that {self.name} finds and picks, by a model of both"
        elif collective.name in _RINGS:
            self.name, self.what = "one ring", f"one ring in {order}, in one direction"
            self._costs = [self._cost_ring()]
        elif collective.name in _CHAINS:
            self.name = "one chain"
            self.what = f"one chain in {order}, in the best number of segments"
            self._costs = self._cost_chain()
        else:
            raise InfeasibleError(f"{collective.name} has no ring")

    @property
    def is_modelled(self) -> bool:
        """Whether the times are those of NCCL's or RCCL's own channels."""
        return bool(self._modelled)

    @property
    def is_limit(self) -> bool:
        """Whether the times are the least that the library's channels between hosts may take."""
        return self._limit is not None

    @property
    def needs_adding(self) -> bool:
        """Whether the times assume switches that add, which bounds without them do not."""
        return self._limit is not None and self._limit.needs_adding

    def time_s(self, size_bytes: int) -> float:
        """Return the predicted seconds for a buffer of `size_bytes`."""
        if self._host is not None and self._schedule is not None:
            return time_us(self._schedule, self._topology, self._host, size_bytes) * 1e-6
        costs = self._modelled[self._pick(size_bytes)] if self._modelled else self._costs
        return min(cost.time_s(size_bytes) for cost in costs)

    def _pick(self, size_bytes: int) -> str:
        is_allreduce = self._collective.name == "allreduce"
        return self._model.pick(size_bytes) if self._model and is_allreduce else "rings"

    def _find_model(self) -> tuple[StockModel | None, str]:
        """Cost the library's channels; return NCCL's model, and why there is none to compare."""
        if self._host is not None:
            return None, "hosts with measured costs run over gloo or MPI"
        name, topology = self._collective.name, self._topology
        if name not in (*_RINGS, *_CHAINS):
            return None, f"{name} has no ring"
        library, model = find_library(topology), None
        if isinstance(library, NcclHost):
            model, reason = library.model, "the topology lacks routes that NCCL counts on"
            self._modelled = self._cost_model(model)
        elif isinstance(rate := reach(name, topology), StockRate):
            self._modelled, reason = {"rings": self._cost_rate(rate)}, ""
            self._limit = rate if rate.is_limit else None
        else:
            reason = rate.reason
        if not self._modelled:
            return None, reason
        self.name = "stock RCCL" if is_amd(topology) else "stock NCCL"
        return model, ""

    def _cost_model(self, model: StockModel) -> dict[str, list[Cost]]:
        """Return the costs of stock's rings and chains, none if the topology lacks their routes."""
        router = NcclRouter(self._router)
        request = Request(self._collective, self._topology, Effort(), router=router)
        if self._collective.name in _CHAINS:
            try:
                return {"rings": self._cost_chains(request, model.list_used(RING).orders)}
            except InfeasibleError:
                return {}
        costs = {}
        for shape in (RING, CHAIN) if self._collective.name == "allreduce" else (RING,):
            try:
                schedule = schedule_channels(request, model.list_used(shape), f"stock {shape}s")
            except InfeasibleError:
                return {}
            segments = segment_counts(model.channels) if shape == CHAIN else [1]
            costs[f"{shape}s"] = costs_between_gpus(schedule, self._topology, segments)
        return costs

    def _cost_rate(self, rate: StockRate) -> list[Cost]:
        """Return the least cost of channels of a rate: a ring's latency, their most bandwidth.

        A tree takes about as many steps as a ring for each half, up and down, does.
        """
        alpha_us = self._cost_ring().alpha_us
        return [Cost(alpha_us if rate.shape == RINGS else alpha_us / 2, 1 / rate.algbw_GBps)]

    def algbw_GBps(self, size_bytes: int) -> float:
        """Return the predicted algbw in GB/s for a buffer of `size_bytes`."""
        time_s = self.time_s(size_bytes)
        return size_bytes / time_s / 1e9 if time_s else 0.0

    def _cost_ring(self) -> Cost:
        """Return the cost of all steps; in each step every rank sends a share to the next rank."""
        n, times = self._collective.ranks, _RINGS[self._collective.name]
        request = Request(Collective("allgather", n), self._topology, Effort(), router=self._router)
        chunks = tuple(Chunk(Fraction(1, n), source=rank) for rank in range(n))
        order = self._order
        sends: list[Send] = [(0, order[i], order[(i + 1) % n], order[i], "copy") for i in range(n)]
        step = build_schedule(request, "stock ring", chunks, sends)
        cost = costs_between_gpus(step, self._topology, [1])[0]
        steps = times * (n - 1)
        # Host costs need a simulation of every message.
        if self._host is not None and steps * n <= MAX_GROUPS:
            ring, request = Channels(RING, (order,)), request.of(self._collective)
            self._schedule = schedule_channels(request, ring, "stock ring")
        return Cost(cost.alpha_us * steps, cost.beta_s_per_GB * steps)

    def _cost_chain(self) -> list[Cost]:
        request = Request(self._collective, self._topology, Effort(), router=self._router)
        return self._cost_chains(request, [self._order])

    def _cost_chains(self, request: Request, rings: Sequence[tuple[int, ...]]) -> list[Cost]:
        """Return the costs of chains along rings, from the root on or to it, in equal shares."""
        root, is_reduce = self._collective.root or 0, self._collective.name == "reduce"
        op: Op = "reduce" if is_reduce else "copy"
        sends: list[Send] = []
        for number, ring in enumerate(rings):
            start = (ring.index(root) + is_reduce) % len(ring)
            order = ring[start:] + ring[:start]
            sends += [(step, a, b, number, op) for step, (a, b) in enumerate(pairwise(order))]
        chunks = self._collective.even_chunks(len(rings))
        chains = build_schedule(request, "stock chain", chunks, sends)
        segments = segment_counts(len(rings))
        return costs_between_gpus(tighten(chains, self._topology), self._topology, segments)


def stock_of(plan: Plan) -> StockRing | None:
    """Return the stock collective among a plan's members, on a machine of these alone.

    None if it has no ring, or if the members have no routes.
    """
    machine = SubMachine.of(plan.collective, plan.router, plan.collective.members)
    try:
        return StockRing(machine.collective, machine.router)
    except (InfeasibleError, InputError):
        return None


def find_order(router: Router) -> tuple[int, ...]:
    """Return the first order, from rank 0 on, in which each rank has a route to the next.

    This is the rank order if possible. The last rank needs a route to rank 0. Raise InfeasibleError
    if none is found; for many ranks no other order is searched.
    """
    n = len(router.topology.ranks)
    if all(router.route(rank, (rank + 1) % n) is not None for rank in range(n)):
        return tuple(range(n))
    if n > _MAX_SEARCHED:
        raise InfeasibleError(
            f"rank order has no routes, and for {n} GPUs no other order is searched"
        )
    # A search with backtracking that tries low ranks first.
    order, choices, tried = [0], [list(range(n - 1, 0, -1))], 0
    while choices and tried < _MAX_TRIED:
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
    raise InfeasibleError("the search got no order of ranks in which each has a route to the next")
