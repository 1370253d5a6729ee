"""Time several calls against each other on all ranks, until the fastest is certain enough."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .timing import time_call_s
from .transport import Transport

# A race has as many turns as fit into _RACE_S, within these limits. Two would not do, since neither
# time is the median.
_RACE_S = 0.5
_MIN_TURNS, _MAX_TURNS = 3, 9
# A race has more turns if _MAX_TURNS of them take less than 30 ms, since short calls are easily
# disturbed.
_SHORT_RACE_S = 0.03
# Times that a race is extended, by as many turns as before, while the spread leaves the winner
# open, within _RACE_S altogether: long calls are seldom disturbed as much.
_EXTENSIONS = 3
# _FIRST_TURNS turns decide whether a call is hopeless if they take less than _FIRST_RACE_S at the
# best call's time; otherwise one does. On a crowded host a call of 1 ms is often delayed by several
# ms, and MPI's own collective once was by 400 ms: a single turn says nothing about such a call.
_FIRST_TURNS = 3
_FIRST_RACE_S = 0.1
# A candidate is dropped at this multiple of the best time, both in its very first run and in the
# best of the first turns.
_HOPELESS = 1.6
# Fraction of the winner's time that is not worth more turns; plans must beat stock by as much.
_FINE = 0.05
# Standard errors by which medians must differ: the winner is then right 97 times of 100.
_SIGMAS = 2.0
# Standard error of the median of n normally distributed times, times sqrt(n), in interquartile
# ranges: sqrt(pi / 2) sigma, and the range is 1.349 sigma.
_ERROR_OF_MEDIAN = 1.2533 / 1.349


@dataclass(frozen=True)
class Turns:
    """Time calls that all ranks of a transport make; `what` names their purpose in errors."""

    transport: Transport
    what: str

    def measure_turn_s(self, calls: Sequence[Callable[[], None]]) -> list[float]:
        """Return the slowest rank's seconds of each call, made once. Collective."""
        transport, seconds = self.transport, []
        for call in calls:
            with transport.faults.stock(self.what):
                seconds.append(time_call_s(call, transport.meet, transport.device))
        with transport.faults.stock(f"the times of {self.what}"):
            return transport.find_slowest_s(seconds)

    def measure_medians_s(self, calls: Sequence[Callable[[], None]]) -> list[float]:
        """Return each call's median seconds over several turns, equal on all ranks. Collective.

        A call that is hopeless at its very first run and in the first turns gets no more turns. If
        only one call is left, the times are the shortest ones of the first turns.
        """
        unprepared = self.measure_turn_s(calls)  # compiles the calls, and touches their buffers
        first = [self.measure_turn_s(calls)]
        if min(first[0]) * len(calls) * _FIRST_TURNS < _FIRST_RACE_S:
            first += [self.measure_turn_s(calls) for _ in range(1, _FIRST_TURNS)]
        shortest = [min(times) for times in zip(*first, strict=True)]
        best = min(shortest)
        is_hopeless = [min(x) > best * _HOPELESS for x in zip(shortest, unprepared, strict=True)]
        times = {i: [turn[i] for turn in first] for i in range(len(calls))}
        racing = {i: times[i] for i, out in enumerate(is_hopeless) if not out}
        if len(racing) == 1:
            return shortest  # medians of so few turns may have another order
        self._race_on(calls, racing, best * len(racing))
        return [statistics.median(times[i]) for i in range(len(calls))]

    def _race_on(
        self, calls: Sequence[Callable[[], None]], times: dict[int, list[float]], turn_s: float
    ) -> None:
        """Add to `times` those of more turns, of about `turn_s` seconds each. Collective."""
        fitting = min(max(_MAX_TURNS, int(_SHORT_RACE_S / turn_s)), int(_RACE_S / turn_s))
        planned = max(_MIN_TURNS - 1, fitting)
        extension = min(planned, int(_RACE_S / turn_s / _EXTENSIONS))
        for turns in (planned, *[extension] * _EXTENSIONS):
            for _ in range(turns):
                # The call before can slow a call down, so each turn has another order, equal on all
                # ranks.
                number = len(next(iter(times.values())))
                order = random.Random(number).sample(sorted(times), len(times))
                seconds = self.measure_turn_s([calls[i] for i in order])
                for i, taken in zip(order, seconds, strict=True):
                    times[i].append(taken)
            if not is_open(list(times.values())):
                return


def is_open(times_s: Sequence[Sequence[float]]) -> bool:
    """Return whether the spread of times leaves the fastest call uncertain.

    It does if a median is not _SIGMAS standard errors above the smallest, and these errors are not
    small themselves. Each call needs at least two times.
    """
    medians = [statistics.median(times) for times in times_s]
    errors = [_find_error_of_median(times) for times in times_s]
    winner = min(range(len(medians)), key=medians.__getitem__)
    for i, median in enumerate(medians):
        doubt = _SIGMAS * math.hypot(errors[i], errors[winner])
        lead = median - medians[winner]
        if i != winner and lead < doubt and doubt > _FINE * medians[winner]:
            return True
    return False


def _find_error_of_median(times_s: Sequence[float]) -> float:
    lower, _, upper = statistics.quantiles(times_s, n=4, method="inclusive")
    return _ERROR_OF_MEDIAN * (upper - lower) / math.sqrt(len(times_s))
