"""A communicator's calls by kernels: tensors, averages and failures as in all other calls."""

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ....topo.errors import ExecutionError, InfeasibleError
from ...native.library import BY_WIDTH, suits
from ...program.layout import IN_PLACE, ends_with_result
from ...program.one_sided.flat import OneSidedSchedule
from ...ranks.faults import Call
from ...scratch import find_arena
from .opening import open_kernels

if TYPE_CHECKING:
    from ....topo.graph import Topology
    from ...compiled import Buffers
    from ...ranks.transport import Transport
    from ...summaries.tallies import Tallies
    from .player import KernelPlayer, Loaded


class KernelCalls:
    """Runs one-sided schedules on a transport's GPUs; `topology` names the links in errors."""

    def __init__(
        self, transport: "Transport", topology: "Topology | None", tallies: "Tallies"
    ) -> None:
        self.transport, self.topology, self.tallies = transport, topology, tallies
        # Schedules with too many chunks for the windows: sent as messages.
        self._too_fine: set[tuple[OneSidedSchedule, int, torch.dtype]] = set()

    def run(
        self, schedule: OneSidedSchedule, buffers: "Buffers", number: int | None = None
    ) -> int | None:
        """Put a call on the current stream, and return the bytes that this rank sends.

        Return None, on all ranks, if kernels cannot play it.

        A call that a CUDA graph captures must have been made before, since loading a program copies
        from the host. Raise ExecutionError, naming the rank to blame, if an earlier call has waited
        in vain.
        """
        player = open_kernels(self.transport)
        assert not isinstance(player, str)
        is_on_gpu = buffers.target.is_cuda  # else the kernels are interpreted
        captures = is_on_gpu and torch.cuda.is_current_stream_capturing()
        if is_on_gpu and not captures:
            # Calls share counters and windows, so they follow each other.
            find_arena(self.transport, buffers.target.device).follow_last_call()
        loaded = self._load(player, schedule, buffers, captures)
        if loaded is None:
            return None
        number, deadline = self.transport.faults.admit(number)
        self._check(player, loaded, number, deadline)
        source, target = (x.view(loaded.dtype) for x in (buffers.source, buffers.target))
        if not player.are_apart(loaded, source, target):
            source = source.clone()
        player.play(loaded, source, target)
        if self._divides_after(schedule, buffers):
            buffers.target.div_(schedule.collective.ranks)
        size_bytes = buffers.numel * buffers.target.dtype.itemsize
        self.tallies.find(schedule.label, size_bytes).add()
        return loaded.sent_bytes

    def _load(
        self, player: "KernelPlayer", schedule: OneSidedSchedule, buffers: "Buffers", captures: bool
    ) -> "Loaded | None":
        collective, dtype = schedule.collective, buffers.target.dtype
        op = buffers.op if collective.reduces else None
        key = schedule, buffers.numel, dtype
        if not suits(dtype, op) or (self._too_fine and key in self._too_fine):
            return None
        if op is None:
            dtype = BY_WIDTH[dtype.itemsize]
        averages = op == dist.ReduceOp.AVG and collective.name == "allreduce"
        kind = dist.ReduceOp.SUM if op in (None, dist.ReduceOp.AVG) and not averages else op
        call: Any = (schedule, buffers.numel, dtype, kind)
        how: Any = {
            "mode": schedule.mode,
            "in_place": collective.name in IN_PLACE and buffers.source is buffers.target,
        }
        if captures and not player.is_loaded(*call, **how):
            return None
        try:
            loaded: Loaded = player.load(*call, **how)
        except InfeasibleError:  # on all ranks alike
            self._too_fine.add(key)
            return None
        return loaded

    def _divides_after(self, schedule: OneSidedSchedule, buffers: "Buffers") -> bool:
        collective = schedule.collective
        return (
            collective.reduces
            and buffers.op == dist.ReduceOp.AVG
            and collective.name != "allreduce"
            and ends_with_result(collective, self.transport.rank)
        )

    def _check(
        self, player: "KernelPlayer", loaded: "Loaded", number: int, deadline: float
    ) -> None:
        """Raise ExecutionError, after reports between ranks, if a call has waited in vain."""
        failure = player.find_failure()
        if failure is None:
            return
        faults = self.transport.faults
        call = Call(failure.call, number, min(deadline, time.monotonic()), self.topology)
        kind = "receive" if failure.step >= 0 else "send"
        error = ExecutionError(failure.reason)
        raise faults.stuck(call, kind, failure.peer, 0, max(0, failure.step), error, {})
