"""Find rings through hosts along their cables, and the rates of collectives around a ring.

Algbw is the bytes of the buffer over the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import islice

from .hosts import CabledHosts

# Hosts in the order of the ring.
Order = tuple[int, ...]
# The share of the buffer that each of n hosts sends around a ring, by collective.
RING_SHARES: Mapping[str, Callable[[int], Fraction]] = {
    "allreduce": lambda n: Fraction(2 * (n - 1), n),
    "allgather": lambda n: Fraction(n - 1, n),
    "reduce-scatter": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(1),
    "reduce": lambda n: Fraction(1),
}
# Rings to compare: all of a mesh of 7 hosts (360), and of sparse cablings of dozens.
_MAX_RINGS = 720
# Steps of the search, there and back: a second or so. Cablings that take more count as without a
# ring.
_MAX_STEPS = 400_000


def list_rings(hosts: CabledHosts) -> list[Order]:
    """Return rings along cables that visit every host once, the fastest first.

    Each begins at host 0 and is returned in one direction. Two hosts with a cable are a ring.
    """
    rings = list(islice(_search(hosts), _MAX_RINGS))
    return sorted(rings, key=lambda order: (-find_width_GBps(hosts, order), order))


def list_edges(order: Order) -> list[tuple[int, int]]:
    """Return the pairs (host, next host) of a ring."""
    return [(a, order[(i + 1) % len(order)]) for i, a in enumerate(order)]


def find_width_GBps(hosts: CabledHosts, order: Order) -> Fraction:
    """Return the rate in GB/s of the slowest connection of a ring, in its direction."""
    return min(hosts.rate_GBps(a, b) for a, b in list_edges(order))


def rate_ring(collective: str, hosts: int, width_GBps: Fraction) -> Fraction:
    """Return the algbw in GB/s of a collective around a ring of `hosts` in one direction.

    `width_GBps` is the rate of its slowest connection; RING_SHARES names the collectives.
    """
    return width_GBps / RING_SHARES[collective](hosts)


def _search(hosts: CabledHosts) -> Iterator[Order]:
    """Yield rings, found depth first, in the direction whose second host has the lower number."""
    order, visited = [0], {0}
    # For each host of the order, its neighbours that have not been tried. Recursion would limit the
    # number of hosts.
    untried = [iter(hosts.neighbours[0])]
    for _ in range(_MAX_STEPS):
        near = next((host for host in untried[-1] if host not in visited), None)
        if near is None:
            untried.pop()
            visited.remove(order.pop())
            if not order:
                return
            continue
        order.append(near)
        visited.add(near)
        untried.append(iter(hosts.neighbours[near]))
        if len(order) == hosts.count:
            if 0 in hosts.neighbours[near] and (hosts.count == 2 or order[1] < near):
                yield tuple(order)
            untried[-1] = iter(())
