"""The plans and communicators of one process group, and the queues of its calls.

Each is made when it is first used: the search for a plan begins at the first call of its
collective, in the background; the queue makes the communicator at the first call that uses the
plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...synth.plan import Plan
from ...topo.errors import InputError
from ..communicator import Communicator
from ..ranks.addresses import Addresses
from ..ranks.groups import make_group
from ..ranks.stock import has_stock
from ..ranks.transport import SharedTransport, Transport
from ..reductions import REDUCIBLE_DTYPES, can_reduce, dtype_name, kind_of_reduction
from ..scratch import set_scratch
from ..works import ThreadQueue, make_queue
from .call_check import CallCheck
from .options import AUTO
from .plan_finder import PlanFinder, Preparation
from .sizes import Key, Passes, Size

# Collectives that add up values: only these are compressed.
_COMPRESSED = ("allreduce", "reduce-scatter")
# Integers are mostly control messages (sizes, flags, pickled objects); from this many bytes on they
# are data.
_MIN_INTEGER_BYTES = 1 << 20


class Communicators:
    """The communicators of the group called `name` over `plain`.

    `transports` names the transport of each device type.
    """

    def __init__(
        self,
        name: str,
        plans: PlanFinder,
        plain: dist.ProcessGroup,
        transports: Mapping[str, str],
        store: Store,
        addresses: Addresses,
    ) -> None:
        self.name, self.plans, self.plain, self.transports = name, plans, plain, transports
        self.options = plans.options
        if self.options.scratch_bytes is not None:
            set_scratch(self.options.scratch_bytes)
        self.by_key: dict[Key, Communicator | None] = {}
        self._store, self._addresses = store, addresses
        self._preparations: dict[Key, Preparation] = {}
        self._sizes: dict[tuple[Key, int, bool], Size] = {}
        self._passes = Passes()
        self._shared: dict[str, Transport] = {}
        self._queues: dict[str, ThreadQueue] = {}

    def find_size(
        self, name: str, root: int | None, tensor: torch.Tensor, parts: int = 1, op: object = None
    ) -> Size | None:
        """Return the state of a collective at one size; None if the plain group makes its calls.

        The size is that of `parts` tensors like the given one.
        """
        if self.why_plain(name, tensor, parts, op):
            return None
        key = name, root, tensor.device.type
        has_own = has_stock(tensor.dtype, is_nccl=tensor.is_cuda)
        place = key, (tensor.nbytes * parts).bit_length(), has_own
        size = self._sizes.get(place)
        if size is None:
            device = tensor.device
            if key not in self._preparations:
                self._preparations[key] = Preparation(partial(self.plans.find, name, root, device))
            is_ready = lambda: self._preparations[key].is_ready  # noqa: E731
            at_once = not has_own or self._uses_plans_at_once(name, tensor, op)
            gloo = self.plain._get_backend(torch.device("cpu"))
            size = self._sizes[place] = Size(key, gloo, is_ready, self._passes, at_once=at_once)
        return size

    def find_all(self, name: str, tensors: Sequence[torch.Tensor], op: object) -> list[Size]:
        """Return the states of several tensors whose calls must go through plans.

        Return nothing if the plain group may make the calls, or no plan can serve one of them.
        """
        if not self.must_plan(tensors[0], op):
            return []
        sizes = [self.find_size(name, None, tensor, op=op) for tensor in tensors]
        return [size for size in sizes if size is not None] if None not in sizes else []

    def _uses_plans_at_once(self, name: str, tensor: torch.Tensor, op: object) -> bool:
        """Return whether the first call must already go through a plan.

        It must unless plans are found automatically and the stock collective may compete with them.
        """
        options = self.options
        is_auto = options.plans == AUTO and options.choose in ("race", "model")
        return not is_auto or self._codec(name) is not None or self.must_plan(tensor, op)

    @property
    def without_plan(self) -> set[Key]:
        """The collectives that turned out to have no plan."""
        return {key for key, communicator in self.by_key.items() if communicator is None}

    def open(self, key: Key, number: int, check: CallCheck) -> Communicator | None:
        """Return the communicator for a collective, waiting for its plan; None without a plan.

        Only the queue may call this. Collective the first time, as part of the `number`-th call;
        raises like PlanFinder.find and Communicator.
        """
        if key not in self.by_key:
            plan = self._preparations[key].wait(lambda: check.error)
            self.by_key[key] = None if plan is None else self._make(key, plan, number)
        return self.by_key[key]

    def must_plan(self, tensor: torch.Tensor, op: object) -> bool:
        """Return whether a reduction must not be left to the plain group.

        That holds for values that are rounded, if results must have the same bits. `op` is None for
        collectives that add nothing.
        """
        rounds = tensor.is_floating_point() or tensor.is_complex()
        # The order does not matter for MIN and MAX.
        orders = op is not None and kind_of_reduction(op) not in (
            dist.ReduceOp.MIN,
            dist.ReduceOp.MAX,
        )
        return self.options.keeps_bits and orders and rounds and len(self.plans.ranks) > 1

    def check_plain(self, tensor: torch.Tensor, op: object) -> None:
        """Raise InputError if the plain group must not carry out a reduction."""
        if self.must_plan(tensor, op):
            raise InputError(
                "choose='same-bits': there is no reproducible plan to reduce such tensors "
                f"({tensor.layout}, {tensor.dtype}, {tensor.device.type}), and gloo and NCCL "
                "promise no bits; leave choose out, or name such a plan"
            )

    def why_plain(self, name: str, tensor: torch.Tensor, parts: int = 1, op: object = None) -> str:
        """Return why no plan can serve such buffers, or nothing if one can.

        The answer is the same on all ranks: it depends only on values that all ranks know.
        """
        device = tensor.device.type
        if self.transports.get(device) != ("nccl" if tensor.is_cuda else "gloo"):
            return f"{device} is another backend's"
        # The layout comes first: sparse tensors have no size in bytes.
        if tensor.layout != torch.strided or tensor.dtype not in REDUCIBLE_DTYPES:
            return f"{dtype_name(tensor.dtype)}, {str(tensor.layout).removeprefix('torch.')}"
        if self.plans.off:
            return "no plans"
        is_integer = not tensor.dtype.is_floating_point
        min_bytes = _MIN_INTEGER_BYTES if is_integer else self.options.least_bytes
        if tensor.nbytes * parts < min_bytes and not self.must_plan(tensor, op):
            return f"{dtype_name(tensor.dtype)} below {min_bytes} bytes"
        kind = kind_of_reduction(op)
        if self._codec(name) is not None:
            is_served = not is_integer and kind in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        else:
            is_served = op is None or can_reduce(tensor.dtype, kind)
        return "" if is_served else f"{getattr(kind, 'name', kind)} of {dtype_name(tensor.dtype)}"

    def _codec(self, name: str) -> str | None:
        """Return the codec of a collective's values, or None if they are sent uncompressed.

        Collectives that add nothing are sent uncompressed.
        """
        return self.options.compress if name in _COMPRESSED else None

    def _make(self, key: Key, plan: Plan, number: int) -> Communicator:
        collective, _, device = key
        options, transport = self.options, self.transport(device)
        with transport.faults.stock(f"setting up {collective} by plans", number):
            if isinstance(transport, SharedTransport):
                transport.open(options.transport)
            codec = self._codec(collective)
            communicator = Communicator(
                plan, transport, self.plans.timeout, options.choose, codec, cache=options.cache
            )
        communicator.engine.times_calls = True
        return communicator

    def transport(self, device: str) -> Transport:
        """Return the transport of all communicators for a device type.

        Collective the first time on GPUs.
        """
        if device not in self._shared:
            name, timeout = f"topoplan/{self.name}/{device}", self.plans.timeout
            transport = self.transports.get(device, "gloo")
            if transport == "gloo":
                self._shared[device] = SharedTransport(
                    self.plain, timeout, self._store, self._addresses, name
                )
            else:
                ranks, number = self.plans.ranks, self.plans.rank
                make = partial(make_group, name, ranks, transport, store=self._store, number=number)
                self._shared[device] = Transport(
                    make, timeout, self.options.transport, self._addresses
                )
        return self._shared[device]

    def queue(self, tensor: torch.Tensor) -> ThreadQueue:
        """Return the queue that orders calls on tensors of this device type."""
        kind = tensor.device.type
        if kind not in self._queues:
            self._queues[kind] = make_queue(tensor.device)
        return self._queues[kind]

    def is_idle(self, device: str) -> bool:
        """Return whether no call on tensors of a device type waits or is in progress."""
        queue = self._queues.get(device)
        return queue is None or queue.is_idle

    def holds_stock(self, device: str) -> bool:
        """Return whether stock collectives on a device type must wait for earlier calls."""
        queue = self._queues.get(device)
        return queue is not None and queue.holds_stock

    def close_queues(self) -> None:
        """Wait for all calls; no thread of the group runs afterwards."""
        self.plans.stop.set()
        for preparation in self._preparations.values():
            preparation.join()
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

    def close(self) -> None:
        """End the threads, and destroy the groups."""
        self.close_queues()
        self._preparations.clear()
        self._sizes.clear()
        self.by_key.clear()
        for transport in self._shared.values():
            transport.close()
        self._shared.clear()
