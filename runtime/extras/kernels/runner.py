"""Run a communicator's calls by kernels, with the averages, errors and observers of other calls.

A candidate is a schedule and the way to run it. Kernels run schedules one-sided: ranks read or
write each other's memory themselves, without messages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from ....synth.ir.schedule import Schedule
from ....topo.errors import ExecutionError, InfeasibleError
from ...candidates import Candidate
from ...option_names import SAME_BITS
from ...program.contract import Listener, ObservedCalls, Observer
from ...program.layout import IN_PLACE, ends_with_result
from ...ranks.faults import Call
from ...ranks.transport import Transport
from ...runners.contract import Opening, Runner, RunnerKind
from ...scratch import find_arena
from ..native.library import BY_WIDTH, suits
from ..one_sided.flat import PULLED, PUSHED, build_flat
from ..one_sided.instructions import Mode
from . import model
from .opening import open_kernels

if TYPE_CHECKING:
    from ...compiled import Buffers
    from .player import KernelPlayer, Loaded

# One-sided schedules that race on GPUs, where their times are predicted.
_RACED: Final = 3
# Kinds of calls whose listeners are kept: a job may have any number of sizes.
_MAX_LISTENERS: Final = 1024
_WAYS: dict[Mode, str] = {"pull": PULLED, "push": PUSHED}
_MODES: dict[str, Mode] = {way: mode for mode, way in _WAYS.items()}


class Kernels(Runner):
    """Runs one-sided schedules on a transport's GPUs: one kernel launch per rank and call.

    A candidate is a schedule with the mode in which it is run: receivers read ("pull"), or senders
    write ("push"). `player` runs the kernels for the calls of `opening`, a plan on a transport.
    """

    name = "kernels"
    binds = False

    def __init__(self, player: KernelPlayer, opening: Opening) -> None:
        self._player, self._plan, self._opening = player, opening.plan, opening
        self.transport, self.topology = opening.transport, opening.plan.topology
        # Schedules with too many chunks for the windows: sent as messages.
        self._too_fine: set[tuple[Candidate, int, torch.dtype]] = set()
        # The call that `can` has allowed last, with its program.
        self._allowed: tuple[Candidate | None, Buffers | None, Loaded | None] = (None, None, None)
        self._listeners: dict[tuple[str, int, int], tuple[Listener, ...]] = {}

    # What to try

    @cached_property
    def _shapes(self) -> list[tuple[Schedule, Mode]]:
        plan, topology = self._plan, self.topology
        flat = () if self._opening.keeps_bits else build_flat(plan.collective, topology)
        own = dict.fromkeys(x.uncut for x in plan.schedules if not x.helpers)
        return model.list_shapes([*own, *flat], topology)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return this runner's candidates: one-sided schedules. `sent` is not used."""
        return [Candidate(schedule, self.name, _WAYS[mode]) for schedule, mode in self._shapes]

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return the candidate that runs a plan's schedule; None if it uses helper ranks."""
        return None if schedule.helpers else Candidate(schedule.uncut, self.name, PULLED)

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return the candidates worth trying for `size_bytes`, by predicted time, fastest first.

        `sent` and `is_alone` are not used.
        """
        ranked = model.rank_shapes(self._shapes, self.topology, size_bytes)[:_RACED]
        return [Candidate(schedule, self.name, _WAYS[mode]) for schedule, mode in ranked]

    # Calls

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """Load the program for a call; return None, or why there is none.

        A call that a CUDA graph captures must have been made before, since loading a program copies
        from the host.
        """
        self._allowed = candidate, buffers, self._load(candidate, buffers)
        return "kernels have no program for the call" if self._allowed[2] is None else None

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Launch the call of a `candidate` that `can` has allowed on the current stream.

        `number` is the call's in the group. Raise ExecutionError, naming the rank to blame, if an
        earlier call has timed out.
        """
        (*allowed, loaded), self._allowed = self._allowed, (None, None, None)
        if allowed[0] is not candidate or allowed[1] is not buffers:  # `can` was asked of another
            loaded = self._load(candidate, buffers)
        assert loaded is not None  # or `can` refuses it
        player = self._player
        number, deadline = self.transport.faults.admit(number)
        self._check(loaded, number, deadline)
        source, target = (x.view(loaded.dtype) for x in (buffers.source, buffers.target))
        if not player.are_apart(loaded, source, target):
            source = source.clone()
        player.launch(loaded, source, target)
        if self._divides_after(candidate.schedule, buffers):
            buffers.target.div_(candidate.schedule.collective.ranks)
        self.sent_bytes += loaded.sent_bytes
        for listener in self._find_listeners(candidate, buffers, loaded):
            listener.end(number)

    def bind(self, candidate: Candidate, buffers: Buffers) -> None:
        """Return None: a launch needs no preparation, so `run` is as fast as anything bound."""

    def _find_listeners(
        self, candidate: Candidate, buffers: Buffers, loaded: Loaded
    ) -> tuple[Listener, ...]:
        size_bytes = buffers.numel * buffers.target.dtype.itemsize
        key = candidate.label, size_bytes, loaded.sent_bytes
        if key not in self._listeners:
            if len(self._listeners) >= _MAX_LISTENERS:
                self._listeners.clear()
            calls = ObservedCalls(loaded.describe(), *key)
            self._listeners[key] = self.listen(calls)
        return self._listeners[key]

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of all calls from now on."""
        super().observe(observer)
        self._listeners.clear()

    def ignore(self, observer: Observer) -> None:
        """Tell `observer` of no more calls."""
        super().ignore(observer)
        self._listeners.clear()

    def _load(self, candidate: Candidate, buffers: Buffers) -> Loaded | None:
        is_on_gpu = buffers.target.is_cuda  # else the kernels are interpreted
        captures = is_on_gpu and torch.cuda.is_current_stream_capturing()
        if is_on_gpu and not captures:
            # Calls share counters and windows, so they follow each other.
            find_arena(self.transport, buffers.target.device).follow_last_call()
        schedule, dtype = candidate.schedule, buffers.target.dtype
        collective = schedule.collective
        op = buffers.op if collective.reduces else None
        key = candidate, buffers.numel, dtype
        if not suits(dtype, op) or (self._too_fine and key in self._too_fine):
            return None
        if op is None:
            dtype = BY_WIDTH[dtype.itemsize]
        averages = op == dist.ReduceOp.AVG and collective.name == "allreduce"
        kind = dist.ReduceOp.SUM if op in (None, dist.ReduceOp.AVG) and not averages else op
        call: Any = (schedule, buffers.numel, dtype, kind)
        how: Any = {
            "mode": _MODES[candidate.way],
            "in_place": collective.name in IN_PLACE and buffers.source is buffers.target,
        }
        if captures and not self._player.is_loaded(*call, **how):
            return None
        try:
            return self._player.load(*call, **how)
        except InfeasibleError:  # on all ranks alike
            self._too_fine.add(key)
            return None

    def _divides_after(self, schedule: Schedule, buffers: Buffers) -> bool:
        collective = schedule.collective
        return (
            collective.reduces
            and buffers.op == dist.ReduceOp.AVG
            and collective.name != "allreduce"
            and ends_with_result(collective, self.transport.rank)
        )

    def _check(self, loaded: Loaded, number: int, deadline: float) -> None:
        """Raise ExecutionError, after reports between ranks, if a call has waited in vain."""
        failure = self._player.find_failure()
        if failure is None:
            return
        faults = self.transport.faults
        call = Call(failure.call, number, min(deadline, time.monotonic()), self.topology)
        kind = "receive" if failure.step >= 0 else "send"
        error = ExecutionError(failure.reason)
        raise faults.stuck(call, kind, failure.peer, 0, max(0, failure.step), error, {})


class KernelsOfGpus:
    """Opens the runner of kernels for transports whose ranks have GPUs."""

    def prepare(self, transport: Transport) -> str | None:
        """Return why a transport's ranks cannot use kernels, None if they can.

        Collective the first time: it then checks all that kernels need.
        """
        if not transport.links.is_batched:
            return "kernels play on GPUs"
        player = open_kernels(transport)
        return player if isinstance(player, str) else None

    def open(self, opening: Opening) -> Runner | str:
        """Return the runner for the calls of `opening`, or why there is none."""
        if not opening.transport.links.is_batched:
            return "kernels play on GPUs"
        if not opening.plan.collective.has_all_gpus:
            return "kernels play plans for all GPUs alone"
        if opening.keeps_bits:
            return (
                "kernels add half precision in float32, messages do not, and "
                f"choose={SAME_BITS!r} promises the same bits; leave executor out"
            )
        player = open_kernels(opening.transport)
        return player if isinstance(player, str) else Kernels(player, opening)


GPUS: RunnerKind = KernelsOfGpus()
