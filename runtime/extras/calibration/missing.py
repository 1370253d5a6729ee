"""Fit the host costs of a communicator's plan: on request, or if the plan has none.

Host costs are the processor time per message, byte and call, in addition to the links' time.

Helpers are ranks outside a group that forward bytes for it.
"""

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
    """Fit the host costs if the plan has none, so that predictions include them. Collective.

    `say` is given lines about the progress. Does nothing for groups that recover from faults, which
    they could not do meanwhile. Nor does it for groups with helpers whose messages are compressed:
    the calls to time would need another communicator, and helpers serve only one.
    """
    if host_of(communicator.plan.topology) is not None or communicator.path.outlives_links:
        return
    if communicator.dispatcher.messages.codec is None or communicator.plan.collective.has_all_gpus:
        fit(communicator, transport, say)


def fit(communicator: Communicator, transport: Transport, say: Callable[[str], None]) -> HostCosts:
    """Fit the host costs by timing calls, predict with them from now on, and return them.

    Collective. `transport` joins the communicator's ranks; if messages are compressed, others are
    timed over it. `say` is given lines about the progress.
    """
    if communicator.dispatcher.messages.codec is None:
        return calibrate(communicator, say)
    # Without the codec: the cost of encoding is known, and added for encoded messages.
    timeout = timedelta(seconds=transport.control.timeout_s)
    costs = calibrate(Communicator(communicator.plan, transport, timeout), say)
    communicator.dispatcher.set_host_costs(costs)
    return costs
