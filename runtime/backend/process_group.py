"""The c10d backend "topo": what torch.distributed is asked to do goes through plans where there is
one.

A process group around a plain one (gloo, and NCCL where there are GPUs). Collectives that it has a
plan for are carried out by communicators, made when a collective is first used; everything else is
the plain group's.
"""

from __future__ import annotations

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
from ..calls import PersistentCall
from ..communicator import Communicator
from ..reductions import dtype_name, kind_of_reduction
from .base_group import BaseGroup
from .untraced import leave_untraced


@leave_untraced
class TopoGroup(BaseGroup):
    """The ranks of one process group under the backend "topo".

    Floating-point buffers from `least_bytes` on (others from 1 MiB on) go through plans: allreduce,
    reduce-scatter, allgather, broadcast, reduce, and alltoall where equal parts are promised; SUM,
    AVG, PRODUCT, MIN and MAX. Every rank must come to the same decision, so it rests on what all of
    them know alike. What is left is done by the plain group, which has AVG as well here, also over
    gloo.
    """

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.all_reduce."""
        if isinstance(
            tensors, torch.Tensor
        ):  # ProcessGroup.allreduce(tensor, op) is an overload of its own
            return self.allreduce([tensors], _allreduce_options(opts, **more))
        opts = AllreduceOptions() if opts is None else opts
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, AllreduceOptions):
            return self._leave("allreduce", tensors, opts, **more)
        repeated = self._repeat("allreduce", tensor, opts)
        if repeated is not None:
            return repeated
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            [tensor], opts, [tensor], lambda given: self.plain.allreduce(given, opts)
        )
        # DDP's join hands the work of its count of ranks on to C++, for which a GpuWork is not
        # made.
        is_count = tensor.is_cuda and tensor.numel() == 1
        size = None if is_count else self._find("allreduce", None, tensor, op=opts.reduceOp)
        what = _describe("allreduce", tensor, opts.reduceOp)
        if size is None:
            return self._call_plain(what, tensor, stock)
        prepare = lambda one: one.calls.prepare(tensor, op=opts.reduceOp)  # noqa: E731
        return self._call(size, tensor, [tensor], opts, prepare, stock, what, operator="allreduce_")

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.all_reduce_coalesced."""
        opts = AllreduceCoalescedOptions() if opts is None else opts
        sizes, op = self.planned.find_all("allreduce", tensors, opts.reduceOp), opts.reduceOp
        what = f"allreduce_coalesced of {len(tensors)} tensors"
        if sizes:
            return self._call_together(
                sizes, list(tensors), list(tensors), opts, lambda one, i: one.calls.prepare(tensors[i], op=op), what,
                operator="allreduce_coalesced_",
            )  # fmt: skip
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            tensors, opts, tensors, lambda given: self.plain.allreduce_coalesced(given, opts)
        )
        return self._call_plain(what, tensors[0], stock)

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.reduce. Tensors of ranks that are not the root stay as they are."""
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, ReduceOptions) or opts.rootRank < 0:
            return self._leave("reduce", tensors, opts, **more)
        at_root = opts.rootRank == self.rank()
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            [tensor],
            opts,
            [tensor] if at_root else [],
            lambda given: self.plain.reduce(given, opts),
        )
        size = self._find("reduce", opts.rootRank, tensor, op=opts.reduceOp)
        what = _describe("reduce", tensor, opts.reduceOp, opts.rootRank)
        if size is None:
            return self._call_plain(what, tensor, stock)

        def prepare(communicator: Communicator) -> PersistentCall:
            own = tensor if at_root else tensor.detach().clone()
            return communicator.calls.prepare(own, op=opts.reduceOp, is_scratch=not at_root)

        return self._call(size, tensor, [tensor], opts, prepare, stock, what, operator="reduce_")

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.broadcast."""
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, BroadcastOptions) or opts.rootRank < 0:
            return self._leave("broadcast", tensors, opts, **more)
        stock = partial(
            self._copy_by_plain, tensor, lambda given: self.plain.broadcast([given], opts)
        )
        size = self._find("broadcast", opts.rootRank, tensor)
        what = _describe("broadcast", tensor, root=opts.rootRank)
        if size is None:
            return self._call_plain(what, tensor, stock)
        prepare = lambda one: one.calls.prepare(tensor)  # noqa: E731
        return self._call(size, tensor, [tensor], opts, prepare, stock, what, operator="broadcast_")

    def allgather(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """See torch.distributed.all_gather."""
        opts = AllgatherOptions() if opts is None else opts
        parts, tensor = _single(output_tensors), _single(input_tensors)
        if parts is None or tensor is None or more or not isinstance(opts, AllgatherOptions):
            return self._leave("allgather", output_tensors, input_tensors, opts, **more)
        fits = all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts)
        stock = lambda: self.plain.allgather(output_tensors, input_tensors, opts)  # noqa: E731
        size = self._find("allgather", None, tensor, self.size(), fits=fits)
        what = _describe("allgather", tensor) if fits else "allgather of different sizes"
        if size is None:
            return self._call_plain(what, tensor, stock)

        def prepare(communicator: Communicator) -> PersistentCall:
            whole = tensor.new_empty(len(parts) * tensor.numel())
            task = communicator.calls.prepare(whole, tensor)

            def hand_out() -> None:
                for part, got in zip(parts, whole.chunk(len(parts)), strict=True):
                    part.detach().copy_(got.view(part.shape))

            task.then.append(hand_out)
            return task

        return self._call(
            size, tensor, list(parts), opts, prepare, stock, what, [tensor], "allgather_"
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.all_gather_into_tensor."""
        opts = AllgatherOptions() if opts is None else opts
        fits = output.numel() == input.numel() * self.size() and output.dtype == input.dtype
        stock = lambda: self.plain._allgather_base(output, input, opts)  # noqa: E731
        size = self._find("allgather", None, input, self.size(), fits=fits)
        what = _describe("allgather", input)
        if size is None:
            return self._call_plain(what, input, stock)
        prepare = lambda one: one.calls.prepare(output, input)  # noqa: E731
        return self._call(
            size, input, [output], opts, prepare, stock, what, [input], "_allgather_base_"
        )

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> dist.Work:
        """Several at once; alone where it is only one, as functional collectives have it."""
        opts = AllgatherOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        return self._leave("allgather_into_tensor_coalesced", outputs, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """See torch.distributed.reduce_scatter."""
        opts = ReduceScatterOptions() if opts is None else opts
        output, parts = _single(output_tensors), _single(input_tensors)
        if output is None or parts is None or more or not isinstance(opts, ReduceScatterOptions):
            return self._leave("reduce_scatter", output_tensors, input_tensors, opts, **more)
        fits = all(part.numel() == output.numel() and part.dtype == output.dtype for part in parts)
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            [output],
            opts,
            [output],
            lambda given: self.plain.reduce_scatter(given, input_tensors, opts),
        )
        size = self._find("reduce-scatter", None, output, self.size(), opts.reduceOp, fits=fits)
        what = (
            _describe("reduce-scatter", output, opts.reduceOp)
            if fits
            else "reduce-scatter of different sizes"
        )
        if size is None:
            return self._call_plain(what, output, stock)

        def prepare(communicator: Communicator) -> PersistentCall:
            whole = torch.cat([part.detach().reshape(-1) for part in parts])
            return communicator.calls.prepare(output, whole, opts.reduceOp)

        return self._call(
            size, output, [output], opts, prepare, stock, what, parts, "reduce_scatter_"
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.reduce_scatter_tensor."""
        opts = ReduceScatterOptions() if opts is None else opts
        fits = input.numel() == output.numel() * self.size() and output.dtype == input.dtype
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            [output],
            opts,
            [output],
            lambda given: self.plain._reduce_scatter_base(given[0], input, opts),
        )
        size = self._find("reduce-scatter", None, input, op=opts.reduceOp, fits=fits)
        what = _describe("reduce-scatter", output, opts.reduceOp)
        if size is None:
            return self._call_plain(what, output, stock)
        prepare = lambda one: one.calls.prepare(output, input, opts.reduceOp)  # noqa: E731
        return self._call(
            size, input, [output], opts, prepare, stock, what, [input], "_reduce_scatter_base_"
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> dist.Work:
        """Several at once; alone where it is only one, as functional collectives have it."""
        opts = ReduceScatterOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.reduce_scatter_single(outputs[0], inputs[0], opts)
        sizes, op = self.planned.find_all("reduce-scatter", inputs, opts.reduceOp), opts.reduceOp
        what = f"reduce_scatter_tensor_coalesced of {len(inputs)} tensors"
        if sizes:
            return self._call_together(
                sizes, list(inputs), list(outputs), opts, lambda one, i: one.calls.prepare(outputs[i], inputs[i], op), what,
                operator="reduce_scatter_tensor_coalesced_",
            )  # fmt: skip
        stock = lambda: self._reduce_by_plain(  # noqa: E731
            outputs,
            opts,
            outputs,
            lambda given: self.plain.reduce_scatter_tensor_coalesced(given, inputs, opts),
        )
        return self._call_plain(what, outputs[0], stock)

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
        """See torch.distributed.all_to_all_single.

        A rank cannot tell from its own sizes, spelled out or not, whether all parts of all ranks
        are alike: with three equal parts to send and three to receive on rank 0, ranks 1 and 2 may
        send each other more. Ranks that decided by what they see would go different ways, and wait
        for ever. So a plan is used where the user promised even parts, and nowhere else.
        """
        opts = AllToAllOptions() if opts is None else opts
        splits = output_split_sizes, input_split_sizes
        size = None
        if more or not isinstance(opts, AllToAllOptions):
            self.account.leave("alltoall", "called in another form")
        elif not self.options.even_alltoall:
            self.account.leave("alltoall", "parts may differ, even_alltoall is not promised")
        else:
            self._check_even(output, input, splits)
            size = self._find("alltoall", None, input)
        stock = lambda: self.plain.alltoall_base(output, input, *splits, opts, **more)  # noqa: E731
        if size is None:
            return self._call_plain(f"alltoall of {dtype_name(input.dtype)}", input, stock)
        prepare = lambda one: one.calls.prepare(output, input)  # noqa: E731
        what = _describe("alltoall", input)
        return self._call(
            size, input, [output], opts, prepare, stock, what, [input], "alltoall_base_"
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _check_even(
        self, output: torch.Tensor, input: torch.Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """Raise InputError unless all parts are alike, as was promised."""
        if (
            any(len(set(sizes)) > 1 for sizes in splits)
            or output.numel() != input.numel()
            or input.numel() % self.size()
        ):
            raise InputError(
                f"all_to_all_single of {list(input.shape)} into {list(output.shape)}, in parts of "
                f"{splits[1] or 'equal size'} "
                f"and {splits[0] or 'equal size'}, though even_alltoall promised equal parts; "
                "leave that option out"
            )


def _single(tensors: Any) -> Any:
    """Return the only item of a list; None where it is no list, or has several."""
    return tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else None


def _describe(name: str, tensor: torch.Tensor, op: object = None, root: int | None = None) -> str:
    """Return what a call is, alike on all ranks that make the same one: "allreduce (SUM) of 8
    elements of float32".
    """
    kind = kind_of_reduction(op)
    reduction = "" if op is None else f" ({getattr(kind, 'name', kind)})"
    at = "" if root is None else f" at {root}"
    return f"{name}{reduction}{at} of {tensor.numel()} elements of {dtype_name(tensor.dtype)}"


def _allreduce_options(
    op: Any = None, timeout: timedelta | None = None, **more: Any
) -> AllreduceOptions:
    """Return options as ProcessGroup.allreduce takes them one by one."""
    opts = AllreduceOptions()
    op = more.get("op", op)
    if op is not None:
        opts.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if timeout is not None:
        opts.timeout = timeout
    return opts
