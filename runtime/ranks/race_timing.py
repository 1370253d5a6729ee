"""Time the entrants of a race on all ranks: by calls for timing alone, or on users' calls.

A race finds the fastest way to carry out a collective at one size; an entrant is a candidate
(schedule) or the stock collective, the backend's own. A heat is a round of a race. In turns of
calls for timing, each entrant runs once per turn, until the fastest is certain enough. In a trial
nothing runs for timing alone: each entrant gets some of the user's calls. All ranks see the same
times, so they drop the same entrants and end the trial at the same call.
"""

import math
import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from .timing import time_call_s
from .transport import Transport

# A race has as many turns as fit into _RACE_S, within these limits. Of two times, the median is the
# mean, which a single delay spoils.
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

# Runs per candidate: in the first one it is compiled, and connections warm up.
ROUNDS = 3
MAX_ENTRANTS = 4  # candidates; each costs a call at its own, perhaps slow, speed
# Calls of a trial: all candidates once, then at most all but one of them twice. DDP calls each
# bucket once per step.
MAX_CALLS = MAX_ENTRANTS + 2 * (MAX_ENTRANTS - 1)
# A candidate is dropped at this multiple of the best time: after one round, which is uncertain, and
# later.
_SLOW_AT_FIRST, _SLOW = 3.0, 1.6
# The multiples for calls that take _LONG_S and more: delays are short compared with them, though a
# first call, with the program to be made and connections to warm up, took 1.2 times as long.
_LONG_S, _SLOW_AT_FIRST_IF_LONG, _SLOW_IF_LONG = 0.3, 1.3, 1.15

# Tries of an earlier winner. The shortest times count, since a busy host delays one call in three.
_TRIES = 3
# A successful try that takes longer is the last: delays are seldom long compared with such calls.
_LONG_TRY_S = 0.1

E = TypeVar("E", bound=Hashable)


@dataclass(frozen=True)
class Tried:
    """Whether an earlier result still holds, and each call's shortest seconds in the tries."""

    holds: bool
    seconds: list[float]


@dataclass(frozen=True)
class RaceTimer:
    """Times calls that all ranks of a transport make; `what` names their purpose in errors.

    A transport is a group of ranks with what carries their messages. If a rank fails, all methods
    raise ExecutionError.
    """

    transport: Transport
    what: str

    def measure_turn_s(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Return, for each call, the slowest rank's seconds of running it once. Collective."""
        transport, seconds = self.transport, []
        for call in calls:
            with transport.faults.stock(self.what):
                seconds.append(time_call_s(call, transport.meet, transport.device))
        with transport.faults.stock(f"the times of {self.what}"):
            return transport.find_slowest_s(seconds)

    def measure_medians_s(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Return each call's median seconds over several turns, equal on all ranks. Collective.

        Each call first runs once to be compiled. Calls that are much slower than the fastest, then
        and in the first few turns, get no more turns. If only one call is left, the times are the
        shortest ones of the first turns.
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

    def try_again(
        self, calls: Sequence[Callable[[], object]], expected_s: float, near_s: float
    ) -> Tried:
        """Check whether the first call takes `expected_s` seconds, give or take `near_s`.

        It must also be the fastest. Return whether both hold, with each call's shortest seconds.
        Collective.
        """
        self.measure_turn_s(calls)  # warm-up: compiles the programs and touches the buffers
        tries_s: list[list[float]] = []
        is_near = is_beaten = False
        shortest: list[float] = []
        for _ in range(_TRIES):
            tries_s.append(self.measure_turn_s(calls))
            shortest = [min(times) for times in zip(*tries_s, strict=True)]
            is_near |= abs(tries_s[-1][0] - expected_s) <= near_s
            is_beaten = any(shortest[0] > other for other in shortest[1:])
            if is_near and not is_beaten and sum(tries_s[-1]) > _LONG_TRY_S:
                break
        return Tried(is_near and not is_beaten, shortest)

    def _race_on(
        self, calls: Sequence[Callable[[], object]], times: dict[int, list[float]], turn_s: float
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
    """Return whether the spread of times leaves it uncertain which call is the fastest.

    `times_s` has for each call the seconds of at least two runs. It is certain if every other
    median is _SIGMAS standard errors above the smallest one, or if these errors are small
    themselves.
    """
    medians = [statistics.median(times) for times in times_s]
    quartiles = [statistics.quantiles(times, n=4, method="inclusive") for times in times_s]
    errors = [
        _ERROR_OF_MEDIAN * (upper - lower) / math.sqrt(len(times))
        for (lower, _, upper), times in zip(quartiles, times_s, strict=True)
    ]
    winner = min(range(len(medians)), key=medians.__getitem__)
    doubts = [_SIGMAS * math.hypot(error, errors[winner]) for error in errors]
    return any(
        i != winner and median - medians[winner] < doubt and doubt > _FINE * medians[winner]
        for i, (median, doubt) in enumerate(zip(medians, doubts, strict=True))
    )


class Trial(Generic[E]):
    """A heat on the user's own calls; None among the `entrants` stands for the stock collective.

    At most MAX_ENTRANTS take turns, one call each per round; the slow ones drop out. `before` has
    the best times in seconds of earlier heats.
    """

    def __init__(
        self,
        entrants: Sequence[E | None],
        before: Mapping[E | None, float] = MappingProxyType({}),
    ) -> None:
        self._before = before
        self._times_s: dict[E | None, list[float]] = {
            entrant: [] for entrant in entrants[:MAX_ENTRANTS]
        }
        self._left = list(self._times_s)
        self._round, self._next = 1, 0

    @property
    def entrants(self) -> list[E | None]:
        """The entrants with a place in the heat, timed or not, in order of their first turns."""
        return list(self._times_s)

    @property
    def is_over(self) -> bool:
        """Whether all rounds are over, or at most one entrant is left."""
        return self._round > ROUNDS

    @property
    def entrant(self) -> E | None:
        """The entrant for the next call, None for the stock collective."""
        return self._left[self._next]

    def record(self, seconds: float) -> None:
        """Record the seconds of `entrant`'s call, and give the next entrant its turn.

        They are the slowest rank's, so the same on all ranks.
        """
        self._times_s[self.entrant].append(seconds)
        self._next += 1
        if self._next == len(self._left):
            self._end_round()

    def best_s(self) -> dict[E | None, float]:
        """Return the shortest time in seconds of each entrant that has been timed.

        Disturbances only add time, and few calls are timed, so this is better than a median.
        """
        timed = {entrant: min(times) for entrant, times in self._times_s.items() if times}
        return {**self._before, **timed}

    def _end_round(self) -> None:
        """Drop slow candidates, and start the next round in another order."""
        best = self.best_s()
        best_s, slow = min(best.values()), _SLOW_AT_FIRST if self._round == 1 else _SLOW
        if best_s >= _LONG_S:
            slow = _SLOW_AT_FIRST_IF_LONG if self._round == 1 else _SLOW_IF_LONG
        ranked = sorted((x for x in self._left if best[x] <= slow * best_s), key=best.__getitem__)
        # The call before can slow a call down: the slowest candidate comes first, the fastest last.
        self._left = ranked[: MAX_ENTRANTS - 1][::-1]
        self._round, self._next = self._round + 1, 0
        if len(self._left) < 2:  # none, if all are far slower than those of earlier heats
            self._round = ROUNDS + 1
