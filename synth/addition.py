"""What can be added to a finished plan, such as plans for the loss of each link.

Extras, the optional features that extras.py at the root lists, add an `Addition` to its group
`additions`, by the name of topo-synth's option that asks for it (--spare).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from .plan import Plan


@dataclass(frozen=True)
class Addition:
    """An addition: `add` returns the plan with it, `report` what topo-synth says of it.

    `add` is given the plan, the seconds that it may take, and a function to call with lines of
    progress. `report` is given the plan that `add` returned and the size in bytes of the buffer to
    report on. It returns fields of topo-synth's JSON, and a function that prints the same on a
    console.
    """

    add: Callable[[Plan, float, Callable[[str], None]], Plan]
    report: Callable[[Plan, int], tuple[dict[str, Any], Callable[[Console], None]]]
