"""What stock NCCL or RCCL reaches on paper: at large sizes, with every link at its rate.

Stock is the library by itself, without a graph file or a plan.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ....topo.errors import TopoplanError
from ....topo.graph import Topology
from ...bounds.assumptions import scale_guesses
from ..nccl_files.guard import BETWEEN_CPUS
from ..stock.library import reach
from ..stock.model import StockModel, model_stock
from ..stock.on_paper import StockRate, USUAL_SIZE_bytes
from .rates import Rate

# By how much guessed rates may be wrong.
_OFF = Fraction(BETWEEN_CPUS[-1])


@dataclass(frozen=True)
class Stock:
    """The algbw in GB/s that the stock library reaches on paper, and the channels that reach it.

    `name` describes those channels in words. `is_limit` says that `algbw_GBps` is the most that
    such channels can carry between hosts, not the rate of channels that NCCL finds. `least_GBps`
    and `most_GBps` are the range of the rate if guessed rates of links are wrong by a factor of up
    to four, by which links between CPUs may exceed NCCL's constants.
    """

    algbw_GBps: Fraction
    least_GBps: Fraction
    most_GBps: Fraction
    name: str
    is_limit: bool = False


def find_stock(collective: str, topology: Topology, channels: Rate | None) -> Stock | None:
    """Return what the stock library reaches on paper; None if unknown.

    `channels` is the rate of the channels that a log or a graph file shows. If it is None, the
    channels are those that the model of the machine's library finds. Links have the rates of the
    topology, not the constants of NCCL.
    """
    if channels is not None:
        return _rate_channels(channels, topology)
    rate = _find_rate(collective, topology)
    if rate is None:
        return None
    others = (scale_guesses(topology, factor) for factor in (1 / _OFF, _OFF))
    found = [_find_rate(collective, other) for other in others if other is not None]
    known = [rate.algbw_GBps, *(each.algbw_GBps for each in found if each is not None)]
    return Stock(rate.algbw_GBps, min(known), max(known), rate.name, rate.is_limit)


def _rate_channels(channels: Rate, topology: Topology) -> Stock:
    """Return the rate of a file's channels, whose slowest link may have a guessed rate."""
    algbw = channels.algbw_GBps
    link = next(x for x in topology.links if (x.src, x.dst) == channels.link)
    off = _OFF if link.is_guess else 1
    return Stock(algbw, algbw / off, algbw * off, f"the {channels.shape} of the file")


def _find_rate(collective: str, topology: Topology) -> StockRate | None:
    try:
        rate = reach(collective, topology)
    except TopoplanError:
        return None
    return rate if isinstance(rate, StockRate) else None


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
