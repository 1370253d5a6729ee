"""The layer behind `on_slow="replan"`: plans adapt to links that become slow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ....synth.plan import Plan
from ...layers import Layer, LayerKind, MakePath
from ...ranks.cabled import find_cabling
from ...ranks.links import Links
from ...ranks.transport import Transport

if TYPE_CHECKING:
    from ....topo.routes import Router
    from ...dispatcher import CallPath
    from .probe import Probe


class Following:
    """Says where plans can adapt to slow links, and opens the layer that does it."""

    leaves_stock = True
    why_no_group: str | None = None

    def why_not(self, links: Links | type[Links]) -> str | None:
        """Return why plans over these links (or their class) cannot adapt, None if they can."""
        if links.why_links_must_hold is not None:
            return f"{links.name}: links are measured over gloo's connections"
        if find_cabling() is not None:
            return (
                "cables between hosts: gloo's connections go through relays there, and measuring "
                "them says nothing of the cables"
            )
        return None

    def why_not_plan(self, plan: Plan) -> str | None:
        """Return why this plan cannot adapt to slow links, None if it can."""
        if plan.used_helpers:
            return (
                "plans with helpers: helpers take part in calls alone, and not in measuring the "
                "links to them"
            )
        if plan.runner is not None:
            return "plans that keep to limits: one for the links as they are would not"
        return None

    def prepare(self) -> None:
        """Do nothing: this layer needs no preparation before a group's links are opened."""

    def open(self, transport: Transport, prepared: object) -> FollowedLinks:
        """Return the layer for calls over a transport; `prepared` is not used."""
        return FollowedLinks(transport)


class FollowedLinks(Layer):
    """The layer around a group's calls that adapts its plans to the rates of links."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._since = time.monotonic()
        self._probes: list[Probe] = []

    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return what runs the calls of one plan as `path` does, and adapts to slow links.

        `make_path` is not used: new plans run over the same transport.
        """
        from .watch import SlowWatch  # few jobs follow slow links

        return SlowWatch(path.base, self.history, self._since, self.find_probe)

    def find_probe(self, transport: Transport, router: Router) -> Probe:
        """Return what measures the links, the same for all plans on a machine.

        `router` has the routes between ranks. Collective the first time.
        """
        from .probe import Probe

        for probe in self._probes:
            if probe.transport is transport and probe.topology == router.topology:
                return probe
        self._probes.append(Probe(transport, router))
        return self._probes[-1]


ON_SLOW: LayerKind = Following()
