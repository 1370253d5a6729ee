"""Find the narrowest cuts that a collective's data must cross.

A cut divides the devices of a topology in two. It bounds the time from below: the share of the
buffer that must cross it, over the bandwidth of the links that do. The narrowest cut is the one
with the longest time. The searches compute maximum flows on integers (OR-tools).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import lcm
from typing import TypeVar

import numpy as np
from ortools.graph.python import max_flow

from ...topo.clock import pace
from ...topo.errors import InfeasibleError
from ...topo.graph import Topology
from ..ir.collective import Collective
from ..machine.links import LinkArrays
from ..machine.partitions import find_narrow_groups
from ..machine.symmetry import colours  # a number for the role of each device
from .certificate import Bound, bound_of

# The flows and bandwidths of a maximum flow must be below this, to fit into 64-bit integers.
_MAX_FLOW = 1 << 62
# Greatest base of the digits by which ranks are cut on direct networks: the lines of a grid.
_MAX_BASE = 128
_Item = TypeVar("_Item")
# Cuts times links between two looks at the clock: .1 to 2 s, and at most 64 MB at once.
_CELLS = 1 << 23
# With more GPUs, cuts are sought towards one GPU of each class only: each takes a maximum flow, and
# the others of a class usually give the same cut.
_CUT_RANKS = 256


def cut_bound(collective: Collective, topology: Topology) -> Bound:
    """Return the bound of the narrowest cut found, the one that proves the longest time.

    There must be at least two ranks. Demands have no such cuts. Raise InfeasibleError if bandwidths
    have no common unit small enough for flows in 64-bit integers, TimeLimitError if the running
    command's time ends.
    """
    return _CUTS[collective.name](collective, topology)


def bound_of_cut(inside: Iterable[str], collective: Collective, topology: Topology) -> Bound:
    """Return the bound that a cut proves; `inside` are the ids of the devices on one side.

    Data must cross from these devices to the others. Raise VerificationError if it must and no link
    leads out of them.
    """
    members = set(inside)
    listed = [d.id for d in topology.devices if d.id in members]
    return bound_of("cut", {"inside": listed}, collective, topology)


class _Flow:
    """Maximum flows on a topology from a super-source, in exact integers."""

    def __init__(self, topology: Topology) -> None:
        self._number = {d.id: i for i, d in enumerate(topology.devices)}
        ends = [(self._number[a], self._number[b]) for a, b in pace(topology.capacity_GBps, "cuts")]
        self._src, self._dst = np.array(ends, dtype=np.int64).T
        self._base = lcm(*(c.denominator for c in topology.capacity_GBps.values()))
        rates = pace(topology.capacity_GBps.values(), "cuts")
        self._whole = [c.numerator * (self._base // c.denominator) for c in rates]

    def violated_cut(self, supply: Mapping[str, Fraction], target: str) -> frozenset[str] | None:
        """Return the source's side of a minimum cut if `target` cannot receive all of `supply`.

        `supply` is in GB/s by GPU. None if `target` can receive it.
        """
        scale = lcm(self._base, *{s.denominator for s in supply.values()})
        wanted = {gpu: int(rate * scale) for gpu, rate in supply.items()}
        times = scale // self._base
        flow = max_flow.SimpleMaxFlow()
        source, sink = len(self._number), self._number[target]
        fits = max(max(self._whole) * times, sum(wanted.values())) < _MAX_FLOW
        if fits:
            widths = np.array(self._whole, dtype=np.int64) * times
            flow.add_arcs_with_capacity(self._src, self._dst, widths)
            for gpu, rate in wanted.items():
                flow.add_arc_with_capacity(source, self._number[gpu], rate)
        if not fits or flow.solve(source, sink) != flow.OPTIMAL:
            raise InfeasibleError(
                f"the flow to {target} is too large to be computed in whole numbers"
            )
        if flow.optimal_flow() == sum(wanted.values()):
            return None
        side = set(flow.get_source_side_min_cut())
        return frozenset(device for device, i in self._number.items() if i in side)


def _worst_cut(
    collective: Collective,
    topology: Topology,
    supply_of: Callable[[Fraction], Mapping[str, Fraction]],
    targets: list[str],
    hub: str | None = None,
) -> Bound:
    """Return the best cut bound of a collective, by Newton's method.

    Each target must receive all that GPUs supply. `supply_of(T)` are the rates at which GPUs must
    supply in a schedule of T seconds per GB. A cut that cannot carry them gives a greater T, until
    no cut is violated (ForestColl, section 5.1, as a search for the bottleneck cut). `hub` is the
    GPU with a role of its own, None if there is none.
    """
    flow = _Flow(topology)
    targets = _one_of_each_class(topology, targets, hub)
    best = bound_of_cut(topology.by_id.keys() - {targets[0]}, collective, topology)
    for target in _pace(targets, topology):
        while (cut := flow.violated_cut(supply_of(best.s_per_GB), target)) is not None:
            best = bound_of_cut(cut, collective, topology)
    return best


def _pace(cuts: Sequence[_Item], topology: Topology) -> Iterable[_Item]:
    """Return `cuts` with the time limit in mind; on small machines they take no time."""
    return pace(cuts, "cuts", batch=max(1, _CELLS // len(topology.links)))


def _one_of_each_class(topology: Topology, gpus: list[str], hub: str | None) -> list[str]:
    """Return one GPU of each class if there are many GPUs, else all.

    Any choice of targets gives a valid bound, and classes usually are orbits, whose members give
    the same one.
    """
    if len(gpus) <= _CUT_RANKS:
        return gpus
    colour = dict(zip(topology.by_id, colours(topology, hub).tolist(), strict=True))
    return list({colour[gpu]: gpu for gpu in reversed(gpus)}.values())


def _allgather_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best of the cuts that every GPU's part must cross to reach some GPU."""
    n, gpus = collective.ranks, _list_members(collective, topology)
    return _worst_cut(collective, topology, lambda t: dict.fromkeys(gpus, Fraction(1, n) / t), gpus)


def _list_members(collective: Collective, topology: Topology) -> list[str]:
    """Return the ids of the members' GPUs."""
    return [topology.ranks[member] for member in collective.members]


def _root_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best cut between the root and the other GPUs.

    For broadcast it separates the root from some GPU, for gather some GPUs from the root.
    """
    n, root = collective.ranks, topology.ranks[collective.root or 0]
    others = [gpu for gpu in _list_members(collective, topology) if gpu != root]
    if collective.name == "broadcast":
        return _worst_cut(collective, topology, lambda t: {root: 1 / t}, others, root)
    return _worst_cut(
        collective, topology, lambda t: dict.fromkeys(others, Fraction(1, n) / t), [root]
    )


def _reversed_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the complement of the opposite collective's cut on the reversed topology.

    This is for reduce-scatter, reduce and scatter.
    """
    opposite = cut_bound(collective.reversed(), topology.reversed())
    return _complement(opposite, collective, topology)


def _complement(cut: Bound, collective: Collective, topology: Topology) -> Bound:
    """Return the bound of the cut around all devices outside another cut."""
    return bound_of_cut(topology.by_id.keys() - cut.certificate["inside"], collective, topology)


def _allreduce_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the narrowest cut between the first member and any other, in either direction."""
    hub, *others = _list_members(collective, topology)
    out = _worst_cut(collective, topology, lambda t: {hub: 1 / t}, others, hub)
    if topology.is_symmetric:
        return out  # the way back is no narrower
    back = _worst_cut(collective, topology.reversed(), lambda t: {hub: 1 / t}, others, hub)
    return max(out, _complement(back, collective, topology), key=lambda b: b.s_per_GB)


def _alltoall_cut(collective: Collective, topology: Topology) -> Bound:
    """Return the best of the cuts around single GPUs and groups.

    Groups are boxes, sockets, and all devices behind a leaf switch. On direct networks, cuts along
    the lines of a grid are tried as well.
    """
    gpus = _one_of_each_class(topology, _list_members(collective, topology), None)
    insides: list[Iterable[str]] = [{gpu} for gpu in gpus]
    insides += [topology.by_id.keys() - {gpu} for gpu in gpus]
    insides += find_narrow_groups(topology)
    if len(topology.devices) == collective.ranks:
        insides.append(_find_line_cut(topology))
    cuts = [bound_of_cut(inside, collective, topology) for inside in _pace(insides, topology)]
    return max(cuts, key=lambda b: b.s_per_GB)


def _find_line_cut(topology: Topology) -> list[str]:
    """Return the GPUs on one side of the worst cut of alltoall along the lines of a grid.

    Grids number their ranks line by line, so a coordinate is a digit of the rank in some base. For
    each digit, the low ones are cut off, and half of them from each on, as rings need.
    """
    links, n = LinkArrays(topology), len(topology.ranks)
    src, dst = links.rank_of[links.src], links.rank_of[links.dst]
    ranks, best = np.arange(n), (0.0, np.arange(1))
    digits = product(range(2, min(n, _MAX_BASE) + 1), range(1, n // 2 + 1))
    grids = [(base, low) for base, low in digits if not n % (low * base)]
    for base, low in _pace(grids, topology):
        digit, starts = ranks // low % base, np.arange(base)[:, None]
        half = (digit[None] - starts) % base < base // 2
        inside = np.concatenate([half, digit[None] < starts[1:]])
        parts = np.array_split(inside, len(inside) * len(src) // _CELLS + 1)
        paced = pace((part for part in parts if len(part)), "cuts", batch=1)
        out = np.concatenate([(x[:, src] & ~x[:, dst]) @ links.capacity for x in paced])
        within = inside.sum(axis=1)
        needed = within * (n - within) / np.maximum(out, 1e-300)
        worst = int(np.argmax(needed))
        best = max(best, (float(needed[worst]), np.flatnonzero(inside[worst])), key=lambda x: x[0])
    return [topology.ranks[rank] for rank in best[1].tolist()]


_CUTS: Mapping[str, Callable[[Collective, Topology], Bound]] = {
    "allreduce": _allreduce_cut,
    "allgather": _allgather_cut,
    "reduce-scatter": _reversed_cut,
    "broadcast": _root_cut,
    "reduce": _reversed_cut,
    "gather": _root_cut,
    "scatter": _reversed_cut,
    "alltoall": _alltoall_cut,
}
