"""What can be added to a finished plan: extras add such additions to the group `additions`
(extras.py at the root), by the name of the option that asks for one.
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

    `add` is given the plan, the seconds that it may take, and what is called with lines of
    progress. `report` is given the plan and the size in bytes to report on, and returns fields of
    the JSON, and what prints a section for people.
    """

    add: Callable[[Plan, float, Callable[[str], None]], Plan]
    report: Callable[[Plan, int], tuple[dict[str, Any], Callable[[Console], None]]]
