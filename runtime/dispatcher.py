"""The dispatcher: carries out a plan's collective, for each size by the candidate that is chosen.

A candidate is a schedule of the plan with a way to carry it out; a runner carries it out; the stock
collective is gloo's, NCCL's or MPI's own. Buffers are what a call works on: its input and output,
and its reduction. A transport is a group of ranks with what carries their messages. Users hold a
`Communicator`; the benchmark, the calibration, the backend and the DDP hook work with its
dispatcher. At the first call of a size (rounded to a power of two), all ranks race (time) the
candidates and the stock collective on scratch memory; the slowest rank's median decides. A race can
also be held on the calls that users make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from ..synth.cost.host_costs import HostCosts
from ..synth.plan import Plan
from ..topo.errors import InputError
from .candidates import Candidate, Choice
from .choices import Choices, Entrant, FindWorth
from .compiled import Buffers, make_bindings
from .policy import Policy
from .program.contract import Observer
from .program.layout import IN_PLACE, ends_numel
from .race import OnCalls, Race, race_on_scratch
from .ranking import Candidates
from .ranks.machine import Machine, check_links, describe_machine
from .ranks.race_timing import RaceTimer
from .ranks.stock import StartedStock
from .ranks.transport import Transport
from .reductions import share_memory
from .runners.contract import Opening, Play, Runner, open_runner
from .runners.programs import Messages
from .runners.stock import Stock
from .scratch import allocate_zeros_like, free_arenas

T = TypeVar("T")


class CallPath(Protocol):
    """What carries out calls: a dispatcher, or a layer around one.

    A layer repeats calls, or sends them elsewhere, such as after a lost link.
    """

    @property
    def base(self) -> Dispatcher:
        """The dispatcher in use, which may change from call to call."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent through schedules so far."""

    @property
    def outlives_links(self) -> bool:
        """Whether calls still succeed after a link is lost."""

    def exchange(self, value: object) -> list[Any]:
        """Return the values that all ranks pass, by rank, whatever links are lost. Collective."""

    def run(self, buffers: Buffers, number: int | None = None) -> None:
        """Carry out the collective on buffers, in place of the dispatcher's own `run`.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        Raise ExecutionError if a rank fails.
        """

    def bind(self, buffers: Buffers) -> Play | None:
        """Return a function that repeats `run` on buffers quickly; None if there is none.

        It takes the number of the call (None: the next one).
        """

    def is_settled(self, buffers: Buffers) -> bool:
        """Return whether the choice for a buffer's size is made."""

    def can_start_stock(self, buffers: Buffers) -> bool:
        """Return whether `base.start`, which does not wait, may take the place of `run`.

        That is so once the stock collective is chosen for the buffers' size.
        """


class Dispatcher:
    """Carries out the collective of `plan` over a transport, on tensors of its device.

    Making it is collective over the transport's ranks. `policy` has the user's options. `senders`
    are the runners that send messages, the first (`messages`) over the transport's own links,
    others to ranks that these do not reach. If not `with_stock`, no stock collective runs.
    `find_worth`, if given, says which candidates are worth trying in place of predictions. Raise
    InputError if the plan has no schedule that all ranks round identically, or the policy asks for
    a runner that is not installed; ExecutionError if a rank does not answer.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        policy: Policy,
        senders: Sequence[Messages],
        *,
        with_stock: bool = True,
        find_worth: FindWorth | None = None,
    ) -> None:
        self.plan, self.transport, self.policy = plan, transport, policy
        self.group, self.device = transport.group, transport.device
        self.rank, self.size = transport.control.label, transport.size
        senders = self._find_senders(plan, senders)
        self.messages = senders[0]
        self.messages.check(plan, takes_all=policy.choose == "plan")
        links = transport.links
        machine = describe_machine(
            plan.topology,
            transport.control.find_cores_of_hosts(),
            batched=links.is_batched,
            carrier=links.carrier,
            costs=links.costs,
        )
        transport.faults.topology = plan.topology
        self.why_messages_alone: str | None = None
        """Why calls are carried out by messages alone; None if there are other runners."""
        self.candidates = Candidates(plan, senders, self._open_runners())
        sent = (candidate.schedule for candidate in self.candidates.sent)
        check_links(sent, plan.topology, machine)
        self.runners: Mapping[str, Runner] = {
            runner.name: runner for runner in (*senders, *self.candidates.others)
        }
        self._stock = Stock(
            plan.collective,
            transport,
            self._size_of,
            is_left_out=not with_stock or self.messages.why_no_stock is not None,
        )
        self.observers: list[Observer] = []
        self.choices = Choices(self.candidates, transport, policy, machine, find_worth)
        self._races_on_calls = False
        self.races: dict[int, OnCalls[Candidate]] = {}
        """The races that go on on users' calls, by the bit length of the size in bytes."""

    def _find_senders(self, plan: Plan, senders: Sequence[Messages]) -> Sequence[Messages]:
        """Return what sends messages as the plan promises. Collective.

        Raise InputError if nothing here does.
        """
        if plan.runner is None:
            return senders
        opened = senders[0].why_alone or open_runner(
            plan.runner, Opening(plan, self.transport, self.policy.keeps_bits)
        )
        if isinstance(opened, str):
            raise InputError(f"the plan is carried out by the runner {plan.runner} alone: {opened}")
        assert isinstance(opened, Messages)
        for observer in senders[0].observers:
            opened.observe(observer)
        return [opened]

    def _open_runners(self) -> list[Runner]:
        """Return the runners besides messages. Collective.

        Raise InputError if they must be there (as the policy's executor or their names say), but
        are not.
        """
        policy, runners = self.policy, list[Runner]()
        in_memory = self.transport.links.memory_runner
        if not policy.sends_alone and in_memory is not None:
            opened = self._open_runner(in_memory)
            if not isinstance(opened, str):
                runners.append(opened)
            elif policy.plays_alone:
                raise InputError(f"executor={policy.executor!r}: {opened}")
            elif self.messages.why_alone is None:  # else the policy asks for messages alone
                self.why_messages_alone = opened
        self._check_runners()
        for name in policy.runners:
            opened = self._open_runner(name)
            if isinstance(opened, str):
                raise InputError(f"runners: {name}: {opened}")
            if all(opened.name != runner.name for runner in runners):
                runners.append(opened)
        return runners

    def _check_runners(self) -> None:
        """Raise InputError if ranks name different runners, or in another order. Collective."""
        if not self.policy.runners:
            return
        named = self.transport.control.exchange(self.policy.runners)
        others = [rank for rank, names in enumerate(named) if names != named[0]]
        if others:
            raise InputError(
                f"runners: ranks 0 and {others[0]} name {named[0]} and {named[others[0]]}; give "
                "all of them the same names, in one order"
            )

    def _open_runner(self, name: str) -> Runner | str:
        opening = Opening(self.plan, self.transport, self.policy.keeps_bits)
        return self.messages.why_alone or open_runner(name, opening)

    outlives_links = False

    @property
    def base(self) -> Dispatcher:
        """The dispatcher in use: this one."""
        return self

    def exchange(self, value: object) -> list[Any]:
        """Return the values that all ranks pass, by rank. Collective."""
        return self.transport.control.exchange(value)

    def observe(self, observer: Observer) -> None:
        """Report the calls made from now on to an observer, too.

        Functions that `bind` or `make_play` returned before may not tell it.
        """
        self.observers.append(observer)
        for observed in (*self.runners.values(), self._stock):
            observed.observe(observer)

    def ignore(self, observer: Observer) -> None:
        """Report no further call to an observer."""
        self.observers.remove(observer)
        for observed in (*self.runners.values(), self._stock):
            observed.ignore(observer)

    def find_observer(self, kind: type[T]) -> T | None:
        """Return the first observer that is of a type, None if there is none."""
        return next((x for x in self.observers if isinstance(x, kind)), None)

    # Choices

    def wire_size(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of a buffer of `numel` elements as it is sent, after encoding if any."""
        return self.messages.wire_size(numel, dtype)

    def _size_of(self, buffers: Buffers) -> int:
        return self.messages.wire_size(buffers.numel, buffers.target.dtype)

    @property
    def machine(self) -> Machine:
        """The hosts and links of the ranks, for which times are predicted."""
        return self.choices.machine

    def _find_choice(self, buffers: Buffers) -> Choice | None:
        return self.choices.find(self._size_of(buffers))

    def is_settled(self, buffers: Buffers) -> bool:
        """Return whether the choice for a buffer's size is made; if not, the next call makes it."""
        return buffers.numel == 0 or self._find_choice(buffers) is not None

    def can_start_stock(self, buffers: Buffers) -> bool:
        """Return whether `run` would use the stock collective, so that `start` can replace it.

        False while no choice is made, and over links on which a stock call blocks.
        """
        if not self.transport.links.leaves_stock or not buffers.numel:
            return False
        choice = self._find_choice(buffers)
        return choice is not None and choice.candidate is None and self.has_stock(buffers)

    def has_stock(self, buffers: Buffers) -> bool:
        """Return whether there is a stock collective for the buffers' dtype and reduction."""
        return self._stock.can(buffers)

    def set_host_costs(self, costs: HostCosts) -> None:
        """Predict times with these costs per message and byte from now on.

        All ranks must pass the same.
        """
        self.choices.machine = replace(self.machine, host=costs)

    def use(self, buffers: Buffers, candidate: Entrant) -> None:
        """Choose a candidate (None: the stock collective) for the buffers' size.

        The scratch memory of the transport is freed, and so are other candidates' programs (see
        `forget`). All ranks must choose the same.
        """
        self.choices.settle(self._size_of(buffers), candidate)
        free_arenas(self.transport)
        self.forget(buffers, candidate)

    def use_instead(self, buffers: Buffers, candidate: Entrant, *, is_usual: bool) -> None:
        """Use a candidate for the buffers' size in place of the stored choice, which is kept.

        With `is_usual` the stored choice, which `candidate` must be, is used again. Programs of
        other candidates are dropped (see `forget`).
        """
        self.choices.replace(self._size_of(buffers), candidate, is_usual=is_usual)
        self.forget(buffers, candidate)

    def forget(self, buffers: Buffers, keep: Entrant) -> None:
        """Drop the cached programs for buffers of this size, except those of `keep`, after a race.

        Observers are told to forget the calls of this size, which were the race's.
        """
        for observer in self.observers:
            observer.begin_anew(self._size_of(buffers))
        for runner in self.runners.values():
            runner.forget(buffers.numel, buffers.target.dtype, keep)

    # Calls

    def run(self, buffers: Buffers, number: int | None = None) -> None:
        """Carry out the collective on buffers, and divide by the number of ranks for an average.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        Raise ExecutionError, naming the rank at fault, if a rank fails or the deadline passes.
        """
        choice = self._find_choice(buffers)
        if choice is None and self._races_on_calls:
            number = number or self.transport.faults.draw_number()
            race = self._find_race(buffers, number)
            if race is not None:
                self._run_in_race(race, buffers, number)
                return
            choice = self._find_choice(buffers)
        if choice is None:
            choice = self.hold_race(buffers)
        candidate = choice.candidate
        if candidate is None and not self.has_stock(buffers):
            candidate = choice.own  # the race was run with another dtype
        self._play(candidate, buffers, number)

    def _play(self, candidate: Entrant, buffers: Buffers, number: int | None) -> None:
        if candidate is None:
            self._stock.make(buffers)(number)
            return
        runner, played = self._find_runner(candidate, buffers)
        if torch.autograd.profiler._is_profiler_enabled:
            with torch.profiler.record_function(f"topo: {candidate.label}"):
                runner.run(played, buffers, number)
        else:
            runner.run(played, buffers, number)

    def _find_runner(self, candidate: Candidate, buffers: Buffers) -> tuple[Runner, Candidate]:
        """Return what carries out a call: the candidate's runner, or messages if that cannot."""
        runner = self.runners[candidate.runner]
        if runner.can(candidate, buffers) is None:
            return runner, candidate
        sent = self.candidates.send(candidate.schedule)
        return self.runners[sent.runner], sent

    def bind(self, buffers: Buffers) -> Play | None:
        """Return a function that repeats `run` quickly on buffers that have `bindings`, or None.

        It takes the number of the call (None: the next one). None if the choice is not made, or may
        change from call to call, or if a call takes more than running one program.
        """
        if callable(self.policy.choose) or buffers.numel == 0:
            return None
        choice = self._find_choice(buffers)
        if choice is None:
            return None
        if choice.candidate is None:
            return self._stock.bind(buffers)
        if not self.runners[choice.candidate.runner].binds:
            return None
        runner, played = self._find_runner(choice.candidate, buffers)
        return runner.bind(played, buffers)

    def start(
        self, buffers: Buffers, finish: Callable[[], None], number: int | None = None
    ) -> StartedStock:
        """Start the stock collective, and return at once; an average comes divided.

        `finish` is called when it has ended well. `number` is the call's number in its group if it
        was drawn before (None: the next one). Several may be in progress at once. All stock
        collectives and all calls that settle a size must be made in one order on all ranks.
        """
        return self._stock.start(buffers, finish, number)

    def make_play(self, candidate: Entrant, buffers: Buffers) -> Play:
        """Return a function that carries out `candidate` on buffers, to be called repeatedly.

        Unlike `bind` it does not depend on the choice; None stands for the stock collective. The
        buffers are those of `make_scratch`, or have as long-lived memory.
        """
        if candidate is None:
            return self._stock.make(buffers)
        runner, played = self._find_runner(candidate, buffers)
        play = None if buffers.bindings is None else runner.bind(played, buffers)
        return play or partial(runner.run, played, buffers)

    def make_run(self, buffers: Buffers) -> Callable[[Entrant], None]:
        """Return a function that carries out a race's entrant (a candidate or None) on buffers."""
        plays: dict[Entrant, Play] = {}

        def run(entrant: Entrant) -> None:
            if entrant not in plays:
                plays[entrant] = self.make_play(entrant, buffers)
            plays[entrant]()

        return run

    def make_scratch(self, numel: int, dtype: torch.dtype) -> Buffers:
        """Return new buffers of zeros for this rank's part in a collective on `numel` elements."""
        input_numel, output_numel = ends_numel(self.plan.collective, self.rank, numel)
        target = source = torch.zeros(output_numel, dtype=dtype, device=self.device)
        if self.plan.collective.name not in IN_PLACE:
            source = torch.zeros(input_numel, dtype=dtype, device=self.device)
        return Buffers(numel, source, target, bindings=make_bindings(target))

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent through schedules so far."""
        return sum(runner.sent_bytes for runner in self.runners.values())

    # Races

    def race_on_calls(self) -> None:
        """Hold races on users' calls from now on, in place of scratch calls before the first."""
        self._races_on_calls = True

    def hold_race(self, buffers: Buffers) -> Choice:
        """Race the candidates for the buffers' size on scratch calls; store and return the choice.

        Each runs as it would run repeatedly: on the caller's own tensors if every candidate leaves
        the same result there, else on zeros of the same size. Collective; raise ExecutionError if a
        rank fails.
        """
        source, target, name = buffers.source, buffers.target, self.plan.collective.name
        size_bytes = self._size_of(buffers)
        # A collective can run repeatedly if it reads nothing that it has written.
        if name != "broadcast" and (name in IN_PLACE or share_memory(source, target)):
            target = allocate_zeros_like(target)
            source = target if source is buffers.target else allocate_zeros_like(source)
        scratch = Buffers(buffers.numel, source, target, buffers.op, None, make_bindings(target))
        run = self.make_run(scratch)
        try:
            race = self._begin_race(buffers, None)
            if race is not None:
                turns = RaceTimer(self.transport, f"the race at {size_bytes} bytes")
                race_on_scratch(race, turns, run)
                self.choices.log_surprise(size_bytes, race)
                self.choices.end_race(size_bytes, race)
        finally:
            free_arenas(self.transport)  # the winner may need much less
        choice = self.choices.by_bits[size_bytes.bit_length()]
        self.forget(buffers, choice.candidate)
        return choice

    def _begin_race(self, buffers: Buffers, number: int | None) -> Race[Candidate] | None:
        return self.choices.begin_race(
            self._size_of(buffers),
            has_stock=self.has_stock(buffers),
            is_on_calls=self._races_on_calls,
            number=number,
        )

    def _find_race(self, buffers: Buffers, number: int) -> OnCalls[Candidate] | None:
        """Return the race that times the candidates for a size on users' calls.

        The first call for a size begins it, later ones return the same; None if nothing is open.
        Collective if it begins the race, as part of the call `number`.
        """
        bits = self._size_of(buffers).bit_length()
        if bits not in self.races:
            race = self._begin_race(buffers, number)
            if race is None:
                return None
            self.races[bits] = OnCalls(race)
        return self.races[bits]

    def _run_in_race(self, race: OnCalls[Candidate], buffers: Buffers, number: int) -> None:
        """Run a call by the next candidate of a race, and time it on all ranks.

        After the last call of the race, make the choice.
        """
        if not self.time_call(race, buffers, number):
            return
        size_bytes = self._size_of(buffers)
        self.choices.log_surprise(size_bytes, race.race)
        if race.is_over:
            del self.races[size_bytes.bit_length()]
            choice = self.choices.end_race(size_bytes, race.race)
            self.forget(buffers, choice.candidate)

    def time_call(self, race: OnCalls[Candidate], buffers: Buffers, number: int | None) -> bool:
        """Run a call by the next candidate of a race, and record its time over all ranks.

        `number` is the call's number in its group (None: the next one). Return False if that is the
        stock collective, which cannot carry out the call: then another candidate does, and nothing
        is recorded.
        """
        candidate, is_timed = race.entrant, True
        if candidate is None and not self.has_stock(buffers):
            candidate, is_timed = race.first_own, False
        # On a GPU a call has only been launched when it returns.
        synchronize = (
            torch.cuda.current_stream(self.device).synchronize
            if self.device.type == "cuda"
            else lambda: None
        )
        synchronize()
        began = time.monotonic()
        self._play(candidate, buffers, number)
        synchronize()
        ended = time.monotonic()
        if is_timed:
            what = f"the times of a trial at {self._size_of(buffers)} bytes"
            with self.transport.faults.stock(what, number, is_part=True):
                race.record(self.transport.find_span_s(began, ended))
        return is_timed
