"""Time the candidates for a size on the user's own calls, one candidate per call.

Nothing runs for timing alone: every trial call is a call of the user's. All ranks see the same
times, so they drop the same candidates and end the trial at the same call.
"""

from collections.abc import Sequence

from ...synth.ir.schedule import Schedule

# Runs per candidate: in the first one it is compiled, and connections warm up.
ROUNDS = 3
MAX_ENTRANTS = 4  # candidates; each costs a call at its own, perhaps slow, speed
# Calls of a trial: all candidates once, then at most all but one of them twice. DDP calls each
# bucket once per step.
MAX_CALLS = MAX_ENTRANTS + 2 * (MAX_ENTRANTS - 1)
# A candidate is dropped at this multiple of the best time: after one round, which is uncertain, and
# later.
_SLOW_AT_FIRST, _SLOW = 3.0, 1.6

# A schedule, or None for the stock collective.
Entrant = Schedule | None


class Trial:
    """The candidates for one size and their times.

    `others` are tried only if `expected`, which won in an earlier launch, does not win.
    """

    def __init__(
        self, entrants: Sequence[Entrant], expected: Entrant = None, others: Sequence[Entrant] = ()
    ) -> None:
        self.expected, self.others = expected, others
        self._times_s: dict[Entrant, list[float]] = {
            entrant: [] for entrant in entrants[:MAX_ENTRANTS]
        }
        self._left = list(self._times_s)
        self._round = 1
        self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether all candidates have been tried often enough."""
        return self._round > ROUNDS

    @property
    def entrant(self) -> Entrant:
        """The candidate for the next call."""
        return self._left[self._next]

    @property
    def first_schedule(self) -> Schedule:
        """One of the schedules, for calls that the stock collective cannot carry out."""
        return next(entrant for entrant in self._times_s if entrant is not None)

    def record(self, seconds: float) -> None:
        """Record the time of the current candidate's call over all ranks."""
        self._times_s[self.entrant].append(seconds)
        self._next += 1
        if self._next == len(self._left):
            self._end_round()

    def best_s(self) -> dict[Entrant, float]:
        """Return each candidate's best time in seconds.

        Disturbances only add time, and few calls are timed.
        """
        return {entrant: min(times) for entrant, times in self._times_s.items() if times}

    def _end_round(self) -> None:
        """Drop slow candidates, and start the next round in another order."""
        best = self.best_s()
        fastest = min(best.values())
        limit = _SLOW_AT_FIRST if self._round == 1 else _SLOW
        ranked = sorted((x for x in self._left if best[x] <= limit * fastest), key=best.__getitem__)
        self._left = ranked[: MAX_ENTRANTS - 1]
        # The call before can slow a call down: the slowest candidate comes first, the fastest last.
        self._left.reverse()
        self._round, self._next = self._round + 1, 0
        if len(self._left) == 1:
            self._round = ROUNDS + 1
