"""Files of several plans that race together, for groups that make their calls at the same time.

Extras add the formats of such files to the group `plans` (extras.py at the root).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from ...synth.ir.schedule import Schedule
from ...synth.plan import Plan
from ...synth.plan_file import PlanHead


class PlanSet(Protocol):
    """The verified plans of a file, in its order."""

    @property
    def form(self) -> str:
        """The format that the file names."""

    @property
    def plans(self) -> Sequence[Plan]:
        """Each group's plan, with its members' numbers in the launch."""

    def dumps(self) -> str:
        """Return the text of the file."""

    def suits_launch(self) -> bool:
        """Return whether the ranks of this launch can race the plans; the same on all ranks."""

    def race(
        self, timeout: timedelta, executor: str, cache: Path | None, stop: threading.Event
    ) -> Mapping[str, tuple[int, Schedule | None]]:
        """Race on CPU tensors, once in a process, and return what the plans use, by their hashes.

        That is a size in bytes, and the schedule (None: stock) for calls of this size; empty if
        each group is to decide for itself, also because `stop` is set meanwhile. Collective over
        the launch; the answer is the same on all ranks. Raise ExecutionError if a rank fails.
        """


@dataclass(frozen=True)
class PlanSetFormat:
    """A format: `read_heads` returns what identifies each plan in a file, without verifying it.

    It raises msgspec.DecodeError if there is no such thing. `loads` returns the verified plans of a
    file's text; its second argument names the file in errors.
    """

    read_heads: Callable[[bytes], list[PlanHead]]
    loads: Callable[[str, str], PlanSet]
