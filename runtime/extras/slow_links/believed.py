"""Plan for links that are slower than the topology says, on the routes that data takes already."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from ....synth.plan import Plan
from ....topo.extras.measured.flows import Hop
from ....topo.graph import Topology
from ....topo.routes import Route, Router

# Allowance of work for the new plan, in seconds, and more for each rank. Calls go on meanwhile.
_PLAN_S, _PLAN_S_PER_RANK = 2.0, 0.1


def slow_down(topology: Topology, factors: Mapping[Hop, Fraction]) -> Topology:
    """Return a topology with the rates of some links multiplied by factors.

    Links are (from device id, to device id), one direction each.
    """
    names = sorted({" - ".join(sorted(link)) for link in factors})
    links = (
        replace(x, bandwidth_GBps=x.bandwidth_GBps * factors.get((x.src, x.dst), 1))
        for x in topology.links
    )
    name = f"{topology.name} (slow: {', '.join(names)})"
    return replace(topology, name=name, links=tuple(links))


def plan_at(plan: Plan, factors: Mapping[Hop, Fraction]) -> Plan:
    """Return a plan for the topology of `plan` with some links' rates multiplied by `factors`.

    Raise InfeasibleError if there is none, and InputError if ranks would end with different bits.
    """
    # Which only the rank that plans needs.
    from ....synth.numeric.effort import Effort
    from ....synth.planner.synthesize import synthesize
    from ....synth.request import Request

    topology = slow_down(plan.topology, factors)
    new = synthesize(
        Request(
            plan.collective,
            topology,
            Effort(_PLAN_S + _PLAN_S_PER_RANK * plan.collective.ranks),
            router=SameRoutes(plan.router, topology),
            reproducible=plan.bracketing is not None,
        )
    ).plan
    if plan.collective.name == "allreduce":
        new.check_same_bits()
    return new


class SameRoutes(Router):
    """A router that keeps another router's routes on a topology whose links have other rates.

    Sockets stay on their routes when a link becomes slow, even if another route is faster then.
    """

    def __init__(self, router: Router, topology: Topology) -> None:
        super().__init__(topology)
        self._router, self.omits_pairs = router, router.omits_pairs

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the original route between two devices, given by id; None if there is none."""
        return self._router.find_route(start, end)

    def before_each(self, start: str) -> Mapping[str, str]:
        """Return, for each device, the one before it on the original route from `start`."""
        before, here = self._router.before_each(start), self.topology.by_id
        return {x: near for x, near in before.items() if x in here and near in here}

    def on(self, topology: Topology) -> Router:
        """Return a router for `topology`.

        It keeps the original routes if `topology` has the same links, except that it may lack GPUs
        with their links.
        """
        if topology == self.topology:
            return self
        lacking = {*self.topology.ranks} - {*topology.ranks}
        expected = {link for link in self.topology.capacity_GBps if lacking.isdisjoint(link)}
        if topology.capacity_GBps.keys() == expected:
            return SameRoutes(self._router, topology)
        return self._router.on(topology)
