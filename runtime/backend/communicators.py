"""The communicators of one process group, made when a collective is first used, and the queues that its calls wait in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from ...synth.plan import Plan
from ...topo.errors import InputError
from ..communicator import Communicator
from ..ranks.groups import make_group
from ..ranks.transport import Transport
from ..reductions import REDUCIBLE_DTYPES, can_reduce, dtype_name, kind_of_reduction
from ..scratch import set_scratch
from ..works import CallQueue, ThreadQueue, make_queue
from .plan_finder import PlanFinder

Key = tuple[str, int | None, str]
"""A communicator's collective, root, and type of device."""
_COMPRESSED = ("allreduce", "reduce-scatter")
_LEAST_INTEGER_BYTES = 1 << 20
"""Integers are mostly control messages (sizes, flags, pickled objects); from this many bytes on they are data."""


class Communicators:
    """Communicators of the group called `name`; `transports` says what moves the data of each type of device."""

    def __init__(self, name: str, plans: PlanFinder, transports: Mapping[str, str]) -> None:
        self.name, self.plans, self.transports = name, plans, transports
        self.options = plans.options
        if self.options.scratch_bytes is not None:
            set_scratch(self.options.scratch_bytes)
        self.by_key: dict[Key, Communicator | None] = {}
        self._shared: dict[str, Transport] = {}
        self._queues: dict[str, CallQueue] = {}

    def find(
        self, name: str, root: int | None, tensor: torch.Tensor, parts: int = 1, op: object = None
    ) -> Communicator | None:
        """Return the communicator for a collective on `parts` such tensors; None where the plain group is to do it.

        Collective the first time; raises as PlanFinder.find and Communicator.
        """
        if self.why_plain(name, tensor, parts, op):
            return None
        key = name, root, tensor.device.type
        if key not in self.by_key:
            plan = self.plans.find(name, root, tensor.device)
            self.by_key[key] = None if plan is None else self._make(key, plan)
        return self.by_key[key]

    def find_all(self, name: str, tensors: Sequence[torch.Tensor], op: object) -> list[Communicator]:
        """Return the communicator of each of several tensors that must not be left to the plain group; nothing where they may,
        or one has none.
        """
        if not self.must_plan(tensors[0], op):
            return []
        found = [self.find(name, None, tensor, op=op) for tensor in tensors]
        return [one for one in found if one is not None] if None not in found else []

    def must_plan(self, tensor: torch.Tensor, op: object) -> bool:
        """Return whether a reduction must not be left to the plain group: values that are rounded, where bits shall be the
        same. `op` is None for collectives that add nothing.
        """
        rounds = tensor.is_floating_point() or tensor.is_complex()
        is_ordered = op is not None and kind_of_reduction(op) not in (dist.ReduceOp.MIN, dist.ReduceOp.MAX)
        return self.options.keeps_bits and is_ordered and rounds and len(self.plans.ranks) > 1

    def check_plain(self, tensor: torch.Tensor, op: object) -> None:
        """Raise InputError where the plain group must not carry out a reduction."""
        if self.must_plan(tensor, op):
            raise InputError(
                f"choose='same-bits': there is no reproducible plan to reduce such tensors ({tensor.layout}, {tensor.dtype}, "
                f"{tensor.device.type}), and gloo and NCCL promise no bits; leave choose out, or name such a plan"
            )

    def why_plain(self, name: str, tensor: torch.Tensor, parts: int = 1, op: object = None) -> str:
        """Return why plans are not for such buffers, or nothing: decided alike on all ranks, by what all of them know."""
        device = tensor.device.type
        if self.transports.get(device) != ("nccl" if tensor.is_cuda else "gloo"):
            return f"{device} is another backend's"
        # The layout comes first: sparse tensors have no size in bytes.
        if tensor.layout != torch.strided or tensor.dtype not in REDUCIBLE_DTYPES:
            return f"{dtype_name(tensor.dtype)}, {str(tensor.layout).removeprefix('torch.')}"
        if self.plans.off:
            return "no plans"
        is_integer = not tensor.dtype.is_floating_point
        least_bytes = _LEAST_INTEGER_BYTES if is_integer else self.options.least_bytes
        if tensor.nbytes * parts < least_bytes and not self.must_plan(tensor, op):
            return f"{dtype_name(tensor.dtype)} below {least_bytes} bytes"
        kind = kind_of_reduction(op)
        if self._codec(name) is not None:
            is_served = not is_integer and kind in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        else:
            is_served = op is None or can_reduce(tensor.dtype, kind)
        return "" if is_served else f"{getattr(kind, 'name', kind)} of {dtype_name(tensor.dtype)}"

    def _codec(self, name: str) -> str | None:
        """Return the codec of a collective's values; what is not added up travels as it is."""
        return self.options.compress if name in _COMPRESSED else None

    def _make(self, key: Key, plan: Plan) -> Communicator:
        collective, _, device = key
        options, transport = self.options, self._transport(device)
        return Communicator(
            plan, transport, self.plans.timeout, options.choose, self._codec(collective), cache=options.cache
        )

    def _transport(self, device: str) -> Transport:
        """Return what all communicators for a type of device share. Collective the first time."""
        if device not in self._shared:
            name, transport = f"topoplan/{self.name}/{device}", self.transports[device]

            def make(timeout: timedelta) -> dist.ProcessGroup:
                return make_group(name, self.plans.ranks, transport, timeout)

            self._shared[device] = Transport(make, self.plans.timeout, self.options.transport)
        return self._shared[device]

    def queue(self, tensor: torch.Tensor) -> CallQueue:
        """Return the queue in which calls on tensors of this type of device wait for each other."""
        kind = tensor.device.type
        if kind not in self._queues:
            self._queues[kind] = make_queue(tensor.device)
        return self._queues[kind]

    def is_idle(self, device: str) -> bool:
        """Return whether no call on tensors of a type of device waits or is under way; False where none was ever made."""
        queue = self._queues.get(device)
        return isinstance(queue, ThreadQueue) and queue.is_idle

    def close_queues(self) -> None:
        """Wait for all calls; nothing goes on in the background afterwards."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

    def close(self) -> None:
        """End the threads, and destroy the groups."""
        self.close_queues()
        self.by_key.clear()
        for transport in self._shared.values():
            transport.close()
        self._shared.clear()
