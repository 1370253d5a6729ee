"""The engine that runs one plan's collective, by a schedule or the stock collective for each size.

Users hold a `Communicator`; the benchmark, the calibration, the backend and the DDP hook work with
its engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..synth.cost.host_costs import HostCosts
from ..synth.ir.addition_order import rounded
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import InputError
from .choose import Choice, Chooser, Sharing
from .codecs import Codec
from .compiled import Buffers, describe_call, make_bindings
from .executor import Executor
from .option_names import AUTO, ONE_SIDED, POINT_TO_POINT, SAME_BITS
from .players.on_devices import open_memory
from .players.slow_links import list_watches
from .policy import ChooseMode
from .program.layout import IN_PLACE, ends_numel, ends_with_result
from .ranks.machine import describe_machine
from .ranks.shared_memory import HostMemory
from .ranks.stock import StartedStock, make_stock_call
from .ranks.transport import Transport
from .ranks.turns import Trial
from .reductions import in_inference_mode, share_memory
from .scratch import allocate_zeros_like, free_arenas
from .summaries.summary import STOCK
from .summaries.tallies import Tally


class CallGuard(Protocol):
    """Carries out an engine's calls in its place, so that they go on after a lost link."""

    engine: Engine
    """The engine of the plan that is in use now."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent through schedules so far, by all engines."""

    def run(self, buffers: Buffers, /) -> None:
        """Carry out a call; see Engine.run."""

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, whatever links are lost. Collective."""


class CallWatch(Protocol):
    """Carries out an engine's calls, and changes schedules when links become slow."""

    def carry_out(self, buffers: Buffers, number: int | None) -> None:
        """Carry out a call; `number` is as for Engine.run."""

    def watch_play(
        self, find_play: Callable[[Buffers], Callable[..., None] | None], buffers: Buffers
    ) -> Callable[..., None] | None:
        """Return what carries out calls on buffers repeatedly; `find_play` returns the engine's."""


class Engine:
    """Runs the collective of `plan` over a transport, on tensors of its device.

    Making it is collective over the transport's ranks. `codec` encodes messages; with `rounds_once`
    only schedules are used in which each contribution is rounded once, then their sum once. Race
    results are cached in the folder `cache`; with None, nowhere. `executor` is one of EXECUTORS.
    `helped` runs schedules with helpers, which are not among the transport's ranks.
    Raise InputError if the plan has no schedule that all ranks round identically, ExecutionError if
    a rank does not answer.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        choose: ChooseMode,
        codec: Codec | None,
        cache: Path | None,
        executor: str = AUTO,
        *,
        rounds_once: bool,
        helped: Executor | None = None,
    ) -> None:
        self.plan, self.transport, self.codec = plan, transport, codec
        self.group, self.device = transport.group, transport.device
        self.rank, self.size, self._rounds_once = (
            transport.control.label,
            transport.size,
            rounds_once,
        )
        self._check_compression(choose)
        links = transport.links
        self.machine = describe_machine(
            plan.topology,
            transport.control.cores_of_hosts,
            batched=links.is_batched,
            carrier=links.carrier,
            costs=links.costs,
        )
        transport.faults.topology = plan.topology
        self.executor = Executor(transport, plan.topology, codec)
        self.executor.observe(list_watches(transport, plan.topology))
        self._helped = helped
        # As the members' group numbers its ranks.
        self._of_members = plan.collective.among(plan.collective.members)
        if helped is not None:
            helped.tallies = self.executor.tallies
        self.chooser = Chooser(
            plan,
            self.machine,
            transport,
            choose,
            cache,
            self._is_usable,
            codec,
            executor,
            shares=self._find_sharing(executor, choose),
        )
        self.times_calls = False
        """Whether candidates are timed on the calls that users make (ranks/turns.py), and not
        before the first.
        """
        self.is_stock_excluded = False
        """Whether no stock collective may run: it could not be left when a connection is lost."""
        self.guard: CallGuard | None = None
        """The Guard that carries out the calls, if they are to go on after a lost link."""
        self.watch: CallWatch | None = None
        """The SlowWatch that makes choices follow the rates of links, if they are to."""

    def _find_sharing(self, executor: str, choose: ChooseMode) -> Sharing:
        """Return which ranks share memory, in which schedules may be played. Collective.

        Raise InputError if they must be (executor "one-sided"), but cannot.
        """
        if executor == POINT_TO_POINT:
            return Sharing.NONE
        memory: object = "values that are compressed are sent as messages"
        if self.codec is None:
            memory = open_memory(self.transport, self.plan, same_bits=choose == SAME_BITS)
        if isinstance(memory, HostMemory):
            memory = self.transport.links.why_not_within_hosts or memory
        if isinstance(memory, str):
            if executor == ONE_SIDED:
                raise InputError(f"executor={ONE_SIDED!r}: {memory}")
            return Sharing.NONE
        return Sharing.WITHIN_HOSTS if isinstance(memory, HostMemory) else Sharing.ALL

    # Compression

    def _is_usable(self, schedule: Schedule) -> bool:
        if self.codec is None:
            return True
        rounding = rounded(schedule.uncut)
        return rounding.uniform and (rounding.once or not self._rounds_once)

    def _check_compression(self, choose: ChooseMode) -> None:
        plan, by_plan = self.plan, choose == "plan"
        candidates = [x.schedule for x in plan.entries] if by_plan else plan.schedules
        unusable = [schedule for schedule in candidates if not self._is_usable(schedule)]
        if not unusable or (not by_plan and len(unusable) < len(candidates)):
            return
        names = ", ".join(sorted({schedule.strategy for schedule in unusable}))
        if not self._rounds_once:
            raise InputError(
                "compress: ranks that round what they send would end with different sums by "
                f"{names}; synthesize without it"
            )
        raise InputError(
            f"reduction='once': {names} adds up partial sums, which would be rounded again; "
            "use a plan of the strategy direct, or reduction='hops'"
        )

    @property
    def most_roundings(self) -> int:
        """The largest number of rounded values that one contribution is part of; 0 without a codec.

        The maximum is over all usable schedules.
        """
        if self.codec is None:
            return 0
        return max(rounded(x.uncut).most for x in self.plan.schedules if self._is_usable(x))

    # Choices

    def wire_size(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of a buffer of `numel` elements as it is sent, after encoding if any."""
        return self.executor.wire_size(numel, dtype)

    def _choice_for(self, buffers: Buffers) -> Choice | None:
        return self.chooser.known(self.wire_size(buffers.numel, buffers.target.dtype))

    def is_settled(self, buffers: Buffers) -> bool:
        """Return whether the choice for a buffer's size is made; if not, the next call makes it."""
        return buffers.numel == 0 or self._choice_for(buffers) is not None

    def uses_stock(self, buffers: Buffers) -> bool:
        """Return whether `run` would use the stock collective, so that `start_stock` may be called.

        False while no choice is made, over links that do not leave it, and with a watch.
        """
        if not self.transport.links.leaves_stock or not buffers.numel:
            return False
        # Whether a call is started depends on the rank's own queue, and all must note the same.
        if self.watch is not None:
            return False
        choice = self._choice_for(buffers)
        return choice is not None and choice.schedule is None and self.has_stock(buffers)

    def set_host_costs(self, costs: HostCosts) -> None:
        """Predict with these host costs from now on. They must be the same on every rank."""
        self.machine = self.chooser.machine = replace(self.machine, host=costs)

    # Running

    def run(self, buffers: Buffers, number: int | None = None) -> None:
        """Run the collective on buffers, and divide by the number of ranks for an average.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        """
        if self.guard is None:
            self.carry_out(buffers, number)
        else:
            self.guard.run(buffers)

    def carry_out(self, buffers: Buffers, number: int | None = None) -> None:
        """Do what `run` does, without a guard."""
        if self.watch is None:
            self.carry_out_untried(buffers, number)
        else:
            self.watch.carry_out(buffers, number)

    def carry_out_untried(self, buffers: Buffers, number: int | None = None) -> None:
        """Do what `run` does, without a guard and a watch."""
        choice = self._choice_for(buffers)
        if choice is None and self.times_calls:
            number = number or self.transport.faults.draw_number()
            trial = self.chooser.find_trial(
                self.wire_size(buffers.numel, buffers.target.dtype),
                has_stock=self.codec is None and self.has_stock(buffers),
                number=number,
            )
            if trial is not None:
                self._run_trial_call(trial, buffers, number)
                return
            choice = self._choice_for(buffers)
        if choice is None:
            choice = self._race(buffers)
        schedule = choice.schedule
        if schedule is None and not self.has_stock(buffers):
            schedule = choice.own  # the race was run with another dtype
        self._run_by(schedule, buffers, number)

    def _run_by(self, schedule: Schedule | None, buffers: Buffers, number: int | None) -> None:
        if schedule is None:
            self._make_stock(buffers)(number)
        elif torch.autograd.profiler._is_profiler_enabled:
            with torch.profiler.record_function(f"topo: {schedule.label}"):
                self._executor_of(schedule).run(schedule, buffers, number)
        else:
            self._executor_of(schedule).run(schedule, buffers, number)

    def _run_trial_call(self, trial: Trial, buffers: Buffers, number: int) -> None:
        """Run a call by the next candidate of a trial, and time it on all ranks.

        After the last call of the trial, make the choice.
        """
        if not self.time_call(trial, buffers, number):
            return
        numel, dtype = buffers.numel, buffers.target.dtype
        size_bytes = self.wire_size(numel, dtype)
        choice = self.chooser.end_trial(size_bytes, trial) if trial.is_over else None
        if choice is not None:
            self._forget(numel, dtype, choice.schedule)

    def time_call(self, trial: Trial, buffers: Buffers, number: int | None) -> bool:
        """Run a call by the next candidate of a trial, and record its time over all ranks.

        Return False if that is the stock collective, which cannot carry out the call: then another
        candidate does, and nothing is recorded.
        """
        schedule, is_timed = trial.entrant, True
        if schedule is None and not self.has_stock(buffers):
            schedule, is_timed = trial.first_schedule, False
        # On a GPU a call has only been launched when it returns.
        synchronize = (
            torch.cuda.current_stream(self.device).synchronize
            if self.device.type == "cuda"
            else lambda: None
        )
        synchronize()
        began = time.monotonic()
        self._run_by(schedule, buffers, number)
        synchronize()
        ended = time.monotonic()
        if is_timed:
            size_bytes = self.wire_size(buffers.numel, buffers.target.dtype)
            what = f"the times of a trial at {size_bytes} bytes"
            with self.transport.faults.stock(what, number, is_part=True):
                trial.record(self.transport.find_span_s(began, ended))
        return is_timed

    def find_play(self, buffers: Buffers) -> Callable[..., None] | None:
        """Return a function that repeats `run` on buffers with `bindings`, quickly, or None.

        It takes the number of the call (None: the next one). None if the choice is not made, or may
        change from call to call, or if a call takes more than running one program.
        """
        if callable(self.chooser.mode) or self.guard is not None or not self.is_settled(buffers):
            return None
        find_play: Callable[[Buffers], Callable[..., None] | None] = self._find_own_play
        if self.watch is not None:
            find_play = partial(self.watch.watch_play, find_play)
        return find_play(buffers)

    def _find_own_play(self, buffers: Buffers) -> Callable[..., None] | None:
        choice = self._choice_for(buffers)
        if choice is None:
            return None
        if choice.schedule is None:
            is_quick = not self.transport.links.leaves_stock and self.has_stock(buffers)
            play = self._make_stock(buffers) if is_quick else None
            averages = buffers.op == dist.ReduceOp.AVG  # which torch divides
            return partial(in_inference_mode, play) if averages and play is not None else play
        return self._bind(choice.schedule, buffers)

    def _bind(self, schedule: Schedule, buffers: Buffers) -> Callable[..., None] | None:
        executor = self._executor_of(schedule)
        play = executor.bind(schedule, buffers)
        if play is None or not executor.uses_torch(schedule, buffers):
            return play
        return partial(in_inference_mode, play)

    def make_play(self, schedule: Schedule, buffers: Buffers) -> Callable[..., None]:
        """Return a function that runs one of the chooser's `variants` repeatedly on buffers.

        Unlike `find_play` it does not depend on the choice. The buffers are those of
        `make_scratch`.
        """
        play = None if buffers.bindings is None else self._bind(schedule, buffers)
        return play or partial(self._executor_of(schedule).run, schedule, buffers)

    def start_stock(
        self, buffers: Buffers, finish: Callable[[], None], number: int | None = None
    ) -> StartedStock:
        """Start the stock collective, divided as by `run`, and return without waiting for its end.

        `finish` is called when it has ended well. `number` is the call's number in its group if it
        was drawn before (None: the next one). Several may be in progress at once. All stock
        collectives and all calls that settle a size must be made in one order on all ranks.
        """
        call = self.transport.faults.begin(self._describe_stock_call(buffers), number=number)
        work = make_stock_call(
            self._of_members, self.group, buffers.source, buffers.target, buffers.op
        )(asynchronous=True)
        assert work is not None
        self._find_stock_tally(buffers).add()

        def end() -> None:
            self._divide(buffers)
            finish()

        return StartedStock(self.transport.faults, call, work, end)

    def _make_stock(self, buffers: Buffers) -> Callable[..., None]:
        """Return the stock collective as a function of the call's number, if one was drawn."""
        links, tally = self.transport.links, self._find_stock_tally(buffers)
        call = links.make_stock(self._of_members, buffers.source, buffers.target, buffers.op)

        def finish() -> None:
            self._divide(buffers)
            tally.add()

        divides = buffers.op == dist.ReduceOp.AVG
        what = self._describe_stock_call(buffers)
        return links.guard_stock(call, what, finish if divides else tally.add)

    def _find_stock_tally(self, buffers: Buffers) -> Tally:
        size_bytes = self.wire_size(buffers.numel, buffers.target.dtype)
        return self.executor.tallies.find(STOCK, size_bytes)

    def _divide(self, buffers: Buffers) -> None:
        """Divide a stock sum for an average, if this rank has the sum."""
        if buffers.op == dist.ReduceOp.AVG and ends_with_result(self.plan.collective, self.rank):
            buffers.target.div_(self.size)

    def _describe_stock_call(self, buffers: Buffers) -> str:
        collective = self.plan.collective
        name, op = collective.name, buffers.op if collective.reduces else None
        call = describe_call(name, op, collective.root, buffers.numel, buffers.target.dtype)
        return f"{call} by the stock {name}"

    def has_stock(self, buffers: Buffers) -> bool:
        """Return whether the backend has the collective for a dtype and reduction.

        The answer is the same on all ranks, and needs no communication.
        """
        dtype = buffers.target.dtype
        if self.is_stock_excluded:
            return False
        return self.transport.links.has_stock(self.plan.collective, dtype, buffers.op)

    def _race(self, buffers: Buffers) -> Choice:
        """Choose by running the candidates one after the other in the same scratch memory.

        Each runs as it would run repeatedly: on the caller's own tensors if every candidate leaves
        the same result there, else on copies.
        """
        source, target, name = buffers.source, buffers.target, self.plan.collective.name
        # A collective can run repeatedly if it reads nothing that it has written.
        if name != "broadcast" and (name in IN_PLACE or share_memory(source, target)):
            target = allocate_zeros_like(target)
            source = target if source is buffers.target else allocate_zeros_like(source)
        scratch = Buffers(buffers.numel, source, target, buffers.op, None, make_bindings(target))
        run = self.make_run(scratch)
        try:
            choice = self.chooser.choose(
                self.wire_size(buffers.numel, target.dtype),
                run,
                partial(run, None),
                lambda: self.codec is None and self.has_stock(buffers),
            )
        finally:
            free_arenas(self.transport)  # the winner may need much less
        self._forget(buffers.numel, target.dtype, choice.schedule)
        return choice

    def make_run(self, scratch: Buffers) -> Callable[[Schedule | None], None]:
        """Return a function that runs a schedule, or the stock collective for None, for timing.

        It may be called repeatedly on the buffers, which are those of `make_scratch` or the like.
        """
        calls: dict[int | None, Callable[..., None]] = {}

        def run(schedule: Schedule | None) -> None:
            key = None if schedule is None else id(schedule)
            if key not in calls:
                make = self._make_stock if schedule is None else partial(self.make_play, schedule)
                calls[key] = make(scratch)
            calls[key]()

        return run

    def settle(self, buffers: Buffers, schedule: Schedule | None) -> None:
        """Use a schedule, or the stock collective (None), for buffers of a size from now on.

        It must be the same on all ranks. Programs of other schedules of this size are dropped.
        """
        dtype = buffers.target.dtype
        self.chooser.settle(self.wire_size(buffers.numel, dtype), schedule)
        free_arenas(self.transport)
        self._forget(buffers.numel, dtype, schedule)

    def use_instead(self, buffers: Buffers, schedule: Schedule | None, *, is_usual: bool) -> None:
        """Use a schedule for buffers of a size in place of the choice, or again what was chosen.

        It need not be the plan's. It must be the same on all ranks.
        """
        numel, dtype = buffers.numel, buffers.target.dtype
        self.chooser.replace_choice(self.wire_size(numel, dtype), schedule, is_usual=is_usual)
        self._forget(numel, dtype, schedule)

    def _executor_of(self, schedule: Schedule) -> Executor:
        if not schedule.helpers or self._helped is None:
            return self.executor
        return self._helped

    def _forget(self, numel: int, dtype: torch.dtype, keep: Schedule | None) -> None:
        for executor in (self.executor, self._helped):
            if executor is not None:
                executor.forget(numel, dtype, keep)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent through schedules so far."""
        of_helped = 0 if self._helped is None else self._helped.sent_bytes
        return self.executor.sent_bytes + of_helped

    # Measurements

    def make_scratch(self, numel: int, dtype: torch.dtype) -> Buffers:
        """Return new buffers of zeros for this rank's part in a collective on `numel` elements."""
        input_numel, output_numel = ends_numel(self.plan.collective, self.rank, numel)
        target = source = torch.zeros(output_numel, dtype=dtype, device=self.device)
        if self.plan.collective.name not in IN_PLACE:
            source = torch.zeros(input_numel, dtype=dtype, device=self.device)
        return Buffers(numel, source, target, bindings=make_bindings(target))
