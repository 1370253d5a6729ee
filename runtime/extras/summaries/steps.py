"""The times of a training script's steps, told apart by what their calls ran by.

A step ends where the optimizer that stepped first in this process steps again: torch calls a hook
there, whatever made the calls. It is a step by stock if all its calls ran by the stock collective,
as they do before plans begin and in turns of a race, and one by plans if a plan's schedule carried
out some and none of its sizes still raced. Steps of other kinds are left out.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...candidates import STOCK
from ...ranks.launch import announce_step

# A process's first steps are left out: memory is allocated, and DDP rebuilds its buckets.
_WARM_UP_STEPS = 2
# Steps of each kind that a median needs; of two it would be the mean, which one delay spoils.
_FEWEST_STEPS = 3
# Times of steps of a kind that are kept, the latest ones.
_MOST_STEPS = 1_000
_PLAN, _RACE = "plan", "race"


@dataclass(frozen=True)
class StepTimes:
    """Median seconds of steps by stock and by plans, None of kinds with too few steps.

    `stock_steps` and `plan_steps` are how many steps of each kind there were.
    """

    stock_s: float | None
    plan_s: float | None
    stock_steps: int
    plan_steps: int


class StepClock:
    """Times the steps of this process once `start` has been called; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._is_on = clock, False
        self._optimizer: weakref.ref[Any] | None = None
        self._began_s: float | None = None
        self._steps = 0
        self._kinds: set[str] = set()
        self._times_s = {kind: deque[float](maxlen=_MOST_STEPS) for kind in (STOCK, _PLAN)}
        self._counts = dict.fromkeys((STOCK, _PLAN), 0)

    def start(self) -> None:
        """Have torch call `end_step` after each step of an optimizer, from now on."""
        if not self._is_on:
            self._is_on = True
            register_optimizer_step_post_hook(self.end_step)

    def note(self, label: str, *, is_racing: bool = False) -> None:
        """Take note that a call ran by `label`, a schedule's or STOCK; `is_racing`: in a race."""
        self._kinds.add(STOCK if label == STOCK else _RACE if is_racing else _PLAN)

    def end_step(self, optimizer: Any, *_: Any) -> None:
        """Note the time of the step that ends here, unless it is another optimizer's."""
        if torch.compiler.is_compiling():  # a traced step, in which no time passes
            return
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer, self._steps = weakref.ref(optimizer), 0
        elif first is not optimizer:
            return
        announce_step()
        now_s, kinds = self._clock(), self._kinds
        began_s, self._began_s, self._kinds = self._began_s, now_s, set()
        self._steps += 1
        if began_s is None or self._steps <= _WARM_UP_STEPS or not kinds or _RACE in kinds:
            return
        kind = _PLAN if _PLAN in kinds else STOCK
        self._counts[kind] += 1
        self._times_s[kind].append(now_s - began_s)

    @property
    def times(self) -> StepTimes | None:
        """The times so far, None before any step of either kind."""
        if not any(self._counts.values()):
            return None
        medians = {
            kind: statistics.median(times_s) if len(times_s) >= _FEWEST_STEPS else None
            for kind, times_s in self._times_s.items()
        }
        return StepTimes(medians[STOCK], medians[_PLAN], self._counts[STOCK], self._counts[_PLAN])
