"""Choose for each size what carries out a collective, alike on all ranks, and hold races for it.

Candidates are a plan's schedules with ways to carry them out; the stock collective is gloo's or
NCCL's own. A race times some of these at one size. Rank 0 predicts times from its host costs and
links, and sends the other ranks the candidates worth trying, which always include the plan's own
schedule for the size. The winner of their race is cached. The next start tries it against the stock
collective, and repeats the race only if it loses, or if its time differs much from the cached one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..synth.ir.schedule import Schedule
from ..topo.errors import InputError
from .cache import Contest, find_cache
from .candidates import Candidate, Choice, label_of
from .policy import Policy, check_plan, is_raced, races_stock
from .race import Expected, Outcome, Race, name_times_us
from .ranking import Candidates
from .ranks.machine import Machine
from .ranks.race_timing import MAX_ENTRANTS
from .ranks.transport import Transport

log = logging.getLogger("topoplan")

# What is chosen, and what a race is between: candidates, and None for the stock collective.
Entrant = Candidate | None
# Returns which of the candidates are worth trying for a size in bytes, on rank 0.
FindWorth = Callable[[Candidates, int], list[Candidate]]


class Choices:
    """The choices among `candidates` for each size on the wire, rounded down to a power of two.

    `machine` is what times are predicted for, `policy` has the user's options (choose mode, cache),
    `transport` joins the ranks. `find_worth`, if given, says what is worth trying in place of
    predictions. Raise InputError if the policy asks for the same bits, and the plan's schedules add
    in different orders.
    """

    def __init__(
        self,
        candidates: Candidates,
        transport: Transport,
        policy: Policy,
        machine: Machine,
        find_worth: FindWorth | None = None,
    ) -> None:
        self.candidates, self.plan, self.machine = candidates, candidates.plan, machine
        self._transport, self._policy = transport, policy
        self._sender, self._find_worth = candidates.senders[0], find_worth
        check_plan(policy.choose, self.plan)
        self.by_bits: dict[int, Choice] = {}
        """The choices that were made, by the bit length of the size in bytes."""
        self._instead: dict[int, Choice] = {}

    def find(self, size_bytes: int) -> Choice | None:
        """Return the choice for a size, or None if it has not been made yet.

        With the mode "plan", or a function that returns a candidate or None, a choice always
        exists. Raise InputError if a function returns something that cannot be used.
        """
        if self._instead and (instead := self._instead.get(size_bytes.bit_length())):
            return instead
        mode = self._mode_for(size_bytes)
        if not isinstance(mode, str):
            return self.make(mode)
        if mode == "plan":
            is_alone = self._policy.plays_alone
            return self.make(self.candidates.find_planned(size_bytes, is_alone=is_alone))
        return self.by_bits.get(size_bytes.bit_length())

    def _mode_for(self, size_bytes: int) -> str | Entrant:
        """Return the mode of choosing for a size, or what a user's function has chosen."""
        mode = self._policy.choose
        if isinstance(mode, str):
            return mode
        answer: Any = mode(size_bytes, self.candidates.offered)
        if answer is not None and not isinstance(answer, (Schedule, Candidate)):
            self._policy.check_mode(answer)
            check_plan(answer, self.plan)
            return str(answer)
        chosen: Entrant = self.candidates.send(answer) if isinstance(answer, Schedule) else answer
        if chosen is not None and chosen not in self.candidates.index_of:
            raise InputError(
                f"choose: the function returned {chosen.label} for {size_bytes} bytes; expected "
                "one of the schedules that it was given, None, or the name of a mode"
            )
        if chosen is None and self._sender.why_no_stock is not None:
            raise InputError(f"choose: the function returned None, but {self._sender.why_no_stock}")
        return chosen

    def make(self, candidate: Entrant) -> Choice:
        """Return the choice of a candidate (None: stock) without a race; it is not stored."""
        return self.candidates.choose(candidate, self.machine)

    def settle(self, size_bytes: int, candidate: Entrant) -> None:
        """Store a candidate (None: the stock collective) as the choice for a size.

        All ranks must pass the same.
        """
        self.by_bits[size_bytes.bit_length()] = self.make(candidate)

    def replace(self, size_bytes: int, candidate: Entrant, *, is_usual: bool) -> None:
        """Use a candidate, of whatever plan, for a size, and keep the stored choice for later.

        `find` then returns it. With `is_usual` the stored choice, which `candidate` must be, is
        used again.
        """
        bits = size_bytes.bit_length()
        self._instead.pop(bits, None)
        if not is_usual:
            self._instead[bits] = self.make(candidate)

    # Races

    def begin_race(
        self, size_bytes: int, *, has_stock: bool, is_on_calls: bool, number: int | None
    ) -> Race[Candidate] | None:
        """Return the race that decides on a size, or None if the choice is clear, and then stored.

        `has_stock` says whether there is a stock collective, `is_on_calls` whether users' calls
        will be timed in place of calls on scratch memory. Collective; `number` is the group's
        number of the call that it belongs to (None: a new one). Raise InputError as `find` does.
        """
        mode = self._mode_for(size_bytes)
        with_stock = races_stock(mode) and has_stock
        find = partial(
            self._find_worthwhile,
            size_bytes,
            is_raced=is_raced(mode),
            with_stock=with_stock,
        )
        worth, kept = self.candidates.broadcast(self._transport, size_bytes, find, number)
        stock: list[Entrant] = [None] if with_stock else []
        if mode == "model" or len(stock) + len(worth) == 1:
            self.settle(size_bytes, worth[0])
            return None
        expected = None if kept is None else kept.translate(self.candidates.all.__getitem__)
        entrants: list[Entrant] = [*worth, *stock]
        refine = self._refine_on_scratch
        if is_on_calls:
            # The plan's own choice comes last in the list, so keep the last one if it is cut.
            room = MAX_ENTRANTS - len(stock)
            entrants = [*stock, *worth[: room - 1], *worth[room - 1 :][-1:]]
            refine = self._refine_on_calls
        return Race(entrants, refine=partial(refine, size_bytes), expected=expected)

    def end_race(self, size_bytes: int, race: Race[Candidate]) -> Choice:
        """Store and return the choice for a size after its race has ended; rank 0 caches it."""
        outcome, expected = race.outcome, race.expected
        if outcome is not None:
            choice = self.decide(size_bytes, outcome)
        else:
            assert expected is not None  # which holds
            choice = replace(
                self.make(expected.winner),
                own=expected.own,
                raced=expected.raced_us,
                raced_bytes=size_bytes,
                raced_on=expected.raced_on,
            )
        self.by_bits[size_bytes.bit_length()] = choice
        return choice

    def decide(self, size_bytes: int, outcome: Outcome[Candidate]) -> Choice:
        """Return the choice that follows from a race's `outcome`, without storing it.

        Rank 0 caches the outcome for later starts.
        """
        if self._transport.rank == 0:
            contest = self._describe_contest(size_bytes, with_stock=None in outcome.times_s)
            find_cache().keep_race(self._cache_folder, contest, size_bytes, outcome)
        return replace(
            self.make(outcome.winner),
            own=outcome.own,
            raced=name_times_us(outcome.times_s, label_of),
            raced_bytes=size_bytes,
            raced_on=outcome.raced_on,
        )

    def log_surprise(self, size_bytes: int, race: Race[Candidate]) -> None:
        """Log, once per group, that the cached winner lost or took another time than cached."""
        transport = self._transport
        if race.surprise is None or transport.rank or transport.has_logged_new_race:
            return
        transport.has_logged_new_race = True
        took = ", ".join(f"{label_of(x)} took {s * 1e6:.0f} us" for x, s in race.surprise.items())
        name = self.plan.collective.name
        log.info("%s of %d bytes: %s, not as cached; races again", name, size_bytes, took)

    def _find_worthwhile(
        self, size_bytes: int, *, is_raced: bool, with_stock: bool
    ) -> tuple[list[Candidate], Expected[int] | None]:
        """Return the candidates worth trying, the best first as predicted; on rank 0.

        Beside them stands what an earlier race lets expect, by their places, or None. If not
        `is_raced`, none is looked for; `with_stock` says whether the stock collective races, too.
        """
        if self._find_worth is not None:
            return self._find_worth(self.candidates, size_bytes), None
        expected = None
        if is_raced:
            contest = self._describe_contest(size_bytes, with_stock=with_stock)
            expected = find_cache().find_race(self._cache_folder, contest, size_bytes)
        is_alone = self._policy.plays_alone
        worth = self.candidates.find_near_best(
            size_bytes, self.machine, is_raced=is_raced, is_alone=is_alone
        )
        places = self.candidates.index_of.__getitem__
        return worth, None if expected is None else expected.translate(places)

    def _describe_contest(self, size_bytes: int, *, with_stock: bool) -> Contest[Candidate]:
        """Return what decides the races between the candidates at a size."""
        candidates = self.candidates
        others = ", ".join(runner.name for runner in candidates.others) or "none"

        def find(place: int) -> Candidate | None:
            if place >= len(candidates.all):
                return None
            found = candidates.all[place]
            return found if candidates.is_lean(found, size_bytes) else None

        return Contest(
            plan_hash=self.plan.hash,
            machine=self.machine,
            device=self._transport.device,
            with_stock=with_stock,
            wire_format=self._sender.wire_format,
            players=f"messages: {not self._policy.plays_alone}, others: {others}",
            name=label_of,
            number=candidates.index_of.__getitem__,
            find=find,
        )

    @cached_property
    def _cache_folder(self) -> Path | None:
        return self._policy.cache_folder

    def _refine_on_scratch(
        self, size_bytes: int, times_s: Mapping[Entrant, float]
    ) -> list[Candidate]:
        """Return a still coarser segmentation than that of the fastest candidate.

        The cost of a message may not be known well.
        """
        fastest = min(times_s, key=times_s.__getitem__)
        return [] if fastest is None else self.candidates.find_coarser(fastest, size_bytes)

    def _refine_on_calls(
        self, size_bytes: int, times_s: Mapping[Entrant, float]
    ) -> list[Candidate]:
        """Return the next coarser and finer segmentations of the winner, if parts are uneven.

        Their predicted times are less certain than others.
        """
        mode = self._mode_for(size_bytes)
        if self.plan.collective.is_even or not races_stock(mode):
            return []
        winner = Race[Candidate]([]).decide(times_s).winner
        return [] if winner is None else self.candidates.find_nearby(winner, size_bytes)
