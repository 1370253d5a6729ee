"""The time limit of a command in phases that are no searches: building, reading, routing.

Searches have an allowance of work and time (synth/numeric/effort.py). Before they begin, and
between them, large machines take minutes for steps that cannot be left out. Such a step passes the
items of its longest loop through `pace`, which reports progress and ends the step when the time is
over. The limit is that of the running command: it is no parameter of what the command calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from .errors import TimeLimitError

_Item = TypeVar("_Item")
# Items between two looks at the clock: 10 to 50 ms of the loops that use it.
_BATCH = 4096


@dataclass(frozen=True)
class _Limit:
    """The end of the command's time on time.monotonic, and its limit in seconds."""

    ends_at: float
    limit_s: float
    say: Callable[[str], None]


_limit: ContextVar[_Limit | None] = ContextVar("_limit", default=None)


@contextmanager
def limit_time(
    began: float, limit_s: float, say: Callable[[str], None], *, least_s: float = 0.0
) -> Iterator[None]:
    """Let `pace` stop what takes longer than `limit_s` seconds since `began` (time.monotonic).

    At least `least_s` seconds from now on are left in any case. `say` receives what is being done.
    """
    ends_at = max(began + limit_s, time.monotonic() + least_s)
    token = _limit.set(_Limit(ends_at, limit_s, say))
    try:
        yield
    finally:
        _limit.reset(token)


def pace(items: Iterable[_Item], what: str, *, batch: int = _BATCH) -> Iterable[_Item]:
    """Return the items, with progress and the time limit in mind while they are taken.

    `what` names the step in a message, as "building links"; the clock is looked at every `batch`
    items. Without `limit_time`, it returns `items`. Raise TimeLimitError when the time is over.
    """
    limit = _limit.get()
    return items if limit is None else _take(items, what, batch, limit)


def _take(items: Iterable[_Item], what: str, batch: int, limit: _Limit) -> Iterator[_Item]:
    rest, done = iter(items), 0
    while taken := list(islice(rest, batch)):
        if done:
            limit.say(f"{what}: {done:,}")
        if done and time.monotonic() > limit.ends_at:
            raise TimeLimitError(
                f"the time limit of {limit.limit_s:g} s was over after {done:,} steps of {what}; "
                "a machine of this size needs a longer one",
                parameter="time_limit",
            )
        yield from taken
        done += len(taken)
