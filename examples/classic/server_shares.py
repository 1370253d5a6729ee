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
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from topoplan import Device, InfeasibleError, InputError, Link, Router, Topology

DirectedLink = tuple[str, str]
Floats = NDArray[np.float64]
# Weight of the largest share in the objective, next to the time: it selects the most even one of
# equally fast divisions.
_EVEN = 1e-4
# Denominators of the exact divisions that are tried, coarse and readable ones first.
_DENOMINATORS = (10**3, 10**4, 10**5, 10**6)
_FINE = 10**9  # the denominator of a division that is near to any other
_MAX_SERVERS = 1024  # columns of the linear program, whose matrix is dense


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
            Link(src, dst, kind="network")
            for host in hosts
            for src, dst in ((host.id, "network0"), ("network0", host.id))
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
            uses.update([*pairwise(push), *pairwise(pull)])
    return uses


def _find_best(
    columns: Sequence[Mapping[int, int]], capacity: Sequence[Fraction]
) -> list[Fraction]:
    """Return the best exact division near the linear program's floating-point solution."""
    candidates = []
    # Without the weight for evenness, too: it may cost the fastest division a little time.
    for even in (_EVEN, 0.0):
        floats, _ = _solve(columns, capacity, even)
        for most in _DENOMINATORS:
            near = [Fraction(float(x)).limit_denominator(most) for x in floats]
            candidates.append(near)
            common = lcm(*(share.denominator for share in near))
            candidates.append(_round(floats, min(common, _FINE)))
        candidates.append(_round(floats, _FINE))
    return min(
        (shares for shares in candidates if sum(shares) == 1),
        key=lambda shares: (_compute_time(shares, columns, capacity), max(shares)),
    )


def _round(shares: Floats, denominator: int) -> list[Fraction]:
    """Return fractions near `shares` that sum up to 1, by largest remainders."""
    wanted = shares.clip(0) * (denominator / shares.clip(0).sum())
    counts = np.floor(wanted).astype(np.int64)
    missing = denominator - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    return [Fraction(int(count), denominator) for count in counts]


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
    servers, links = len(columns), len(capacity)
    # Times are scaled to numbers near 1, whatever the unit of the capacities.
    scale = float(sum(capacity, Fraction(0))) / max(1, links)
    at_most = np.zeros((links + servers, servers + 2))
    for server, column in enumerate(columns):
        for row, times in column.items():
            at_most[row, server] = times * scale / float(capacity[row])
        at_most[links + server, [server, servers + 1]] = 1.0, -1.0
    at_most[:links, servers] = -1.0
    found = linprog(
        [*[0.0] * servers, 1.0, even],
        A_ub=at_most,
        b_ub=np.zeros(links + servers),
        A_eq=[[*[1.0] * servers, 0.0, 0.0]],
        b_eq=[1.0],
        method="highs-ds",
    )
    if not found.success:
        return np.full(servers, 1.0 / servers), np.full(links, 1.0 / max(1, links))
    return found.x[:servers], np.maximum(-found.ineqlin.marginals[:links], 0.0)


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
