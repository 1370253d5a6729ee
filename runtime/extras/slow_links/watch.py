"""Notice that a link has become slow, and adapt the plan; no call fails for it.

Each rank notes the duration of its calls. At intervals the ranks agree on them, and decide
(pace.py) whether calls have become slower, twice in a row. Then they measure their links
(probe.py). If some are slower than at first, rank 0 plans for the rates that are left
(believed.py), and later calls try the new plan's schedules against the one in use, which stays
unless another one is faster. Slow links are measured again now and then.

Rank 0 plans in a thread, while calls go on; the next agreement distributes the plan.

All ranks make the same calls, and decide from what they have agreed on, so they measure and try at
the same calls, without messages in between.

A dispatcher picks the schedule of each call of a plan.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from ....synth.fault_text import FAULT, RESUMED, describe_fault, describe_worth
from ....synth.plan import Plan
from ....topo.errors import InputError
from ....topo.extras.measured.flows import Hop
from ....topo.routes import Router
from ...candidates import Candidate
from ...choices import Entrant
from ...compiled import Buffers
from ...dispatcher import Dispatcher
from ...event_log import log_event
from ...race import WORTHWHILE, OnCalls, Race
from ...ranking import Candidates
from ...ranks.race_timing import MAX_ENTRANTS
from ...ranks.transport import Transport
from ...runners.contract import Play
from ..replanning.aside import plan_aside
from ..replanning.segments import cut_like, find_nearest
from .believed import plan_at, slow_down
from .pace import Pace
from .probe import REPEATS, Probe, describe_factors

log = logging.getLogger("topoplan")

# The ranks agree after calls that take this long together, and this many times as long as agreeing
# itself, so that it costs less than half a percent; but not where calls have just become slower.
_PERIOD_S, _OVER_COST = 1.0, 250
# Calls before the first agreement, at most between two, and how many of them, the last ones, the
# ranks agree on.
_FIRST_CALLS, _MAX_CALLS, _AGREED_CALLS = 4, 4096, 64
# A change of links' rates by less than this fraction of them changes no plan, nor does a smaller
# rise than _NOTABLE_AGAIN of those that are believed slow: measurements on busy hosts vary by .1.
_NOTABLE, _NOTABLE_AGAIN = Fraction(1, 10), Fraction(1, 5)
_WHOLE = Fraction(1)


@dataclass
class _Change:
    """Links whose rates have changed to `factors` of those at first, and the plan for them.

    It was noticed `now_s` after the watch began (`began` by time.monotonic), before the call with
    the number `call`. `usual_s` and `spent_s` are those of the Pace before. On rank 0, `made` gets
    the plan, or the reason why there is none.
    """

    factors: Mapping[Hop, Fraction]
    began: float
    now_s: float
    call: int
    usual_s: dict[int, float]
    spent_s: dict[int, float]
    made: "Future[Plan | str] | None" = None


class SlowWatch:
    """Runs the calls of a plan, and changes their schedules when links become slow or recover.

    The dispatcher `base` has the plan, and picks the schedule of each call. Each change adds a dict
    to `rows`, in which moments are in seconds after `since` (time.monotonic). `find_probe` returns
    what measures the links of a transport and a router.
    """

    def __init__(
        self,
        base: Dispatcher,
        rows: list[dict[str, Any]],
        since: float,
        find_probe: Callable[[Transport, Router], Probe] = Probe,
    ) -> None:
        self._base, self._rows, self._since = base, rows, since
        self._transport, self._plan = base.transport, base.plan
        self._begun = time.monotonic()
        self._times: list[tuple[int, float]] = []
        self._calls, self._period, self._agreeing_s = 0, _FIRST_CALLS, 0.0
        # Of an allreduce the shortest time counts: that of the rank for which the others waited.
        self._sign = -1 if self._plan.collective.name == "allreduce" else 1
        self.spent_s = 0.0
        """Seconds that this rank has spent on agreeing with the others."""
        self._pace = Pace()
        self._find_probe = find_probe
        self._probe: Probe | None = None
        self._pending: _Change | None = None
        self._factors: Mapping[Hop, Fraction] = {}
        # Those of the plan for the links' rates, on the machine as it is believed to be.
        self._candidates: Candidates | None = None
        # Counts the changes after which calls cannot be made as before.
        self._version = 0
        self._races: dict[int, OnCalls[Candidate]] = {}
        self._tried: set[int] = set()
        self._originals: dict[int, Entrant] = {}

    @property
    def base(self) -> Dispatcher:
        """The dispatcher in use: it picks the schedule of each call."""
        return self._base

    outlives_links = False

    def exchange(self, value: object) -> list[Any]:
        """Return all ranks' values in rank order. Collective."""
        return self._base.exchange(value)

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank has sent by schedules so far."""
        return self._base.sent_bytes

    # Calls

    def is_settled(self, buffers: Buffers) -> bool:
        """Return whether the schedule for calls of this size has been chosen."""
        return self._base.is_settled(buffers)

    def can_start_stock(self, buffers: Buffers) -> bool:
        """Return False, so that all calls go through `run` and all ranks note the same calls."""
        return False

    def run(self, buffers: Buffers, number: int | None = None) -> None:
        """Run a call, by the schedule that is on trial if there is one, and note its duration.

        `number` is the call's number in the group (None: the next).
        """
        base = self._base
        if len(self._times) >= self._period:
            self._agree(number)
        size_bytes = base.wire_size(buffers.numel, buffers.target.dtype)
        race = self._find_race(size_bytes, number) if self._version else None
        began = time.perf_counter()
        if race is None:
            base.run(buffers, number)
        else:
            base.time_call(race, buffers, number)
            if race.is_over:
                self._end_race(size_bytes, race.race, buffers)
        self._times.append((size_bytes, time.perf_counter() - began))

    def bind(self, buffers: Buffers) -> Play | None:
        """Return a function that runs a call on these buffers quickly and notes its duration.

        It takes the call's number in the group (None: the next). Return None while no schedule has
        been chosen for the buffers' size.
        """
        base, clock = self._base, time.perf_counter
        if not base.is_settled(buffers):
            return None
        size_bytes = base.wire_size(buffers.numel, buffers.target.dtype)
        # Found at the first call, since candidates may be tried at present.
        version = -1
        play: Play | None = None

        def watched(number: int | None = None) -> None:
            nonlocal version, play
            times = self._times
            if play is None or version != self._version or len(times) >= self._period:
                self.run(buffers, number)
                if size_bytes.bit_length() not in self._races:
                    version, play = self._version, base.bind(buffers)
                return
            began = clock()
            play(number)
            times.append((size_bytes, clock() - began))

        return watched

    # Agreement

    def _agree(self, number: int | None) -> None:
        """Agree on the durations of the last calls, and measure links if they call for it.

        It is part of the call `number`, like all that follows from it.
        """
        calls, transport = self._times[-_AGREED_CALLS:], self._transport
        now_s = time.monotonic() - self._begun
        values = [self._sign * seconds for _, seconds in calls]
        made = self._pending and self._pending.made
        began = time.perf_counter()
        with transport.faults.stock(
            "the agreement on the durations of calls", number, is_part=True
        ):
            *agreed, elapsed, agreeing_s, planning = transport.find_slowest_s(
                [*values, -now_s, -self._agreeing_s, float(bool(made and not made.done()))]
            )
        took_s = time.perf_counter() - began
        self.spent_s += took_s
        # A busy host delays it now and then.
        self._agreeing_s = min(took_s, self._agreeing_s or took_s)
        self._calls += len(self._times)
        self._times.clear()
        if self._probe is None:
            with transport.faults.stock("the first measurement of links", number, is_part=True):
                self._probe = self._find_probe(transport, self._plan.router)
        self._pace.note_period(
            [(size, abs(seconds)) for (size, _), seconds in zip(calls, agreed, strict=True)]
        )
        over_cost = 0 if self._pace.is_in_doubt else _OVER_COST
        mean_s = sum(map(abs, agreed)) / len(agreed)
        wanted = max(_PERIOD_S, over_cost * -agreeing_s) / max(mean_s, 1e-6)
        self._period = min(math.ceil(wanted), _MAX_CALLS)
        if self._pending is not None:
            if not planning:
                self._follow(self._pending, number)
        elif self._pace.is_suspicious(-elapsed):
            self._measure(-elapsed, None, number)
        elif self._factors and self._pace.is_return_due(-elapsed):
            self._measure(-elapsed, self._factors, number)

    def _measure(
        self, now_s: float, believed: Mapping[Hop, Fraction] | None, number: int | None
    ) -> None:
        """Measure all links, or only those that are believed slow, and follow what has changed."""
        assert self._probe is not None
        began, before = time.monotonic(), self._pace
        with self._transport.faults.stock("a measurement of links", number, is_part=True):
            factors: Mapping[Hop, Fraction] = (
                self._probe.measure()
                if believed is None
                else self._measure_again(self._probe, believed)
            )
            (cost_s,) = self._transport.find_slowest_s([time.monotonic() - began])
        has_changed = self._has_changed(factors)
        change = _Change(
            factors, began, now_s, self._calls + 1, dict(before.usual_s), dict(before.spent_s)
        )
        self._pace.note_measurement(now_s + cost_s, cost_s, has_changed=has_changed)
        if self._transport.rank == 0:
            log.info(
                "calls %s: links were measured in %.2f s; slow ones: %s",
                "may be faster again" if believed else "have become slower",
                cost_s,
                describe_factors(factors) or "none",
            )
        if not has_changed:
            return
        if not factors:
            self._follow(change, number)
            return
        self._pending = change
        if self._transport.rank == 0:
            change.made = Future()
            plan_aside(partial(plan_at, self._plan, factors), change.made)

    def _measure_again(
        self, probe: Probe, believed: Mapping[Hop, Fraction]
    ) -> Mapping[Hop, Fraction]:
        """Return which of the links that are believed slow still are; only a change takes long."""
        factors = believed
        for repeats in (1, REPEATS):
            slow = probe.measure(believed.keys(), repeats)
            # A busy host slows flows down, but makes none faster.
            factors = {link: max(slow[link], believed[link]) for link in slow}
            if not self._has_changed(factors, _NOTABLE_AGAIN):
                return believed
        return factors

    def _has_changed(self, factors: Mapping[Hop, Fraction], notable: Fraction = _NOTABLE) -> bool:
        """Return whether links have other rates than believed, by so much that plans may change."""
        return any(
            abs(factors.get(link, _WHOLE) - self._factors.get(link, _WHOLE)) >= notable
            for link in factors.keys() | self._factors.keys()
        )

    # Following

    def _follow(self, change: "_Change", number: int | None) -> None:
        """Try the schedules of a plan for the links' rates on the calls that follow."""
        transport, plan, factors = self._transport, self._plan, change.factors
        answer: Any = plan
        if factors:
            with transport.faults.stock("the plan for slow links", number, is_part=True):
                answer = transport.control.exchange(change.made and change.made.result())[0]
            if not isinstance(answer, str):
                answer = self._find_use(answer)
        self._pending = None
        kind, links = find_change(self._factors, factors)
        row: dict[str, Any] = {
            "kind": kind,
            "at": round(change.now_s + self._begun - self._since, 3),
            "call": change.call,
            "links": describe_factors(links),
        }
        self._factors = factors
        if isinstance(answer, str):
            log.warning("rank %d: there is no plan for slow links: %s", transport.rank, answer)
            answer = plan
        self._candidates = Candidates(answer, [self._base.messages], []) if factors else None
        self._version += 1
        self._races.clear()
        self._tried.clear()
        # Most of the time goes into calls of this size.
        size = max(change.spent_s, key=change.spent_s.__getitem__, default=0)
        row |= {
            "seconds": round(time.monotonic() - change.began, 3),
            "bound_GBps": float(answer.bound_one_way.algbw_GBps),
            "size_bytes": size,
            "before_s": change.usual_s.get(size),
            "during_s": None,
            "after_s": None,
        }
        self._rows.append(row)
        if transport.rank == 0:
            log.warning("%s: the next calls try schedules for it", describe_fault(row))
            log_event(FAULT, row, transport.group.group_name, self._plan.hash)

    def _find_use(self, plan: Plan) -> Plan | str:
        """Return a plan, or why none of its schedules can be used; the same on all ranks."""
        try:
            self._base.messages.check(plan, takes_all=False)
        except InputError as error:  # such as a codec by which ranks would get different sums
            return str(error)
        return plan

    def _find_race(self, size_bytes: int, number: int | None) -> OnCalls[Candidate] | None:
        """Return the race for a size that goes on or is due, None if there is none."""
        bits, base = size_bytes.bit_length(), self._base
        if bits in self._tried:
            return self._races.get(bits)
        choice = base.choices.find(size_bytes)
        if choice is None:
            return None
        self._tried.add(bits)
        original = self._originals.setdefault(bits, choice.candidate)
        entrants = [choice.candidate, original]
        candidates = self._candidates
        if candidates is not None:
            find = partial(self._predict, candidates, size_bytes)
            predicted, _ = candidates.broadcast(self._transport, size_bytes, find, number)
            sent, used = [x.schedule for x in candidates.sent], choice.own.schedule
            entrants += [
                candidates.send(cut_like(used, x.schedule, sent, size_bytes)) for x in predicted
            ]
        entrants = list(dict.fromkeys(entrants))[:MAX_ENTRANTS]
        if len(entrants) > 1:
            self._races[bits] = self._make_race(entrants, original)
        return self._races.get(bits)

    def _predict(self, candidates: Candidates, size_bytes: int) -> tuple[list[Candidate], None]:
        """Return what is worth trying at the rates that links are believed to have; on rank 0."""
        machine = self._base.machine
        if machine.topology is not None:
            machine = replace(machine, topology=slow_down(machine.topology, self._factors))
        found = candidates.find_near_best(size_bytes, machine, is_raced=False, is_alone=False)
        return found, None

    def _make_race(self, entrants: Sequence[Entrant], original: Entrant) -> OnCalls[Candidate]:
        """Return a race in which what is preferred stays unless another candidate is worthwhile.

        That is what is in use, the first entrant, while links are slow, else what was used before.
        A new winner is tried in half and in twice as many segments, too.
        """
        used, refined = entrants[0], False

        def refine(times_s: Mapping[Entrant, float]) -> list[Candidate]:
            nonlocal refined
            fastest = min(times_s, key=times_s.__getitem__)
            if refined or fastest is None or fastest in (used, original):
                return []
            refined = True
            assert self._candidates is not None
            schedule, sent = fastest.schedule, [x.schedule for x in self._candidates.sent]
            nearby = (find_nearest(schedule, f * schedule.segments, sent) for f in (0.5, 2))
            return [self._candidates.send(x) for x in dict.fromkeys(nearby)]

        usual = used if self._factors else original
        return OnCalls(Race(entrants, usual=usual, refine=refine, short=WORTHWHILE))

    def _end_race(self, size_bytes: int, race: Race[Candidate], buffers: Buffers) -> None:
        """Use what a race has shown from now on; note what it is worth."""
        bits, outcome = size_bytes.bit_length(), race.outcome
        assert outcome is not None
        del self._races[bits]
        times_s, used, fastest = outcome.times_s, race.entrants[0], outcome.winner
        is_usual = fastest == self._originals[bits]
        self._base.use_instead(buffers, fastest, is_usual=is_usual)
        self._version += 1
        row = self._rows[-1]
        if row["size_bytes"].bit_length() == bits and row["after_s"] is None:
            row |= {"during_s": times_s[used], "after_s": times_s[fastest]}
            transport = self._transport
            if transport.rank == 0:
                log.warning("%s: %s; %s", describe_fault(row), describe_worth(row), json.dumps(row))
                log_event(RESUMED, row, transport.group.group_name, self._plan.hash)


def find_change(
    before: Mapping[Hop, Fraction], after: Mapping[Hop, Fraction]
) -> tuple[str, dict[Hop, Fraction]]:
    """Compare slow links before and after: say what changed, and which links it concerns.

    `before` and `after` map slow links to the fraction that is left of their first rate. If a link
    has become slower, return "slow" and all links that are slow now. Otherwise return "recovered"
    and the links that have become faster. The links come with their fractions now.
    """
    if any(factor < before.get(link, _WHOLE) for link, factor in after.items()):
        return "slow", {**after}
    now = {link: after.get(link, _WHOLE) for link in before}
    return "recovered", {link: now[link] for link, factor in before.items() if now[link] > factor}
