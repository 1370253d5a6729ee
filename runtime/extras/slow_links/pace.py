"""Decide from the durations of calls when to measure links: when calls have become slower.

All ranks decide alike, from durations that they have agreed on. A period is the calls from one
agreement to the next (watch.py).
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

# Calls that take this many times their usual duration are suspicious: medians of a few calls vary
# by a tenth on busy hosts.
_SLOW = 1.2
# Suspicious periods in a row, and calls in them, before links are measured: a host may be busy for
# a moment. A period of long calls has one.
_CONFIRMATIONS, _SLOW_CALLS = 2, 3
# The next measurement comes after this many times what the last one took, but not before _PAUSE_S;
# the pause doubles as long as nothing changes, to at most _MAX_PAUSE_S. After a change only the few
# links that are slow are measured again, which takes a fraction of the time.
_OVER_COST, _OVER_COST_OF_ALL, _PAUSE_S, _MAX_PAUSE_S = 20.0, 5.0, 5.0, 600.0


class Pace:
    """The usual durations of a communicator's calls, by size, and when to measure links next.

    Moments (`now_s`) are in seconds since a moment that is the same on all ranks; a size is the
    number of bytes of a call's buffer.
    """

    def __init__(self) -> None:
        self.usual_s: dict[int, float] = {}
        """The shortest median of a period so far, by the size."""
        self.spent_s: dict[int, float] = {}
        """What the calls of the last period took together, by the size."""
        self._slow_periods = self._slow_calls = 0
        self._next_s = self._pause_s = 0.0

    def note_period(self, calls: Sequence[tuple[int, float]]) -> None:
        """Record the calls of a period, each as (size in bytes, seconds)."""
        by_size: dict[int, list[float]] = defaultdict(list)
        for size, seconds in calls:
            by_size[size].append(seconds)
        medians = {size: statistics.median(times) for size, times in by_size.items()}
        self.spent_s = {size: sum(times) for size, times in by_size.items()}
        known = medians.keys() & self.usual_s.keys()
        spent, usual = (
            sum(durations[size] * len(by_size[size]) for size in known)
            for durations in (medians, self.usual_s)
        )
        if spent > _SLOW * usual:
            self._slow_periods += 1
            self._slow_calls += len(calls)
            return
        self._slow_periods = self._slow_calls = 0
        for size, median in medians.items():
            self.usual_s[size] = min(median, self.usual_s.get(size, median))

    def is_suspicious(self, now_s: float) -> bool:
        """Return whether calls have been slow for long enough to measure all links now."""
        return self._is_confirmed and now_s >= self._next_s

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last calls were slow, but not yet often enough to measure links."""
        return self._slow_periods > 0 and not self._is_confirmed

    @property
    def _is_confirmed(self) -> bool:
        return self._slow_periods >= _CONFIRMATIONS and self._slow_calls >= _SLOW_CALLS

    def is_return_due(self, now_s: float) -> bool:
        """Return whether it is time to measure slow links again, to see whether they recovered."""
        return now_s >= self._next_s

    def note_measurement(self, now_s: float, cost_s: float, *, has_changed: bool) -> None:
        """Record that a measurement of links has ended at `now_s`, which took `cost_s`.

        `cost_s` is in seconds. If the measurement changed the plan (`has_changed`), usual durations
        are learnt anew, and the pause before the next measurement is the shortest that the cost
        allows. Otherwise the pause is at least twice the last one, up to a limit.
        """
        over = _OVER_COST_OF_ALL if has_changed else _OVER_COST
        least_s = max(_PAUSE_S, over * cost_s)
        self._pause_s = least_s if has_changed else max(least_s, 2 * self._pause_s)
        self._next_s = now_s + min(self._pause_s, _MAX_PAUSE_S)
        self._slow_periods = self._slow_calls = 0
        if has_changed:
            self.usual_s.clear()
