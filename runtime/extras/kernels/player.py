"""Run one-sided programs on GPUs: one kernel launch per rank and call.

A one-sided program is one rank's instructions for a schedule, in which it reads and writes other
ranks' memory itself (one_sided/instructions.py). The kernel's grid has programs in Triton's sense,
each of which plays some slices of the buffer.

All ranks of a group make the same calls in the same order, each on one stream. A program is
compiled to a table once for each schedule, size and dtype; a call then is a launch, which CUDA
graphs can capture. The first launch for a dtype and reduction compiles the kernel: warm up before a
capture.
"""

import time
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from ....synth.ir.schedule import Schedule
from ....topo.errors import ExecutionError, InputError
from ...program.layout import IN_PLACE, ends_numel
from ...reductions import ReduceOp, check_reduction, dtype_name, share_memory
from ..one_sided.instructions import END, Mode
from ..one_sided.lowering import lower_one_sided
from .kernel import execute_program
from .memory import KernelMemory, set_timeout
from .tables import ERROR, RUN_BITS, encode

# 8 KiB a block: 32 bytes, two vectors, for each of the 256 threads of 8 warps, which leaves room in
# the registers for 8 terms.
_BLOCK_BYTES: Final = 8192
_NUM_WARPS: Final = 8
# With 128 registers a thread, for two programs on a multiprocessor, ptxas spills some. A grid has
# at most one program for each, which may take all its registers.
_MAX_REGISTERS: Final = 255
# A signal or wait names at most as many ranks as a program has threads. A wait may name each rank
# twice, for a free slot and for data.
LANES: Final = 256
_MAX_RANKS: Final = LANES // 2
# A buffer has a slice for each of these bytes, up to the programs of the grid. Smaller slices gain
# nothing, since a program moves a block at once.
_SLICE_BYTES: Final = 1 << 14
# The programs that a player caches; the least recently used are dropped.
_MAX_LOADED: Final = 64
# Polling interval of interpreted kernels: about as long as the poll itself.
_POLLING_INTERVAL_S: Final = 2e-4
_NAMES: Final = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}


def find_block_numel(dtype: torch.dtype) -> int:
    """Return how many elements of a dtype the kernel copies or adds at once."""
    return _BLOCK_BYTES // dtype.itemsize


def find_target() -> str:
    """Return where kernels run in this process: "cuda", "hip" (AMD) or "interpreter".

    The last is Triton's interpreter on CPUs, with TRITON_INTERPRET=1.
    """
    import triton

    if triton.knobs.runtime.interpret:
        return "interpreter"
    return "hip" if torch.version.hip else "cuda"


def _share_cores() -> None:
    """Let polls of interpreted kernels sleep, since ranks may share cores."""
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.create_atomic_rmw
    if plain.__name__ == "poll":
        return

    def poll(*args: Any) -> Any:
        time.sleep(_POLLING_INTERVAL_S)
        return plain(*args)

    InterpreterBuilder.create_atomic_rmw = poll


def list_options(target: str) -> dict[str, int]:
    """Return the options for Triton's compiler, given the result of `find_target`."""
    # Nothing is multiplied and added at once; Triton warns unless it is given.
    options = {"num_warps": _NUM_WARPS, "num_stages": 1, "enable_fp_fusion": False}
    return options | ({"maxnreg": _MAX_REGISTERS} if target == "cuda" else {})


@dataclass(frozen=True)
class Loaded:
    """One rank's program for a schedule, size and dtype, loaded into device memory.

    It runs `schedule` on buffers of `numel` elements of `dtype`, with the kernel's `reduction`.
    `table` is the encoded program, `programs` the size of the grid, `work` the work buffer (None:
    the tensor itself is). A call puts `sent_bytes` bytes into memory that other ranks read.
    """

    schedule: Schedule
    numel: int
    dtype: torch.dtype
    reduction: str
    programs: int
    table: torch.Tensor
    work: torch.Tensor | None
    sent_bytes: int

    def describe(self) -> str:
        """Return a description of a call of this program, for errors."""
        name = self.schedule.collective.name
        return (
            f"{name} of {self.numel} elements of {dtype_name(self.dtype)} by "
            f"{self.schedule.label}, one-sided"
        )


@dataclass(frozen=True)
class Failure:
    """A call that timed out waiting for rank `peer`.

    `step` is the schedule's, or -1 if it waited for a buffer to be read; `call` and `reason` are
    for the error message.
    """

    call: str
    peer: int
    step: int
    reason: str


class KernelPlayer:
    """Runs schedules by kernels for one rank, on `memory` that all ranks of the group reach."""

    def __init__(self, memory: KernelMemory) -> None:
        if memory.region.ranks > _MAX_RANKS:
            raise InputError(
                f"{memory.region.ranks} ranks; expected at most {_MAX_RANKS} of one host"
            )
        self.memory = memory
        self.rank = memory.addresses.rank
        self._target = find_target()
        if self._target == "interpreter":
            _share_cores()
        self._loaded: OrderedDict[tuple[Any, ...], Loaded] = OrderedDict()
        # CUDA graphs hold the addresses of these for as long as they live.
        self._captured: dict[int, Loaded] = {}

    def set_timeout(self, timeout_s: float) -> None:
        """Set how many seconds later calls wait for other ranks."""
        set_timeout(self.memory, timeout_s)

    def load(
        self,
        schedule: Schedule,
        numel: int,
        dtype: torch.dtype,
        op: ReduceOp = dist.ReduceOp.SUM,
        *,
        mode: Mode = "pull",
        in_place: bool = False,
    ) -> Loaded:
        """Return a schedule's program for a buffer of `numel` elements; made once, then cached.

        `op` is the reduction. `mode` says whether receivers "pull" or senders "push" data. With
        `in_place` (allreduce, broadcast and reduce only) input and output are one tensor. Raise
        InputError if the arguments do not fit each other or the memory's ranks, InfeasibleError if
        the schedule has too many chunks for the windows.
        """
        key = schedule, numel, dtype, op, mode, in_place
        loaded = self._loaded.pop(key, None)
        if loaded is None:
            loaded = self._load(schedule, numel, dtype, op, mode, in_place)
            while len(self._loaded) >= _MAX_LOADED:
                self._drop(self._loaded.popitem(last=False)[1])
        self._loaded[key] = loaded
        return loaded

    def is_loaded(
        self,
        schedule: Schedule,
        numel: int,
        dtype: torch.dtype,
        op: ReduceOp = dist.ReduceOp.SUM,
        *,
        mode: Mode = "pull",
        in_place: bool = False,
    ) -> bool:
        """Return whether `load` has cached the program of these arguments; same on all ranks."""
        return (schedule, numel, dtype, op, mode, in_place) in self._loaded

    def _drop(self, loaded: Loaded) -> None:
        """Free a program's memory once the current stream, which follows all calls, is done."""
        if loaded.table.is_cuda:
            stream = torch.cuda.current_stream(loaded.table.device)
            for tensor in (loaded.table, loaded.work):
                if tensor is not None:
                    tensor.record_stream(stream)

    def _load(
        self,
        schedule: Schedule,
        numel: int,
        dtype: torch.dtype,
        op: ReduceOp,
        mode: Mode,
        in_place: bool,
    ) -> Loaded:
        collective, region = schedule.collective, self.memory.region
        if collective.ranks != region.ranks:
            raise InputError(
                f"{schedule.label} is for {collective.ranks} ranks, not {region.ranks}"
            )
        if in_place and collective.name not in IN_PLACE:
            raise InputError(
                f"{collective.name} has an input and an output; expected one of "
                f"{', '.join(IN_PLACE)} in place"
            )
        if collective.reduces:
            op = check_reduction(op, dtype)
        window_numel = region.half_bytes // dtype.itemsize
        wanted = min(region.programs, max(1, numel * dtype.itemsize // _SLICE_BYTES))

        def lower(rank: int, slices: int | None) -> Any:
            return lower_one_sided(
                schedule,
                rank,
                numel,
                window_numel=window_numel,
                averages=op == dist.ReduceOp.AVG,
                mode=mode,
                slices=slices,
            )

        slices = max(wanted, lower(self.rank, None).slices)
        programs = [lower(rank, slices) for rank in range(region.ranks)]
        table = encode(programs, self.memory.addresses, dtype.itemsize, in_place=in_place)
        device = self.memory.device
        return Loaded(
            schedule,
            numel,
            dtype,
            _NAMES[op],
            min(slices, region.programs),
            torch.from_numpy(table.numbers).to(device),
            None if in_place else torch.empty(table.work_numel, dtype=dtype, device=device),
            sum(slot.length for slot in programs[self.rank].puts) * dtype.itemsize,
        )

    def launch(self, loaded: Loaded, source: torch.Tensor, target: torch.Tensor) -> None:
        """Launch a `loaded` program from `source` to `target`, the same tensor if it is in place.

        They are contiguous, and may not overlap otherwise, except that an allgather's input may be
        its part of the output, and a reduce-scatter's output its part of the input. Raise
        InputError if they do not fit, ExecutionError if an earlier call has timed out by now.
        """
        self.check()
        self._check_tensors(loaded, source, target)
        if target.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured[id(loaded)] = loaded
        with torch.cuda.device(target.device) if target.is_cuda else nullcontext():
            self._launch(loaded, source, target)

    def _launch(self, loaded: Loaded, source: torch.Tensor, target: torch.Tensor) -> None:
        execute_program[(loaded.programs,)](
            loaded.table,
            self.memory.state,
            self.memory.errors,
            source,
            target,
            target if loaded.work is None else loaded.work,
            REDUCTION=loaded.reduction,
            BLOCK=find_block_numel(loaded.dtype),
            LANES=LANES,
            TARGET=self._target,
            **list_options(self._target),
        )

    def _check_tensors(self, loaded: Loaded, source: torch.Tensor, target: torch.Tensor) -> None:
        collective = loaded.schedule.collective
        wanted = ends_numel(collective, self.rank, loaded.numel)
        for name, tensor, numel in zip(("source", "target"), (source, target), wanted, strict=True):
            if tensor.dtype != loaded.dtype or tensor.numel() < numel or not tensor.is_contiguous():
                raise InputError(
                    f"{name}: {tensor.numel()} elements of {dtype_name(tensor.dtype)}; expected "
                    f"{numel} of {dtype_name(loaded.dtype)}, contiguous"
                )
        if loaded.work is None and source.data_ptr() != target.data_ptr():
            raise InputError("source: expected the target itself, since the program is in place")
        if not self.are_apart(loaded, source, target):
            name = collective.name
            raise InputError(f"{name}: source and target overlap; pass a clone")

    def are_apart(self, loaded: Loaded, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Return whether `source` and `target` overlap only as `launch` allows for a program."""
        if loaded.work is None or not share_memory(source, target):
            return True
        name = loaded.schedule.collective.name
        own = {"allgather": (source, target), "reduce-scatter": (target, source)}
        part, whole = own.get(name, (source, target))
        return name in own and part.data_ptr() - whole.data_ptr() == self.rank * part.nbytes

    def check(self) -> None:
        """Raise ExecutionError if a call has timed out by now."""
        failure = self.find_failure()
        if failure is not None:
            raise ExecutionError(
                f"rank {self.rank}: {failure.call}: {failure.reason}; start all ranks again"
            )

    def find_failure(self) -> Failure | None:
        """Return the call that has timed out by now, None if none has."""
        errors = self.memory.errors.view(-1, ERROR)
        if not errors[:, 0].any():
            return None
        program = int(errors[:, 0].argmax())
        _, peer, step, awaited, seen, table = errors[program, :6].tolist()
        loaded = (*self._loaded.values(), *self._captured.values())
        by_address = {x.table.data_ptr(): x for x in loaded}
        call = by_address[table].describe() if table in by_address else "a call"
        what = "the buffers of two runs ago to be read" if step < 0 else f"its data of step {step}"
        reason = (
            f"waited {self.memory.timeout_s:g} s for rank "
            f"{peer}, {what} (slice {program}: run {awaited >> RUN_BITS}, "
            f"{_describe_progress(awaited)}; it is in run {seen >> RUN_BITS}, "
            f"{_describe_progress(seen)})"
        )
        return Failure(call, peer, step, reason)


def _describe_progress(counter: int) -> str:
    number = counter & END
    return "at its end" if number == END else f"signal {number}"
