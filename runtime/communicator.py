"""What a user holds: `Communicator(plan).allreduce(tensor)`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ..synth.cost.host_costs import HostCosts
from ..synth.ir.lossy import rounded
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from ..topo.errors import ExecutionError, InputError, PlanMismatchError, TopoplanError
from .choose import MODES, Choice, Chooser
from .codecs import codec_named
from .executor import REDUCIBLE, Executor, check_op
from .program.layout import IN_PLACE, ends_numel
from .ranks.faults import NOBODY, Faults, first_line, grace_s
from .ranks.groups import Maker, own_group
from .ranks.machine import machine
from .ranks.stock import stock, works

REDUCTIONS = ("hops", "once")
DEFAULT_TIMEOUT = timedelta(seconds=300)
_DIGEST_BYTES = 32


class Communicator:
    """Carries out one plan's collective over the ranks of `group` (default: all).

    Constructing it is collective: every rank of the default group must do so, in the same order (it makes a process
    group of its own, so that its messages never mix with others'). Before any data moves the ranks agree on the plan;
    where they do not, or their number is not the plan's, every rank raises PlanMismatchError.

    `choose` says how a schedule is picked for a size: `race` (at the first call of each power of two, the candidates that
    are predicted to be near the best, and the stock collective, are run on scratch memory; the fastest stays), `model`
    (by prediction alone, so the same in every run), or `plan` (the plan's own ranges of sizes). `timeout` is the deadline
    of a call: by then it is through, or has raised ExecutionError on every rank that is still alive.

    `compress` names a codec (compress.CODECS) in which floating-point values travel, of whatever schedule; they are summed
    in float32, and all ranks end with the same bits. `reduction` says where they are rounded: `hops` (whenever they are
    sent, partial sums too), or `once` (each contribution once, then their whole sum once: schedules that bring all
    contributions to one rank in one hop). The stock collective, which does not compress, is out of the race.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        group: dist.ProcessGroup | Maker | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        choose: str = "race",
        compress: str | None = None,
        reduction: str = "hops",
    ) -> None:
        if choose not in MODES:
            raise InputError(f"choose={choose!r}: expected one of {', '.join(MODES)}")
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction={reduction!r}: expected one of {', '.join(REDUCTIONS)}")
        if reduction == "once" and compress is None:
            raise InputError("reduction='once' without compress: nothing is rounded; name a codec")
        self.codec = None if compress is None else codec_named(compress)
        self._once = reduction == "once"
        if not dist.is_initialized():
            raise InputError("torch.distributed is not initialised; call init_process_group first")
        loaded = _loaded(plan)
        try:
            self.group = inner = own_group(group, timeout - timedelta(seconds=grace_s(timeout)))
            self.rank, self.size = dist.get_rank(inner), dist.get_world_size(inner)
            self.device = torch.device("cuda", torch.cuda.current_device()) if _on_gpu(inner) else torch.device("cpu")
            self.plan = self._agree(loaded)
            self._check_fits(choose)
            self.machine = machine(self.plan.topology, inner)
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {dist.get_rank()}: the ranks could not set up a group for the plan: {first_line(error)}; "
                "are all of them running, and can they reach each other?"
            ) from error
        store = PrefixStore(f"topoplan/{inner.group_name}", dist.distributed_c10d._get_default_store())
        self._faults = Faults(inner, self.plan.topology, timeout, store)
        self._executor = Executor(inner, self._faults, self.codec)
        self._chooser = Chooser(self.plan, self.machine, self._faults, self.device, choose, self._fits, self.codec)
        self._stock_works: dict[tuple[torch.dtype, dist.ReduceOp.RedOpType], bool] = {}

    def _agree(self, loaded: Plan | TopoplanError) -> Plan:
        """All ranks show each other the hash of their plan (zeros: it has none), and each checks the number of ranks."""
        digest = bytes.fromhex(loaded.hash) if isinstance(loaded, Plan) else bytes(_DIGEST_BYTES)
        mine = torch.tensor(list(digest), dtype=torch.uint8, device=self.device)
        everyones = [torch.empty(_DIGEST_BYTES, dtype=torch.uint8, device=self.device) for _ in range(self.size)]
        dist.all_gather(everyones, mine, group=self.group)
        if isinstance(loaded, TopoplanError):
            raise loaded
        without = [str(rank) for rank, digest in enumerate(everyones) if not digest.any()]
        if without:
            raise PlanMismatchError(f"rank {', '.join(without)} could not read its plan; see its own error")
        other = [rank for rank, digest in enumerate(everyones) if not torch.equal(digest, everyones[0])]
        if other:
            raise PlanMismatchError(
                f"the ranks do not hold the same plan: rank{'s' if len(other) > 1 else ''} "
                f"{', '.join(map(str, other))} and rank 0 differ; give all of them the same file"
            )
        if self.size != loaded.collective.ranks:
            raise PlanMismatchError(
                f"the plan is for {loaded.collective.ranks} ranks, the group has {self.size}; "
                "start as many ranks, or synthesize a plan for this number"
            )
        return loaded

    def _fits(self, schedule: Schedule) -> bool:
        """Whether a schedule keeps what compression promises."""
        if self.codec is None:
            return True
        found = rounded(schedule.uncut)
        return found.uniform and (found.once or not self._once)

    def _check_fits(self, choose: str) -> None:
        used = [x.schedule for x in self.plan.entries] if choose == "plan" else self.plan.schedules
        fitting = [x for x in used if self._fits(x)]
        if fitting and (choose != "plan" or len(fitting) == len(used)):
            return
        names = ", ".join(sorted({x.strategy for x in used if not self._fits(x)}))
        if not self._once:
            raise InputError(
                f"compress: ranks that round what they send would end with different sums by {names}; synthesize without it"
            )
        raise InputError(
            f"reduction='once': {names} adds up what was added up before, so sums are rounded on their way; synthesize with "
            "--strategy direct, or use reduction='hops'"
        )

    # -- collectives ---------------------------------------------------------------------------------------------

    def allreduce(
        self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Every rank ends with the reduction of all tensors, in place. Shapes and dtypes must be alike on all ranks.

        `residual` (with compression, of SUM and AVG) is error feedback: float32, as many elements as the tensor, zeros at
        first. It is added to the tensor and gets what rounding on this rank took away; over all ranks nothing is lost.
        """
        if residual is not None:
            self._check_residual(tensor, op, residual)
        return self._in_place("allreduce", tensor, op, residual)

    def reduce(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> torch.Tensor:
        """The plan's root ends with the reduction, in place; other ranks' tensors hold partial results."""
        return self._in_place("reduce", tensor, op)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank ends with what the plan's root has, in place."""
        return self._in_place("broadcast", tensor, None)

    def allgather(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """`output` (ranks times as long) gets the tensors of all ranks, one after the other."""
        return self._out_of_place("allgather", output, tensor, output.numel(), tensor.numel() * self.size)

    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
        """At the plan's root, `output` gets the tensors of all ranks; elsewhere it is None."""
        if self._is_root != (output is not None):
            raise InputError("gather: give an output at the root, and None at the other ranks")
        numel = tensor.numel() * self.size
        there = tensor.new_empty(0) if output is None else output
        self._out_of_place("gather", there, tensor, numel if output is None else output.numel(), numel)
        return output

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """`output` gets this rank's part of the reduction of all tensors (ranks times as long)."""
        return self._out_of_place("reduce-scatter", output, tensor, tensor.numel(), output.numel() * self.size, op)

    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor:
        """`output` gets this rank's part of the root's tensor; elsewhere `tensor` is None."""
        if self._is_root != (tensor is not None):
            raise InputError("scatter: give a tensor at the root, and None at the other ranks")
        numel = output.numel() * self.size
        here = output.new_empty(0) if tensor is None else tensor
        return self._out_of_place("scatter", output, here, numel if tensor is None else tensor.numel(), numel)

    def alltoall(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Part j of `tensor` goes to rank j; part j of `output` comes from it."""
        return self._out_of_place("alltoall", output, tensor, tensor.numel(), output.numel())

    # -- without waiting -----------------------------------------------------------------------------------------

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether it is settled what is used for a tensor's size; if not, the next call settles it, and takes its time."""
        return self._known(tensor) is not None or tensor.numel() == 0

    def is_stock(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> bool:
        """Whether the stock allreduce is used for a tensor: then it may as well be started and left to itself. Collective
        the first time for a dtype and reduction.
        """
        choice = self._known(tensor)
        if choice is None or choice.schedule is not None or tensor.dtype not in REDUCIBLE:
            return False
        return self._has_stock(tensor.dtype, self._check("allreduce", (tensor,), op))

    def start_stock(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> torch.futures.Future[object]:
        """The stock allreduce of a tensor, in place, under way: several may be. All stock collectives and all calls that
        settle a size must be made in one order on all ranks.

        The future's value is the tensor, or the ExecutionError where it fails (what is raised while futures are chained
        would come out of them as a RuntimeError).
        """
        reduction = self._check("allreduce", (tensor,), op)
        flat = _flat(tensor)
        self._faults.begin(self._call_of_stock(flat.numel(), flat.dtype, reduction))
        sums = dist.ReduceOp.SUM if reduction == dist.ReduceOp.AVG else reduction
        work = dist.all_reduce(flat, sums, self.group, async_op=True)

        def finished(done: torch.futures.Future[list[torch.Tensor]]) -> object:
            try:
                done.value()
            except RuntimeError as error:
                return self._faults.stuck("stock", NOBODY, 0, 0, error, {})
            self._finish(tensor, flat, reduction == dist.ReduceOp.AVG)
            return tensor

        future: torch.futures.Future[object] = work.get_future().then(finished)
        return future

    def _known(self, tensor: torch.Tensor) -> Choice | None:
        return self._chooser.known(self.wire_size(tensor.numel(), tensor.dtype))

    def _finish(self, tensor: torch.Tensor, flat: torch.Tensor, averages: bool) -> None:
        """What comes after the sum in a tensor's flat elements."""
        if averages:
            flat.div_(self.size)
        if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))

    # -- how -----------------------------------------------------------------------------------------------------

    @property
    def _is_root(self) -> bool:
        return self.plan.collective.root == self.rank

    def _in_place(
        self, name: str, tensor: torch.Tensor, op: object, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        reduction = self._check(name, (tensor,), op)
        if tensor.numel() == 0:
            return tensor
        flat = _flat(tensor)
        self._run(flat.numel(), flat, flat, reduction, None if residual is None else residual.view(-1))
        averages = op is not None and reduction == dist.ReduceOp.AVG and (name == "allreduce" or self._is_root)
        self._finish(tensor, flat, averages)
        return tensor

    def _check_residual(self, tensor: torch.Tensor, op: object, residual: torch.Tensor) -> None:
        if self.codec is None:
            raise InputError("residual without compression: nothing is lost that could be fed back")
        if check_op(op, tensor.dtype) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise InputError(f"error feedback is for sums and averages, not for {op}")
        wrong = _check_form(tensor, residual)
        if wrong is not None:
            raise InputError(f"residual: {wrong}")

    def choice(self, size_bytes: int) -> Choice | None:
        """What is used at a size on the wire; None before the first call of that size (a power of two)."""
        return self._chooser.known(size_bytes)

    @property
    def most_roundings(self) -> int:
        """How many rounded values a rank's contribution is part of at most, by whichever schedule; 0 without compression."""
        if self.codec is None:
            return 0
        return max(rounded(schedule.uncut).most for schedule in self.plan.schedules if self._fits(schedule))

    def wire_size(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes of a buffer on the wire."""
        return numel * dtype.itemsize if self.codec is None else self.codec.nbytes(self.codec.padded(numel))

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank has sent through plans since the communicator was made, races included."""
        return self._executor.sent_bytes

    @property
    def variants(self) -> list[Schedule]:
        """The schedules, in all their cuts, from which one is chosen for a size."""
        return self._chooser.variants

    def set_host(self, host: HostCosts) -> None:
        """Predict with these host costs from now on. The same on every rank."""
        self.machine = self._chooser.machine = replace(self.machine, host=host)

    def scratch(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat input and output, zeros, for a buffer of `numel` elements."""
        sent, got = ends_numel(self.plan.collective, self.rank, numel)
        output = torch.zeros(got, dtype=dtype, device=self.device)
        in_place = self.plan.collective.name in IN_PLACE
        return (output if in_place else torch.zeros(sent, dtype=dtype, device=self.device)), output

    def guarded(self, call: str) -> AbstractContextManager[None]:
        """Around stock collectives over `group` that all ranks make: a fault in them is an ExecutionError on every rank.
        `call` says, alike on all ranks, what they are for.
        """
        return self._faults.stock(call)

    def play(self, schedule: Schedule, numel: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """One of `variants`, on flat tensors as `scratch` makes them."""
        self._executor.run(schedule, numel, source, target)

    def _run(
        self,
        numel: int,
        source: torch.Tensor,
        target: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        residual: torch.Tensor | None = None,
    ) -> None:
        choice = self._chooser.known(self.wire_size(numel, target.dtype))
        if choice is None:
            choice = self._choose(numel, source, target, op)
        schedule = choice.schedule
        if schedule is None and not self._has_stock(target.dtype, op):
            schedule = choice.own  # the race was run with another dtype
        if schedule is not None:
            self._executor.run(schedule, numel, source, target, op, residual)
        else:
            self._stock(numel, source, target, op)

    def _stock(self, numel: int, source: torch.Tensor, target: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        with self._faults.stock(self._call_of_stock(numel, target.dtype, op)):
            stock(self.plan.collective, self.group, source, target, op)()

    def _call_of_stock(self, numel: int, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> str:
        return f"{op.name}, {numel} elements of {_plain(dtype)}, by the stock {self.plan.collective.name}"

    def _has_stock(self, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> bool:
        """Whether the backend has the collective for a dtype and reduction: tried once, on scratch memory, by all ranks."""
        if (dtype, op) not in self._stock_works:
            call = stock(self.plan.collective, self.group, *self.scratch(self.size, dtype), op)
            with self._faults.stock(f"{op.name} of {_plain(dtype)}: whether there is a stock one"):
                self._stock_works[dtype, op] = works(call, self.group, self.device)
        return self._stock_works[dtype, op]

    def _choose(self, numel: int, source: torch.Tensor, target: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Choice:
        """Race on scratch memory: what the caller brought stays as it is."""
        into = torch.zeros_like(target)
        given = into if source is target else torch.zeros_like(source)
        choice = self._chooser.choose(
            self.wire_size(numel, target.dtype),
            lambda schedule: self._executor.run(schedule, numel, given, into, op),
            lambda: self._stock(numel, given, into, op),
            lambda: self.codec is None and self._has_stock(into.dtype, op),
        )
        self._executor.forget(numel, into.dtype, choice.schedule)
        return choice

    def _out_of_place(
        self, name: str, output: torch.Tensor, tensor: torch.Tensor, numel: int, wanted: int, op: object = None
    ) -> torch.Tensor:
        reduction = self._check(name, (output, tensor), op)
        if numel != wanted or numel % self.size:
            raise InputError(
                f"{name} over {self.size} ranks: input of {tensor.numel()} and output of {output.numel()} elements "
                "do not fit together"
            )
        if numel == 0:
            return output
        source, target = _flat(tensor), _flat(output)
        self._run(numel, source, target, reduction)
        if op is not None and reduction == dist.ReduceOp.AVG:
            target.div_(self.size)
        if not output.is_contiguous():
            output.detach().copy_(target.view(output.shape))
        return output

    def _check(self, name: str, tensors: tuple[torch.Tensor, ...], op: object) -> dist.ReduceOp.RedOpType:
        if self.plan.collective.name != name:
            raise InputError(f"the plan is for {self.plan.collective.name}, not for {name}; synthesize one for it")
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise InputError(f"{name}: {tensor.layout} tensors are not supported; expected a dense one")
            if any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True)):
                raise InputError(f"{name}: the tensor is expanded, its elements share memory; pass a clone")
            if tensor.device.type != self.device.type:
                raise InputError(f"{name}: the tensor is on {tensor.device}, the group works on {self.device.type}")
            if tensor.dtype != tensors[0].dtype:
                raise InputError(f"{name}: input and output differ in dtype: {tensor.dtype} and {tensors[0].dtype}")
            if self.codec is not None and not tensor.dtype.is_floating_point:
                raise InputError(f"{name}: {tensor.dtype} is not compressed; expected floating-point tensors")
        return dist.ReduceOp.SUM if op is None else check_op(op, tensors[0].dtype)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements one after the other: a view where the tensor is contiguous, else a copy (a view with gaps is none)."""
    return tensor.detach().reshape(-1).contiguous()


def _check_form(tensor: torch.Tensor, residual: torch.Tensor) -> str | None:
    """What is wrong with a residual, if anything is."""
    if residual.dtype != torch.float32 or residual.numel() != tensor.numel():
        return f"{residual.numel()} elements of {residual.dtype}; expected {tensor.numel()} of torch.float32"
    if residual.device != tensor.device or not residual.is_contiguous():
        return f"on {residual.device}, strides {residual.stride()}; expected it contiguous on {tensor.device}"
    return None


def _loaded(plan: Plan | str | Path) -> Plan | TopoplanError:
    """The plan, or why it could not be read: the other ranks are waiting, so the error is raised after they know."""
    if isinstance(plan, Plan):
        return plan
    try:
        return Plan.load(plan)
    except TopoplanError as error:
        return error


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on_gpu(group: dist.ProcessGroup) -> bool:
    return "nccl" in dist.get_backend(group)
