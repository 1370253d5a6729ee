"""Candidates: schedules with the runner that carries each out; and the one chosen for a size.

A schedule lists the sends and additions of a collective. A runner carries schedules out, such as by
messages. The stock collective is gloo's or NCCL's own. A race times candidates and keeps the
fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..synth.ir.schedule import Schedule

# The runner that sends a schedule's messages over the links of a group.
MESSAGES: Final = "messages"
# The label of the stock collective, among those of schedules.
STOCK: Final = "stock"


@dataclass(frozen=True)
class Candidate:
    """A way to carry out a collective, compared by value.

    `runner` names what carries out the `schedule`; `way` says how, for tables ("one-sided,
    pushed"), "" if nothing needs saying. Other attributes (`strategy`, `segments`, `transfers`,
    ...) are those of its schedule, so that functions which choose among schedules need not know of
    runners.
    """

    schedule: Schedule
    runner: str = MESSAGES
    way: str = ""

    @property
    def label(self) -> str:
        """The schedule's label, with how it is carried out: "direct, one-sided"."""
        return f"{self.schedule.label}, {self.way}" if self.way else self.schedule.label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "schedule":  # asked for by copy before there is one
            raise AttributeError(name)
        return getattr(self.schedule, name)


@dataclass(frozen=True)
class Choice:
    """The choice for a size: `candidate`, or None for the stock collective.

    `own` is the plan's candidate for a dtype that the backend has no stock collective for: the
    fastest of a race; without a race `candidate`, or the plan's first. `predict_us(size_bytes)`
    returns the predicted microseconds, None without a prediction. `raced` has the median
    microseconds of the candidates by label, and is empty without a race; that race was at
    `raced_bytes` bytes, on the ISO date `raced_on`.
    """

    candidate: Candidate | None
    own: Candidate
    predict_us: Callable[[int], float | None]
    raced: dict[str, float]
    raced_bytes: int | None = None
    raced_on: str | None = None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the candidate, None for the stock collective."""
        return None if self.candidate is None else self.candidate.schedule

    @property
    def label(self) -> str:
        """The name of the chosen schedule in tables; "stock" for the stock collective."""
        return label_of(self.candidate)

    def describe(self) -> str:
        """Format the choice, and a row per candidate that raced, the fastest first, as text."""
        if not self.raced:
            return f"used: {self.label}, chosen without a race"
        width = max(len("schedule"), *map(len, self.raced))
        rows = [
            f"{label:{width}}  {time_us:10.1f}{'  used' if label == self.label else ''}"
            for label, time_us in sorted(self.raced.items(), key=lambda item: item[1])
        ]
        return "\n".join([f"used: {self.label}", f"{'schedule':{width}}  {'median us':>10}", *rows])

    def __repr__(self) -> str:
        return f"<Choice {self.label}{f', {len(self.raced)} raced' if self.raced else ''}>"


def label_of(candidate: Candidate | None) -> str:
    """Return the name of a candidate in tables; "stock" for None, the stock collective."""
    return STOCK if candidate is None else candidate.label
