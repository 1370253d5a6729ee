"""Make spare plans for the loss of a link or a NIC, in advance.

A spare is a plan for what is left of the machine. It is kept in the plan that it belongs to.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

import networkx as nx

from ....topo.derived.lost_links import Link, Pair, PairRoutes
from ....topo.errors import InfeasibleError, InputError
from ....topo.graph import Topology
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...plan import Plan, Spare
from ...planner.synthesize import synthesize
from ...request import Request
from .left import ReachedRouter, without_links
from .section import Spares

# The allowance of work for one spare, in seconds.
_MIN_S, _MAX_S = 1.0, 10.0


@dataclass
class Loss:
    """A loss that spares are made for: of any one of the links and NICs named `of`.

    They are taken together since ranks cannot tell them apart: all that ranks see are the pairs
    that no longer reach each other, `unreached`. `lost` are all links that could be lost then; a
    plan uses none of them. `disconnects` says that the remaining ranks are not all connected, even
    through each other.
    """

    lost: list[Link]
    unreached: list[Pair]
    disconnects: bool
    of: list[str] = field(default_factory=list)


def list_losses(topology: Topology) -> list[Loss]:
    """Return the distinct losses of one link (both directions) or NIC that a pair of ranks uses."""
    routes = PairRoutes(topology)
    links = sorted({(min(link), max(link)) for link in topology.capacity_GBps})
    failures = {f"{a} - {b}": [(a, b)] for a, b in links}
    failures |= {
        device.id: [link for link in links if device.id in link]
        for device in topology.devices
        if device.kind == "nic"
    }
    losses: dict[tuple[Pair, ...], Loss] = {}
    for name, gone in failures.items():
        unreached = routes.find_unreached(gone)
        if not unreached:
            continue
        key = tuple(unreached)
        if key not in losses:
            reached: nx.Graph[int] = nx.complete_graph(len(topology.ranks))
            reached.remove_edges_from(unreached)
            lost = routes.find_lost_links(unreached)
            losses[key] = Loss(lost, unreached, not nx.is_connected(reached))
        losses[key].of.append(name)
    return list(losses.values())


def plan_without(
    collective: Collective,
    topology: Topology,
    links: Sequence[Link],
    unreached: Set[Pair],
    seconds: float,
    *,
    reproducible: bool,
) -> Plan:
    """Return a plan without some links, and without messages between `unreached` pairs of ranks.

    `seconds` is the time to plan; with `reproducible` it adds every element in one order. If the
    collective is for some of the GPUs, no others help. Raise InfeasibleError if there is none.
    """
    left = without_links(topology, links)
    return synthesize(
        Request(
            collective,
            left,
            Effort(seconds),
            router=ReachedRouter(left, unreached),
            reproducible=reproducible,
        )
    ).plan


def add_spares(
    plan: Plan, seconds: float, progress: Callable[[str], None] = lambda text: None
) -> Plan:
    """Return the plan with a spare for each loss that leaves its ranks connected, no others.

    `seconds` is the time for all of them; each has between 1 and 10 s of it; `progress` is given a
    line about each. Raise InputError for a plan for some of a machine's GPUs.
    """
    if not plan.collective.has_all_gpus:
        raise InputError(f"spare plans are for all GPUs of a machine, not for {plan.collective}")
    losses = [loss for loss in list_losses(plan.topology) if not loss.disconnects]
    share_s = min(_MAX_S, max(_MIN_S, seconds / max(1, len(losses))))
    spares = []
    for number, loss in enumerate(losses, 1):
        progress(f"spare {number} of {len(losses)}: without {', '.join(loss.of)}")
        try:
            left = plan_without(
                plan.collective,
                plan.topology,
                loss.lost,
                frozenset(loss.unreached),
                share_s,
                reproducible=plan.bracketing is not None,
            )
        except InfeasibleError:
            continue
        spares.append(
            Spare(tuple(loss.lost), left.entries, left.bound, left.bound_one_way, left.extensions)
        )
    made = (Spares(tuple(spares)),) if spares else ()
    others = [section for section in plan.extensions if section.name != Spares.name]
    return replace(plan, extensions=(*made, *others))
