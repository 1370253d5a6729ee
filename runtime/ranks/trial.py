"""Candidates for a size timed on the calls that the user makes, one candidate a call, until one is
chosen.

Nothing is run for the sake of timing alone: every trial call computes what the user asked for. All
ranks see the same times, so they drop the same candidates and end the trial at the same call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...synth.ir.schedule import Schedule

# Times that a candidate is tried: the first run is also the one in which it is compiled and
# connections warm up.
ROUNDS = 3
MOST_ENTRANTS = 4
# Calls of a trial: all candidates once, then at most all but one of them twice. DDP's buckets come
# once a step.
MOST_CALLS = MOST_ENTRANTS + 2 * (MOST_ENTRANTS - 1)
# A candidate whose best time is this many times the best one's is out: after one round, which is
# uncertain, and later.
_SLOW_AT_FIRST, _SLOW = 3.0, 1.6

# A schedule, or None for the stock collective.
Entrant = Schedule | None


class Trial:
    """The candidates for one size and their times.

    `others` are to be tried where `expected`, which won in an earlier launch, does not win.
    """

    def __init__(
        self, entrants: Sequence[Entrant], expected: Entrant = None, others: Sequence[Entrant] = ()
    ) -> None:
        self.expected, self.others = expected, others
        self._times_s: dict[Entrant, list[float]] = {
            entrant: [] for entrant in entrants[:MOST_ENTRANTS]
        }
        self._left = list(self._times_s)
        self._round = 1
        self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether all candidates have been tried as often as it takes."""
        return self._round > ROUNDS

    @property
    def entrant(self) -> Entrant:
        """The candidate whose turn it is."""
        return self._left[self._next]

    @property
    def first_schedule(self) -> Schedule:
        """One of the schedules, for calls that the stock collective cannot carry out."""
        return next(entrant for entrant in self._times_s if entrant is not None)

    def record(self, seconds: float) -> None:
        """Note how long the call of the candidate whose turn it was took on all ranks together."""
        self._times_s[self.entrant].append(seconds)
        self._next += 1
        if self._next == len(self._left):
            self._end_round()

    def best_s(self) -> dict[Entrant, float]:
        """Return each candidate's best time: what disturbs a call only makes it longer, and few
        calls are timed.
        """
        return {entrant: min(times) for entrant, times in self._times_s.items() if times}

    def _end_round(self) -> None:
        """Drop who is slow, and let those that are left begin the next round in another order."""
        best = self.best_s()
        fastest = min(best.values())
        limit = _SLOW_AT_FIRST if self._round == 1 else _SLOW
        ranked = sorted((x for x in self._left if best[x] <= limit * fastest), key=best.__getitem__)
        self._left = ranked[: MOST_ENTRANTS - 1]
        # What was called before slows a call down: who was last comes first.
        self._left.reverse()
        self._round, self._next = self._round + 1, 0
        if len(self._left) == 1:
            self._round = ROUNDS + 1
