"""A small, separate checker of bounds: it redoes a certificate's arithmetic exactly, and knows nothing of how it was found.

Kind "cut": {"inside": [device ids]}. What must cross from the devices inside to those outside, as a share of the buffer,
over the bandwidth of the links that lead out, is a lower bound on the time (max-flow min-cut; for allgather ForestColl,
arXiv 2402.06787, eq. 1). It holds for any algorithm, in-network copying and adding included.

Kind "prices", allreduce: {"prices": [[a, b, price]], ...}, the same both ways. Let d be the least price of a way between
two GPUs, M the weight of a minimum spanning tree of the GPUs under d. Contract the parts of any partition into p parts:
everybody must hear of everybody, which takes 2 (p - 1) one-way messages between parts (Harary, Schwenk 1974); summed
over the partitions that Kruskal's algorithm passes through, each unit of buffer pays at least 2 M. Hence time >=
2 M / sum over directed links of bandwidth * price (the dual of tree packing: Tutte, Nash-Williams 1961). It holds where
no switch adds or copies.

Kind "prices", alltoall: directed prices; each rank's share for each other pays its distance: time >= sum of d(u, v) / n
over ordered pairs, divided by sum of bandwidth * price (the dual of concurrent multicommodity flow).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..topo.errors import VerificationError
from ..topo.exact import fraction_to_json, parse_fraction
from ..topo.graph import Topology
from .collective import Collective

Prices = dict[tuple[str, str], Fraction]


@dataclass(frozen=True)
class Bound:
    """No schedule takes less than `s_per_GB` seconds for each GB of buffer; `certificate` proves it.

    `kind` is "cut" or "prices"; see the module's docstring.
    """

    s_per_GB: Fraction
    kind: str
    certificate: Mapping[str, Any] = field(hash=False)

    @property
    def algbw_GBps(self) -> Fraction:
        """The greatest algorithm bandwidth that the bound leaves."""
        return 1 / self.s_per_GB

    def to_json(self) -> dict[str, Any]:
        """`s_per_GB`, `kind` and `certificate`."""
        return {"s_per_GB": fraction_to_json(self.s_per_GB), "kind": self.kind, "certificate": dict(self.certificate)}

    @classmethod
    def from_json(cls, data: Any) -> Bound:
        """Read `to_json`'s object; ValueError, KeyError or TypeError where it is not one."""
        return cls(parse_fraction(data["s_per_GB"]), str(data["kind"]), dict(data["certificate"]))


def check_bound(bound: Bound, collective: Collective, topology: Topology) -> None:
    """Raise VerificationError unless the certificate proves exactly what the bound claims (or more)."""
    try:
        proved = proved_s_per_GB(bound.kind, bound.certificate, collective, topology)
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError(f"bound: malformed certificate: {type(error).__name__}: {error}") from None
    if bound.s_per_GB <= 0 or proved < bound.s_per_GB:
        raise VerificationError(
            f"bound: the certificate proves {proved} s a GB for {collective.name}, less than the claimed {bound.s_per_GB}"
        )


def proved_s_per_GB(kind: str, certificate: Mapping[str, Any], collective: Collective, topology: Topology) -> Fraction:
    """The lower bound, in seconds for each GB of buffer, that a certificate proves. VerificationError: it proves none."""
    if kind == "cut":
        return _cut(frozenset(certificate["inside"]), collective, topology)
    if kind == "prices" and collective.name in ("allreduce", "alltoall"):
        prices = _read_prices(certificate["prices"], topology, both_ways=collective.name == "allreduce")
        paid = sum((topology.capacity_GBps[link] * p for link, p in prices.items()), Fraction(0))
        if not paid:
            raise VerificationError("bound: all prices are zero")
        distance = {gpu: _distances(gpu, prices, topology) for gpu in topology.ranks}
        if collective.name == "alltoall":
            return sum((d for row in distance.values() for d in row.values()), Fraction(0)) / collective.ranks / paid
        if any(d.kind == "switch" and (d.can_reduce or d.can_copy) for d in topology.devices):
            raise VerificationError("bound: prices prove nothing where switches add or copy")
        return 2 * _spanning_tree(topology.ranks, distance) / paid
    raise VerificationError(f"bound: no certificate of kind {kind!r} for {collective.name}")


def _cut(inside: frozenset[str], collective: Collective, topology: Topology) -> Fraction:
    unknown = inside - set(topology.by_id)
    if unknown:
        raise VerificationError(f"bound: the cut names {min(unknown)!r}, which the topology does not have")
    n = collective.ranks
    within = sum(gpu in inside for gpu in topology.ranks)
    without = n - within
    root_inside = collective.root is not None and topology.ranks[collective.root] in inside
    crossing = {
        "allreduce": Fraction(bool(within and without)),
        "allgather": Fraction(within if without else 0, n),
        "reduce-scatter": Fraction(without if within else 0, n),
        "broadcast": Fraction(bool(root_inside and without)),
        "reduce": Fraction(bool(within and not root_inside)),
        "gather": Fraction(0 if root_inside else within, n),
        "scatter": Fraction(without if root_inside else 0, n),
        "alltoall": Fraction(within * without, n),
    }[collective.name]
    out = sum((c for (a, b), c in topology.capacity_GBps.items() if a in inside and b not in inside), Fraction(0))
    if not crossing:
        return Fraction(0)
    if not out:
        raise VerificationError("bound: no link leads out of the cut; the collective is impossible")
    return crossing / out


def _read_prices(rows: Any, topology: Topology, *, both_ways: bool) -> Prices:
    prices: Prices = {}
    for a, b, text in rows:
        price = parse_fraction(text)
        if price < 0:
            raise VerificationError(f"bound: the price of link {a!r} -> {b!r} is negative")
        found = False
        for link in ((a, b), (b, a)) if both_ways else ((a, b),):
            if link in topology.capacity_GBps:
                prices[link] = price
                found = True
        if not found:
            raise VerificationError(f"bound: prices name a link {a!r} -> {b!r} that the topology does not have")
    return prices


def _distances(start: str, prices: Prices, topology: Topology) -> dict[str, Fraction]:
    """Least price of a way from `start` to every other GPU. VerificationError if one cannot be reached."""
    best: dict[str, Fraction] = {}
    heap = [(Fraction(0), start)]
    while heap:
        cost, here = heapq.heappop(heap)
        if here in best:
            continue
        best[here] = cost
        for there in topology.out_neighbours[here]:
            if there not in best:
                heapq.heappush(heap, (cost + prices.get((here, there), Fraction(0)), there))
    missing = [gpu for gpu in topology.ranks if gpu not in best]
    if missing:
        raise VerificationError(f"bound: {missing[0]!r} cannot be reached from {start!r}")
    return {gpu: best[gpu] for gpu in topology.ranks if gpu != start}


def _spanning_tree(gpus: tuple[str, ...], distance: dict[str, dict[str, Fraction]]) -> Fraction:
    """Weight of a minimum spanning tree of the GPUs, the lesser of the two directions counting (Prim)."""
    nearest: dict[str, Fraction] = defaultdict(Fraction)
    nearest.update({g: min(distance[gpus[0]][g], distance[g][gpus[0]]) for g in gpus[1:]})
    total = Fraction(0)
    while nearest:
        gpu = min(nearest, key=lambda g: nearest[g])
        total += nearest.pop(gpu)
        for other in nearest:
            nearest[other] = min(nearest[other], distance[gpu][other], distance[other][gpu])
    return total
