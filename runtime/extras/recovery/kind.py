"""The layer behind `on_fault="replan"`: calls recover from a lost link."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ....synth.plan import Plan
from ...layers import LayerKind
from ...ranks.cabled import find_cabling
from ...ranks.links import Links
from ...ranks.transport import Transport
from ..sockets import list_sockets

if TYPE_CHECKING:
    from .guard import Guard


class GoingOn:
    """Says where calls can recover from a lost link, and opens the guard that does it."""

    leaves_stock = False
    why_no_group: str | None = None

    def why_not(self, links: Links | type[Links]) -> str | None:
        """Return why calls over these links (or their class) cannot recover, None if they can."""
        if links.why_links_must_hold is not None:
            return f"{links.name}: {links.why_links_must_hold}"
        if find_cabling() is not None:
            return (
                "cables between hosts: what ranks agree on goes through relays along fixed routes, "
                "which a lost cable cuts and no connection of a rank shows"
            )
        if sys.platform != "linux":
            return f"{sys.platform}: lost connections are noticed by Linux's means"
        return None

    def why_not_plan(self, plan: Plan) -> str | None:
        """Return why calls of this plan cannot recover; None if they can."""
        if plan.used_helpers:
            return (
                "plans with helpers: helpers know of calls from the members' messages alone, and "
                "take no part in agreeing on what is lost"
            )
        if plan.runner is not None:
            return "plans that keep to limits: one for the links that are left would not"
        return None

    def prepare(self) -> frozenset[str]:
        """Return the names of the sockets now open; later ones are the group's own."""
        return frozenset(list_sockets().values())

    def open(self, transport: Transport, prepared: object) -> Guard:
        """Return the guard of the calls over `transport`; `prepared` is the result of `prepare`."""
        from .guard import Guard  # few jobs go on after faults

        assert isinstance(prepared, frozenset)
        return Guard(transport, prepared)


ON_FAULT: LayerKind = GoingOn()
