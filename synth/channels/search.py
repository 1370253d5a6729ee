"""The best equal channels of a machine: rings or chains by column generation, rounded, and put into
a sequence.
"""

from __future__ import annotations

from ...topo.errors import InfeasibleError, InputError
from ..forest.machine.routes import OwnRoutes
from ..request import Request
from .channels import CHAIN, SHAPES, Channels
from .columns import pack_orders
from .orders import Orders
from .rounding import Rounding, interleave

MOST_CHANNELS = 32
_ROUNDING_WORK_S = 6.0


def find_channels(
    request: Request, shape: str, most: int = MOST_CHANNELS, count: int | None = None
) -> Channels:
    """Return equal channels of one shape, whose rate (`channels.algbw_GBps`) is the best that was
    found.

    They are the fewest, at most `most`, that lose next to nothing (rounding.LOSS) beside the best
    number of them; or just `count`. They stand in a sequence of which every prefix is balanced.
    InfeasibleError where there is no ring, or chain, through all GPUs, and where chains, which add
    up and send back, are asked for something other than allreduce.
    """
    name = request.collective.name
    if shape not in SHAPES:
        raise InputError(f"channels: shape {shape!r}; expected one of {', '.join(SHAPES)}")
    if most < 1 or (count is not None and count < 1):
        raise InputError(
            f"channels: at most {most if count is None else count}; expected at least 1"
        )
    if name not in ("allreduce", "allgather", "reduce-scatter") or (
        shape == CHAIN and name != "allreduce"
    ):
        raise InfeasibleError(
            f"channels: {shape}s have no {name}; rings have allreduce, allgather, reduce-scatter, "
            "chains allreduce"
        )
    orders = Orders(OwnRoutes(request.router), request.collective)
    packed = pack_orders(request, [shape], orders)
    rounding = Rounding(orders, packed, request.effort.extend(_ROUNDING_WORK_S))
    numbers = rounding.round(count) if count is not None else rounding.choose(most)
    return Channels(
        shape, tuple(rounding.listed[numbers[i]][1] for i in interleave(rounding.loads[numbers]))
    )
