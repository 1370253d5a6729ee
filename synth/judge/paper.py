"""What stock NCCL reaches on paper: at large sizes, with every link at its rate."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...topo.errors import TopoplanError
from ...topo.graph import Topology
from ..bounds.assumptions import scale_guesses
from ..export.guard import BETWEEN_CPUS
from ..stock.model import StockModel, model_stock
from ..stock.on_paper import StockRate, USUAL_SIZE_bytes, rate_stock
from .rates import Rate

# By how much guessed rates may be wrong.
_OFF = Fraction(BETWEEN_CPUS[-1])


@dataclass(frozen=True)
class Stock:
    """The algbw in GB/s that stock NCCL reaches on paper, and by what, in words.

    With `is_limit` it is the most that such channels carry between hosts, not what NCCL finds.
    """

    algbw_GBps: Fraction
    name: str
    is_limit: bool = False


def find_stock(collective: str, topology: Topology, channels: Rate | None) -> Stock | None:
    """Return what stock NCCL reaches on paper; None if unknown.

    `channels` is the rate of those that a log or a graph file shows. Without them it is that of
    `rate_stock`. The rates are those of the topology, as for the options, not the constants of
    NCCL.
    """
    if channels is not None:
        return Stock(channels.algbw_GBps, f"the {channels.shape} of the file")
    rate = _find_rate(collective, topology)
    return None if rate is None else Stock(rate.algbw_GBps, rate.name, rate.is_limit)


def _find_rate(collective: str, topology: Topology) -> StockRate | None:
    try:
        rate = rate_stock(collective, topology)
    except TopoplanError:
        return None
    return rate if isinstance(rate, StockRate) else None


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
    algbw = stock.algbw_GBps
    if channels is not None:
        link = next(x for x in topology.links if (x.src, x.dst) == channels.link)
        return (algbw / _OFF, algbw * _OFF) if link.is_guess else (algbw, algbw)
    others = (scale_guesses(topology, factor) for factor in (1 / _OFF, _OFF))
    rates = [find_stock(collective, other, None) for other in others if other is not None]
    known = [algbw, *(rate.algbw_GBps for rate in rates if rate is not None)]
    return min(known), max(known)


def find_model(topology: Topology) -> StockModel | None:
    """Return the model of stock NCCL on a machine; None if there is none."""
    try:
        model = model_stock(topology)
    except TopoplanError:
        return None
    return model if isinstance(model, StockModel) else None


def write_model(topology: Topology) -> dict[str, Any] | None:
    """Return what stock NCCL expects of an allreduce; None if unknown.

    On one host `algbw_GBps` and `picked` are by NCCL's constants, `stock_GBps` is at the rates of
    the topology; between hosts there is only the latter.
    """
    rate, model = _find_rate("allreduce", topology), find_model(topology)
    own = {} if model is None else model.to_json(USUAL_SIZE_bytes)
    return {**own, **({} if rate is None else rate.to_json())} or None
