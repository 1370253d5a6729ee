"""Files of several plans, for groups that make their calls at the same time.

Extras add the formats of such files to the group `plans` (extras.py at the root).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...synth.plan import Plan
from ...synth.plan_file import PlanHead


class PlanSet(Protocol):
    """The verified plans of one file, in its order."""

    @property
    def plans(self) -> Sequence[Plan]:
        """Each group's plan; its members are the ranks' numbers in the launch."""


@dataclass(frozen=True)
class PlanSetFormat:
    """A format of files with several plans.

    `read_heads` returns what identifies each plan in a file's bytes, without verifying it, and
    raises msgspec.DecodeError for other contents. `loads(text, name)` returns the verified plans of
    a file's text; `name` is the file's, for errors.
    """

    read_heads: Callable[[bytes], list[PlanHead]]
    loads: Callable[[str, str], PlanSet]
