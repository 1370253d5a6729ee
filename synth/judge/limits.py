"""The bounds that measurements are held against, each with what it assumes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...topo.exact import parse_fraction
from ...topo.graph import Topology
from ...topo.routes import Router
from ..bounds.certificate import Bound
from ..bounds.in_network import bound_in_network, describe_assumption, describe_possible
from ..bounds.single_path import find_bounds
from ..effort import Effort
from ..ir.collective import Collective

_TIME_LIMIT_S = 20.0


@dataclass(frozen=True)
class Limits:
    """The bounds of a collective on a machine, in GB/s algbw: for one way a pair of GPUs, for any
    use of the links, and, where switches could add, if all of them did.

    `assumption` says what the first two rest on, `rates` the links that they rest on most,
    `possible` who could add.
    """

    one_way_GBps: Fraction
    any_way_GBps: Fraction
    in_network_GBps: Fraction | None
    assumption: str
    rates: str
    possible: str
    kind: str


def find_limits(collective: Collective, router: Router) -> Limits:
    """Return the bounds of a collective. Raises InfeasibleError where the topology is not
    connected.
    """
    effort = Effort(_TIME_LIMIT_S)
    topology = router.topology
    bounds = find_bounds(collective, router, effort)
    added = bound_in_network(collective, topology, bounds.multipath, effort)
    return Limits(
        bounds.single_path.algbw_GBps,
        bounds.multipath.algbw_GBps,
        None if added is None else added.algbw_GBps,
        f"one way a pair of GPUs, {describe_assumption(topology)}, link rates as the topology has "
        "them",
        describe_links(bounds.single_path, topology),
        describe_possible(topology),
        bounds.single_path.kind,
    )


def describe_links(bound: Bound, topology: Topology) -> str:
    """Return the links that a bound's certificate rests on, by kind and rate: "8 pcie links of 12
    GB/s (...)".
    """
    if "inside" in bound.certificate:
        inside = set(bound.certificate["inside"])
        pairs = [(a, b) for a, b in topology.capacity_GBps if a in inside and b not in inside]
    else:
        pairs = [
            (a, b)
            for a, b, price in bound.certificate.get("prices", ())
            if parse_fraction(price) > 0
        ]
    kinds: dict[tuple[str, Fraction], int] = {}
    sources: dict[tuple[str, Fraction], str] = {}
    kind_of = {(x.src, x.dst): (x.kind, x.source) for x in topology.links}
    for pair in pairs:
        if pair not in kind_of:
            pair = pair[::-1]
        kind, source = kind_of.get(pair, ("link", None))
        key = (kind, topology.capacity_GBps.get(pair, Fraction(0)))
        kinds[key] = kinds.get(key, 0) + 1
        if source:
            sources.setdefault(key, source)
    listed = [
        f"{count} x {kind} {float(rate):g} GB/s"
        + (f" ({sources[kind, rate]})" if (kind, rate) in sources else "")
        for (kind, rate), count in sorted(kinds.items(), key=lambda item: -item[1])
    ]
    return ", ".join(listed[:3]) + (" ..." if len(listed) > 3 else "")
