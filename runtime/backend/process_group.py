"""The c10d backend "topo": what torch.distributed is asked to do goes through plans where there is one.

A process group around a plain one (gloo, and NCCL where there are GPUs). Collectives that it has a plan for are carried out
by communicators, made when a collective is first used; everything else is the plain group's.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    PrefixStore,
    ReduceOptions,
    ReduceScatterOptions,
)

from ...topo.errors import InputError
from ..communicator import Communicator
from ..reductions import kind_of_reduction
from ..works import start_allreduce
from .communicators import Communicators, Key
from .options import BackendOptions, backend_options
from .plan_finder import PlanFinder


class TopoGroup(dist.ProcessGroup):
    """The ranks of one process group under the backend "topo".

    Floating-point buffers from `least_bytes` on (others from 1 MiB on) go through plans: allreduce, reduce-scatter,
    allgather, broadcast, reduce, and alltoall in equal parts; SUM, AVG, PRODUCT, MIN and MAX. Every rank must come to the
    same decision, so it rests on what all of them know alike. What is left is done by the plain group, which has AVG as
    well here, also over gloo.
    """

    def __init__(self, place: Any, options: BackendOptions | None) -> None:
        super().__init__(place.group_rank, place.group_size)  # type: ignore[call-arg]
        if options is not None and not isinstance(options, BackendOptions):
            raise InputError(
                f"pg_options is {type(options).__name__}; the backend topo expects topoplan.backend_options()"
            )
        ranks = list(place.global_ranks_in_group)
        self.whole = not ranks or len(ranks) == dist.get_world_size()
        self.ranks = ranks or list(range(place.group_size))
        self.options = options or _inherit_options() or backend_options()
        self.plain, transports = _make_plain_group(place)
        for device in self.plain._device_types:
            self._register_backend(device, _backend_type(transports[device.type]), self.plain._get_backend(device))
        self._set_default_backend(_backend_type(transports["cuda"]))
        store = PrefixStore("topoplan", place.store)
        plans = PlanFinder(self.options, store, place.group_rank, self.ranks, place.timeout, whole=self.whole)
        self.planned = Communicators(str(place.group_id), plans, transports)
        atexit.register(_close, weakref.ref(self))

    @property
    def communicators(self) -> dict[Key, Communicator | None]:
        """The communicator of each collective that was used, by its name, root and type of device; None without a plan."""
        return self.planned.by_key

    # -- collectives ---------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.all_reduce."""
        if isinstance(tensors, torch.Tensor):  # ProcessGroup.allreduce(tensor, op) is an overload of its own
            return self.allreduce([tensors], _allreduce_options(opts, **more))
        opts = AllreduceOptions() if opts is None else opts
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, AllreduceOptions):
            return self.plain.allreduce(tensors, opts, **more)
        communicator = self.planned.find("allreduce", None, tensor, op=opts.reduceOp)
        if communicator is None:
            return self._reduce_by_plain(tensor, opts, [tensor], lambda: self.plain.allreduce(tensors, opts))
        return start_allreduce(communicator, self.planned.queue(tensor), tensor, opts.reduceOp, waits=not opts.asyncOp)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.all_reduce_coalesced."""
        opts = AllreduceCoalescedOptions() if opts is None else opts
        planned, op = self.planned.find_all("allreduce", tensors, opts.reduceOp), opts.reduceOp
        if planned:
            return self.planned.queue(tensors[0]).carry_out(
                lambda: [one.allreduce(tensor, op) for one, tensor in zip(planned, tensors, strict=True)],
                list(tensors),
                waits=not opts.asyncOp,
                name="topo:all_reduce",
            )
        return self._reduce_by_plain(tensors[0], opts, tensors, lambda: self.plain.allreduce_coalesced(tensors, opts))

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.reduce. Tensors of ranks that are not the root stay as they are."""
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, ReduceOptions) or opts.rootRank < 0:
            return self.plain.reduce(tensors, opts, **more)
        communicator = self.planned.find("reduce", opts.rootRank, tensor, op=opts.reduceOp)
        at_root = opts.rootRank == self.rank()
        if communicator is None:
            results = [tensor] if at_root else []
            return self._reduce_by_plain(tensor, opts, results, lambda: self.plain.reduce(tensors, opts))
        op = opts.reduceOp
        return self.planned.queue(tensor).carry_out(
            lambda: communicator.reduce(tensor if at_root else tensor.detach().clone(), op),
            [tensor],
            waits=not opts.asyncOp,
            name="topo:reduce",
        )

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> dist.Work:  # type: ignore[override]
        """See torch.distributed.broadcast."""
        tensor = _single(tensors)
        if tensor is None or more or not isinstance(opts, BroadcastOptions) or opts.rootRank < 0:
            return self.plain.broadcast(tensors, opts, **more)
        communicator = self.planned.find("broadcast", opts.rootRank, tensor)
        if communicator is None:
            return self.plain.broadcast(tensors, opts)
        return self.planned.queue(tensor).carry_out(
            lambda: communicator.broadcast(tensor), [tensor], waits=not opts.asyncOp, name="topo:broadcast"
        )

    def allgather(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """See torch.distributed.all_gather."""
        opts = AllgatherOptions() if opts is None else opts
        parts, tensor = _single(output_tensors), _single(input_tensors)
        if parts is None or tensor is None or more or not isinstance(opts, AllgatherOptions):
            return self.plain.allgather(output_tensors, input_tensors, opts, **more)
        communicator = None
        if all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts):
            communicator = self.planned.find("allgather", None, tensor, self.size())
        if communicator is None:
            return self.plain.allgather(output_tensors, input_tensors, opts)

        def call() -> None:
            whole = tensor.new_empty(len(parts) * tensor.numel())
            communicator.allgather(whole, tensor)
            for part, got in zip(parts, whole.chunk(len(parts)), strict=True):
                part.detach().copy_(got.view(part.shape))

        return self.planned.queue(tensor).carry_out(
            call, list(parts), waits=not opts.asyncOp, name="topo:all_gather", reads=[tensor]
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.all_gather_into_tensor."""
        opts = AllgatherOptions() if opts is None else opts
        communicator = None
        if output.numel() == input.numel() * self.size() and output.dtype == input.dtype:
            communicator = self.planned.find("allgather", None, input, self.size())
        if communicator is None:
            return self.plain._allgather_base(output, input, opts)
        return self.planned.queue(input).carry_out(
            lambda: communicator.allgather(output, input),
            [output],
            waits=not opts.asyncOp,
            name="topo:all_gather",
            reads=[input],
        )

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Several at once; alone where it is only one, as functional collectives have it."""
        opts = AllgatherOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        return self.plain.allgather_into_tensor_coalesced(outputs, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """See torch.distributed.reduce_scatter."""
        opts = ReduceScatterOptions() if opts is None else opts
        output, parts = _single(output_tensors), _single(input_tensors)
        if output is None or parts is None or more or not isinstance(opts, ReduceScatterOptions):
            return self.plain.reduce_scatter(output_tensors, input_tensors, opts, **more)
        communicator = None
        if all(part.numel() == output.numel() and part.dtype == output.dtype for part in parts):
            communicator = self.planned.find("reduce-scatter", None, output, self.size(), opts.reduceOp)
        if communicator is None:
            start = lambda: self.plain.reduce_scatter(output_tensors, input_tensors, opts)  # noqa: E731
            return self._reduce_by_plain(output, opts, [output], start)
        op = opts.reduceOp

        def call() -> None:
            communicator.reduce_scatter(output, torch.cat([part.detach().reshape(-1) for part in parts]), op)

        return self.planned.queue(output).carry_out(
            call, [output], waits=not opts.asyncOp, name="topo:reduce_scatter", reads=parts
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.reduce_scatter_tensor."""
        opts = ReduceScatterOptions() if opts is None else opts
        communicator = None
        if input.numel() == output.numel() * self.size() and output.dtype == input.dtype:
            communicator = self.planned.find("reduce-scatter", None, input, op=opts.reduceOp)
        if communicator is None:
            return self._reduce_by_plain(
                output, opts, [output], lambda: self.plain._reduce_scatter_base(output, input, opts)
            )
        op = opts.reduceOp
        return self.planned.queue(input).carry_out(
            lambda: communicator.reduce_scatter(output, input, op),
            [output],
            waits=not opts.asyncOp,
            name="topo:reduce_scatter",
            reads=[input],
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Several at once; alone where it is only one, as functional collectives have it."""
        opts = ReduceScatterOptions() if opts is None else opts
        if len(inputs) == 1:
            return self.reduce_scatter_single(outputs[0], inputs[0], opts)
        planned, op = self.planned.find_all("reduce-scatter", inputs, opts.reduceOp), opts.reduceOp
        if planned:
            return self.planned.queue(inputs[0]).carry_out(
                lambda: [one.reduce_scatter(a, b, op) for one, a, b in zip(planned, outputs, inputs, strict=True)],
                list(outputs),
                waits=not opts.asyncOp,
                name="topo:reduce_scatter",
                reads=list(inputs),
            )
        start = lambda: self.plain.reduce_scatter_tensor_coalesced(outputs, inputs, opts)  # noqa: E731
        return self._reduce_by_plain(outputs[0], opts, outputs, start)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]

    def all_to_all_single(  # type: ignore[override]
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None, **more: Any
    ) -> dist.Work:
        """See torch.distributed.all_to_all_single; where sizes are given, ranks may differ in them."""
        opts = AllToAllOptions() if opts is None else opts
        splits = output_split_sizes, input_split_sizes
        communicator = None
        if not any(map(len, splits)) and not more and isinstance(opts, AllToAllOptions):
            fits = output.numel() == input.numel() and output.dtype == input.dtype and input.numel() % self.size() == 0
            communicator = self.planned.find("alltoall", None, input) if fits else None
        if communicator is None:
            return self.plain.alltoall_base(output, input, *splits, opts, **more)
        return self.planned.queue(input).carry_out(
            lambda: communicator.alltoall(output, input),
            [output],
            waits=not opts.asyncOp,
            name="topo:all_to_all",
            reads=[input],
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    # -- how -------------------------------------------------------------------------------------------------------

    def _reduce_by_plain(
        self, tensor: torch.Tensor, opts: Any, results: Sequence[torch.Tensor], start: Callable[[], dist.Work]
    ) -> dist.Work:
        """Start a reduction by the plain group; gloo has no AVG, so that is a sum, after which `results` are divided."""
        op = opts.reduceOp
        self.planned.check_plain(tensor, op)
        averages = kind_of_reduction(op) == dist.ReduceOp.AVG and tensor.is_floating_point()
        if not averages or self.planned.transports.get(tensor.device.type) != "gloo":
            return start()
        opts.reduceOp = dist.ReduceOp.SUM
        work = start()
        opts.reduceOp = op

        def call() -> None:
            work.wait()
            for result in results:
                result.detach().div_(self.size())

        return self.planned.queue(tensor).carry_out(call, list(results), waits=not opts.asyncOp)

    # -- the end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End the thread, and destroy all groups."""
        self.planned.close()
        self.plain.shutdown()

    def abort(self) -> None:
        """End the thread, and abort all groups: what is under way fails."""
        self.planned.close()
        self.plain.abort()


def _single(tensors: Any) -> Any:
    """Return the only item of a list; None where it is no list, or has several."""
    return tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else None


def _allreduce_options(op: Any = None, timeout: timedelta | None = None, **more: Any) -> AllreduceOptions:
    """Return options as ProcessGroup.allreduce takes them one by one."""
    opts = AllreduceOptions()
    op = more.get("op", op)
    if op is not None:
        opts.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if timeout is not None:
        opts.timeout = timeout
    return opts


def _inherit_options() -> BackendOptions | None:
    """Return the options of the group of all ranks, for groups that are given none."""
    world = dist.group.WORLD
    return world.options if isinstance(world, TopoGroup) else None


def _close(group: weakref.ref[TopoGroup]) -> None:
    """Close the queues at exit, where the group was not destroyed: a thread in a call would outlive the interpreter."""
    alive = group()
    if alive is not None:
        alive.planned.close_queues()


# -- the plain group -------------------------------------------------------------------------------------------------


def _backend_type(transport: str) -> Any:
    """Return torch's own constant for gloo or nccl."""
    types = dist.ProcessGroup.BackendType
    return types.NCCL if transport == "nccl" else types.GLOO


def _make_plain_group(place: Any) -> tuple[dist.ProcessGroup, dict[str, str]]:
    """Return a group of gloo for CPUs and NCCL for GPUs (gloo without NCCL), and which of them is for which device."""
    plain = dist.ProcessGroup(place.store, place.group_rank, place.group_size)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo", place.store), place.group_rank, place.group_size, place.timeout)
    gloo._set_sequence_number_for_group()
    backends: dict[str, tuple[str, Any]] = {"cpu": ("gloo", gloo), "cuda": ("gloo", gloo)}
    if torch.cuda.is_available() and dist.is_nccl_available():
        backends["cuda"] = "nccl", _make_nccl(place)
    for device, (transport, backend) in backends.items():
        plain._register_backend(torch.device(device), _backend_type(transport), backend)
    plain._set_default_backend(_backend_type(backends["cuda"][0]))
    plain._set_group_name(place.group_id)
    return plain, {device: transport for device, (transport, _) in backends.items()}


def _make_nccl(place: Any) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = place.timeout
    options.global_ranks_in_group = place.global_ranks_in_group
    options.group_name = place.group_id
    store = PrefixStore("nccl", place.store)
    nccl = dist.ProcessGroupNCCL(store, place.group_rank, place.group_size, options)
    nccl._set_sequence_number_for_group()
    return nccl
