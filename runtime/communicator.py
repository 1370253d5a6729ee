"""What a user holds: `Communicator(plan).allreduce(tensor)`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..synth.plan import Plan
from ..topo.errors import ExecutionError, InputError, PlanMismatchError, TopoplanError
from .choose import Choice, ChooseMode, check_choose_mode, check_lossless
from .codecs import find_codec
from .engine import Engine
from .ranks.faults import first_line, grace_s
from .ranks.groups import GroupMaker, device_of, make_private_group
from .reductions import ReduceOp, check_reduction, check_residual, check_tensors, finish_reduction, flatten

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
    (by prediction alone, so the same in every run), `plan` (the plan's own ranges of sizes), `same-bits` (for plans made
    with topo-synth --reproducible: their schedules alone race, all of which add every element up in one bracketing, so that
    its bits do not depend on the size of the buffer or its place in it), or a function of the size in bytes and the list
    of candidates that returns, alike on all ranks, one of them, None for the stock collective, or one of these names for
    that size. `timeout` is the deadline of a call: by then it is through, or has raised ExecutionError
    on every rank that is still alive.

    `compress` names a codec (codecs.CODECS) in which floating-point values travel, whatever the schedule; they are summed
    in float32, and all ranks end with the same bits. `reduction` says where they are rounded: `hops` (whenever they are
    sent, partial sums too), or `once` (each contribution once, then their whole sum once: schedules that bring all
    contributions to one rank in one hop). The stock collective, which does not compress, is out of the race.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        group: dist.ProcessGroup | GroupMaker | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        choose: ChooseMode = "race",
        compress: str | None = None,
        reduction: str = "hops",
    ) -> None:
        check_choose_mode(choose)
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction={reduction!r}: expected one of {', '.join(REDUCTIONS)}")
        if reduction == "once" and compress is None:
            raise InputError("reduction='once' without compress: nothing is rounded; name a codec")
        codec = None if compress is None else find_codec(compress)
        check_lossless(choose, compress)
        if not dist.is_initialized():
            raise InputError("torch.distributed is not initialised; call init_process_group first")
        plan_or_error = _load_plan(plan)
        try:
            own_group = make_private_group(group, timeout - timedelta(seconds=grace_s(timeout)))
            device = device_of(own_group)
            self.plan = _agree_on_plan(plan_or_error, own_group, device)
            self.engine = Engine(self.plan, own_group, device, timeout, choose, codec, rounds_once=reduction == "once")
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {dist.get_rank()}: the ranks could not set up a group for the plan: {first_line(error)}; "
                "are all of them running, and can they reach each other?"
            ) from error
        self.rank, self.size = self.engine.rank, self.engine.size

    # -- collectives ---------------------------------------------------------------------------------------------

    def allreduce(
        self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Reduce the tensors of all ranks, in place on every rank. Shapes and dtypes must be alike on all ranks.

        `residual` (with compression, of SUM and AVG) is error feedback: float32, as many elements as the tensor, zeros at
        first. It is added to the tensor and gets what rounding on this rank took away; over all ranks nothing is lost.
        """
        kind = self._check("allreduce", (tensor,), op)
        if residual is not None:
            if self.engine.codec is None:
                raise InputError("residual without compression: nothing is lost that could be fed back")
            check_residual(tensor, kind, residual)
            residual = residual.view(-1)
        return self._run_in_place(tensor, kind, residual)

    def reduce(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce the tensors of all ranks, in place at the plan's root; other ranks' tensors hold partial results."""
        return self._run_in_place(tensor, self._check("reduce", (tensor,), op))

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy the tensor of the plan's root to every rank, in place."""
        return self._run_in_place(tensor, self._check("broadcast", (tensor,), None))

    def allgather(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate the tensors of all ranks in `output` (ranks times as long)."""
        return self._run_out_of_place("allgather", output, tensor, output.numel(), tensor.numel() * self.size)

    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
        """Concatenate the tensors of all ranks in `output` at the plan's root; elsewhere `output` is None."""
        if self._is_root != (output is not None):
            raise InputError("gather: give an output at the root, and None at the other ranks")
        numel = tensor.numel() * self.size
        target = tensor.new_empty(0) if output is None else output
        self._run_out_of_place("gather", target, tensor, numel if output is None else output.numel(), numel)
        return output

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """Reduce the tensors of all ranks (ranks times as long as `output`) and write this rank's part to `output`."""
        return self._run_out_of_place("reduce-scatter", output, tensor, tensor.numel(), output.numel() * self.size, op)

    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor:
        """Write this rank's part of the root's tensor to `output`; elsewhere than at the root `tensor` is None."""
        if self._is_root != (tensor is not None):
            raise InputError("scatter: give a tensor at the root, and None at the other ranks")
        numel = output.numel() * self.size
        source = output.new_empty(0) if tensor is None else tensor
        return self._run_out_of_place("scatter", output, source, numel if tensor is None else tensor.numel(), numel)

    def alltoall(self, output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Send part j of `tensor` to rank j, and write what comes from it to part j of `output`."""
        return self._run_out_of_place("alltoall", output, tensor, tensor.numel(), output.numel())

    # -- what is used, and the end -------------------------------------------------------------------------------

    def choice(self, size_bytes: int) -> Choice | None:
        """Return what is used at a size on the wire; None before the first call of that size (a power of two)."""
        return self.engine.choice(size_bytes)

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank has sent through schedules since the communicator was made, races included."""
        return self.engine.wire_bytes

    def close(self) -> None:
        """Destroy the communicator's process group; a later call raises ExecutionError."""
        self.engine.close()

    # -- how -----------------------------------------------------------------------------------------------------

    @property
    def _is_root(self) -> bool:
        return self.plan.collective.root == self.rank

    def _check(self, name: str, tensors: tuple[torch.Tensor, ...], op: object) -> ReduceOp:
        """Check that the plan is for a collective, and the tensors fit it; return the reduction."""
        if self.plan.collective.name != name:
            raise InputError(f"the plan is for {self.plan.collective.name}, not for {name}; synthesize one for it")
        check_tensors(name, tensors, self.engine.device.type, compressed=self.engine.codec is not None)
        return dist.ReduceOp.SUM if op is None else check_reduction(op, tensors[0].dtype)

    def _run_in_place(self, tensor: torch.Tensor, op: ReduceOp, residual: torch.Tensor | None = None) -> torch.Tensor:
        if tensor.numel() == 0:
            return tensor
        flat = flatten(tensor)
        self.engine.run(flat.numel(), flat, flat, op, residual)
        holds_result = self.plan.collective.root is None or self._is_root
        finish_reduction(tensor, flat, self.size if op == dist.ReduceOp.AVG and holds_result else 1)
        return tensor

    def _run_out_of_place(
        self, name: str, output: torch.Tensor, tensor: torch.Tensor, numel: int, wanted: int, op: object = None
    ) -> torch.Tensor:
        """Run on a buffer of `numel` elements, which the other end's tensor must make `wanted`."""
        kind = self._check(name, (output, tensor), op)
        if numel != wanted or numel % self.size:
            raise InputError(
                f"{name} over {self.size} ranks: input of {tensor.numel()} and output of {output.numel()} elements "
                "do not fit together"
            )
        if numel == 0:
            return output
        target = flatten(output)
        self.engine.run(numel, flatten(tensor), target, kind)
        finish_reduction(output, target, self.size if kind == dist.ReduceOp.AVG else 1)
        return output


def _load_plan(plan: Plan | str | Path) -> Plan | TopoplanError:
    """Return the plan, or why it could not be read: it is raised once the other ranks, which are waiting, know."""
    if isinstance(plan, Plan):
        return plan
    try:
        return Plan.load(plan)
    except TopoplanError as error:
        return error


def _agree_on_plan(plan: Plan | TopoplanError, group: dist.ProcessGroup, device: torch.device) -> Plan:
    """Return the plan once all ranks have shown each other its hash (zeros: a rank has none), and their number fits."""
    size = dist.get_world_size(group)
    digest = bytes.fromhex(plan.hash) if isinstance(plan, Plan) else bytes(_DIGEST_BYTES)
    digests = [torch.empty(_DIGEST_BYTES, dtype=torch.uint8, device=device) for _ in range(size)]
    dist.all_gather(digests, torch.tensor(list(digest), dtype=torch.uint8, device=device), group=group)
    if isinstance(plan, TopoplanError):
        raise plan
    without = [str(rank) for rank, digest in enumerate(digests) if not digest.any()]
    if without:
        raise PlanMismatchError(f"rank {', '.join(without)} could not read its plan; see its own error")
    others = [str(rank) for rank, digest in enumerate(digests) if not torch.equal(digest, digests[0])]
    if others:
        raise PlanMismatchError(
            f"the ranks do not hold the same plan: rank{'s' if len(others) > 1 else ''} "
            f"{', '.join(others)} and rank 0 differ; give all of them the same file"
        )
    if size != plan.collective.ranks:
        raise PlanMismatchError(
            f"the plan is for {plan.collective.ranks} ranks, the group has {size}; "
            "start as many ranks, or synthesize a plan for this number"
        )
    return plan
