"""How plans that follow slow links are asked for (`on_slow="replan"`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ....synth.plan import Plan
from ...layers import Layer, LayerKind, MakePath
from ...ranks.cabled import find_cabling
from ...ranks.links import Links
from ...ranks.transport import Transport

if TYPE_CHECKING:
    from ...dispatcher import CallPath


class Following:
    """See LayerKind."""

    leaves_stock = True
    why_no_group: str | None = (
        "links are measured between calls, and gloo's own calls of a group of the backend may be "
        "in progress then; use the hook, or a Communicator"
    )

    def why_not(self, links: Links | type[Links]) -> str | None:
        """See LayerKind."""
        if links.why_links_must_hold is not None:
            return f"links are measured over gloo's connections, not over {links.name}; use gloo"
        if find_cabling() is not None:
            return "cables join the hosts, and other routes between them are not tried yet"
        return None

    def why_not_plan(self, plan: Plan) -> str | None:
        """See LayerKind."""
        return None if plan.collective.has_all_gpus else "expected a plan for all GPUs"

    def prepare(self) -> None:
        """See LayerKind."""

    def open(self, transport: Transport, prepared: object) -> FollowedLinks:
        """See LayerKind."""
        return FollowedLinks(transport)


class FollowedLinks(Layer):
    """Lets the choices of each dispatcher follow the rates of links; see Layer."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._since = time.monotonic()

    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """See Layer."""
        from .watch import SlowWatch  # few jobs follow slow links

        return SlowWatch(path.base, self.history, self._since)


ON_SLOW: LayerKind = Following()
