"""Move tensors from one mesh to another: `topoplan.reshard`, and what it returns.

Demands say which elements go from which ranks to which; helpers are ranks outside both meshes that
forward bytes for them.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Placement

from ....synth.groups.ranks import NONE, REST, Helpers
from ....synth.ir.demands import Demands
from ....synth.plan import Plan
from ....topo.errors import ExecutionError, InputError, PlanMismatchError, TopoplanError
from ....topo.graph import Topology
from ...dispatcher import Dispatcher
from ...observers import observe_links
from ...option_names import ON_FAULTS, POINT_TO_POINT
from ...policy import DEFAULT_TIMEOUT, Policy
from ...ranks.faults import first_line
from ...ranks.transport import Transport
from .bundles import Bundle, find_bundles, list_demands
from .copying import Ends
from .placements import Mesh, read_shards
from .runner import InRounds, TransferBuffers
from .shards import Shards

log = logging.getLogger("topoplan")

# Limit in seconds for planning, as for the backend's plans.
_TIME_LIMIT_S = 20.0
# The same as a part of a call's deadline, by which the other ranks wait for the plan.
_PLANNING = 0.5
# A machine to plan for: None for one port of equal speed at each rank.
Machine = Topology | str | os.PathLike[str] | None
# A mesh with the placements of a tensor on it.
Layout = tuple[Mesh, Sequence[Placement]]
# One rank's shard; None on ranks outside the mesh.
Local = torch.Tensor | None

_T = TypeVar("_T")


@dataclass(eq=False)
class GroupTransfers:
    """The transport and cached transfers of all moves between the ranks of one default group.

    `reshards` are the transfers of `reshard_state_dict`, one for each dtype. A key has a hash from
    each rank, of the names, meshes, placements and options of its call. The one used longest ago is
    first, to be dropped first.
    """

    transport: Transport
    reshards: OrderedDict[tuple[bytes, ...], dict[torch.dtype, Reshard]] = field(
        default_factory=OrderedDict
    )


_transfers: WeakKeyDictionary[dist.ProcessGroup, GroupTransfers] = WeakKeyDictionary()


class Reshard:
    """A transfer of tensors of one dtype from one mesh to another, which can run repeatedly.

    `topoplan.reshard` makes it for one tensor. `demands` are the pieces that have to move, in
    elements, None if there are none, and `plan` is the plan for them. The first calls take turns
    trying its schedules and segmentations; the fastest is used from then on. `rounds` is the number
    of times that the last call ran its schedule, so that scratch memory stays within 1.5 times the
    largest shard, or 1 MiB. `timeout` is the deadline of a call. After a failure it cannot be used
    any more.

    Making it is collective over the ranks of `transport`. `tensors` returns each tensor's shards
    before and after, and the dtype of all; other arguments are as for `topoplan.reshard`.
    """

    def __init__(
        self,
        tensors: Callable[[], tuple[list[tuple[Shards, Shards]], torch.dtype]],
        transport: Transport,
        topology: Machine = None,
        helpers: Helpers = REST,
        time_limit_s: float = _TIME_LIMIT_S,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._transport, self.timeout = transport, timeout
        with transport.faults.stock("planning to move tensors between meshes"):
            self._tensors, self.dtype, self._bundles = agree(
                transport, lambda: _read_bundles(tensors)
            )
            pieces = list_demands(self._bundles)
            self.demands = Demands.of(pieces, transport.size, where="reshard") if pieces else None
            self._check_same()
            self.plan: Plan | None = None
            self._runner: InRounds | None = None
            self._dispatcher: Dispatcher | None = None
            if self.demands is not None:
                self.plan = self._find_plan(topology, helpers, time_limit_s)
                self._runner = InRounds(
                    transport, self.plan.topology, self.demands, self._bundles, self._tensors
                )
                policy = Policy(
                    executor=POINT_TO_POINT,
                    on_fault=ON_FAULTS[0],
                    time_limit_s=time_limit_s,
                    least_bytes=0,
                    helpers=NONE,
                )
                self._dispatcher = Dispatcher(
                    self.plan, transport, policy, [self._runner], with_stock=False
                )
                self._dispatcher.race_on_calls()
                observe_links(self._runner, transport, self.plan.topology)

    @property
    def rounds(self) -> int:
        """The number of rounds in which the last call moved the elements."""
        return 0 if self._runner is None else self._runner.rounds

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent so far."""
        return 0 if self._runner is None else self._runner.sent_bytes

    def run(
        self, source: Local | Sequence[Local] = None, destination: Local | Sequence[Local] = None
    ) -> None:
        """Move the local shards `source` to the local shards `destination`. Collective.

        Every rank of the default group calls it: with tensors or DTensors, one or a sequence, and
        None on ranks outside the mesh. The two must not share memory. Raise InputError on every
        rank if a shard does not fit, ExecutionError if a rank fails or the deadline passes.
        """
        transport, rank = self._transport, self._transport.rank
        transport.control.set_timeout(self.timeout)
        with transport.faults.stock("checking the shards to move"):
            sources, destinations = agree(transport, lambda: self._check_ends(source, destination))
        ends = Ends(rank, self._tensors, sources, destinations)
        with torch.inference_mode():  # as in all calls: a serving model's weights may be of it
            if self._dispatcher is not None and self.demands is not None:
                like = torch.empty(0, dtype=self.dtype, device=transport.device)
                self._dispatcher.run(TransferBuffers(self.demands.size, like, like, ends=ends))
            for bundle in self._bundles:
                has_it = len(bundle.holders) == 1 and rank in bundle.holders[0]
                if has_it and rank in bundle.receivers:
                    ends.copy(bundle, 0, bundle.numel, adds=False)
            for (before, _), tensor in zip(self._tensors, destinations, strict=True):
                if before.averaged > 1 and tensor is not None:
                    tensor.div_(before.averaged)

    def _check_ends(
        self, source: Local | Sequence[Local], destination: Local | Sequence[Local]
    ) -> tuple[list[Local], list[Local]]:
        """Return the local shards; raise InputError if one does not fit, or shares memory.

        A destination may be its own source if it stays as it is, and two may be one, as tied
        weights are, unless terms are added to it.
        """
        sources, destinations = self._check_shards(source, 0), self._check_shards(destination, 1)
        spans: list[tuple[int, int, int, str]] = []
        for (before, after), held, needed in zip(self._tensors, sources, destinations, strict=True):
            is_own = (
                held is not None
                and needed is not None
                and held.is_set_to(needed)
                and before.holds_as(after, self._transport.rank)
            )
            spans += [
                (*_find_span(tensor), kind, shards.where)
                for tensor, kind, shards in (
                    (held, 0, before),
                    (needed, 1 + (before.terms > 1), after),
                )
                if tensor is not None and not is_own
            ]
        # The end of the last source so far, of the last destination, and of one of a sum.
        last = [(0, "")] * 3
        for lo, hi, kind, where in sorted(spans):
            end, other = max(x for i, x in enumerate(last) if i != kind or kind > 1)
            if end > lo:
                raise InputError(
                    f"{where}: shares memory with {other}, so values would be lost, or added "
                    "twice; clone one of them, or leave it out"
                )
            last[kind] = max(last[kind], (hi, where))
        return sources, destinations

    def _check_shards(self, given: Local | Sequence[Local], end: int) -> list[Local]:
        """Return local shards as plain tensors; raise InputError if one does not fit."""
        listed = given if isinstance(given, (list, tuple)) else [given]
        if len(listed) != len(self._tensors):
            raise InputError(f"{len(listed)} shards for {len(self._tensors)} tensors")
        return [
            self._check_shard(tensor, both[end], end)
            for tensor, both in zip(listed, self._tensors, strict=True)
        ]

    def _check_shard(self, tensor: object, shards: Shards, end: int) -> Local:
        rank, device = self._transport.rank, self._transport.device
        shape = shards.shape_of(rank)
        if rank not in shards.coordinates or not prod(shape):
            return None
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        if not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"{shards.where}: {type(tensor).__name__} on rank {rank}; expected its shard, a "
                f"tensor of shape {shape}"
            )
        if tensor.shape != shape or tensor.dtype != self.dtype:
            raise InputError(
                f"{shards.where}: shard of shape {tuple(tensor.shape)} and {tensor.dtype} on rank "
                f"{rank}; expected {shape} and {self.dtype}"
            )
        if tensor.device.type != device.type:
            raise InputError(
                f"{shards.where}: shard on {tensor.device}; the process group moves data on "
                f"{device.type}"
            )
        if end and any(
            of > 1 and not step for of, step in zip(shape, tensor.stride(), strict=True)
        ):
            raise InputError(
                f"{shards.where}: shard on rank {rank} whose elements share memory, as expand "
                "makes; give each its own (contiguous())"
            )
        return tensor.detach()

    def _check_same(self) -> None:
        """Raise InputError unless all ranks have described the same transfer."""
        divisors = [source.averaged for source, _ in self._tensors]
        whole = repr((self._bundles, divisors, self.dtype))
        others = self._transport.control.exchange(hashlib.sha256(whole.encode()).digest())
        if len(set(others)) > 1:
            other = next(rank for rank, theirs in enumerate(others) if theirs != others[0])
            raise InputError(
                f"reshard: ranks 0 and {other} describe different transfers; give all of them the "
                "same meshes, placements, shapes and dtypes, in one order"
            )

    def _find_plan(self, topology: Machine, helpers: Helpers, time_limit_s: float) -> Plan:
        """Return the plan that rank 0 makes."""
        answer: list[Any] = [None]
        if self._transport.rank == 0:
            limit_s = min(time_limit_s, _PLANNING * self.timeout.total_seconds())
            try:
                plan = make_plan(self.demands, self._transport.size, topology, helpers, limit_s)
                answer = [plan.to_json()]
            except TopoplanError as error:
                answer = [error]
            except Exception as error:  # any: the other ranks wait for the answer
                log.debug("planning failed", exc_info=error)
                answer = [
                    ExecutionError(
                        "rank 0 cannot plan what has to move "
                        f"({type(error).__name__}: {first_line(error)})"
                    )
                ]
        dist.broadcast_object_list(
            answer, group=self._transport.group, group_src=0, device=self._transport.device
        )
        if isinstance(answer[0], TopoplanError):
            raise answer[0]
        return Plan.from_json(answer[0], "rank 0's plan to move tensors")


def _find_span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's elements, and that after the last."""
    steps = map(operator.mul, (size - 1 for size in tensor.shape), tensor.stride())
    return (start := tensor.data_ptr()), start + (1 + sum(steps)) * tensor.itemsize


def reshard(
    src: Layout,
    dst: Layout,
    shape: Sequence[int],
    dtype: torch.dtype,
    topology: Machine = None,
    *,
    helpers: Helpers = REST,
    time_limit_s: float = _TIME_LIMIT_S,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Reshard:
    """Plan how a tensor moves from one mesh to another, and return a `Reshard` that moves it.

    Collective over all ranks of the default process group. `src` and `dst` are each a mesh (a
    DeviceMesh, or an array of ranks where a rank cannot make one) and the DTensor placements of a
    tensor of the global `shape` on it: Shard, Replicate, and on the source Partial of a sum or an
    average, whose terms are added in the order of their ranks. Shards may be uneven. The meshes may
    overlap or be equal. An array's ranks may be in any order, those of a DeviceMesh must ascend
    along the dimensions that split the tensor.

    `topology` is the machine, whose GPU i runs rank i (default: any two ranks are joined by ports
    of one speed). `helpers` are the other ranks that may relay: `rest`, `none`, or a list. Rank 0
    plans, for `time_limit_s` and half of `timeout` at most; `timeout` is the deadline of a call.
    Raise InputError on every rank if an argument of one of them does not fit, or they differ.

        plan = topoplan.reshard((training, [Shard(0)]), (serving, [Shard(1)]), (4096, 4096), dtype)
        plan.run(source.to_local(), destination.to_local())    # after each step
    """
    transport = find_transfers(timeout).transport

    def read() -> tuple[list[tuple[Shards, Shards]], torch.dtype]:
        if not isinstance(dtype, torch.dtype):
            raise InputError(f"dtype {dtype!r:.40}: expected a dtype of torch")
        try:
            whole = tuple(int(size) for size in shape)
        except (TypeError, ValueError):
            raise InputError(f"shape {shape!r:.60}: expected integers") from None
        both = []
        for where, laid in (("src", src), ("dst", dst)):
            try:
                mesh, [*listed] = laid
            except (TypeError, ValueError):
                raise InputError(f"{where}: expected a mesh and its placements") from None
            both.append(read_shards(mesh, listed, whole, where, transport.size))
        return [(both[0], both[1])], dtype

    return Reshard(read, transport, topology, helpers, time_limit_s, timeout)


def _read_bundles(
    read: Callable[[], tuple[list[tuple[Shards, Shards]], torch.dtype]],
) -> tuple[list[tuple[Shards, Shards]], torch.dtype, list[Bundle]]:
    tensors, dtype = read()
    for source, _ in tensors:
        kind, total = "an average" if source.averaged > 1 else "a sum", torch.empty(1, dtype=dtype)
        try:
            if source.terms > 1:
                total.add_(total)
            if source.averaged > 1:
                total.div_(source.averaged)
        except RuntimeError:  # torch has no such operation
            raise InputError(
                f"{source.where}: Partial of {kind} of {dtype}, which torch cannot compute"
            ) from None
    return tensors, dtype, find_bundles(tensors)


def make_plan(
    demands: Demands | None, world: int, topology: Machine, helpers: Helpers, time_limit_s: float
) -> Plan:
    """Return the plan for demands on `topology`, whose GPU i runs rank i of `world`.

    `helpers` are other ranks that may relay; `time_limit_s` is the time for planning in seconds.
    Raise PlanMismatchError if the topology has another number of GPUs.
    """
    from ....synth.groups.ranks import choose_helpers
    from ....synth.numeric.effort import Effort
    from ....synth.planner.synthesize import synthesize
    from ....synth.request import Request
    from ....topo.loader.resolve import load_for_planning

    assert demands is not None
    machine, router = load_for_planning(f"switch:{world}" if topology is None else topology)
    if len(machine.ranks) != world:
        raise PlanMismatchError(
            f"topology {machine.name!r} has {len(machine.ranks)} GPUs, {world} ranks are running; "
            "start as many"
        )
    others = choose_helpers("none" if topology is None else helpers, demands, machine)
    wanted = Request(demands, machine, Effort(time_limit_s), router=router, helpers=others)
    return synthesize(wanted).plan


def agree(transport: Transport, make: Callable[[], _T]) -> _T:
    """Return what `make` returns on this rank; if it raises on one, raise on all. Collective.

    Ranks on which it did not raise get an InputError with another rank's message.
    """
    error: Exception | None = None
    try:
        made = make()
    except Exception as raised:  # any: the other ranks wait for the answer
        error = raised
    first = transport.control.agree(None if error is None else first_line(error))
    if error is not None:
        raise error
    if first is not None:
        raise InputError(first)
    return made


def find_transfers(timeout: timedelta) -> GroupTransfers:
    """Return the transport and cached transfers that all calls on the default group share.

    `timeout` is the deadline of the next call. Collective the first time, and after a failure.
    Raise InputError without a default group.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call init_process_group first")
    world = dist.group.WORLD
    assert world is not None
    shared = _transfers.get(world)
    if shared is None or shared.transport.faults.broken is not None:
        _transfers.clear()  # a destroyed default group lives on in DeviceMesh
        shared = _transfers[world] = GroupTransfers(Transport(None, timeout))
    shared.transport.control.set_timeout(timeout)
    return shared
