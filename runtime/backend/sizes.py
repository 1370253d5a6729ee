"""Decide, alike on all ranks, from which call on the calls of one size go through their plan.

Until then they use the stock collective, which is gloo's or NCCL's own. In a trial schedules of the
plan and stock get some of the first calls each, to find the fastest.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from ..program.layout import MEETING
from ..ranks.race_timing import MAX_CALLS

# A collective, its root, and the device type of its tensors.
Key = tuple[str, int | None, str]
# Calls from a question to its answer: it has arrived by then, unless ranks are far apart.
_ANSWERED_AFTER = 2
# Calls from one question to the next, before the call _OFTEN_UNTIL and after it: a question costs
# about as much as a small call.
_OFTEN, _SELDOM, _OFTEN_UNTIL = 2, 8, 32
# Backward passes after which a plan is waited for. With a trial of MAX_CALLS, DDP's buckets are
# settled at step 20.
_WAITED_AFTER = 6


class Passes:
    """Counts the backward passes that call a group's collectives, to estimate training steps.

    `count` is their number so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last = -1

    def note(self) -> None:
        """Count the current backward pass, if this thread is in one that is not counted yet."""
        current = torch._C._current_graph_task_id()
        if current >= 0 and current != self._last:
            self._last = current
            self.count += 1


class SizeState:
    """The calls of the collective `key` at one size, and from which call on they use its plan.

    The first calls are left to the stock collective, which starts at once, while a background
    thread finds or makes the plan. At intervals the ranks ask each other whether all of them have
    it, by a small reduction over gloo that no call waits for; two calls later the answer, which is
    the same on all ranks, decides whether the plan is used from there on. After some training
    steps, which `passes` counts, it is used in any case: then the queue waits for the plan, so that
    a short script uses it too.

    `is_ready` returns whether this rank has its plan; `gloo` carries the questions between ranks.
    With `at_once` all calls go through the plan: if the stock collective must not be used, or plans
    were named. `begun` says whether calls use the plan from now on.
    """

    def __init__(
        self, key: Key, gloo: Any, is_ready: Callable[[], bool], passes: Passes, *, at_once: bool
    ) -> None:
        self.key, self.begun = key, at_once
        self._first_planned = 0
        self._gloo, self._is_ready, self._passes = gloo, is_ready, passes
        self._calls = 0
        self._questions: dict[int, tuple[dist.Work, torch.Tensor]] = {}

    def draw_call(self) -> int:
        """Return the number of a new call of this size, counted from 0; call it once per call."""
        self._passes.note()
        self._calls += 1
        return self._calls - 1

    def is_new(self, call: int) -> bool:
        """Return whether the schedule for call number `call` may still be under trial."""
        return not self.begun or call <= self._first_planned + MAX_CALLS

    def is_first(self, call: int) -> bool:
        """Return whether `call` is the first of this size, and waits for all ranks in any case.

        It does if it goes through the plan, or if no rank ends the collective before all begin it.
        """
        return call == 0 and (self.begun or self.key[0] in MEETING)

    def is_known(self, call: int) -> bool:
        """Return whether `uses_plan(call)` can answer without waiting for other ranks."""
        question = self._questions.get(call - _ANSWERED_AFTER)
        return self.begun or question is None or question[0].is_completed()

    def uses_plan(self, call: int) -> bool:
        """Return whether call number `call` goes through the plan.

        Collective: call it for all calls of the size, in their order. Raise RuntimeError if a rank
        does not answer.
        """
        if not self.begun:
            self._hear_answer(call)
        if not self.begun and call % (_OFTEN if call < _OFTEN_UNTIL else _SELDOM) == 1:
            self._ask(call)
        return self.begun

    def _ask(self, call: int) -> None:
        # MIN of two values: 0 if any rank has no plan yet, and minus the passes of the rank that is
        # furthest ahead.
        answer = torch.tensor([int(self._is_ready()), -self._passes.count], dtype=torch.int32)
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._questions[call] = self._gloo.allreduce([answer], options), answer

    def _hear_answer(self, call: int) -> None:
        if call - _ANSWERED_AFTER not in self._questions:
            return
        work, answer = self._questions.pop(call - _ANSWERED_AFTER)
        work.wait()
        all_ready, passes = answer.tolist()
        if all_ready or -passes >= _WAITED_AFTER:
            self._first_planned = call
            self.begun = True
