"""Process groups that may get their plan from a joint plan: one file for several groups.

The groups of a joint plan make their calls at the same time, so they race together, not each by
itself. A race times several schedules at one message size and keeps the fastest; a dispatcher picks
the schedule of each call of a plan.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from torch._C._distributed_c10d import Store

from ....synth.ir.schedule import Schedule
from ....synth.plan import Plan
from ...backend.collectives import CollectiveGroup
from ...backend.options import BackendOptions
from ...backend.plan_files import PlanFiles, find_set_format
from ...backend.plan_finder import PlanFinder
from ...backend.scope import Scope
from ...dispatcher import Dispatcher
from ...option_names import MODES
from ...ranks.addresses import Addresses
from ...ranks.links import AUTO, check_transport
from ...ranks.store import put, take

if TYPE_CHECKING:
    from .plan_set import JointPlanSet


class JointFinder(PlanFinder):
    """Finds a group's plans; the plans of a joint plan race together before any is used.

    Its `store`, `scope` and `addresses` are the group's.
    """

    def __init__(
        self,
        options: BackendOptions,
        store: Store,
        scope: Scope,
        timeout: timedelta,
        addresses: Addresses,
    ) -> None:
        super().__init__(options, store, scope, timeout, addresses)
        # The size in bytes and the schedule (None: stock) that a race has settled, by plan's hash.
        self._settled: dict[str, tuple[int, Schedule | None]] = {}

    def send(self, key: str, answer: dict[str, Any], plan: Plan | None, device: str) -> None:
        """Send rank 0's `answer` about a `plan` for tensors on `device` to the other ranks.

        `key` is the store's. For a plan of a joint plan that is to race, the other ranks get the
        whole joint file, and it then races: that waits for the ranks of all its groups.
        """
        joint = self._find_joint(plan, device)
        if joint is not None:
            put(self.store, f"{key}/set", joint.dumps())
        super().send(key, answer if joint is None else {**answer, "set": joint.form}, plan, device)
        if joint is not None:
            self._race(joint)

    def receive(self, key: str) -> dict[str, Any]:
        """Return the answer that rank 0 sent under the store's `key`.

        If it is of a joint plan, that races first, with the ranks of all its groups.
        """
        answer = super().receive(key)
        if "set" in answer:
            text = take(self.store, f"{key}/set", self.timeout, self.stop, self.check_rank_0)
            loaded = find_set_format(answer["set"]).loads(text, "rank 0's file of plans")
            self._race(cast("JointPlanSet", loaded))
        return answer

    def settle(self, dispatcher: Dispatcher) -> None:
        """Fix what `dispatcher` uses at the planned size, if the joint race has decided it."""
        if dispatcher.plan.hash in self._settled:
            size_bytes, schedule = self._settled[dispatcher.plan.hash]
            sent = None if schedule is None else dispatcher.candidates.send(schedule)
            dispatcher.choices.settle(size_bytes, sent)

    def _find_joint(self, plan: Plan | None, device: str) -> JointPlanSet | None:
        """Return the joint plan of whose groups one has `plan`, None if it need not race."""
        options, source = self.options, self.source
        races = options.policy.choose == MODES[0] and options.policy.compress is None
        if plan is None or not isinstance(source, PlanFiles) or not races:
            return None
        if device != "cpu" or check_transport(options.transport) != AUTO:
            return None
        for plan_set in source.sets.values():
            joint = cast("JointPlanSet", plan_set)  # no other extra has such files
            if any(one is plan for one in joint.plans):
                return joint if joint.suits_launch() else None
        return None

    def _race(self, joint: JointPlanSet) -> None:
        """Race a joint plan on the ranks of all its groups, and store what its plans use then."""
        policy = self.options.policy
        raced = joint.race(self.timeout, policy.executor, policy.cache_folder, self.stop)
        self._settled.update(raced)


class JointGroup(CollectiveGroup):
    """A process group of the backend "topo" whose plan may come from a joint plan."""

    finder = JointFinder
