"""Races: which way to carry out a collective takes the least time at one size.

The entrants are candidates (schedules, each with a way to carry it out) and None, which stands for
the stock collective, the backend's own. A race goes in heats, whose entrants are timed against each
other. All ranks see the same times, so they hold the same race. There is one rule of decision, and
there are two ways to time a heat: by calls on scratch memory that are made for timing alone
(`RaceTimer`), of one group or of several at once, and on the calls that users make (`OnCalls`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Generic, TypeVar

from .ranks.race_timing import RaceTimer, Trial

E = TypeVar("E", bound=Hashable)
F = TypeVar("F", bound=Hashable)

# An entrant must take less than this fraction of the usual one's time, because several stock
# collectives can be in progress at once.
WORTHWHILE = 0.95
# The fraction for usual times shorter than _SHORT_S: short times are less certain.
_SHORT_S, _WORTHWHILE_SHORT = 1e-3, 0.85
# A cached winner races again if all tries differ from the cached time by more than this fraction.
FAR_OFF = 0.5


def is_worthwhile(own_s: float, usual_s: float, *, short: float = _WORTHWHILE_SHORT) -> bool:
    """Return whether an entrant, with `own_s` seconds, beats the usual one by enough to replace it.

    It may take 0.95 of `usual_s`, or the fraction `short` of it where that is less than 1 ms.
    """
    return own_s <= (short if usual_s < _SHORT_S else WORTHWHILE) * usual_s


@dataclass(frozen=True)
class Outcome(Generic[E]):
    """The result of a race: `winner` is the entrant to use, None for the stock collective.

    `own` is the fastest entrant apart from stock. `times_s` has the seconds of every entrant, and
    `raced_on` is the ISO date of the race.
    """

    winner: E | None
    own: E
    times_s: Mapping[E | None, float]
    raced_on: str


@dataclass(frozen=True)
class Expected(Generic[E]):
    """The result of an earlier race, to be checked: the winner, its seconds `time_s`, and `own`.

    `own` is the fastest entrant apart from stock. `raced_us` has that race's microseconds by label,
    `raced_on` its ISO date.
    """

    winner: E | None
    own: E
    time_s: float
    raced_us: dict[str, float]
    raced_on: str

    def translate(self, find: Callable[[E], F]) -> Expected[F]:
        """Return the same result with each entrant replaced by what `find` returns for it."""
        winner = None if self.winner is None else find(self.winner)
        return Expected(winner, find(self.own), self.time_s, self.raced_us, self.raced_on)


def _nothing_more(times_s: Mapping[E | None, float]) -> Sequence[E]:
    return []


class Race(Generic[E]):
    """A race between `entrants`, None among them for the stock collective.

    `heat` has the entrants to time next, and is empty at the end; then `outcome` is the result,
    None if `expected` holds. `usual` is used unless another entrant is worthwhile; if that is
    stock, and stock does not race, the fastest wins. `refine` returns, by the times so far, what
    else is worth a heat beside the fastest. If an earlier result is `expected`, the first heat is
    between its winner and stock, and the others follow only if it does not hold. `short` is the
    fraction of a short usual time that a winner may take.
    """

    def __init__(
        self,
        entrants: Sequence[E | None],
        *,
        usual: E | None = None,
        refine: Callable[[Mapping[E | None, float]], Sequence[E]] = _nothing_more,
        expected: Expected[E] | None = None,
        short: float = _WORTHWHILE_SHORT,
    ) -> None:
        self.entrants, self.usual, self.expected = [*entrants], usual, expected
        self._refine, self._short = refine, short
        self.times_s: dict[E | None, float] = {}
        self.outcome: Outcome[E] | None = None
        """How it ended; None while it goes on, and where scratch memory shows that what was
        expected holds.
        """
        self.surprise: Mapping[E | None, float] | None = None
        """The seconds of the heat that shows that what was expected does not hold."""
        self.heat: list[E | None] = [*entrants]
        """The entrants to be timed next; empty once the race has ended."""
        if expected is not None:
            self.heat = [*([None] if None in entrants else []), expected.own]

    def end_heat(self, times_s: Mapping[E | None, float]) -> None:
        """Note the seconds of the heat's entrants, and begin the next heat, or end the race."""
        if self.expected is not None:
            outcome = self.decide(times_s)
            self.end_try(times_s, holds=outcome.winner == self.expected.winner)
            self.outcome = None if self.heat else outcome
            return
        self.times_s |= times_s
        fresh = [x for x in self._refine(self.times_s) if x not in self.times_s]
        if fresh:
            fastest = min(self.times_s, key=self.times_s.__getitem__)
            self.heat = [self._find_own(self.times_s) if fastest is None else fastest, *fresh]
        else:
            self.heat, self.outcome = [], self.decide(self.times_s)

    def end_try(self, times_s: Mapping[E | None, float], *, holds: bool) -> None:
        """End the heat that checked the expected result: accept it if it `holds`, else race anew.

        `times_s` has the seconds of the heat's entrants.
        """
        if holds:
            self.heat = []
        else:
            self.heat, self.expected, self.surprise = [*self.entrants], None, times_s

    def decide(self, times_s: Mapping[E | None, float]) -> Outcome[E]:
        """Return the outcome that follows from the entrants' times in seconds."""
        fastest = min(times_s, key=times_s.__getitem__)
        own, usual_s = self._find_own(times_s), times_s.get(self.usual, float("inf"))
        challenger = own if self.usual is None else fastest
        time_s = times_s[challenger]
        wins = is_worthwhile(time_s, usual_s, short=self._short)
        winner = challenger if wins else self.usual
        return Outcome(winner, own, dict(times_s), date.today().isoformat())

    @staticmethod
    def _find_own(times_s: Mapping[E | None, float]) -> E:
        return min((x for x in times_s if x is not None), key=times_s.__getitem__)


def race_on_scratch(
    race: Race[E], turns: RaceTimer, run: Callable[[E | None], object]
) -> Outcome[E] | None:
    """Hold a race by calls for timing alone, each by `run(entrant)`; return its outcome.

    `turns` times the calls on all ranks. Return None if the expected result holds: its winner takes
    about as long as it did, and less than the stock collective. Collective; raises ExecutionError
    on every rank if one of them fails.
    """

    def list_calls(entrants: Sequence[E | None]) -> list[Callable[[], object]]:
        return [partial(run, entrant) for entrant in entrants]

    expected = race.expected
    if expected is not None:
        # A stock collective that has won is compared with its own time alone.
        tried = [expected.winner, *([] if expected.winner is None else race.heat[:-1])]
        tried_s = turns.try_again(list_calls(tried), expected.time_s, FAR_OFF * expected.time_s)
        race.end_try(dict(zip(tried, tried_s.seconds, strict=True)), holds=tried_s.holds)
    while race.heat:
        entrants = race.heat
        medians_s = turns.measure_medians_s(list_calls(entrants))
        race.end_heat(dict(zip(entrants, medians_s, strict=True)))
    return race.outcome


class OnCalls(Generic[E]):
    """A race on the calls that users make: each is carried out by the `entrant` whose turn it is.

    `calls` counts the calls that were timed.
    """

    def __init__(self, race: Race[E]) -> None:
        self.race, self.calls = race, 0
        self._trial = Trial[E](race.heat)

    @property
    def entrant(self) -> E | None:
        """The entrant for the next call, None for the stock collective."""
        return self._trial.entrant

    @property
    def first_own(self) -> E:
        """The first entrant but stock, for calls that the stock collective cannot carry out."""
        return next(entrant for entrant in self._trial.entrants if entrant is not None)

    @property
    def is_over(self) -> bool:
        """Whether the race has ended, so that `race.outcome` has its result."""
        return not self.race.heat

    def record(self, seconds: float) -> None:
        """Record the seconds of the entrant's call, the slowest rank's, the same on all ranks."""
        self.calls += 1
        self._trial.record(seconds)
        if self._trial.is_over:
            self.race.end_heat(self._trial.best_s())
            if self.race.heat:
                self._trial = Trial[E](self.race.heat, self.race.times_s)


def name_times_us(
    times_s: Mapping[E | None, float], name: Callable[[E | None], str]
) -> dict[str, float]:
    """Return the microseconds of entrants by the labels that `name` gives them, slowest first."""
    # Schedules of a strategy may share a label: the fastest comes last and overwrites others.
    return {name(x): seconds * 1e6 for x, seconds in sorted(times_s.items(), key=lambda y: -y[1])}
