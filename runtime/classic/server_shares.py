"""Divide a buffer among parameter servers so that the busiest link carries the least possible load.

Each worker sends server s a share f_s of its buffer and gets the sum of that part back; a worker
that serves keeps its own part. BytePS (Jiang et al., OSDI 2020, section 4.1) solves this by hand
for equal machines on one switch; here it is a linear program over the links of any topology.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...synth.cost.loads import DirectedLink
from ...synth.forest.weigh import round_shares
from ...synth.numeric.linear import Floats, Rows, minimise
from ...topo.errors import InfeasibleError, InputError
from ...topo.graph import Device, Link, Topology, both_directions
from ...topo.routes import Router, route_links

# Weight of the largest share in the objective, next to the time: it selects the most even one of
# equally fast divisions.
_EVEN = 1e-4
# Denominators of the exact divisions that are tried, coarse and readable ones first.
_DENOMINATORS = (10**3, 10**4, 10**5, 10**6)
_MAX_SERVERS = 4096  # columns of the linear program


@dataclass(frozen=True)
class Shares:
    """An exact division of the buffer: `share[i]` of it goes to `servers[i]`; they sum up to 1.

    `load` is the load of each directed link for push and pull, as a multiple of the buffer.
    `at_least_s_per_GB` is a lower bound on `s_per_GB` over all divisions.
    """

    topology: Topology
    servers: tuple[str, ...]
    share: tuple[Fraction, ...]
    load: Mapping[DirectedLink, Fraction]
    at_least_s_per_GB: Fraction

    @cached_property
    def s_per_GB(self) -> Fraction:
        """Seconds of the busiest link for each GB of buffer; 0 if nothing crosses a link."""
        return max(
            (load / self.topology.capacity_GBps[link] for link, load in self.load.items()),
            default=Fraction(0),
        )

    @property
    def busiest(self) -> tuple[DirectedLink, ...]:
        """The links that take `s_per_GB`."""
        return tuple(
            link
            for link, load in self.load.items()
            if load == self.s_per_GB * self.topology.capacity_GBps[link]
        )


def find_shares(topology: Topology, workers: Sequence[str], servers: Sequence[str]) -> Shares:
    """Return the fastest division among `servers`, which add up the buffers of `workers`.

    Both are device ids; a worker may be a server too. A server that some worker cannot reach gets
    nothing. Of equally fast divisions, the most even one is chosen. Raise InputError for unknown or
    repeated devices or empty lists, InfeasibleError if no server is reachable by all workers.
    """
    _check(topology, workers, "workers")
    _check(topology, servers, "servers")
    router = Router(topology)
    uses_of = {
        server: uses
        for server in servers
        if (uses := _count_uses(router, workers, server)) is not None
    }
    # Only servers that all workers reach are columns of the program.
    if not uses_of:
        raise InfeasibleError(
            "parameter servers: to each candidate some worker has only routes through other GPUs, "
            "or none"
        )
    links = sorted({link for uses in uses_of.values() for link in uses})
    number = {link: i for i, link in enumerate(links)}
    columns = [{number[link]: times for link, times in uses.items()} for uses in uses_of.values()]
    capacity = [topology.capacity_GBps[link] for link in links]
    shares = _find_best(columns, capacity)
    share = dict(zip(uses_of, shares, strict=True))
    loads = zip(links, _add_loads(shares, columns, len(links)), strict=True)
    return Shares(
        topology,
        tuple(servers),
        tuple(share.get(server, Fraction(0)) for server in servers),
        {link: load for link, load in loads if load},
        _lower_bound(columns, capacity),
    )


def equal_hosts(workers: int, helpers: int) -> Topology:
    """Return BytePS's machines: hosts with GPUs (`gpu0` ...) and without (`cpu0` ...).

    There is one per worker and one per helper; all have equal ports on one switch.
    """
    hosts = [Device(f"gpu{i}") for i in range(workers)] + [
        Device(f"cpu{i}", "cpu") for i in range(helpers)
    ]
    return Topology(
        f"{workers} worker and {helpers} helper hosts",
        (*hosts, Device("network0", "switch", "network")),
        tuple(
            x for host in hosts for x in both_directions(Link(host.id, "network0", kind="network"))
        ),
    )


def _check(topology: Topology, names: Sequence[str], what: str) -> None:
    if not names or len(names) > _MAX_SERVERS:
        raise InputError(
            f"parameter servers: {len(names)} {what}; expected 1 to {_MAX_SERVERS} devices of "
            "the topology"
        )
    for name, times in Counter(names).items():
        if name not in topology.by_id:
            raise InputError(
                f"parameter servers: {name!r} among the {what} is no device of topology "
                f"{topology.name!r}"
            )
        if times > 1:
            raise InputError(
                f"parameter servers: {name!r} is {times} times among the {what}; name it once"
            )


def _count_uses(
    router: Router, workers: Sequence[str], server: str
) -> Counter[DirectedLink] | None:
    """Count how often one server's part crosses each link; None if it is unreachable."""
    uses: Counter[DirectedLink] = Counter()
    for worker in workers:
        if worker != server:
            # A worker pushes its gradients of the part and pulls the sum.
            push, pull = router.find_route(worker, server), router.find_route(server, worker)
            if push is None or pull is None:
                return None
            uses.update(route_links(push))
            uses.update(route_links(pull))
    return uses


def _find_best(
    columns: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]
) -> list[Fraction]:
    """Return the best exact division near the linear program's floating-point solution."""
    candidates = []
    # Without the weight for evenness, too: it may cost the fastest division a little time.
    for even in (_EVEN, 0.0):
        floats, _ = _solve(columns, capacity, even)
        candidates.append(round_shares(floats, columns, capacity, [0] * len(columns)))
        candidates += (
            [Fraction(float(x)).limit_denominator(most) for x in floats] for most in _DENOMINATORS
        )
    return min(
        (shares for shares in candidates if sum(shares) == 1),
        key=lambda shares: (_compute_time(shares, columns, capacity), max(shares)),
    )


def _compute_time(
    shares: Sequence[Fraction], columns: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]
) -> Fraction:
    return max(
        (
            load / c
            for load, c in zip(_add_loads(shares, columns, len(capacity)), capacity, strict=True)
        ),
        default=Fraction(0),
    )


def _add_loads(
    shares: Sequence[Fraction], columns: Sequence[Mapping[int, int]], links: int
) -> list[Fraction]:
    """Return the load of each link, as a multiple of the buffer."""
    load = [Fraction(0)] * links
    for share, column in zip(shares, columns, strict=True):
        for row, times in column.items():
            load[row] += share * times
    return load


def _solve(
    columns: Sequence[Mapping[int, int]], capacity: Sequence[Fraction], even: float
) -> tuple[Floats, Floats]:
    """Solve min t + even * m for the shares; return shares and link prices.

    No link is busy for longer than t, and no share is larger than m.
    """
    servers, scale = len(columns), float(sum(capacity, Fraction(0))) or 1.0
    # Times are scaled to numbers near 1, whatever the unit of the capacities.
    at_most, equal = Rows(), Rows()
    for row, c in enumerate(capacity):
        terms = [
            (j, column[row] * scale / float(c) / len(capacity))
            for j, column in enumerate(columns)
            if row in column
        ]
        at_most.add([*terms, (servers, -1.0)], 0.0)
    for j in range(servers):
        at_most.add([(j, 1.0), (servers + 1, -1.0)], 0.0)
    equal.add([(j, 1.0) for j in range(servers)], 1.0)
    objective = np.zeros(servers + 2)
    objective[servers:] = 1.0, even
    solution = minimise(objective, at_most, equal)
    if solution is None:
        return np.full(servers, 1.0 / servers), np.full(len(capacity), 1.0 / max(1, len(capacity)))
    return solution.x[:servers], np.maximum(-solution.at_most_duals[: len(capacity)], 0.0)


def _lower_bound(columns: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]) -> Fraction:
    """Return an exact lower bound on the busiest link's time, from floating-point prices.

    For any weights w >= 0 that sum up to 1, the busiest link's time is at least the weighted mean
    of the links' times, which is smallest if the whole buffer goes to the server with the smallest
    mean.
    """
    _, prices = _solve(columns, capacity, 0.0)
    best = Fraction(0)
    for denominator in _DENOMINATORS:
        weights = [Fraction(float(p)).limit_denominator(denominator) for p in prices]
        total = sum(weights, Fraction(0))
        if total:
            costs = [w / c for w, c in zip(weights, capacity, strict=True)]
            means = (
                sum((costs[i] * times for i, times in column.items()), Fraction(0))
                for column in columns
            )
            best = max(best, min(means) / total)
    return best
