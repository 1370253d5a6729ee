"""What stock NCCL reaches on paper: at large sizes, with every link at its rate."""

from fractions import Fraction
from typing import Any

from ...topo.errors import InfeasibleError, TopoplanError
from ...topo.graph import Topology
from ...topo.routes import HARDWARE, Router
from ..bounds.assumptions import scale_guesses
from ..export.guard import BETWEEN_CPUS, USUAL_SIZE_bytes
from ..stock.model import StockModel, model_stock
from ..stock.routes import NcclRouter
from .options import OVER_RINGS
from .rates import Rate, rate_rings, rate_trees
from .reading import chain_parents

# By how much guessed rates may be wrong.
_OFF = Fraction(BETWEEN_CPUS[-1])


def find_stock(
    collective: str, topology: Topology, channels: Rate | None
) -> tuple[Fraction, str] | None:
    """Return the algbw in GB/s that stock NCCL reaches on paper, and by what; None if unknown.

    `channels` is the rate of those that a log or a graph file shows. Without them it is that of
    the channels that NCCL's search finds, by our model of it, on NCCL's routes. The rates are those
    of the topology, as for the options, not the constants of NCCL.
    """
    if channels is not None:
        return channels.algbw_GBps, f"the {channels.shape} of the file"
    model = find_model(topology)
    if model is None or collective not in OVER_RINGS:
        return None
    try:
        rate = _rate_model(collective, model, NcclRouter(HARDWARE.on(topology)))
    except InfeasibleError:  # NCCL uses PCIe that the topology lacks
        return None
    return rate.algbw_GBps, f"the {rate.shape} that stock NCCL finds (modelled)"


def find_stock_range(
    collective: str, topology: Topology, channels: Rate | None
) -> tuple[Fraction, Fraction] | None:
    """Return the least and the most GB/s that stock reaches, whatever guessed rates are in truth.

    Guesses may be wrong by the factor by which links between CPUs exceed NCCL's constants: four.
    The arguments and None are those of `find_stock`.
    """
    stock = find_stock(collective, topology, channels)
    if stock is None:
        return None
    algbw = stock[0]
    if channels is not None:
        link = next(x for x in topology.links if (x.src, x.dst) == channels.link)
        return (algbw / _OFF, algbw * _OFF) if link.is_guess else (algbw, algbw)
    others = (scale_guesses(topology, factor) for factor in (1 / _OFF, _OFF))
    rates = [find_stock(collective, other, None) for other in others if other is not None]
    known = [algbw, *(rate[0] for rate in rates if rate is not None)]
    return min(known), max(known)


def _rate_model(collective: str, model: StockModel, router: Router) -> Rate:
    """Return the rate of the channels that NCCL finds and picks, on the links of the topology."""
    used = model.channels
    if collective == "allreduce" and model.pick(USUAL_SIZE_bytes) == "chains":
        return rate_trees([chain_parents(order) for order in model.chains.orders[:used]], router)
    return rate_rings(collective, model.rings.orders[:used], router)


def find_model(topology: Topology) -> StockModel | None:
    """Return the model of stock NCCL on a machine; None if there is none."""
    try:
        model = model_stock(topology)
    except TopoplanError:
        return None
    return model if isinstance(model, StockModel) else None


def write_model(topology: Topology) -> dict[str, Any] | None:
    """Return what stock NCCL expects of an allreduce, with NCCL's constants; None if unknown."""
    model = find_model(topology)
    if model is None:
        return None
    return model.to_json(USUAL_SIZE_bytes)
