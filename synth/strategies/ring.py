"""Rings over the best Hamiltonian cycles of the topology, in both directions, weighted.

The cycles do not follow rank order. A cycle of weight w carries w's share of the buffer (Baidu's
and Horovod's ring). synth/channels/columns.py finds the cycles and their weights.
"""

from fractions import Fraction

from ..channels.channels import RING, schedule_rings
from ..channels.columns import find_exact_rates, pack_orders
from ..ir.schedule import Schedule
from ..request import MAX_TRANSFERS, Request, check_size


def build(request: Request) -> list[Schedule]:
    """Return one schedule of rings.

    Raise InfeasibleError if there is no Hamiltonian cycle, or none was found with that effort.
    """
    n = request.collective.ranks
    check_size("ring", n, 2 * n * (n - 1))
    rates = find_exact_rates(pack_orders(request, [RING]), request.effort)
    # If there are more rings than can be planned, the heaviest carry the whole buffer.
    max_rings = MAX_TRANSFERS // (2 * n * (n - 1))
    heaviest = sorted(rates.items(), key=lambda item: -item[1])[:max_rings]
    total = sum((rate for _, rate in heaviest), Fraction(0))
    rings = [(order, rate / total) for (_, order), rate in heaviest]
    return [schedule_rings(request, rings, "ring")]
