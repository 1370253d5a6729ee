"""Chooses, for a size, one of a plan's schedules in some segmentation, or the stock collective.

All ranks must choose alike. Rank 0 predicts, with its host costs and links, and sends the others
the candidates that are worth trying, of which the plan's own schedule for the size is always one;
all of them run these, and the stock collective, a few times on scratch memory at the first call of
a size (a power of two); the slowest rank's median decides. While a coarser segmentation wins, a
still coarser one races it. The winner is cached for the next start, which tries it beside the stock
collective, and races again only if it loses to that, or its time is far off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from ..synth.cost.host_costs import HostCosts
from ..synth.cost.segmentation import Family, as_sent, families, fastest, time_us
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import InputError
from .cache.races import CachedRace, CachedRaces, today
from .codecs import Codec
from .program.lowering import lower
from .ranks.machine import Machine
from .ranks.transport import Transport
from .ranks.trial import MAX_ENTRANTS, Trial
from .ranks.turns import Turns

log = logging.getLogger("topoplan")

# The names of choices, see Communicator.
SAME_BITS = "same-bits"
MODES = ("race", "model", "plan", SAME_BITS)
# From a size in bytes and the candidates to one of them, None for the stock collective, or one of
# MODES to use; alike on all ranks.
ChooseFunction = Callable[[int, Sequence[Schedule]], Schedule | str | None]
# How a Communicator picks the schedule for a size: a name in MODES, or a function from the size in
# bytes and the candidates to one of them, None (the stock collective), or a name in MODES.
ChooseMode = str | ChooseFunction
# Candidates that are predicted to take more than this many times the best one's time are not raced.
_NEAR = 1.4
# Schedules that race, beside the plan's own; each also in a coarser segmentation.
_RACED = 4
# A schedule must take less than this part of the stock collective's time: several stock ones can be
# in progress at once.
_WORTHWHILE = 0.95
# The same part for calls that are shorter than that: their times in a race are less certain.
_SHORT_S, _WORTHWHILE_SHORT = 1e-3, 0.85
# The factor between a segmentation and the next coarser one that races.
_STEP = 4
# A cached winner races again if, at every try, its time is this part of the cached one off.
FAR_OFF = 0.5
# Tries of a cached winner beside stock. The shortest times count: a busy host holds up one call in
# three.
_TRIES = 3
# A try that takes longer and is passed is the last: such calls are seldom held up for as long.
_LONG_TRY_S = 0.1
# The stock collective's name among the times of a race.
_STOCK = "stock"
# From _LEAN_BYTES on, candidates that receive more than this many buffers into staging on some rank
# do not race: with the copy of the buffer that they race on, the first call takes 2.5 at most.
# Smaller calls take little memory anyway.
_LEAN_BYTES, _MAX_STAGING = 16 << 20, 1.5
# Elements of the buffer for which staging is computed: shares of it come out to a thousandth.
_SAMPLE_NUMEL = 1 << 20
# Schedules of more messages are cut into so small segments that few of them wait in staging;
# lowering this many takes about 50 ms.
_MAX_LOWERED_MESSAGES = 4096


def check_choose_mode(mode: object) -> None:
    """Raise InputError unless `mode` is one of MODES or a function."""
    if not callable(mode) and mode not in MODES:
        raise InputError(f"choose={mode!r}: expected one of {', '.join(MODES)}")


def check_lossless(choose: ChooseMode, compress: str | None) -> None:
    """Raise InputError if the same bits are required of compressed values."""
    if choose == SAME_BITS and compress is not None:
        raise InputError(
            f"choose={SAME_BITS!r} with compress={compress!r}: values are rounded in blocks, so "
            "an element's bits depend on its place in the buffer; leave one of them out"
        )


@dataclass(frozen=True)
class Choice:
    """The choice for a size: `schedule`, or None for the stock collective.

    `own` is the best of the plan's schedules, used where the backend has no stock collective for a
    dtype. `raced` has the measured times in us, by label.
    """

    schedule: Schedule | None
    own: Schedule
    predicted: Callable[[int], float | None]
    raced: dict[str, float]

    def predict_us(self, size_bytes: int) -> float | None:
        """Return the cost model's prediction for this machine."""
        return self.predicted(size_bytes)

    @property
    def label(self) -> str:
        """Its name in tables."""
        return _label(self.schedule)

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


class Chooser:
    """The choices of one communicator, by size on the wire.

    `mode` is one of MODES or a function; `is_usable` says which of the plan's schedules may be
    used; `codec` encodes messages. Rank 0 caches races in the folder `cache`; with None, nowhere.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        transport: Transport,
        mode: ChooseMode,
        cache: Path | None,
        is_usable: Callable[[Schedule], bool] = lambda _: True,
        codec: Codec | None = None,
    ) -> None:
        self.plan, self.machine, self.mode, self.cache = plan, machine, mode, cache
        self.transport, self.is_usable, self.codec = transport, is_usable, codec
        self.choices: dict[int, Choice] = {}
        if mode == SAME_BITS:
            plan.check_one_bracketing()

    @property
    def changes(self) -> bool:
        """Whether the choice for a size may be another one at every call: a function makes it."""
        return callable(self.mode)

    @cached_property
    def families(self) -> list[Family]:
        """The usable schedules of the plan, with their segmentations."""
        return families(filter(self.is_usable, self.plan.schedules), self.plan.router)

    @cached_property
    def variants(self) -> list[Schedule]:
        """All candidates, the same list on every rank."""
        return [
            schedule for family in self.families for schedule in (*family.stepwise, *family.piped)
        ]

    def known(self, size_bytes: int) -> Choice | None:
        """Return the choice for a size, if it was made; by a plan's ranges it always is."""
        mode: Schedule | str | None = self._mode_for(size_bytes)
        if callable(self.mode):
            if mode is None or isinstance(mode, Schedule):
                self._check_answer(mode, size_bytes)
                return self._choice_of(mode)
            check_choose_mode(mode)
            if mode == SAME_BITS:
                self.plan.check_one_bracketing()
                check_lossless(mode, None if self.codec is None else self.codec.name)
        if mode == "plan":
            return self._choice_of(self.plan.entry_for(size_bytes).schedule)
        return self.choices.get(size_bytes.bit_length())

    def _mode_for(self, size_bytes: int) -> Schedule | str | None:
        return self.mode(size_bytes, self.variants) if callable(self.mode) else self.mode

    def _check_answer(self, schedule: Schedule | None, size_bytes: int) -> None:
        if schedule is not None and schedule not in self.variants:
            raise InputError(
                f"choose: the function returned {schedule.label} for {size_bytes} bytes; expected "
                "one of the schedules that it was given, None, or the name of a mode"
            )
        if schedule is None and self.codec is not None:
            raise InputError(
                "choose: the function returned None, but the stock collective does not compress"
            )

    def _choice_of(self, schedule: Schedule | None) -> Choice:
        def predict(size_bytes: int) -> float | None:
            return None if schedule is None else self.predict(schedule, size_bytes)

        return Choice(schedule, schedule or self.variants[0], predict, {})

    def predict(self, schedule: Schedule, size_bytes: int) -> float | None:
        """Return the predicted microseconds on this machine."""
        machine = self.machine
        return (
            time_us(schedule, machine.topology, self.host, size_bytes, batched=machine.batched)
            or None
        )

    @property
    def host(self) -> HostCosts:
        """The costs of sending to the hosts, encoding and decoding included."""
        return self.machine.host if self.codec is None else self.codec.add_costs(self.machine.host)

    def choose(
        self,
        size_bytes: int,
        run: Callable[[Schedule], None],
        stock: Callable[[], None],
        has_stock: Callable[[], bool],
    ) -> Choice:
        """Choose for a size, and remember the choice.

        `run` and `stock` work on scratch memory; `has_stock` says, alike on all ranks, whether
        there is a stock collective. Collective; raises ExecutionError on every rank where one of
        them fails.
        """
        mode = self._mode_for(size_bytes)
        entrant = stock if mode == "race" and has_stock() else None
        order, cached = self.rank_candidates(
            size_bytes, mode in ("race", SAME_BITS), entrant is not None
        )
        if mode == "model" or (len(order) == 1 and entrant is None):
            choice = self._choice_of(self.variants[order[0]])
        else:
            tried = None if cached is None else self._try_cached(cached, size_bytes, run, entrant)
            choice = tried or self._race(size_bytes, order, run, entrant)
        self.choices[size_bytes.bit_length()] = choice
        return choice

    def rank_candidates(
        self, size_bytes: int, is_raced: bool, with_stock: bool, number: int | None = None
    ) -> tuple[list[int], CachedRace | None]:
        """Return the numbers of the variants worth trying, best first, as rank 0 predicts them, and
        the result of such a race (`with_stock` or without), if it is cached. Collective, as part of
        the `number`-th call where that is given.
        """
        answer: Any = None
        transport = self.transport
        if transport.rank == 0:
            cached = self._races(with_stock=with_stock).find(size_bytes) if is_raced else None
            fits = cached is not None and self._fits(cached, size_bytes, with_stock=with_stock)
            answer = self._find_near_best(size_bytes), cached if fits else None
        with transport.faults.stock(f"what to try at {size_bytes} bytes", number):
            order, cached = transport.exchange(answer)[0]
        return order, cached

    def _races(self, *, with_stock: bool) -> CachedRaces:
        return CachedRaces(
            self.cache,
            self.plan.hash,
            self.machine,
            self.transport.device,
            None if self.codec is None else self.codec.name,
            with_stock=with_stock,
        )

    def _fits(self, cached: CachedRace, size_bytes: int, *, with_stock: bool) -> bool:
        """Return whether a cached race is between the candidates of this plan."""
        is_in_race = with_stock or cached.winner is not None
        if not is_in_race or max(cached.own, cached.winner or 0) >= len(self.variants):
            return False
        own = self.variants[cached.own]
        winner = None if cached.winner is None else self.variants[cached.winner]
        is_same = cached.labels == (_label(winner), own.label)
        return is_same and cached.labels[0] in cached.raced_us and self._is_lean(own, size_bytes)

    def _try_cached(
        self,
        cached: CachedRace,
        size_bytes: int,
        run: Callable[[Schedule], None],
        stock: Callable[[], None] | None,
    ) -> Choice | None:
        """Return the cached winner, if it still takes about as long and beats stock, which is tried
        beside it; None if a race must decide. Collective.
        """
        winner = None if cached.winner is None else self.variants[cached.winner]
        calls: list[Callable[[], None]] = [] if winner is None else [partial(run, winner)]
        calls += [] if stock is None else [stock]
        turns = Turns(self.transport, f"the try at {size_bytes} bytes")
        turns.measure_turn_s(calls)  # compiled, and buffers touched
        tries_us: list[list[float]] = []
        is_near = is_beaten = False
        for _ in range(_TRIES):
            tries_us.append([seconds * 1e6 for seconds in turns.measure_turn_s(calls)])
            own_us, *stock_us = map(min, zip(*tries_us, strict=True))
            is_near |= abs(tries_us[-1][0] - cached.time_us) <= FAR_OFF * cached.time_us
            is_beaten = any(own_us > other_us for other_us in stock_us)
            if is_near and not is_beaten and sum(tries_us[-1]) > _LONG_TRY_S * 1e6:
                break
        if is_near and not is_beaten:
            choice = self._choice_of(winner)
            return replace(choice, own=self.variants[cached.own], raced=cached.raced_us)
        log.info(
            "%d bytes: %s took %.0f us%s, and %.0f when it was cached; they race again",
            size_bytes,
            _label(winner),
            own_us,
            f", stock {stock_us[0]:.0f}" if stock_us else "",
            cached.time_us,
        )
        return None

    def _find_near_best(self, size_bytes: int) -> list[int]:
        """Return the best segmentation of each near schedule, and a coarser one, since the costs of
        messages may be off; and last the plan's own schedule.
        """
        machine = self.machine
        ranking = fastest(
            self.families, machine.topology, self.host, size_bytes, _NEAR, batched=machine.batched
        )
        candidates: dict[Schedule, None] = {}
        uncut: set[Schedule] = set()
        for _, schedule in ranking:
            if schedule.uncut not in uncut and len(candidates) < _RACED:
                uncut.add(schedule.uncut)
                candidates |= dict.fromkeys(
                    x for x in (schedule, _coarser(schedule)) if x is not None
                )
        # Predictions are off where ranks share cores: whatever they are, the plan's own choice gets
        # a chance.
        candidates |= {as_sent(self.plan.entry_for(size_bytes).schedule, self.plan.router): None}
        usable = [schedule for schedule in candidates if schedule in self.variants]
        lean = [schedule for schedule in usable if self._is_lean(schedule, size_bytes)]
        return [self.variants.index(schedule) for schedule in lean or usable]

    def _is_lean(self, schedule: Schedule, size_bytes: int) -> bool:
        """Return whether a schedule takes as little memory as a candidate for a size may; alike on
        all ranks.
        """
        if size_bytes < _LEAN_BYTES:
            return True
        return _find_staging(schedule, self.transport.batched) <= _MAX_STAGING

    def _race(
        self,
        size_bytes: int,
        order: list[int],
        run: Callable[[Schedule], None],
        stock: Callable[[], None] | None,
    ) -> Choice:
        """Measure the candidates, and the stock collective where there is one, and return the
        fastest. Collective.
        """
        turns = Turns(self.transport, f"the race at {size_bytes} bytes")

        def measure(*raced: Schedule | None) -> dict[Schedule | None, float]:
            calls = [stock if x is None else partial(run, x) for x in raced]
            medians = turns.measure_medians_s([call for call in calls if call is not None])
            return dict(zip(raced, medians, strict=True))

        own = [self.variants[number] for number in order]
        times_s = measure(*own, *([] if stock is None else [None]))
        # While a coarser segmentation wins, a still coarser one races it: the cost of a message may
        # not be known well.
        while True:
            winner = min(times_s, key=times_s.__getitem__)
            coarser = None if winner is None else _coarser(winner)
            is_new = coarser is not None and coarser not in times_s and coarser in self.variants
            if coarser is None or not is_new or not self._is_lean(coarser, size_bytes):
                return self.decide(size_bytes, times_s)
            times_s |= measure(winner, coarser)

    def begin_trial(self, size_bytes: int, *, has_stock: bool, number: int | None) -> Trial | None:
        """Return a trial of the candidates for a size on the calls that users make, the `number`-th
        of which begins it; None where there is nothing to try, and the choice is made. Collective.

        Of a cached race only the winner is tried, beside the stock collective; all are where it
        loses.
        """
        mode = self._mode_for(size_bytes)
        with_stock = mode == "race" and has_stock
        order, cached = self.rank_candidates(
            size_bytes, mode in ("race", SAME_BITS), with_stock, number
        )
        stock: list[Schedule | None] = [None] if with_stock else []
        schedules = [self.variants[place] for place in order]
        if mode == "model" or len(stock) + len(schedules) == 1:
            self.choices[size_bytes.bit_length()] = self._choice_of(schedules[0])
            return None
        # The plan's own choice comes last in the list, and must stay in it.
        room = MAX_ENTRANTS - len(stock)
        entrants = [*stock, *schedules[: room - 1], *schedules[room - 1 :][-1:]]
        if cached is None:
            return Trial(entrants)
        own = self.variants[cached.own]
        return Trial(
            [*stock, own], expected=None if cached.winner is None else own, others=entrants
        )

    def end_trial(self, size_bytes: int, trial: Trial) -> Trial | None:
        """Choose for a size by the times of a trial that is over. Returns another trial where the
        winner of an earlier launch has lost, and nothing is chosen yet.
        """
        choice = self.decide(size_bytes, trial.best_s())
        if trial.others and choice.schedule != trial.expected:
            return Trial(trial.others)
        self.choices[size_bytes.bit_length()] = choice
        return None

    def decide(self, size_bytes: int, times_s: Mapping[Schedule | None, float]) -> Choice:
        """Return the choice that follows from the candidates' medians in seconds, alike on all
        ranks; None stands for the stock collective. Rank 0 caches it for the next start.
        """
        own = min((x for x in times_s if x is not None), key=times_s.__getitem__)
        stock_s = times_s.get(None, float("inf"))
        worthwhile = _WORTHWHILE_SHORT if stock_s < _SHORT_S else _WORTHWHILE
        winner = own if times_s[own] <= worthwhile * stock_s else None
        # Two schedules of a strategy have one label: the faster one's time comes last, and stays.
        slowest_first = sorted(times_s.items(), key=lambda item: -item[1])
        raced_us = {_label(x): seconds * 1e6 for x, seconds in slowest_first}
        if self.transport.rank == 0:
            place = self.variants.index(own)
            race = CachedRace(
                winner=None if winner is None else place,
                own=place,
                labels=(_label(winner), own.label),
                time_us=times_s[winner] * 1e6,
                raced_us=raced_us,
                raced_on=today(),
            )
            self._races(with_stock=None in times_s).save(size_bytes, race)
        return replace(self._choice_of(winner), own=own, raced=raced_us)


def _label(schedule: Schedule | None) -> str:
    return _STOCK if schedule is None else schedule.label


def _coarser(schedule: Schedule) -> Schedule | None:
    """Return the same schedule in a quarter of the segments; None for one in a single segment."""
    if schedule.segments == 1:
        return None
    parts = schedule.segments // _STEP
    return replace(schedule, segments=parts) if parts > 1 else schedule.uncut


@lru_cache(maxsize=256)  # a plan's candidates, for a few plans
def _find_staging(schedule: Schedule, batched: bool) -> float:
    """Return the largest staging memory that any rank takes for a schedule, in multiples of the
    buffer; 0 where the schedule has too many messages to lower, which take little.
    """
    if len(schedule.transfers) * schedule.segments > _MAX_LOWERED_MESSAGES:
        return 0.0
    ranks = schedule.collective.ranks
    numel = _SAMPLE_NUMEL // ranks * ranks
    programs = (lower(schedule, rank, numel, batched=batched) for rank in range(ranks))
    return max(program.staging_numel for program in programs) / numel
