"""The collectives of torch.distributed under the backend "topo", by plans where there are any.

The process group is built around a plain one (gloo, and NCCL if there are GPUs). A plan says how
the ranks carry out one collective. Collectives with a plan are run by communicators, made when a
collective is first used; the plain group does everything else.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from ...topo.errors import InputError
from ..communicator import Communicator
from ..persistent_calls import PersistentCall
from ..reductions import dtype_name
from .base_group import BaseGroup, GroupCall

_DIFFERENT = "parts of different sizes"


class CollectiveGroup(BaseGroup):
    """The collectives of a process group.

    Floating-point buffers from `least_bytes` on (others from 1 MiB on) go through plans: allreduce,
    reduce-scatter, allgather, broadcast, reduce, and alltoall if the user promised equal parts;
    SUM, AVG, PRODUCT, MIN and MAX. Every rank must make the same decision, so it depends only on
    values that are equal on all ranks. The plain group does the rest, such as calls in another form
    than a method expects, and here has AVG over gloo, too. In a method's `opts`, torch's options of
    the collective, `asyncOp` says whether the caller goes on without waiting.
    """

    def allreduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """Reduce the tensor over all ranks, in place on each; return the work to wait for.

        `tensors` is a list of one tensor, or a tensor, `opts` torch's AllreduceOptions, or the
        reduction.
        """
        # ProcessGroup.allreduce(tensor, op) is a separate overload.
        if isinstance(tensors, torch.Tensor):
            return self.allreduce([tensors], _allreduce_options(opts, **more))
        opts = AllreduceOptions() if opts is None else opts
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, AllreduceOptions):
            return self._leave("allreduce", tensors, opts, **more)
        repeated = self._repeat("allreduce", tensor, opts)
        if repeated is not None:
            return repeated
        return self._call(
            GroupCall(
                "allreduce",
                "allreduce_",
                tensor,
                [tensor],
                opts,
                lambda one: one.calls.prepare(tensor, op=opts.reduceOp),
                lambda: self._reduce_by_plain(
                    [tensor], opts, lambda given: self.plain.allreduce(given, opts)
                ),
                op=opts.reduceOp,
                # DDP's join passes the work that counts its ranks on to C++, for which a GpuWork
                # is not made.
                misfit="a count" if tensor.is_cuda and tensor.numel() == 1 else "",
            )
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Reduce each of several tensors over all ranks, in place, as one call; return its work.

        They go through plans only where a plan must be used, as for reproducible sums.
        """
        opts = AllreduceCoalescedOptions() if opts is None else opts
        op, what = opts.reduceOp, f"allreduce_coalesced of {len(tensors)} tensors"
        sizes = self.planned.find_all("allreduce", tensors, op)
        if sizes:
            return self._call_together(
                sizes,
                list(tensors),
                list(tensors),
                opts,
                lambda one, i: one.calls.prepare(tensors[i], op=op),
                what,
                "allreduce_coalesced_",
            )
        return self._call_plain(
            what,
            tensors[0],
            lambda: self._reduce_by_plain(
                tensors, opts, lambda given: self.plain.allreduce_coalesced(given, opts)
            ),
        )

    def reduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """Reduce the tensor over all ranks, in place at `opts.rootRank`; return the work.

        Tensors of ranks that are not the root stay unchanged.
        """
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, ReduceOptions) or opts.rootRank < 0:
            return self._leave("reduce", tensors, opts, **more)
        at_root = opts.rootRank == self.rank()
        return self._call(
            GroupCall(
                "reduce",
                "reduce_",
                tensor,
                [tensor],
                opts,
                lambda one: one.calls.prepare(
                    tensor if at_root else tensor.detach().clone(),
                    op=opts.reduceOp,
                    is_scratch=not at_root,
                ),
                lambda: self._reduce_by_plain(
                    [tensor],
                    opts,
                    lambda given: self.plain.reduce(given, opts),
                    has_result=at_root,
                ),
                root=opts.rootRank,
                op=opts.reduceOp,
            )
        )

    def broadcast(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """Copy the root's tensor (`opts.rootRank`) to every rank, in place; return the work."""
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, BroadcastOptions) or opts.rootRank < 0:
            return self._leave("broadcast", tensors, opts, **more)
        return self._call(
            GroupCall(
                "broadcast",
                "broadcast_",
                tensor,
                [tensor],
                opts,
                lambda one: one.calls.prepare(tensor),
                lambda: self._copy_by_plain(
                    tensor, lambda given: self.plain.broadcast([given], opts)
                ),
                root=opts.rootRank,
            )
        )

    def allgather(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """Collect every rank's input tensor in its list of output tensors; return the work.

        Each argument is a list of one item: the output list has a tensor per rank. If the tensors
        differ in size or dtype, the plain group makes the call.
        """
        opts = AllgatherOptions() if opts is None else opts
        parts, tensor = _single(output_tensors), _single(input_tensors)
        if parts is None or tensor is None or more or not isinstance(opts, AllgatherOptions):
            return self._leave("allgather", output_tensors, input_tensors, opts, **more)
        fits = _are_alike(parts, tensor)

        def prepare(communicator: Communicator) -> PersistentCall:
            whole = tensor.new_empty(len(parts) * tensor.numel())
            call = communicator.calls.prepare(whole, tensor)

            def hand_out() -> None:
                for part, got in zip(parts, whole.chunk(len(parts)), strict=True):
                    part.detach().copy_(got.view(part.shape))

            call.then.append(hand_out)
            return call

        return self._call(
            GroupCall(
                "allgather",
                "allgather_",
                tensor,
                list(parts),
                opts,
                prepare,
                lambda: self.plain.allgather(output_tensors, input_tensors, opts),
                [tensor],
                self.size(),
                misfit="" if fits else _DIFFERENT,
                what="" if fits else "allgather of different sizes",
            )
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Concatenate every rank's `input` in `output` (ranks times as long); return the work.

        The plain group makes the call if the lengths do not fit, or the dtypes differ.
        """
        opts = AllgatherOptions() if opts is None else opts
        fits = output.numel() == input.numel() * self.size() and output.dtype == input.dtype
        return self._call(
            GroupCall(
                "allgather",
                "_allgather_base_",
                input,
                [output],
                opts,
                lambda one: one.calls.prepare(output, input),
                lambda: self.plain._allgather_base(output, input, opts),
                [input],
                self.size(),
                misfit="" if fits else _DIFFERENT,
            )
        )

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> dist.Work:
        """Concatenate every rank's inputs in the outputs, pair by pair; return the work.

        Only a single pair may go through a plan; functional collectives call it like this.
        """
        opts = AllgatherOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        return self._leave("allgather_into_tensor_coalesced", outputs, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """Reduce lists of one tensor per rank; rank i gets the i-th result. Return the work.

        Each argument is a list of one item: the output tensor, and the input list. `opts` has the
        reduction. If the tensors differ in size or dtype, the plain group makes the call.
        """
        opts = ReduceScatterOptions() if opts is None else opts
        output, parts = _single(output_tensors), _single(input_tensors)
        if output is None or parts is None or more or not isinstance(opts, ReduceScatterOptions):
            return self._leave("reduce_scatter", output_tensors, input_tensors, opts, **more)
        fits = _are_alike(parts, output)
        return self._call(
            GroupCall(
                "reduce-scatter",
                "reduce_scatter_",
                output,
                [output],
                opts,
                lambda one: one.calls.prepare(
                    output, torch.cat([part.detach().reshape(-1) for part in parts]), opts.reduceOp
                ),
                lambda: self._reduce_by_plain(
                    [output],
                    opts,
                    lambda given: self.plain.reduce_scatter(given, input_tensors, opts),
                ),
                parts,
                self.size(),
                op=opts.reduceOp,
                misfit="" if fits else _DIFFERENT,
                what="" if fits else "reduce-scatter of different sizes",
            )
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Reduce `input` over all ranks and keep this rank's part in `output`; return the work.

        `input` is ranks times as long as `output`; if it is not, or the dtypes differ, the plain
        group makes the call.
        """
        opts = ReduceScatterOptions() if opts is None else opts
        fits = input.numel() == output.numel() * self.size() and output.dtype == input.dtype
        return self._call(
            GroupCall(
                "reduce-scatter",
                "_reduce_scatter_base_",
                output,
                [output],
                opts,
                lambda one: one.calls.prepare(output, input, opts.reduceOp),
                lambda: self._reduce_by_plain(
                    [output],
                    opts,
                    lambda given: self.plain._reduce_scatter_base(given[0], input, opts),
                ),
                [input],
                self.size(),
                op=opts.reduceOp,
                misfit="" if fits else _DIFFERENT,
            )
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> dist.Work:
        """Reduce each of `inputs` and keep this rank's parts in `outputs`; return the work.

        Functional collectives call it, also for a single pair.
        """
        opts = ReduceScatterOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.reduce_scatter_single(outputs[0], inputs[0], opts)
        op, what = opts.reduceOp, f"reduce_scatter_tensor_coalesced of {len(inputs)} tensors"
        sizes = self.planned.find_all("reduce-scatter", inputs, op)
        if sizes:
            return self._call_together(
                sizes,
                list(inputs),
                list(outputs),
                opts,
                lambda one, i: one.calls.prepare(outputs[i], inputs[i], op),
                what,
                "reduce_scatter_tensor_coalesced_",
            )
        return self._call_plain(
            what,
            outputs[0],
            lambda: self._reduce_by_plain(
                outputs,
                opts,
                lambda given: self.plain.reduce_scatter_tensor_coalesced(given, inputs, opts),
            ),
        )

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    def all_to_all_single(  # type: ignore[override]
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        **more: Any,
    ) -> dist.Work:
        """Send part j of `input` to rank j, and receive rank j's part in part j of `output`.

        Return the work. The sizes of parts are lists of numbers of rows, empty for equal parts. A
        plan is used only if the user promised equal parts (option `even_alltoall`): with three
        equal parts to send and three to receive on rank 0, ranks 1 and 2 may send each other more,
        so ranks that decided by their own sizes could decide differently, and wait for ever. Raise
        InputError if parts are not equal though that was promised.
        """
        opts = AllToAllOptions() if opts is None else opts
        splits = output_split_sizes, input_split_sizes
        stock = partial(self.plain.alltoall_base, output, input, *splits, opts, **more)
        is_other = bool(more) or not isinstance(opts, AllToAllOptions)
        if is_other or not self.options.even_alltoall:
            self.usage.note_stock_reason(
                "alltoall",
                "called in another form"
                if is_other
                else "parts may differ, even_alltoall is not promised",
            )
            self.usage.count_stock("alltoall")
            return self._call_plain(f"alltoall of {dtype_name(input.dtype)}", input, stock)
        self._check_even(output, input, splits)
        return self._call(
            GroupCall(
                "alltoall",
                "alltoall_base_",
                input,
                [output],
                opts,
                lambda one: one.calls.prepare(output, input),
                stock,
                [input],
            )
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _check_even(
        self, output: torch.Tensor, input: torch.Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """Raise InputError unless all parts are equal, as was promised."""
        if (
            any(len(set(sizes)) > 1 for sizes in splits)
            or output.numel() != input.numel()
            or input.numel() % self.size()
        ):
            raise InputError(
                f"all_to_all_single of {list(input.shape)} into {list(output.shape)}, in parts of "
                f"{splits[1] or 'equal size'} and {splits[0] or 'equal size'}, though "
                "even_alltoall promised equal parts; leave that option out"
            )


def _single(tensors: Any) -> Any:
    """Return the only item of a list; None if it is not a list of one item."""
    return tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else None


def _are_alike(parts: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    return all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts)


def _allreduce_options(
    op: Any = None, timeout: timedelta | None = None, **more: Any
) -> AllreduceOptions:
    """Return options with each field as ProcessGroup.allreduce takes it."""
    opts = AllreduceOptions()
    op = more.get("op", op)
    if op is not None:
        opts.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if timeout is not None:
        opts.timeout = timeout
    return opts
