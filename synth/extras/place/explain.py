"""Explain, for topo-synth, whether the stock collective would be faster in another rank order.

A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....topo.graph import Topology
from ...bounds.certificate import Bound
from ...ir.collective import Collective
from ...numeric.effort import Effort
from .job import STOCK
from .kinds import COLLECTIVES
from .placement import Placement
from .placing import place

# Limits of the search: number of GPUs, and seconds. They are low because the result is only one
# line of the explanation.
_MAX_RANKS, _LIMIT_S = 128, 10.0
# Most characters of a rank order that still fit on its line.
_MAX_ORDER = 60
# What of a placement the JSON has.
_FIELDS = ("order", "for", "time_s", "given_time_s", "gain", "optimal")


@dataclass(frozen=True)
class RankOrder:
    """The order of ranks in which the stock collective is fastest; plans use the given one."""

    placement: Placement

    def list_lines(self) -> list[str]:
        """Return the lines that say what the best rank order would gain over the given one."""
        placement = self.placement
        if placement.gain <= 1:
            sure = "no other order makes gloo's own algorithm faster (proved)"
            unsure = "found no other order that makes gloo's own algorithm faster"
            return [f"rank order: {sure if placement.is_optimal else unsure}"]
        order = ",".join(map(str, placement.order))
        listed = f": {order}" if len(order) <= _MAX_ORDER else ""
        return [
            f"rank order: gloo's own algorithm is {float(placement.gain):.2f} times as fast in "
            f"another one{listed} (topo-place --for stock)"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return `rank_order` of topo-synth's JSON."""
        whole = self.placement.to_json()
        return {name: whole[name] for name in _FIELDS}


def explain_order(
    topology: Topology,
    collective: Collective,
    bound: Bound,
    effort: Effort,
) -> RankOrder | None:
    """Return the rank order in which the stock collective is fastest.

    It is gloo's that is modelled. The result is None if there is no model of the collective, if the
    machine is too large, if not all its GPUs take part, or if the time of `effort` is over, which
    limits the search as its own limit does. `bound`, which all explanations are given, is not used.
    """
    limit_s = min(_LIMIT_S, effort.clock_s)
    too_many = len(topology.ranks) > _MAX_RANKS
    if (
        limit_s <= 0
        or too_many
        or not collective.has_all_gpus
        or collective.name not in COLLECTIVES
    ):
        return None
    # Bandwidths alone decide which order is fastest, so any large size will do.
    traffic = f"all={collective.name}:1G"
    return RankOrder(place(topology, traffic=traffic, target=STOCK, time_limit_s=limit_s))
