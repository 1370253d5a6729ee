"""What `topo-synth --explain` prints of an extra; extras add theirs to the group `explanations`
(extras.py at the root): a function of what is planned that returns one, or None where it has
nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ....topo.graph import Topology
    from ...bounds.certificate import Bound
    from ...ir.collective import Collective
    from ...numeric.effort import Effort


class ExplanationPart(Protocol):
    """A part of the explanation, for people and for programs."""

    def list_lines(self) -> list[str]:
        """Return the lines to print."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of topo-synth's JSON."""


Explain = Callable[["Topology", "Collective", "Bound", "Effort"], ExplanationPart | None]
