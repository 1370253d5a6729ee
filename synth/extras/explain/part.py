"""The interface of what extras add to `topo-synth --explain`.

They register in the group `explanations` (extras.py at the root) a function (Explain) of the
topology, the collective, the plan's single-path bound and an allowance of work. It returns such a
part, or None if it has nothing to say.
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
    """A part of an explanation, as text and as JSON."""

    def list_lines(self) -> list[str]:
        """Return the lines to print."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that topo-synth's JSON has for this part."""


Explain = Callable[["Topology", "Collective", "Bound", "Effort"], ExplanationPart | None]
