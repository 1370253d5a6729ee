"""From which call on a collective of one size goes through its plan, alike on all ranks.

The first calls of a size are left to the stock collective, which starts at once, while a thread of its own finds or makes the
plan. At two of these calls the ranks ask each other whether all of them have it, by a small reduction of gloo's that nobody
waits for. Two calls later the answer, which is the same on all ranks, says whether the plan is used from there on. At the
last of the first calls the queue waits for the plan, so that a training script that runs for some twenty steps gets to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from ..trial import MOST_CALLS

Key = tuple[str, int | None, str]
"""A collective, its root, and the type of device of its tensors."""

ASKED_AT = (1, 3)
"""Numbers of the calls of a size at which ranks ask whether all have the plan."""
_ANSWERED_AFTER = 2
"""Calls from a question to its answer: by then it has come, where ranks are not far apart."""
WAITED_AT = 7
"""Number of the call at which a plan is waited for. With the trial's calls all is settled at step 20 of DDP's."""


LAST_NEW_CALL = WAITED_AT + MOST_CALLS
"""Number of the call of a size at which it is settled, or was before."""


class Size:
    """The calls of the collective `key` at one size. `is_ready` says whether this rank has its plan; `gloo` carries questions.

    With `at_once` all calls go through the plan: where the stock collective must not be used, or plans were named.
    """

    def __init__(self, key: Key, gloo: Any, is_ready: Callable[[], bool], *, at_once: bool) -> None:
        self.key, self.begun = key, at_once
        self._gloo, self._is_ready = gloo, is_ready
        self._calls = 0
        self._question: tuple[dist.Work, torch.Tensor] | None = None

    def draw_call(self) -> int:
        """Return the number of a call of this size that is being made."""
        self._calls += 1
        return self._calls - 1

    def is_known(self, call: int) -> bool:
        """Return whether `uses_plan` need not wait for an answer."""
        if self.begun or call - _ANSWERED_AFTER not in ASKED_AT:
            return True
        return self._question is not None and self._question[0].is_completed()

    def uses_plan(self, call: int) -> bool:
        """Return whether a call goes through the plan. Collective: called for all calls of the size, in their order.

        Raises RuntimeError where a rank does not answer.
        """
        if not self.begun:
            self.begun = call >= WAITED_AT or (call - _ANSWERED_AFTER in ASKED_AT and self._hear_answer())
        if not self.begun and call in ASKED_AT:
            self._ask()
        return self.begun

    def _ask(self) -> None:
        answer = torch.tensor([int(self._is_ready())], dtype=torch.int32)
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._question = self._gloo.allreduce([answer], options), answer

    def _hear_answer(self) -> bool:
        assert self._question is not None
        work, answer = self._question
        self._question = None
        work.wait()
        return bool(answer.item())
