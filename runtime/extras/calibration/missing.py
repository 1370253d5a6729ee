"""Fit the hosts' costs of a plan's communicator: when asked, or where the plan has none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ....synth.cost.host_costs import HostCosts, host_of
from ...communicator import Communicator
from ...ranks.transport import Transport
from .calibrate import calibrate


def fit_missing(
    communicator: Communicator, transport: Transport, say: Callable[[str], None]
) -> None:
    """Fit the hosts' costs of a plan that has none, so that predictions include them. Collective.

    A group that goes on after a fault could not go on meanwhile, and helpers know of one
    communicator alone: these are left as they are.
    """
    if host_of(communicator.plan.topology) is not None or communicator.path.outlives_links:
        return
    if communicator.dispatcher.messages.codec is None or communicator.plan.collective.has_all_gpus:
        fit(communicator, transport, say)


def fit(communicator: Communicator, transport: Transport, say: Callable[[str], None]) -> HostCosts:
    """Fit the hosts' costs, predict with them from now on, and return them. Collective."""
    if communicator.dispatcher.messages.codec is None:
        return calibrate(communicator, say)
    # Without the codec: the cost of encoding is known, and added for encoded messages.
    timeout = timedelta(seconds=transport.control.timeout_s)
    costs = calibrate(Communicator(communicator.plan, transport, timeout), say)
    communicator.dispatcher.set_host_costs(costs)
    return costs
