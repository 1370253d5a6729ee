"""Chains through all GPUs, up and down, for allreduce; rings for allgather and reduce-scatter.

NCCL's trees have this shape inside a node. An allreduce adds each share up along its chain, from
both ends to the middle, and sends the sum back; the shares are those at which the links carry most.
The strategy offers these chains, pipelined, and fewer chains of equal shares. If chains alone are
not proved to be the best, rings are tried too, and chains and rings side by side; the fastest
combination is used. (Side by side they carry more than either on some graphs, on no recorded
machine so far.) The orders and shares come from synth/channels.

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it. Segments are parts of a chunk that follow each
other along a chain.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from ...topo.errors import InfeasibleError
from ..channels.channels import CHAIN, RING, Order, schedule_rings
from ..channels.columns import Column, OrderPacking, find_exact_rates, pack_orders
from ..channels.orders import Orders
from ..channels.rounding import Rounding
from ..cost.affine import bandwidth_s_per_GB, shared_s_per_GB, tighten
from ..ir.schedule import Schedule
from ..ir.transfers import Transfers
from ..machine.routes import OwnRoutes
from ..packing.trees import Forest, RootedTree, schedule_of
from ..request import MAX_TRANSFERS, Request, check_size, segment_counts

# Numbers of chains of equal shares that are offered besides the best shares: fewer chains take
# fewer messages.
_MAX_EQUAL = 8
# The same where chains of the best shares hold each other up: equal shares are found in the end
# with as many chains as the links have units, 24 on recorded machines.
_MAX_EVEN = 32
# Fewer chains must reach this fraction of the rate of the best number of chains.
_MIN_RATE = Fraction(98, 100)
# Relative difference from which a rate counts as better, since rates are floats.
_BETTER = 1e-6
# Work for rounding shares to equal ones, in seconds of an idle core.
_EQUAL_WORK_S = 1.0


def build(request: Request) -> list[Schedule]:
    """Return schedules of different numbers of chains and segments, or one of rings, for a request.

    Raise InfeasibleError if no chain (or ring) visits all GPUs, or none was found with that effort.
    """
    n = request.collective.ranks
    check_size("chains", n, 2 * n * (n - 1))
    max_orders = MAX_TRANSFERS // (2 * n * (n - 1))
    if request.collective.name != "allreduce":
        packed = pack_orders(request, [RING])
        return [_schedule_shares(request, find_exact_rates(packed, request.effort), max_orders)]
    orders = Orders(OwnRoutes(request.router), request.collective)
    packed = _pack_best(request, orders)
    schedules = [_schedule_shares(request, find_exact_rates(packed, request.effort), max_orders)]
    if all(shape == CHAIN for shape, _ in packed.columns):
        schedules += _build_equal(request, orders, packed, schedules[0])
    return [
        replace(s, segments=m) for s in schedules for m in segment_counts(s.trees or len(s.chunks))
    ]


def _pack_best(request: Request, orders: Orders) -> OrderPacking:
    """Return the packed chains, or rings or a mix of both if that carries more.

    Rings are only tried if the chains are not proved to be the best.
    """
    best: OrderPacking | None = None
    declined: list[InfeasibleError] = []
    for shapes in ([CHAIN], [RING], [CHAIN, RING]):
        if len(shapes) > 1 and declined:
            break  # one of the two shapes does not exist here
        try:
            packed = pack_orders(request, shapes, orders)
        except InfeasibleError as error:
            declined.append(error)
            continue
        if best is None or packed.algbw_GBps > best.algbw_GBps * (1 + _BETTER):
            best = packed
        if packed.algbw_GBps >= float(request.bound_GBps) * (1 - _BETTER):
            break
    if best is None:
        raise declined[0]
    return best


def _build_equal(
    request: Request, orders: Orders, packed: OrderPacking, best: Schedule
) -> list[Schedule]:
    """Return schedules of chains of equal shares.

    These are the best single chain, and the fewest chains whose rate is close to the best, if that
    is fewer than `best` has. If the unequal messages of `best` hold each other up, the fewest
    equal chains that are not held up are added, or the fastest ones that were found.
    """
    topology = request.topology
    rounding = Rounding(orders, packed, request.effort.grant(_EQUAL_WORK_S))
    counts = range(1, min(_MAX_EQUAL + 1, len(best.chunks)))
    rates = {count: rounding.rate_GBps(rounding.round(count)) for count in counts}
    near = max(rates.values(), default=Fraction(0)) * _MIN_RATE
    wanted = {*counts[:1], *[count for count, rate in rates.items() if rate >= near][:1]}
    enough = bandwidth_s_per_GB(replace(best, segments=2), topology) / _MIN_RATE
    built: dict[int, Schedule] = {}

    def build(count: int) -> Schedule:
        if count not in built:
            times = Counter(rounding.listed[number] for number in rounding.round(count).tolist())
            shares = {column: Fraction(k, count) for column, k in times.items()}
            built[count] = _schedule_shares(request, shares, count)
        return built[count]

    def time_s(schedule: Schedule) -> Fraction:
        return shared_s_per_GB(replace(schedule, segments=2), topology)

    if time_s(best) > enough:
        times_s = {0: time_s(best)}
        for count in range(1, _MAX_EVEN + 1):
            times_s[count] = time_s(build(count))
            if times_s[count] <= enough:
                break
        wanted |= {min(times_s, key=lambda count: times_s[count])} - {0}
    return [build(count) for count in sorted(wanted)]


def _schedule_shares(
    request: Request, rates: Mapping[Column, Fraction], max_orders: int
) -> Schedule:
    """Return the schedule of chains and rings with shares in proportion to their rates.

    Only the heaviest `max_orders` are used.
    """
    heaviest = dict(sorted(rates.items(), key=lambda item: -item[1])[:max_orders])
    total = sum(heaviest.values(), Fraction(0))
    chains = {order: rate / total for (shape, order), rate in heaviest.items() if shape == CHAIN}
    rings = [(order, rate / total) for (shape, order), rate in heaviest.items() if shape == RING]
    if not chains:
        return schedule_rings(request, rings, "chains")
    # Each chain is rooted at its middle.
    trees = tuple(_hang_chain(request, order) for order in chains)
    forest = Forest(trees, tuple(chains.values()), request.collective.ranks // 2)
    along = schedule_of(forest, request.collective, request.topology, "chains")
    if not rings:
        return along
    # Both schedules are for shares of the same buffer, and begin together.
    around = schedule_rings(request, rings, "chains")
    step, src, dst, chunk, op, route = around.transfers.columns
    moved = Transfers(step, src, dst, chunk + len(along.chunks), op, route, around.transfers.routes)
    transfers = Transfers.joined([along.transfers, moved]).sorted()
    both = Schedule(along.collective, "chains", along.chunks + around.chunks, transfers, ())
    return tighten(both, request.topology)


def _hang_chain(request: Request, order: Order) -> RootedTree:
    """Return a chain as a tree rooted at its middle, on the hardware's routes."""
    middle = len(order) // 2
    parent = {
        rank: order[i + (1 if i < middle else -1)] for i, rank in enumerate(order) if i != middle
    }
    route = request.router.route
    up = [route(r, parent[r]) if r in parent else None for r in range(len(order))]
    down = [route(parent[r], r) if r in parent else None for r in range(len(order))]
    return RootedTree(order[middle], tuple(up), tuple(down))
