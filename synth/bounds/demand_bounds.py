"""The bounds of demands, which an extra proves; the core checks them.

Demands (synth/ir/demands.py) are pieces of data that some ranks hold and others need. Extras are
the optional features that extras.py at the root lists; one adds a module to its group `bounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...extras import BOUNDS, Names
from ...topo.graph import Topology
from ...topo.routes import Router
from ..ir.demands import Demands
from ..numeric.effort import Effort
from .certificate import Bound, Bounds


class DemandBounds(Protocol):
    """A module with the bounds of demands; all GPUs may relay."""

    def find_demand_bounds(
        self,
        demands: Demands,
        router: Router,
        effort: Effort,
        progress: Callable[[str], None] | None = None,
        /,
    ) -> Bounds:
        """Return the multipath and the single-path bound on the router's topology.

        `effort` limits the search; `progress` is called with lines of text. Raise InfeasibleError
        if a piece cannot reach its receivers.
        """

    def find_multipath_bound(
        self, demands: Demands, topology: Topology, effort: Effort, /
    ) -> Bound:
        """Return the bound for any use of the links."""


def load_demand_bounds() -> DemandBounds:
    """Return the module that proves the bounds of demands; raise InputError if no extra has it."""
    found: DemandBounds = Names(BOUNDS).find("demands")
    return found
