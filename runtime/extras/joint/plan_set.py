"""Let the backend read joint plans from its files, and race each as a whole.

A joint plan is one file of plans for several groups that make their calls at the same time. A stock
collective is gloo's, NCCL's or MPI's own, without a plan; a race times several schedules at one
message size and keeps the fastest.
"""

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
    """A joint plan in the form in which the backend handles files with several plans."""

    joint: JointPlan

    @property
    def form(self) -> str:
        """The name of the file format of joint plans."""
        return FORMAT

    @property
    def plans(self) -> list[Plan]:
        """The plan of each group, in the joint plan's order."""
        return [group.plan for group in self.joint.groups]

    def dumps(self) -> str:
        """Return the text of the joint plan's file."""
        return json.dumps(self.joint.to_json())

    def suits_launch(self) -> bool:
        """Return whether this launch's ranks are the groups' members; the same on all ranks."""
        return suits_launch(self.joint)

    def race(
        self, timeout: timedelta, executor: str, cache: Path | None, stop: threading.Event
    ) -> dict[str, tuple[int, Schedule | None]]:
        """Race on CPU tensors, once a process; return (size in bytes, schedule) by plan hash.

        The schedule is for calls of this size (None: the stock collective). The result is empty if
        each group is to decide for itself, also if `stop` is set meanwhile. Collective over the
        launch; the answer is the same on all ranks. Raise ExecutionError if a rank fails.
        `executor` is as a Communicator's; `cache` is the folder for results (None: none).
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
