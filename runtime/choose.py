"""Which of a plan's schedules to use at a size, segmented how, or the stock collective: predicted and raced.

All ranks must choose alike. Rank 0 predicts, with the host costs and links at hand, and tells the others which candidates
are worth trying, of which the plan's own schedule for the size is always one; all of them run these, and the stock
collective, a few times on scratch memory the first time that a size (a power of two) turns up; the slowest rank's median
decides. While a coarser segmentation wins, a still coarser one races it. What won is kept for the next start, which tries
it alone, and races again only where its time is far off.
"""

from __future__ import annotations

import logging
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..synth.cost.host_costs import HostCosts
from ..synth.cost.segmentation import Family, as_sent, families, fastest, time_us
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import InputError
from .codecs import Codec
from .kept_races import KeptRace, KeptRaces, today
from .program.footprint import find_staging
from .ranks.machine import Machine
from .ranks.timing import time_call_s
from .ranks.transport import Transport

log = logging.getLogger("topoplan")

SAME_BITS = "same-bits"
MODES = ("race", "model", "plan", SAME_BITS)
ChooseFunction = Callable[[int, Sequence[Schedule]], Schedule | str | None]
"""From a size in bytes and the candidates to one of them, None for the stock collective, or one of MODES to use;
alike on all ranks."""
ChooseMode = str | ChooseFunction
_NEAR = 1.4
"""Candidates that are predicted to take more than this many times the best one's time are not raced."""
_RACED = 4
_WORTHWHILE = 0.95
"""A schedule must take less than this part of the stock collective's time: several stock ones can be under way at once."""
_SHORT_S, _WORTHWHILE_SHORT = 1e-3, 0.85
"""The same part for calls that are shorter than that: their times in a race are less certain."""
_STEP = 4
"""The factor between a segmentation and the next coarser one that races."""
_RACE_S = 0.5
_LEAST_TURNS, _MOST_TURNS = 3, 9
_SHORT_RACE_S = 0.03
"""A race has as many turns as fit into _RACE_S, within these limits. Two would not do: neither time is the median. Where
_MOST_TURNS turns take less than _SHORT_RACE_S there are more: short calls are easily disturbed."""
_FIRST_TURNS = 3
"""So many turns decide whether a short call is hopeless: its best one counts."""
FAR_OFF = 0.5
"""A kept winner whose time differs by more than this part of the kept one, at every try, races again."""
_TRIES = 3
_LEAN_BYTES = 16 << 20
_MOST_STAGING = 1.5
"""From _LEAN_BYTES on, candidates that receive more than this many buffers into staging on some rank do not race: with the
copy of the buffer that they race on, the first call takes 2.5 at most. Smaller calls take little memory anyway."""
_HOPELESS = 1.6
"""A candidate that takes this many times the best one's time twice, at its very first run and in the first turn, is out."""


def check_choose_mode(mode: object) -> None:
    """Raise InputError unless `mode` is one of MODES or a function."""
    if not callable(mode) and mode not in MODES:
        raise InputError(f"choose={mode!r}: expected one of {', '.join(MODES)}")


def check_lossless(choose: ChooseMode, compress: str | None) -> None:
    """Raise InputError where the same bits are asked for of compressed values."""
    if choose == SAME_BITS and compress is not None:
        raise InputError(
            f"choose={SAME_BITS!r} with compress={compress!r}: values are rounded in blocks, so an element's bits depend on "
            "its place in the buffer; leave one of them out"
        )


@dataclass(frozen=True)
class Choice:
    """What is used at a size: `schedule`, or None for the stock collective.

    `own` is the best of the plan's schedules, used where the backend has no stock collective for a dtype. `raced` has the
    measured times in us, by label.
    """

    schedule: Schedule | None
    own: Schedule
    predicted: Callable[[int], float | None]
    raced: dict[str, float]

    def predict_us(self, size_bytes: int) -> float | None:
        """Return the cost model's prediction for the machine at hand."""
        return self.predicted(size_bytes)

    @property
    def label(self) -> str:
        """Its name in tables."""
        return "stock" if self.schedule is None else self.schedule.label

    def describe(self) -> str:
        """Return what is used, and a row for each candidate that raced, the fastest first, as text."""
        if not self.raced:
            return f"used: {self.label}, chosen without a race"
        width = max(len("schedule"), *map(len, self.raced))
        rows = [
            f"{label:{width}}  {time_us:10.1f}{'  used' if label == self.label else ''}"
            for label, time_us in sorted(self.raced.items(), key=lambda item: item[1])
        ]
        return "\n".join([f"used: {self.label}", f"{'schedule':{width}}  {'median us':>10}", *rows])

    def __repr__(self) -> str:
        raced = f", {len(self.raced)} raced" if self.raced else ""
        return f"<Choice {self.label}{raced}>"


class Chooser:
    """The choices of one communicator, by size on the wire.

    `mode` is one of MODES or a function; `is_usable` says which of the plan's schedules may be used; `codec` encodes what
    is sent. What races find is kept in `cache`, where rank 0 reads it.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        transport: Transport,
        mode: ChooseMode,
        cache: Path,
        is_usable: Callable[[Schedule], bool] = lambda _: True,
        codec: Codec | None = None,
    ) -> None:
        self.plan, self.machine, self.mode, self.cache = plan, machine, mode, cache
        self.is_usable, self.codec = is_usable, codec
        self.group, self.faults, self.device, self.rank, self.meet, self.find_slowest_s = (
            transport.group, transport.faults, transport.device, transport.rank, transport.meet,
            transport.find_slowest_s,
        )  # fmt: skip
        self._batched = transport.batched
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
        return families(filter(self.is_usable, self.plan.schedules), self.plan.topology)

    @cached_property
    def variants(self) -> list[Schedule]:
        """All candidates, the same list on every rank."""
        return [schedule for family in self.families for schedule in (*family.stepwise, *family.piped)]

    def known(self, size_bytes: int) -> Choice | None:
        """Return the choice for a size, if it was made; by a plan's ranges it always is."""
        mode: Schedule | str | None
        if not callable(self.mode):
            mode = self.mode
        else:
            mode = self.mode(size_bytes, self.variants)
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

    def _check_answer(self, schedule: Schedule | None, size_bytes: int) -> None:
        """Raise InputError where a user's function returned what cannot be used."""
        if schedule is not None and schedule not in self.variants:
            raise InputError(
                f"choose: the function returned {schedule.label} for {size_bytes} bytes; expected one of the schedules that "
                "it was given, None, or the name of a mode"
            )
        if schedule is None and self.codec is not None:
            raise InputError("choose: the function returned None, but the stock collective does not compress")

    def _choice_of(self, schedule: Schedule | None) -> Choice:
        def predict(size_bytes: int) -> float | None:
            return None if schedule is None else self.predict(schedule, size_bytes)

        return Choice(schedule, schedule or self.variants[0], predict, {})

    def predict(self, schedule: Schedule, size_bytes: int) -> float | None:
        """Return the predicted microseconds on the machine at hand."""
        machine = self.machine
        return time_us(schedule, machine.topology, self.host, size_bytes, batched=machine.batched) or None

    @property
    def host(self) -> HostCosts:
        """What sending costs the hosts, encoding and decoding included."""
        return self.machine.host if self.codec is None else self.codec.add_costs(self.machine.host)

    def choose(
        self, size_bytes: int, run: Callable[[Schedule], None], stock: Callable[[], None], has_stock: Callable[[], bool]
    ) -> Choice:
        """Make the choice for a size, and remember it.

        `run` and `stock` work on scratch memory; `has_stock` says, alike on all ranks, whether there is a stock
        collective. Collective; raises ExecutionError on every rank where one of them fails.
        """
        mode = self.mode(size_bytes, self.variants) if callable(self.mode) else self.mode
        order, kept = self._rank_candidates(size_bytes, finds_kept=mode in ("race", SAME_BITS))
        with_stock = mode == "race" and has_stock()
        if mode == "model" or (len(order) == 1 and not with_stock):
            choice = self._choice_of(self.variants[order[0]])
        else:
            entrant = stock if with_stock else None
            choice = self._try_kept(kept, size_bytes, run, entrant) or self._race(size_bytes, order, run, entrant)
        self.choices[size_bytes.bit_length()] = choice
        return choice

    def _rank_candidates(self, size_bytes: int, *, finds_kept: bool) -> tuple[list[int], KeptRace | None]:
        """Return the numbers of the variants worth trying, best first, as rank 0 predicts them, and what won before, if that
        is known. Collective.
        """
        answers: list[Any] = [None]
        if self.rank == 0:
            kept = self._kept.find(size_bytes) if finds_kept else None
            fits = kept is not None and self._fits(kept, size_bytes)
            answers = [(self._find_near_best(size_bytes), kept if fits else None)]
        with self.faults.stock(f"what to try at {size_bytes} bytes"):
            dist.broadcast_object_list(answers, dist.get_global_rank(self.group, 0), self.group, self.device)
        order, kept = answers[0]
        return order, kept

    @property
    def _kept(self) -> KeptRaces:
        codec = None if self.codec is None else self.codec.name
        return KeptRaces(self.cache, self.plan.hash, self.machine, self.device, codec)

    def _fits(self, kept: KeptRace, size_bytes: int) -> bool:
        """Return whether a kept race is one of these candidates."""
        places = [place for place in (kept.winner, kept.own) if place is not None]
        if any(place >= len(self.variants) for place in places):
            return False
        if not self._is_lean(self.variants[places[0]], size_bytes):
            return False
        return kept.labels == self._label(kept.winner, kept.own) and kept.labels[0] in kept.raced_us

    def _label(self, winner: int | None, own: int) -> tuple[str, str]:
        return "stock" if winner is None else self.variants[winner].label, self.variants[own].label

    def _try_kept(
        self,
        kept: KeptRace | None,
        size_bytes: int,
        run: Callable[[Schedule], None],
        stock: Callable[[], None] | None,
    ) -> Choice | None:
        """Return what won before, if it still takes about as long; None where a race must decide. Collective."""
        if kept is None or (kept.winner is None and stock is None):
            return None
        winner = None if kept.winner is None else self.variants[kept.winner]

        def call() -> None:
            if winner is not None:
                run(winner)
            elif stock is not None:
                stock()

        call()  # compiled, and buffers touched
        for _ in range(_TRIES):
            time_us = self._measure_turn(size_bytes, [call])[0] * 1e6
            if abs(time_us - kept.time_us) <= FAR_OFF * kept.time_us:
                return replace(self._choice_of(winner), own=self.variants[kept.own], raced=kept.raced_us)
        log.info("%d bytes: %s took %.0f us where a kept race has %.0f; they race again",
                 size_bytes, kept.labels[0], time_us, kept.time_us)  # fmt: skip
        return None

    def _find_near_best(self, size_bytes: int) -> list[int]:
        """Return the best segmentation of each near schedule, and a coarser one, since the costs of messages may be off; and
        last what the plan says.
        """
        machine = self.machine
        ranking = fastest(self.families, machine.topology, self.host, size_bytes, _NEAR, batched=machine.batched)
        candidates: dict[Schedule, None] = {}
        seen: set[Schedule] = set()
        for _, schedule in ranking:
            if schedule.uncut not in seen and len(candidates) < _RACED:
                seen.add(schedule.uncut)
                candidates |= dict.fromkeys(x for x in (schedule, _coarser(schedule)) if x is not None)
        # Predictions are off where ranks share cores: whatever they say, the plan's own choice gets a chance.
        candidates |= {as_sent(self.plan.entry_for(size_bytes).schedule, self.plan.topology): None}
        usable = [schedule for schedule in candidates if schedule in self.variants]
        lean = [schedule for schedule in usable if self._is_lean(schedule, size_bytes)]
        return [self.variants.index(schedule) for schedule in lean or usable]

    def _is_lean(self, schedule: Schedule, size_bytes: int) -> bool:
        """Return whether a schedule takes as little memory as a candidate for a size may; alike on all ranks."""
        if size_bytes < _LEAN_BYTES:
            return True
        return find_staging(schedule, batched=self._batched) <= _MOST_STAGING

    def _race(
        self, size_bytes: int, order: list[int], run: Callable[[Schedule], None], stock: Callable[[], None] | None
    ) -> Choice:
        """Measure the candidates, and the stock collective where there is one, and return the fastest. Collective."""

        def call_of(schedule: Schedule) -> Callable[[], None]:
            return lambda: run(schedule)

        entrants: dict[Schedule | None, Callable[[], None]] = {
            schedule: call_of(schedule) for schedule in map(self.variants.__getitem__, order)
        }
        if stock is not None:
            entrants[None] = stock
        times_s = dict(zip(entrants, self._measure_medians(size_bytes, list(entrants.values())), strict=True))
        winner = min(times_s, key=times_s.__getitem__)
        # While a coarser segmentation wins, a still coarser one races it: what a message costs may not be known well.
        while winner is not None and (coarser := _coarser(winner)) in self.variants and coarser not in times_s:
            assert coarser is not None
            if not self._is_lean(coarser, size_bytes):
                break
            entrants[coarser] = call_of(coarser)
            times_s[winner], times_s[coarser] = self._measure_medians(size_bytes, [entrants[winner], entrants[coarser]])
            if times_s[winner] <= times_s[coarser]:
                break
            winner = coarser
        stock_s = times_s.get(None, float("inf"))
        worthwhile = _WORTHWHILE_SHORT if stock_s < _SHORT_S else _WORTHWHILE
        if winner is not None and times_s[winner] > worthwhile * stock_s:
            winner = None
        own = winner or min((x for x in times_s if x is not None), key=times_s.__getitem__)
        raced = {"stock" if x is None else x.label: seconds * 1e6 for x, seconds in times_s.items()}
        if self.rank == 0:
            place = None if winner is None else self.variants.index(winner)
            labels = self._label(place, self.variants.index(own))
            kept = KeptRace(place, self.variants.index(own), labels, times_s[winner] * 1e6, raced, today())
            self._kept.keep(size_bytes, kept)
        return replace(self._choice_of(winner), own=own, raced=raced)

    def _measure_medians(self, size_bytes: int, calls: list[Callable[[], None]]) -> list[float]:
        """Return each call's median seconds over several turns, alike on all ranks.

        A call that is hopeless both at its very first run and in the first turn gets no more turns.
        """
        unprepared = self._measure_turn(size_bytes, calls)  # the run in which it is compiled, and buffers are touched
        first = self._measure_turn(size_bytes, calls)
        if sum(first) * _MOST_TURNS < _SHORT_RACE_S:
            more = [self._measure_turn(size_bytes, calls) for _ in range(1, _FIRST_TURNS)]
            first = [min(times) for times in zip(first, *more, strict=True)]
        best = min(first)
        running = [i for i, seconds in enumerate(map(min, first, unprepared)) if seconds <= best * _HOPELESS]
        times: dict[int, list[float]] = {i: [first[i]] for i in running}
        turn_s = best * len(running)
        most = max(_MOST_TURNS, int(_SHORT_RACE_S / turn_s))
        turns = 0 if len(running) == 1 else max(_LEAST_TURNS - 1, min(most, int(_RACE_S / turn_s)))
        for turn in range(turns):
            # What was called before slows a call down: each turn has another order, alike on all ranks.
            order = random.Random(turn).sample(running, len(running))
            for i, seconds in zip(order, self._measure_turn(size_bytes, [calls[i] for i in order]), strict=True):
                times[i].append(seconds)
        return [statistics.median(times[i]) if i in times else seconds for i, seconds in enumerate(first)]

    def _measure_turn(self, size_bytes: int, calls: list[Callable[[], None]]) -> list[float]:
        """Return the slowest rank's seconds for each call, made once."""
        seconds = []
        for call in calls:
            with self.faults.stock(f"the race at {size_bytes} bytes"):
                seconds.append(time_call_s(call, self.meet, self.device))
        with self.faults.stock(f"the times of the race at {size_bytes} bytes"):
            return self.find_slowest_s(seconds)


def _coarser(schedule: Schedule) -> Schedule | None:
    """Return the same schedule in a quarter of the segments; None for one in a single segment."""
    if schedule.segments == 1:
        return None
    parts = schedule.segments // _STEP
    return replace(schedule, segments=parts) if parts > 1 else schedule.uncut
