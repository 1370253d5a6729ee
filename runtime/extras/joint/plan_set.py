"""Joint plans among the files of the backend: how they are read, and their race as a whole."""

import json
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from ....synth.extras.joint.plan import FORMAT, JointPlan
from ....synth.ir.schedule import Schedule
from ....synth.plan import Plan
from ....synth.plan_file import PlanHead
from ...backend.plan_sets import PlanSetFormat
from .choices import find_choice, suits_launch


class _GroupHead(msgspec.Struct):
    """What identifies a group's plan in a joint plan."""

    plan: PlanHead


class _JointHead(msgspec.Struct):
    """What identifies the plans of a joint plan."""

    groups: list[_GroupHead]


@dataclass(frozen=True)
class JointPlanSet:
    """A joint plan as the backend sees it, a PlanSet."""

    joint: JointPlan

    @property
    def form(self) -> str:
        """The format of joint plans."""
        return FORMAT

    @property
    def plans(self) -> list[Plan]:
        """The groups' plans."""
        return [group.plan for group in self.joint.groups]

    def dumps(self) -> str:
        """Return the text of the joint plan's file."""
        return json.dumps(self.joint.to_json())

    def suits_launch(self) -> bool:
        """Return whether the ranks of this launch are the members; the same on all ranks."""
        return suits_launch(self.joint)

    def race(
        self, timeout: timedelta, executor: str, cache: Path | None, stop: threading.Event
    ) -> dict[str, tuple[int, Schedule | None]]:
        """Race on CPU tensors, once in a process, and return what the plans use, by their hashes.

        That is a size in bytes, and the schedule (None: stock) for calls of this size; empty if
        each group is to decide for itself, also because `stop` is set meanwhile. Collective over
        the launch; the answer is the same on all ranks. Raise ExecutionError if a rank fails.
        """
        choice = find_choice(self.joint, timeout, executor, cache, stop)
        if choice is None:
            return {}
        return {
            group.plan.hash: (group.call.size_bytes, choice.schedule_of(group))
            for group in self.joint.groups
        }


def _read_heads(data: bytes) -> list[PlanHead]:
    return [group.plan for group in msgspec.json.decode(data, type=_JointHead).groups]


def _loads(text: str, where: str) -> JointPlanSet:
    return JointPlanSet(JointPlan.loads(text, where))


JOINT_PLANS = PlanSetFormat(_read_heads, _loads)
