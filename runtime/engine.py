"""What carries out one plan's collective: it picks a schedule or the stock collective for each
size, and runs it.

`Communicator` is what users hold; the benchmark, the calibration, the backend and the DDP hook work
with its engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ..synth.cost.host_costs import HostCosts
from ..synth.ir.lossy import rounded
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import InputError
from .choose import Choice, ChooseMode, Chooser
from .codecs import Codec
from .compiled import describe_call
from .executor import Executor
from .mpi.stock import has_collective, make_collective
from .players.local import is_numpys
from .players.overdue import CollectivePlayer
from .program.layout import IN_PLACE, ends_numel, ends_with_result
from .ranks.machine import describe_machine
from .ranks.stock import StartedStock, has_stock, make_stock_call
from .ranks.transport import Transport
from .ranks.trial import Trial
from .reductions import ReduceOp, in_inference_mode, share_memory
from .scratch import allocate_zeros_like


class Engine:
    """Runs the collective of `plan` over a transport, on tensors of its device.

    Making it is collective over the transport's ranks. `codec` encodes what is sent; with
    `rounds_once` only schedules are used in which each contribution is rounded once, then their sum
    once. What races find is cached in the folder `cache`; with None, nowhere. Raises InputError
    where the plan has no schedule that keeps what compression promises, ExecutionError where a rank
    does not answer.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        choose: ChooseMode,
        codec: Codec | None,
        cache: Path | None,
        *,
        rounds_once: bool,
    ) -> None:
        self.plan, self.transport, self.codec = plan, transport, codec
        self.group, self.device, self.rank, self.size = (
            transport.group,
            transport.device,
            transport.rank,
            transport.size,
        )
        self._rounds_once = rounds_once
        self._check_compression(choose)
        lane = transport.lane
        self.machine = describe_machine(
            plan.topology,
            transport.cores_of_hosts,
            batched=transport.batched,
            mpi=None if lane is None else lane.what,
        )
        self._faults = transport.faults
        self._faults.topology = plan.topology
        self._of_mpi = None if lane is None else CollectivePlayer(transport.faults)
        self._executor = Executor(transport, plan.topology, codec)
        self._chooser = Chooser(
            plan, self.machine, transport, choose, cache, self._is_usable, codec
        )
        self.times_calls = False
        """Whether candidates are timed on the calls that users make (ranks/trial.py), and not
        before the first.
        """
        self._trials: dict[int, Trial] = {}

    # -- compression
    # ---------------------------------------------------------------------------------------------

    def _is_usable(self, schedule: Schedule) -> bool:
        """Return whether a schedule keeps what compression promises."""
        if self.codec is None:
            return True
        rounding = rounded(schedule.uncut)
        return rounding.uniform and (rounding.once or not self._rounds_once)

    def _check_compression(self, choose: ChooseMode) -> None:
        candidates = (
            [entry.schedule for entry in self.plan.entries]
            if choose == "plan"
            else self.plan.schedules
        )
        unusable = [schedule for schedule in candidates if not self._is_usable(schedule)]
        if not unusable or (choose != "plan" and len(unusable) < len(candidates)):
            return
        names = ", ".join(sorted({schedule.strategy for schedule in unusable}))
        if not self._rounds_once:
            raise InputError(
                "compress: ranks that round what they send would end with different sums by "
                f"{names}; synthesize without it"
            )
        raise InputError(
            f"reduction='once': {names} adds up partial sums, so they are rounded more than once; "
            "synthesize with strategy 'direct', or use reduction='hops'"
        )

    @property
    def most_roundings(self) -> int:
        """The largest number of rounded values that one contribution is part of, over all usable
        schedules; 0 without a codec.
        """
        if self.codec is None:
            return 0
        return max(
            rounded(schedule.uncut).most
            for schedule in self.plan.schedules
            if self._is_usable(schedule)
        )

    # -- what is used
    # --------------------------------------------------------------------------------------------

    def wire_size(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes that a buffer of `numel` elements has on the wire."""
        return (
            numel * dtype.itemsize
            if self.codec is None
            else self.codec.nbytes(self.codec.padded(numel))
        )

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank has sent through schedules since the engine was made, races
        included.
        """
        return self._executor.sent_bytes

    @property
    def variants(self) -> list[Schedule]:
        """The schedules, in all their segmentations, from which one is chosen for a size."""
        return self._chooser.variants

    def choice(self, size_bytes: int) -> Choice | None:
        """Return what is used at a size on the wire; None before the first call of that size (a
        power of two).
        """
        return self._chooser.known(size_bytes)

    def is_settled(self, numel: int, dtype: torch.dtype) -> bool:
        """Return whether it is settled what is used for a buffer; if not, the next call settles it,
        by a race.
        """
        return numel == 0 or self._chooser.known(self.wire_size(numel, dtype)) is not None

    def uses_stock(self, numel: int, dtype: torch.dtype, op: ReduceOp) -> bool:
        """Return whether the stock collective is used for a buffer, and `start_stock` may be
        called.

        Collective the first time for a dtype and reduction.
        """
        if self.transport.lane is not None:
            # MPI's own collectives are not started and left: they go on only while somebody waits
            return False
        choice = self._chooser.known(self.wire_size(numel, dtype))
        return choice is not None and choice.schedule is None and self._has_stock(dtype, op)

    def draw_number(self) -> int:
        """Return the number of a call that is made now and carried out later; see
        Faults.draw_number.
        """
        return self._faults.draw_number()

    def set_host_costs(self, costs: HostCosts) -> None:
        """Predict with these host costs from now on. They must be the same on every rank."""
        self.machine = self._chooser.machine = replace(self.machine, host=costs)

    # -- running
    # -------------------------------------------------------------------------------------------------

    def run(
        self,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp = dist.ReduceOp.SUM,
        residual: torch.Tensor | None = None,
        number: int | None = None,
    ) -> None:
        """Carry out the collective on a buffer of `numel` elements, reading flat `source` and
        writing flat `target`.

        Where the collective works in place both are the same tensor; averages come divided.
        `residual` is error feedback (see Executor.run), `number` the call's, where it was drawn
        before.
        """
        choice = self._chooser.known(self.wire_size(numel, target.dtype))
        if choice is None and self.times_calls:
            number = number or self.draw_number()
            trial = self._find_trial(numel, target.dtype, op, number)
            if trial is not None:
                self._run_trial_call(trial, numel, source, target, op, residual, number)
                return
            choice = self._chooser.known(self.wire_size(numel, target.dtype))
        if choice is None:
            choice = self._race(numel, source, target, op)
        schedule = choice.schedule
        if schedule is None and not self._has_stock(target.dtype, op):
            schedule = choice.own  # the race was run with another dtype
        self._run_by(schedule, numel, source, target, op, residual, number)

    def _run_by(
        self,
        schedule: Schedule | None,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        residual: torch.Tensor | None,
        number: int | None,
    ) -> None:
        """Carry out a call by a schedule, or (None) by the stock collective."""
        if schedule is None:
            self._make_stock(numel, source, target, op)(number)
        elif torch.autograd.profiler._is_profiler_enabled:
            with torch.profiler.record_function(f"topo: {schedule.label}"):
                self._executor.run(schedule, numel, source, target, op, residual, number)
        else:
            self._executor.run(schedule, numel, source, target, op, residual, number)

    def _find_trial(
        self, numel: int, dtype: torch.dtype, op: ReduceOp, number: int
    ) -> Trial | None:
        """Return the trial that a call of a size belongs to; None where it made the choice at once.
        Collective.
        """
        size_bytes = self.wire_size(numel, dtype)
        bits = size_bytes.bit_length()
        if bits not in self._trials:
            has_stock = self.codec is None and self._has_stock(dtype, op)
            trial = self._chooser.begin_trial(size_bytes, has_stock=has_stock, number=number)
            if trial is None:
                return None
            self._trials[bits] = trial
        return self._trials[bits]

    def _run_trial_call(
        self,
        trial: Trial,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        residual: torch.Tensor | None,
        number: int,
    ) -> None:
        """Carry out a call by the candidate whose turn it is, time it on all ranks, and choose
        after the last one.
        """
        schedule, is_timed = trial.entrant, True
        if schedule is None and not self._has_stock(target.dtype, op):
            schedule, is_timed = trial.first_schedule, False
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.current_stream(self.device).synchronize()
        began = time.monotonic()
        self._run_by(schedule, numel, source, target, op, residual, number)
        if on_gpu:
            torch.cuda.current_stream(self.device).synchronize()
        ended = time.monotonic()
        if not is_timed:
            return
        size_bytes = self.wire_size(numel, target.dtype)
        with self._faults.stock(f"the times of a trial at {size_bytes} bytes", number):
            trial.record(self.transport.find_span_s(began, ended))
        if trial.is_over:
            another = self._chooser.end_trial(size_bytes, trial)
            if another is not None:
                self._trials[size_bytes.bit_length()] = another
            else:
                del self._trials[size_bytes.bit_length()]
                self._executor.forget(
                    numel, target.dtype, self._chooser.choices[size_bytes.bit_length()].schedule
                )

    def make_again(
        self, numel: int, target: torch.Tensor, op: ReduceOp
    ) -> Callable[..., None] | None:
        """Return `run`, in place on a CPU tensor whose memory stays where it is, as a function of
        the call's number, if it was drawn; None where that is not settled, or may change from call
        to call.
        """
        choice = (
            None
            if self._chooser.changes
            else self._chooser.known(self.wire_size(numel, target.dtype))
        )
        if choice is None:
            return None
        schedule, lane = choice.schedule, self.transport.lane
        if (
            schedule is None
            and lane is not None
            and has_collective(lane, self.plan.collective, target.dtype, op)
        ):
            return self._make_stock(numel, target, target, op)
        return None if schedule is None else self._make_again_by_plan(schedule, numel, target, op)

    def _make_again_by_plan(
        self, schedule: Schedule, numel: int, target: torch.Tensor, op: ReduceOp
    ) -> Callable[..., None] | None:
        again = self._executor.make_again(schedule, numel, target, op)
        uses_torch = self.transport.lane is None or not is_numpys(target.dtype)
        return partial(in_inference_mode, again) if again is not None and uses_torch else again

    def make_play(
        self,
        schedule: Schedule,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp = dist.ReduceOp.SUM,
    ) -> Callable[..., None]:
        """Return how one of `variants` is run again and again on flat tensors as `make_scratch`
        returns them.
        """
        again: Callable[..., None] | None = None
        if source is target:
            for _ in range(2):  # a small tensor's address must have come before
                again = self._make_again_by_plan(schedule, numel, target, op)
        return again or partial(self._executor.run, schedule, numel, source, target, op)

    def start_stock(
        self,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        finish: Callable[[], None],
        number: int | None = None,
    ) -> StartedStock:
        """Start the stock collective as `run` would carry it out; `finish` is called when it is
        through.

        Several may be under way at once. All stock collectives and all calls that settle a size
        must be made in one order on all ranks.
        """
        call = self._faults.begin(self._describe_stock_call(numel, target.dtype, op), number=number)
        work = make_stock_call(self.plan.collective, self.group, source, target, op)(
            asynchronous=True
        )
        assert work is not None

        def end() -> None:
            self._divide(target, op)
            finish()

        return StartedStock(self._faults, call, work, end)

    def _make_stock(
        self, numel: int, source: torch.Tensor, target: torch.Tensor, op: ReduceOp
    ) -> Callable[..., None]:
        """Return the stock collective as a function of the call's number, if it was drawn."""
        what, lane = self._describe_stock_call(numel, target.dtype, op), self.transport.lane
        if lane is not None and self._of_mpi is not None:
            divides = op == dist.ReduceOp.AVG and ends_with_result(self.plan.collective, self.rank)
            finish = partial(in_inference_mode, target.div_, self.size) if divides else None
            collective = make_collective(lane, self.plan.collective, source, target, op)
            return partial(self._of_mpi.carry_out, collective, what, finish)
        call = make_stock_call(self.plan.collective, self.group, source, target, op)

        def run(number: int | None = None) -> None:
            with self._faults.stock(what, number):
                call()
            self._divide(target, op)

        return run

    def _divide(self, target: torch.Tensor, op: ReduceOp) -> None:
        """Divide a stock sum, where this rank has it, if it is to be an average."""
        if op == dist.ReduceOp.AVG and ends_with_result(self.plan.collective, self.rank):
            target.div_(self.size)

    def _describe_stock_call(self, numel: int, dtype: torch.dtype, op: ReduceOp) -> str:
        return describe_call(
            self.plan.collective, op, numel, dtype, f"the stock {self.plan.collective.name}"
        )

    def _has_stock(self, dtype: torch.dtype, op: ReduceOp) -> bool:
        """Return whether the backend has the collective for a dtype and reduction.

        It is alike on all ranks, and asks none of them.
        """
        if self.transport.lane is not None:
            return has_collective(self.transport.lane, self.plan.collective, dtype, op)
        return has_stock(dtype, is_nccl=self.transport.batched)

    def _race(self, numel: int, source: torch.Tensor, target: torch.Tensor, op: ReduceOp) -> Choice:
        """Choose by running the candidates one after the other, in the same scratch memory, each as
        it would again and again.

        They run on the caller's own tensors where the last of them leaves there what the first did,
        else on copies.
        """
        repeats = self._can_repeat(source, target)
        scratch_target = target if repeats else allocate_zeros_like(target)
        scratch_source = (
            source
            if repeats
            else scratch_target
            if source is target
            else allocate_zeros_like(source)
        )
        calls: dict[int | None, Callable[..., None]] = {}

        def run(schedule: Schedule | None) -> None:
            key = None if schedule is None else id(schedule)
            if key not in calls:
                make = self._make_stock if schedule is None else partial(self.make_play, schedule)
                calls[key] = make(numel, scratch_source, scratch_target, op)
            calls[key]()

        try:
            choice = self._chooser.choose(
                self.wire_size(numel, target.dtype),
                run,
                partial(run, None),
                lambda: self.codec is None and self._has_stock(target.dtype, op),
            )
        finally:
            self._executor.free_scratch()  # the winner may need much less
        self._executor.forget(numel, target.dtype, choice.schedule)
        return choice

    def _can_repeat(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Return whether the collective can be run again and again on these tensors: it reads
        nothing that it has written.
        """
        if self.plan.collective.name in IN_PLACE:
            return self.plan.collective.name == "broadcast"
        return not share_memory(source, target)

    # -- for measurements
    # ----------------------------------------------------------------------------------------

    def make_scratch(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a flat input and output of zeros for a buffer of `numel` elements."""
        input_numel, output_numel = ends_numel(self.plan.collective, self.rank, numel)
        output = torch.zeros(output_numel, dtype=dtype, device=self.device)
        if self.plan.collective.name in IN_PLACE:
            return output, output
        return torch.zeros(input_numel, dtype=dtype, device=self.device), output

    def guard(self, call: str) -> AbstractContextManager[None]:
        """Return a context for stock collectives that all ranks make over the group: a fault in
        them is an ExecutionError on every rank. `call` says, alike on all ranks, what they are for.
        """
        return self._faults.stock(call)
