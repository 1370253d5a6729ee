"""Choose a segmentation of one of a plan's schedules, or the stock collective, for each size.

All ranks must make the same choice. Rank 0 predicts times from its host costs and links, and sends
the other ranks the candidates worth trying, which always include the plan's own schedule for the
size. At the first call of a size (rounded to a power of two), all ranks run the candidates and the
stock collective a few times on scratch memory; the slowest rank's median decides. If a coarser
segmentation wins, a still coarser one races against it. The winner is cached. The next start runs
it against the stock collective, and repeats the race only if the winner loses, or if its time
differs much from the cached one.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from ..synth.cost.host_costs import HostCosts
from ..synth.cost.segmentation import Family, families, fastest, reroute, time_us
from ..synth.demands.demands import Demands
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import InputError
from .cache import CachedRace, CachedRaces
from .codecs import Codec
from .option_names import AUTO, ONE_SIDED, SAME_BITS
from .players.on_devices import DevicePlayer, find_device_player
from .policy import ChooseMode, check_choose_mode
from .program.lowering import lower
from .program.one_sided.flat import (
    HostsSchedule,
    OneSidedSchedule,
    SharedSchedule,
    build_flat,
    play_one_sided,
    play_within_hosts,
)
from .ranks.machine import Machine
from .ranks.transport import Transport
from .ranks.turns import MAX_ENTRANTS, Trial, Turns
from .summaries.summary import STOCK

log = logging.getLogger("topoplan")

# Candidates whose predicted time exceeds this multiple of the best one do not race.
_NEAR = 1.4
# Most schedules that race besides the plan's own; each also races in a coarser segmentation.
_RACED = 4
# A schedule must take less than this fraction of the stock collective's time, because several stock
# collectives can be in progress at once.
_WORTHWHILE = 0.95
# The fraction for stock collectives shorter than _SHORT_S: short times are less certain.
_SHORT_S, _WORTHWHILE_SHORT = 1e-3, 0.85
# The factor between a segmentation and the next coarser one that races.
_STEP = 4
# A cached winner races again if all tries differ from the cached time by more than this fraction.
FAR_OFF = 0.5
# Up to this size each rank adds up the whole buffer itself in the first schedule that is tried
# one-sided: adding takes less time than a second exchange.
_ONE_SHOT_BYTES = 1 << 16
# Tries of a cached winner and the stock collective. The shortest times count, since a busy host
# delays one call in three.
_TRIES = 3
# A successful try that takes longer is the last: delays are seldom long compared with such calls.
_LONG_TRY_S = 0.1
# One-sided schedules that race on GPUs, where their times are predicted.
_RACED_ON_DEVICES = 3
# Schedules that race within hosts besides the same ones sent as messages.
_RACED_WITHIN_HOSTS = 3
# From _LEAN_BYTES on, candidates that need more staging memory on some rank than _MAX_STAGING times
# the buffer do not race. With the copy of the buffer that is used in the race, the first call needs
# at most 2.5 times the buffer. Smaller calls need little memory anyway.
_LEAN_BYTES, _MAX_STAGING = 16 << 20, 1.5
# Elements of the buffer for which staging memory is computed, for a precision of a thousandth.
_SAMPLE_NUMEL = 1 << 20
# Schedules with more messages are not lowered to find their staging memory: it is small, since
# their segments are. Lowering this many messages takes about 50 ms.
_MAX_LOWERED_MESSAGES = 4096


class Sharing(Enum):
    """Which ranks share memory, in which schedules may be played."""

    NONE = "none"
    WITHIN_HOSTS = "those of each host"
    ALL = "all"


@dataclass(frozen=True)
class Choice:
    """The choice for a size: `schedule`, or None for the stock collective.

    `own` is the best of the plan's schedules, used if the backend has no stock collective for a
    dtype. `predict_us` returns the predicted microseconds on this machine for a size in bytes, None
    if there is no prediction; `raced` maps the labels of schedules to median microseconds, and is
    empty without a race. That race was at `raced_bytes`, on the date `raced_on`.
    """

    schedule: Schedule | None
    own: Schedule
    predict_us: Callable[[int], float | None]
    raced: dict[str, float]
    raced_bytes: int | None = None
    raced_on: str | None = None

    @property
    def label(self) -> str:
        """The name of the chosen schedule in tables; "stock" for the stock collective."""
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
    """The choices of one communicator, for each size on the wire, rounded down to a power of two.

    `mode` is one of MODES or a function; `is_usable` says which of the plan's schedules may be
    used; `codec` encodes messages. `executor` is one of EXECUTORS, `shares` says which ranks share
    memory, so that schedules can be played one-sided. Rank 0 caches races in the folder `cache`;
    with None, nowhere. `choices` and `trials` (see `find_trial`) are by the size in bits.
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
        executor: str = AUTO,
        *,
        shares: Sharing = Sharing.NONE,
    ) -> None:
        self.executor, self.shares = executor, shares
        self.plan, self.machine, self.mode, self.cache = plan, machine, mode, cache
        self.transport, self.is_usable, self.codec = transport, is_usable, codec
        self.list_candidates: Callable[[int], list[Schedule]] | None = None
        """Returns the schedules worth trying for a size, on rank 0; None: those with the best
        predictions.
        """
        self.choices: dict[int, Choice] = {}
        self.trials: dict[int, Trial] = {}
        self._instead: dict[int, Choice] = {}
        if mode == SAME_BITS:
            plan.check_one_bracketing()

    @cached_property
    def families(self) -> list[Family]:
        """The usable schedules of the plan, each with its segmentations."""
        return families(filter(self.is_usable, self.plan.schedules), self.plan.router)

    @cached_property
    def variants(self) -> list[Schedule]:
        """All candidates, in one order on all ranks."""
        # Last, so that their presence does not change the others' places, which are cached.
        return [*self.sent, *self.one_sided]

    @cached_property
    def sent(self) -> list[Schedule]:
        """The candidates that are sent as messages: each usable schedule in each segmentation."""
        return [
            schedule for family in self.families for schedule in (*family.stepwise, *family.piped)
        ]

    @cached_property
    def one_sided(self) -> Sequence[SharedSchedule]:
        """The schedules that may be played one-sided; empty if no ranks share memory."""
        if self.shares is Sharing.NONE or self.codec is not None:
            return []
        within_hosts = self.shares is Sharing.WITHIN_HOSTS
        return list(self._within_hosts.values()) if within_hosts else self._in_one_memory

    @cached_property
    def _devices(self) -> DevicePlayer | None:
        """What plays one-sided schedules on devices; None where ranks on CPUs share memory."""
        return find_device_player(self.transport.links)

    @cached_property
    def _in_one_memory(self) -> list[OneSidedSchedule]:
        """The schedules for memory that all ranks share: the plan's, and flat ones after them.

        There are no flat ones if results must have the same bits.
        """
        own = self._whole.values()
        if self._devices is not None:  # on GPUs, whose links it depends on what is best
            topology = self.plan.topology
            flat = () if self.mode == SAME_BITS else build_flat(self.plan.collective, topology)
            return self._devices.list_shapes([*own, *flat], topology)
        flat = () if self.mode == SAME_BITS else build_flat(self.plan.collective)
        return list(dict.fromkeys([*own, *flat]))

    @cached_property
    def _within_hosts(self) -> dict[Schedule, HostsSchedule]:
        """The schedules that share memory within hosts, by the same ones sent as messages."""
        sent = [schedule for schedule in self.sent if not schedule.helpers]
        return {x: play_within_hosts(x) for x in dict.fromkeys([*sent, *self._members_alone])}

    @property
    def _members_alone(self) -> list[Schedule]:
        """The plan's schedules without helpers, which share no memory with the members."""
        return [schedule for schedule in self.plan.schedules if not schedule.helpers]

    @cached_property
    def _whole(self) -> dict[int, OneSidedSchedule]:
        """The plan's schedules for memory that all ranks share, by the identity of each.

        They are always the same objects: compiled programs are kept by the schedule's identity.
        """
        played = {id(schedule): play_one_sided(schedule) for schedule in self._members_alone}
        distinct = {schedule: schedule for schedule in played.values()}
        return {number: distinct[schedule] for number, schedule in played.items()}

    @cached_property
    def _played(self) -> Mapping[int, SharedSchedule]:
        """The plan's schedules as they are played one-sided, by the identity of each."""
        if self.shares is not Sharing.WITHIN_HOSTS:
            return self._whole
        return {id(schedule): self._within_hosts[schedule] for schedule in self._members_alone}

    def _rank_one_sided(self, size_bytes: int, sent: Sequence[Schedule]) -> list[Schedule]:
        """Return the one-sided schedules worth trying for a size, the most promising first.

        `sent` are those worth sending as messages, in this order.
        """
        if not self.one_sided:
            return []
        if self.shares is Sharing.WITHIN_HOSTS:
            within = [self._within_hosts[x] for x in sent if x in self._within_hosts]
            room = len(within) if self.executor == ONE_SIDED else _RACED_WITHIN_HOSTS
            return [*within[: room - 1], *within[room - 1 :][-1:]]
        if self._devices is not None:
            shapes = self._devices.rank_shapes(self._in_one_memory, self.plan.topology, size_bytes)
            return [*shapes[:_RACED_ON_DEVICES]]
        chosen = self._whole.get(id(self.plan.entry_for(size_bytes).schedule))
        own = [] if chosen is None else [chosen]
        if self.mode == SAME_BITS:
            return [*own]
        flat = [x for x in self._in_one_memory if x in build_flat(self.plan.collective)]
        if size_bytes <= _ONE_SHOT_BYTES:
            flat.reverse()
        elif len(flat) > 1:
            flat.pop()
        return [*flat, *own]

    def known(self, size_bytes: int) -> Choice | None:
        """Return the choice for a size, or None if it has not been made yet.

        With the mode "plan", or a function that returns a schedule or None, a choice always exists.
        Raise InputError if a function returns something that cannot be used.
        """
        if self._instead and (instead := self._instead.get(size_bytes.bit_length())):
            return instead
        mode: Schedule | str | None = self._mode_for(size_bytes)
        if callable(self.mode):
            if mode is None or isinstance(mode, Schedule):
                self._check_answer(mode, size_bytes)
                return self._choice_of(mode)
            check_choose_mode(mode, None if self.codec is None else self.codec.name)
            if mode == SAME_BITS:
                self.plan.check_one_bracketing()
        if mode == "plan":
            schedule = self.plan.entry_for(size_bytes).schedule
            is_shared = self.executor == ONE_SIDED and not schedule.helpers
            return self._choice_of(self._played[id(schedule)] if is_shared else schedule)
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
        return Choice(
            schedule, schedule or self.variants[0], partial(self._predict_us, schedule), {}
        )

    def _predict_us(self, schedule: Schedule | None, size_bytes: int) -> float | None:
        """Return a schedule's predicted microseconds on this machine, None without a prediction."""
        machine = self.machine
        if schedule is None or isinstance(schedule, SharedSchedule):
            return None
        return (
            time_us(schedule, machine.topology, self.host, size_bytes, batched=machine.batched)
            or None
        )

    @property
    def host(self) -> HostCosts:
        """The host costs of sending, those of encoding and decoding included."""
        return self.machine.host if self.codec is None else self.codec.add_costs(self.machine.host)

    def choose(
        self,
        size_bytes: int,
        run: Callable[[Schedule], None],
        stock: Callable[[], None],
        has_stock: Callable[[], bool],
    ) -> Choice:
        """Make, store and return the choice for a size on scratch memory, by a race or predictions.

        `run(schedule)` and `stock()` execute a candidate. `has_stock()` returns whether there is a
        stock collective, the same on all ranks. For the choice in the job's own calls see
        `find_trial`. Collective; raises ExecutionError on every rank if one of them fails.
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

    def settle(self, size_bytes: int, schedule: Schedule | None) -> None:
        """Choose a schedule, or the stock collective (None), for a size; the same on all ranks."""
        self.choices[size_bytes.bit_length()] = self._choice_of(schedule)

    def replace_choice(self, size_bytes: int, schedule: Schedule | None, *, is_usual: bool) -> None:
        """Use a schedule, of whatever plan, in place of the choice for a size, which stays stored.

        `is_usual` ends that: the stored choice, which is that schedule, is used again.
        """
        bits = size_bytes.bit_length()
        self._instead.pop(bits, None)
        if not is_usual:
            self._instead[bits] = self._choice_of(schedule)

    def rank_candidates(
        self, size_bytes: int, is_raced: bool, with_stock: bool, number: int | None = None
    ) -> tuple[list[int], CachedRace | None]:
        """Return the variants worth trying, and the cached result of their race, None without one.

        The variants are given by their indices, the best first as predicted by rank 0. If not
        `is_raced`, the cache is not searched; `with_stock` says whether the stock collective races,
        too. Collective; `number` is the group's number of the call that it belongs to (None: a new
        one).
        """
        answer: Any = None
        transport = self.transport
        if transport.rank == 0 and self.list_candidates is not None:
            answer = [self.variants.index(x) for x in self.list_candidates(size_bytes)], None
        elif transport.rank == 0:
            cached = self._races(with_stock=with_stock).find(size_bytes) if is_raced else None
            fits = cached is not None and self._fits(cached, size_bytes, with_stock=with_stock)
            answer = self._find_near_best(size_bytes, is_raced=is_raced), cached if fits else None
        with transport.faults.stock(f"what to try at {size_bytes} bytes", number, is_part=True):
            order, cached = transport.control.exchange(answer)[0]
        return order, cached

    def _races(self, *, with_stock: bool) -> CachedRaces:
        return CachedRaces(
            self.cache,
            self.plan.hash,
            self.machine,
            self.transport.device,
            None if self.codec is None else self.codec.name,
            with_stock=with_stock,
            players=f"messages: {self.executor != ONE_SIDED}, sharing: {self.shares.value}",
        )

    def _fits(self, cached: CachedRace, size_bytes: int, *, with_stock: bool) -> bool:
        """Return whether a cached race is between the candidates of this plan."""
        is_in_race = with_stock or cached.winner is not None
        if not is_in_race or max(cached.own, cached.winner or 0) >= len(self.variants):
            return False
        own = self.variants[cached.own]
        winner = None if cached.winner is None else self.variants[cached.winner]
        return (
            cached.labels == (_label(winner), own.label)
            and cached.labels[0] in cached.raced_us
            and self._is_lean(own, size_bytes)
        )

    def _try_cached(
        self,
        cached: CachedRace,
        size_bytes: int,
        run: Callable[[Schedule], None],
        stock: Callable[[], None] | None,
    ) -> Choice | None:
        """Return the cached winner if it takes about as long as before and beats `stock`.

        Return None if a race must decide. Collective.
        """
        winner = None if cached.winner is None else self.variants[cached.winner]
        by_plan = None if winner is None else partial(run, winner)
        calls = [call for call in (by_plan, stock) if call is not None]
        turns = Turns(self.transport, f"the try at {size_bytes} bytes")
        turns.measure_turn_s(calls)  # warm-up: compiles the programs and touches the buffers
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
            own = self.variants[cached.own]
            return replace(
                self._choice_of(winner),
                own=own,
                raced=cached.raced_us,
                raced_bytes=size_bytes,
                raced_on=cached.raced_on,
            )
        beside = f", stock {stock_us[0]:.0f}" if stock_us else ""
        self._log_new_race(
            size_bytes, f"{_label(winner)} took {own_us:.0f} us{beside}, not {cached.time_us:.0f}"
        )
        return None

    def _log_new_race(self, size_bytes: int, why: str) -> None:
        """Log that a cached race does not hold, once per group: other sizes mostly follow."""
        transport = self.transport
        if transport.rank == 0 and not transport.has_logged_new_race:
            transport.has_logged_new_race = True
            name = self.plan.collective.name
            log.info("%s of %d bytes: %s as cached; races again", name, size_bytes, why)

    def _find_near_best(self, size_bytes: int, *, is_raced: bool) -> list[int]:
        """Return the indices of the variants that are predicted to be near the best.

        These are the best segmentation of each such schedule, each followed by a coarser one, since
        the predicted costs of messages may be wrong. The plan's own schedule comes last. In a race
        there are one-sided schedules, too, whose time is not predicted.
        """
        machine = self.machine
        ranking = fastest(
            self.families, machine.topology, self.host, size_bytes, _NEAR, batched=machine.batched
        )
        candidates: dict[Schedule, None] = dict.fromkeys(self._find_best_kinds(size_bytes))
        uncut: set[Schedule] = set()
        for _, schedule in ranking:
            if schedule.uncut not in uncut and len(candidates) < _RACED:
                uncut.add(schedule.uncut)
                candidates |= dict.fromkeys(
                    x for x in (schedule, _coarser(schedule)) if x is not None
                )
        # Predictions are inaccurate if ranks share cores, so the plan's own choice always competes.
        candidates |= {reroute(self.plan.entry_for(size_bytes).schedule, self.plan.router): None}
        usable = [schedule for schedule in candidates if schedule in self.variants]
        lean = [schedule for schedule in usable if self._is_lean(schedule, size_bytes)]
        order = lean or usable
        one_sided = self._rank_one_sided(size_bytes, order)
        if self.executor == ONE_SIDED:
            order = one_sided or order  # a plan may have helpers in all its schedules
        elif is_raced:
            # Trials have few entrants: the first ones of the list, and the last.
            order = [*one_sided[:1], *order[:-1], *one_sided[1:], *order[-1:]]
        return [self.variants.index(schedule) for schedule in dict.fromkeys(order)]

    def _find_best_kinds(self, size_bytes: int) -> list[Schedule]:
        """Return the best schedule with helpers and the best without, if the plan has both.

        Only a race shows whether help pays, since helpers may be busy.
        """
        of_kinds = [
            [family for family in self.families if bool(family.base.helpers) is is_helped]
            for is_helped in (True, False)
        ]
        if not all(of_kinds):
            return []
        machine = self.machine
        return [
            fastest(kind, machine.topology, self.host, size_bytes, batched=machine.batched)[0][1]
            for kind in of_kinds
        ]

    def _is_lean(self, schedule: Schedule, size_bytes: int) -> bool:
        """Return whether a schedule needs little enough memory to race; the same on all ranks."""
        if size_bytes < _LEAN_BYTES or isinstance(schedule, OneSidedSchedule):
            return True
        return _find_staging(schedule, self.transport.links.is_batched) <= _MAX_STAGING

    def _race(
        self,
        size_bytes: int,
        order: list[int],
        run: Callable[[Schedule], None],
        stock: Callable[[], None] | None,
    ) -> Choice:
        """Measure the candidates, and `stock` if it is given; return the choice. Collective."""
        turns = Turns(self.transport, f"the race at {size_bytes} bytes")

        def measure(*raced: Schedule | None) -> dict[Schedule | None, float]:
            calls = [stock if x is None else partial(run, x) for x in raced]
            medians = turns.measure_medians_s([call for call in calls if call is not None])
            return dict(zip(raced, medians, strict=True))

        times_s = measure(
            *(self.variants[place] for place in order), *([] if stock is None else [None])
        )
        # If a coarser segmentation wins, race a still coarser one against it: the cost of a message
        # may not be known well.
        while True:
            winner = min(times_s, key=times_s.__getitem__)
            coarser = None if winner is None else _coarser(winner)
            is_new = coarser is not None and coarser not in times_s and coarser in self.variants
            if coarser is None or not is_new or not self._is_lean(coarser, size_bytes):
                return self.decide(size_bytes, times_s)
            times_s |= measure(winner, coarser)

    def find_trial(self, size_bytes: int, *, has_stock: bool, number: int | None) -> Trial | None:
        """Return the trial that times the candidates for a size on the user's own calls.

        The first call for a size begins the trial, later ones return the same. Return None, and
        store the choice, if there is nothing to try. If a race is cached, the trial compares only
        its winner with the stock collective, and the other candidates follow if the winner loses.
        Collective if it begins the trial; `number` is the group's number of the call that does.
        """
        bits = size_bytes.bit_length()
        if bits in self.trials:
            return self.trials[bits]
        mode = self._mode_for(size_bytes)
        with_stock = mode == "race" and has_stock
        order, cached = self.rank_candidates(
            size_bytes, mode in ("race", SAME_BITS), with_stock, number
        )
        stock: list[Schedule | None] = [None] if with_stock else []
        schedules = [self.variants[place] for place in order]
        if mode == "model" or len(stock) + len(schedules) == 1:
            self.choices[bits] = self._choice_of(schedules[0])
            return None
        # The plan's own choice comes last in the list, so keep the last one if the list is cut.
        room = MAX_ENTRANTS - len(stock)
        entrants = [*stock, *schedules[: room - 1], *schedules[room - 1 :][-1:]]
        trial = Trial(entrants)
        if cached is not None:
            own = self.variants[cached.own]
            expected = None if cached.winner is None else own
            trial = Trial([*stock, own], expected, others=entrants)
        self.trials[bits] = trial
        return trial

    def end_trial(self, size_bytes: int, trial: Trial) -> Choice | None:
        """Store and return the choice for a size that follows from a finished trial.

        If the cached winner lost, begin a trial of the other candidates instead, and return None.
        If demands are raced, and a schedule wins, do so with its next coarser and finer
        segmentations that were not tried: their predicted times are less certain than others.
        """
        bits, times_s = size_bytes.bit_length(), trial.best_s()
        choice = self.decide(size_bytes, times_s)
        if trial.others and choice.schedule != trial.expected:
            self.trials[bits] = Trial(trial.others)
            self._log_new_race(size_bytes, f"{choice.label} was faster, not the winner")
            return None
        nearby = [] if trial.expected else self._list_nearby(choice.schedule, size_bytes)
        if not times_s.keys() >= {*nearby}:
            entrants = [*(x for x in nearby if x not in times_s), choice.own]
            self.trials[bits] = Trial(entrants, before=times_s)
            return None
        del self.trials[bits]
        self.choices[bits] = choice
        return choice

    def _list_nearby(self, schedule: Schedule | None, size_bytes: int) -> list[Schedule]:
        """Return the next coarser and finer segmentations of a schedule, if demands are raced."""
        is_raced = isinstance(self.plan.collective, Demands) and (
            self._mode_for(size_bytes) == "race"
        )
        if schedule is None or not is_raced:
            return []
        nearby = list_nearby(schedule, self.variants)
        return [x for x in nearby if self._is_lean(x, size_bytes)]

    def decide(self, size_bytes: int, times_s: Mapping[Schedule | None, float]) -> Choice:
        """Return the choice that follows from the candidates' times, without storing it.

        `times_s` maps candidates to seconds, None being the stock collective. It must be the same
        on all ranks. Rank 0 caches it on disk.
        """
        own = min((x for x in times_s if x is not None), key=times_s.__getitem__)
        stock_s = times_s.get(None, float("inf"))
        winner = own if is_worthwhile(times_s[own], stock_s) else None
        # Schedules of a strategy may share a label: the fastest comes last and overwrites others.
        raced_us = {
            _label(x): seconds * 1e6
            for x, seconds in sorted(times_s.items(), key=lambda item: -item[1])
        }
        raced_on = date.today().isoformat()
        if self.transport.rank == 0:
            place = self.variants.index(own)
            race = CachedRace(
                winner=None if winner is None else place,
                own=place,
                labels=(_label(winner), own.label),
                time_us=times_s[winner] * 1e6,
                raced_us=raced_us,
                raced_on=raced_on,
            )
            self._races(with_stock=None in times_s).save(size_bytes, race)
        return replace(
            self._choice_of(winner),
            own=own,
            raced=raced_us,
            raced_bytes=size_bytes,
            raced_on=raced_on,
        )


def is_worthwhile(own_s: float, stock_s: float) -> bool:
    """Return whether schedules take enough less time than the stock collective."""
    worthwhile = _WORTHWHILE_SHORT if stock_s < _SHORT_S else _WORTHWHILE
    return own_s <= worthwhile * stock_s


def _label(schedule: Schedule | None) -> str:
    return STOCK if schedule is None else schedule.label


def _coarser(schedule: Schedule) -> Schedule | None:
    """Return the schedule with a quarter of its segments, or None if it has only one."""
    if schedule.segments == 1:
        return None
    parts = schedule.segments // _STEP
    return replace(schedule, segments=parts) if parts > 1 else schedule.uncut


def list_nearby(schedule: Schedule, variants: Sequence[Schedule]) -> list[Schedule]:
    """Return the next coarser and finer segmentations of a schedule among `variants`."""
    finer = [
        x
        for x in variants
        if x.segments > schedule.segments
        and (x.uncut, x.stepwise) == (schedule.uncut, schedule.stepwise)
    ]
    nearby = [_coarser(schedule), *sorted(finer, key=lambda x: x.segments)[:1]]
    return [x for x in nearby if x is not None and x in variants]


@lru_cache(maxsize=256)  # a plan's candidates, for a few plans
def _find_staging(schedule: Schedule, batched: bool) -> float:
    """Return the most staging memory that a rank needs for a schedule, in multiples of the buffer.

    Return 0 if the schedule has too many messages to lower, since these need little memory.
    """
    if len(schedule.transfers) * schedule.segments > _MAX_LOWERED_MESSAGES:
        return 0.0
    ranks = schedule.collective.ranks
    numel = _SAMPLE_NUMEL // ranks * ranks
    return (
        max(
            lower(schedule, rank, numel, batched=batched).staging_numel
            for rank in schedule.participants
        )
        / numel
    )
