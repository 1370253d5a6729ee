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
    from ....topo.routes import Router
    from ...dispatcher import CallPath
    from .probe import Probe


class Following:
    """See LayerKind."""

    leaves_stock = True
    why_no_group: str | None = None

    def why_not(self, links: Links | type[Links]) -> str | None:
        """Return why calls over links, or a kind of them, cannot go through one; or None."""
        if links.why_links_must_hold is not None:
            return f"{links.name}: links are measured over gloo's connections"
        if find_cabling() is not None:
            return (
                "cables between hosts: gloo's connections go through relays there, and measuring "
                "them says nothing of the cables"
            )
        return None

    def why_not_plan(self, plan: Plan) -> str | None:
        """Return why calls of a plan cannot go through one, None if they can."""
        if plan.used_helpers:
            return (
                "plans with helpers: helpers take part in calls alone, and not in measuring the "
                "links to them"
            )
        if plan.runner is not None:
            return "plans that keep to limits: one for the links as they are would not"
        return None

    def prepare(self) -> None:
        """Take note of what is, before the links of a group are opened; `open` gets the answer."""

    def open(self, transport: Transport, prepared: object) -> FollowedLinks:
        """Return a layer for calls over a transport."""
        return FollowedLinks(transport)


class FollowedLinks(Layer):
    """Lets the choices of each dispatcher follow the rates of links; see Layer."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._since = time.monotonic()
        self._probes: list[Probe] = []

    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return what carries out the calls of one plan, by `path` or others of `make_path`."""
        from .watch import SlowWatch  # few jobs follow slow links

        return SlowWatch(path.base, self.history, self._since, self.find_probe)

    def find_probe(self, transport: Transport, router: Router) -> Probe:
        """Return what measures the links, for all plans of one machine. Collective at first."""
        from .probe import Probe

        for probe in self._probes:
            if probe.transport is transport and probe.topology == router.topology:
                return probe
        self._probes.append(Probe(transport, router))
        return self._probes[-1]


ON_SLOW: LayerKind = Following()
