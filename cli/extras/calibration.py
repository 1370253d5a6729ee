"""topo-run --calibrate: the plan's topology with the hosts' costs, as fitted here.

Host costs are what sending costs the hosts' cores: their time per message, byte and call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..running.added import RunMode
from ..shared.progress import Say

if TYPE_CHECKING:
    from ...runtime.communicator import Communicator
    from ...runtime.ranks.transport import Transport
    from ...topo.graph import Topology


def _calibrate(communicator: Communicator, transport: Transport, say: Say) -> Topology:
    """Return the topology; that of an emulated machine has the emulated rates."""
    from ...runtime.extras.calibration.missing import fit
    from ...synth.cost.host_costs import with_host

    costs = fit(communicator, transport, say)
    return with_host(communicator.dispatcher.machine.topology or communicator.plan.topology, costs)


CALIBRATE = RunMode(
    _calibrate,
    "topology with host costs written to FILE; give it to topo-synth --topology",
)
