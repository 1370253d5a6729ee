"""Find the bound of a machine under the assumption that every switch that could add does."""

from dataclasses import replace

from ...topo.graph import Device, Topology
from ..cost.loads import computes_in_network
from ..ir.collective import Collective
from ..ir.demands import Demands
from ..numeric.effort import Effort  # an allowance of work and time for searches
from .certificate import Bound
from .cuts import cut_bound
from .demand_bounds import load_demand_bounds
from .multipath import bound

# Collectives in which nothing is added or received twice, so that switches that add and copy change
# nothing.
_ONLY_MOVES = ("alltoall", "gather", "scatter")


def list_possible(topology: Topology) -> list[Device]:
    """Return the switches that could add data, but that the topology does not count as adding.

    Their hardware can, but whoever runs the job must switch it on.
    """
    return [
        d
        for d in topology.devices
        if d.in_network is not None and d.in_network.reduce == "possible"
    ]


def switch_on(topology: Topology) -> Topology:
    """Return a copy of the topology in which the switches of `list_possible` add and copy."""
    possible = {d.id for d in list_possible(topology)}
    devices = (replace(d, can_reduce=True) if d.id in possible else d for d in topology.devices)
    return replace(topology, devices=tuple(devices))


def bound_in_network(
    collective: Collective,
    topology: Topology,
    limit: Bound,
    effort: Effort | None = None,
    *,
    by_cut: bool = False,
) -> Bound | None:
    """Return the bound if every switch that could add did; None if there is no such switch.

    `limit` is the bound of the topology without this assumption, and returned where adding and
    copying switches change nothing. `effort` limits the search; None is the usual limit of a plan.
    With `by_cut` only the narrowest cut is sought: it takes a hundredth of a plan's time, and the
    bound may be looser.
    """
    if not list_possible(topology):
        return None
    if collective.name in _ONLY_MOVES or not (collective.spreads or collective.reduces):
        return limit
    if isinstance(collective, Demands):
        bounds = load_demand_bounds()
        return bounds.find_multipath_bound(collective, switch_on(topology), effort or Effort())
    if by_cut:
        return cut_bound(collective, switch_on(topology))
    # Prices by link took 23 s for 16 boxes, and proved no more than prices by class.
    return bound(collective, switch_on(topology), effort, by_link=False)


def describe_assumption(topology: Topology) -> str:
    """Return, in words, which switches a bound on a topology takes to add or copy."""
    if not computes_in_network(topology):
        return "no switch adds or copies"
    computing = [d.id for d in topology.devices if d.kind != "gpu" and (d.can_reduce or d.can_copy)]
    listed = ", ".join(computing[:4]) + (" ..." if len(computing) > 4 else "")
    return f"of the switches only {listed} add or copy, as the topology says"


def describe_possible(topology: Topology) -> str:
    """Return, in words, which switches could add, and the source: "nvswitch0 could add (...)"."""
    by_source: dict[str, list[str]] = {}
    for device in list_possible(topology):
        assert device.in_network is not None
        by_source.setdefault(device.in_network.source or "the topology says so", []).append(
            device.id
        )
    return "; ".join(
        f"{', '.join(ids[:4])}{' ...' if len(ids) > 4 else ''} could add ({source})"
        for source, ids in by_source.items()
    )
