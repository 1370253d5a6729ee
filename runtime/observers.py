"""Observers that extras add to everything that sends messages (group `observers`).

An observer is told of calls and messages, for instance to measure links. A transport is a group of
ranks with what carries their messages.
"""

from __future__ import annotations

from collections.abc import Callable

from ..extras import OBSERVERS, Names
from ..topo.graph import Topology
from .program.contract import Observed, Observer
from .ranks.transport import Transport

# Returns what observes calls over a transport, whose links have names in a topology.
MakeObservers = Callable[[Transport, Topology | None], list[Observer]]


def observe_links(observed: Observed, transport: Transport, topology: Topology | None) -> None:
    """Add the observers of all extras to `observed`, whose calls send messages over `transport`.

    `topology` is the machine of the transport's ranks, None if unknown.
    """
    names = Names(OBSERVERS)
    for name in names.describe():
        make: MakeObservers = names.find(name)
        for observer in make(transport, topology):
            observed.observe(observer)
