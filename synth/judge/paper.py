"""What stock NCCL reaches on paper: at large sizes, with every link at its rate."""

from fractions import Fraction

from ...topo.graph import Topology
from ..channels.channels import RING
from .options import RANK_ORDER, Options
from .rates import Rate


def find_stock(
    collective: str, topology: Topology, channels: Rate | None, options: Options
) -> tuple[Fraction, str] | None:
    """Return the algbw in GB/s that stock NCCL reaches on paper, and by what; None if unknown.

    `channels` is the rate of those that a log or a graph file shows. Without them stock is taken
    as the best rings that exist, which is at least what its own search finds: an offer is never
    made for what stock does already. The rates are those of the topology, as for the options.
    """
    if channels is not None:
        return channels.algbw_GBps, f"the {channels.shape} of the file"
    rings = [o.algbw_GBps for o in options.options if o.shape == RING or o.name == RANK_ORDER]
    return (max(rings), "rings") if rings else None
