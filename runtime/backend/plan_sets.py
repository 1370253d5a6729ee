"""Files of several plans, for groups that make their calls at the same time.

Extras add the formats of such files to the group `plans` (extras.py at the root).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...synth.plan import Plan
from ...synth.plan_file import PlanHead


class PlanSet(Protocol):
    """The verified plans of a file, in its order."""

    @property
    def plans(self) -> Sequence[Plan]:
        """Each group's plan, with its members' numbers in the launch."""


@dataclass(frozen=True)
class PlanSetFormat:
    """A format: `read_heads` returns what identifies each plan in a file, without verifying it.

    It raises msgspec.DecodeError if there is no such thing. `loads` returns the verified plans of a
    file's text; its second argument names the file in errors.
    """

    read_heads: Callable[[bytes], list[PlanHead]]
    loads: Callable[[str, str], PlanSet]
