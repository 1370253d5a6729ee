"""What all schedules of a plan can promise to keep; extras add such promises to the group
`promises` (extras.py at the root), by the name of the option that asks for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..topo.routes import Router
    from .cost.affine import Cost
    from .cost.host_costs import HostCosts
    from .ir.schedule import Schedule
    from .request import Strategy
    from .section import PlanSection

Costed = list[tuple["Schedule", "Cost"]]


@dataclass(frozen=True)
class Promise:
    """A promise: the `strategy` whose schedules can keep it, and `choose`.

    That returns what a plan says of the best candidates that go together, and these. It raises
    InfeasibleError if no candidate keeps the promise.
    """

    strategy: Strategy
    choose: Callable[[Costed, Router, HostCosts | None], tuple[PlanSection, Costed]]
