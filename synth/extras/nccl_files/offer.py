"""Whether a graph file, which gives NCCL or RCCL its rings and trees, is offered for a machine.

Commands that advise such a file ask here first, so that none offers what topo-synth then refuses:
it is offered where topo-synth writes one by default, which `export` decides. Stock is the library
without the file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ....topo.errors import InfeasibleError, TopoplanError

if TYPE_CHECKING:
    from ....topo.graph import Topology
    from ....topo.routes import Router
    from ...ir.collective import Collective
    from ...library_format import Export

# How reasons begin that topo-synth prints.
_NOT_WRITTEN = "no file written: "
# Most machines whose offers are kept: a command asks of the same few again.
_MAX_KEPT = 64
_COLLECTIVE = "allreduce"


def offer_graph_file(collective: Collective, router: Router) -> Export:
    """Return the graph file that topo-synth writes for a collective on a machine by default.

    Choosing it is a search of up to a minute. Raise InfeasibleError, with the reason, if it writes
    none: stock is as good by the model of it, or there can be no such file.
    """
    from ...numeric.effort import Effort
    from .export import NCCL_GRAPH, export  # imports solvers

    made = export(NCCL_GRAPH, collective, router, Effort())
    if made.reason is not None:
        raise InfeasibleError(made.reason.removeprefix(_NOT_WRITTEN))
    return made


def explain_no_offer(topology: Topology) -> str | None:
    """Return why no graph file is offered for an allreduce on a machine; None if one is.

    The first call for a machine searches for the file; the answer is kept.
    """
    return _explain(_Asked(topology))


class _Asked:
    """A topology as a key: equal to those with the same fingerprint."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.fingerprint = topology, topology.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.fingerprint == other.fingerprint


@lru_cache(maxsize=_MAX_KEPT)
def _explain(asked: _Asked) -> str | None:
    from ....topo.loader.resolve import load_for_planning
    from ...ir.collective import collective_on

    try:
        topology, router = load_for_planning(asked.topology)
        offer_graph_file(collective_on(_COLLECTIVE, topology), router)
    except TopoplanError as error:
        return str(error)
    return None
