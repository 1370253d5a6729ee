"""The plans and communicators of one process group, and the queues of its calls.

A plan says how the ranks carry out one collective, a communicator runs a plan, a transport carries
its messages. Each is made when it is first used: the search for a plan begins at the first call of
its collective, in the background; the queue, which runs calls in order, makes the communicator at
the first call that uses the plan. A SizeState says from which call on the calls of one size use the
plan. The plain group (gloo or NCCL) makes calls without a plan, by its own (stock) collectives.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...synth.plan import Plan
from ...topo.errors import ExecutionError, InputError
from ..communicator import Communicator
from ..option_names import ON_FAULTS, ON_SLOWS
from ..queues import ThreadQueue, make_queue
from ..ranks.addresses import Addresses
from ..ranks.groups import PlainGroupMaker
from ..ranks.set_up import end_past_waits, is_answering
from ..ranks.stock import has_stock
from ..ranks.transport import SharedTransport, Transport
from ..reductions import REDUCIBLE_DTYPES, can_reduce, dtype_name, kind_of_reduction
from ..scratch import process_budget
from ..usage_log import find_usage_log
from .around import Around
from .call_check import CallCheck
from .options import AUTO
from .plan_finder import PlanFinder, Preparation
from .sizes import Key, Passes, SizeState

# Time for a search to end, before it is seen whether the store keeps it.
_END_S = 5.0
# Collectives that add up values: only these are compressed.
_COMPRESSED = ("allreduce", "reduce-scatter")
# Integers are mostly control messages (sizes, flags, pickled objects); from this many bytes on they
# are data.
_MIN_INTEGER_BYTES = 1 << 20


class Communicators:
    """The communicators of the group called `name`, made when first used.

    They are kept by their key, (collective, root, device type). `plans` finds plans; `plain` is the
    gloo or NCCL group that makes all other calls; `transports` names the transport ("gloo", "nccl")
    of each device type; `store` is the group's, `addresses` are where ranks receive reports of
    failures.
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
        if self.options.policy.scratch_bytes is not None:
            process_budget.given_bytes = self.options.policy.scratch_bytes
        self.by_key: dict[Key, Communicator | None] = {}
        self._store, self._addresses = store, addresses
        self._preparations: dict[Key, Preparation] = {}
        self._sizes: dict[tuple[Key, int, bool], SizeState] = {}
        self._passes = Passes()
        # By device type, and whether ranks have their numbers in the launch, not in the group.
        self._shared: dict[tuple[str, bool], Transport] = {}
        self._queues: dict[str, ThreadQueue] = {}
        self.around = Around()
        """What goes around all calls by plans; set before the first of them."""

    def find_size(
        self, name: str, root: int | None, tensor: torch.Tensor, parts: int = 1, op: object = None
    ) -> SizeState | None:
        """Return the state of a collective at one size; None if the plain group makes its calls.

        The state says from which call on the plan is used. `name` is the collective's, `root` the
        rank in the group (None: no root), `op` the reduction (None: none); the size is that of
        `parts` tensors like `tensor`.
        """
        if self.why_plain(name, tensor, parts, op):
            return None
        key = name, root, tensor.device.type
        has_own = has_stock(tensor.dtype)
        place = key, (tensor.nbytes * parts).bit_length(), has_own
        size = self._sizes.get(place)
        if size is None:
            if not self.around.takes_all:
                self.begin_search(key, tensor.device)
            # Unless plans are found automatically, and the stock collective may compete with them,
            # the first call must already go through a plan. After a change of membership, plans
            # that were named may have to be synthesized, too.
            may_wait = (
                (
                    (self.options.plans == AUTO and self.options.policy.choose in ("race", "model"))
                    or not self.plans.scope.insists
                )
                and self._codec(name) is None
                and not self.must_plan(tensor, op)
            )
            size = self._sizes[place] = SizeState(
                key,
                self.plain._get_backend(torch.device("cpu")),
                lambda: key not in self._preparations or self._preparations[key].future.done(),
                self._passes,
                at_once=self.around.takes_all or not (has_own and may_wait),
            )
        return size

    def begin_search(self, key: Key, device: torch.device) -> bool:
        """Begin the search for a key's plan in the background, if it has not begun.

        Return whether it has ended. `device` is that of the call's tensors.
        """
        if key not in self._preparations:
            self._preparations[key] = self.plans.prepare(key[0], key[1], device)
        return self._preparations[key].future.done()

    def find_all(self, name: str, tensors: Sequence[torch.Tensor], op: object) -> list[SizeState]:
        """Return the state of each tensor's size if calls on them together must go through plans.

        Return an empty list if the plain group may make the calls, or no plan can serve one of
        them. `op` is the reduction, `name` the collective.
        """
        if not self.around.takes_all and not self.must_plan(tensors[0], op):
            return []
        sizes = [self.find_size(name, None, tensor, op=op) for tensor in tensors]
        return [size for size in sizes if size is not None] if None not in sizes else []

    def open(self, key: Key, number: int, check: CallCheck) -> Communicator | None:
        """Return the communicator for a key, waiting for its plan; None without a plan.

        Only the queue may call this. Collective the first time, as part of the group's `number`-th
        call, whose comparison between ranks is `check`. Raises like PlanFinder.find and
        Communicator.
        """
        if key not in self.by_key:
            plan = self.around.find_plan(
                key, lambda: self._preparations[key].wait(lambda: check.error)
            )
            self.by_key[key] = None if plan is None else self._make(key, plan, number)
        return self.by_key[key]

    def must_plan(self, tensor: torch.Tensor, op: object) -> bool:
        """Return whether a reduction must not be left to the plain group.

        That holds for values that are rounded, if results must have the same bits
        (choose="same-bits"). `op` is None for collectives that add nothing.
        """
        return (
            self.options.policy.keeps_bits
            # The order does not matter for MIN and MAX.
            and kind_of_reduction(op) not in (None, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
            and (tensor.is_floating_point() or tensor.is_complex())
            and len(self.plans.ranks) > 1
        )

    def check_plain(self, tensor: torch.Tensor, op: object) -> None:
        """Raise InputError if the plain group must not make a reduction `op` of such a tensor.

        That is so if the user asked for reproducible sums, which gloo and NCCL do not promise.
        """
        if self.must_plan(tensor, op):
            raise InputError(
                "choose='same-bits': there is no reproducible plan to reduce such tensors "
                f"({tensor.layout}, {tensor.dtype}, {tensor.device.type}), and gloo and NCCL "
                "promise no bits; leave choose out, or name such a plan"
            )

    def why_plain(self, name: str, tensor: torch.Tensor, parts: int = 1, op: object = None) -> str:
        """Return why no plan can serve a call of the collective `name`, or "" if one can.

        The buffer has the size of `parts` tensors like `tensor`; `op` is the reduction (None:
        none). The answer is the same on all ranks: it depends only on values that all ranks know.
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
        min_bytes = _MIN_INTEGER_BYTES if is_integer else self.options.policy.least_bytes
        if self.around.takes_all:
            min_bytes = 0
        if tensor.nbytes * parts < min_bytes and not self.must_plan(tensor, op):
            return f"{dtype_name(tensor.dtype)} below {min_bytes} bytes"
        kind = kind_of_reduction(op)
        is_served = (
            op is None or can_reduce(tensor.dtype, kind)
            if self._codec(name) is None
            else not is_integer and kind in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        )
        return "" if is_served else f"{getattr(kind, 'name', kind)} of {dtype_name(tensor.dtype)}"

    def _codec(self, name: str) -> str | None:
        """Return the codec of a collective's values, or None if they are sent uncompressed.

        Collectives that add nothing are sent uncompressed.
        """
        return self.options.policy.compress if name in _COMPRESSED else None

    def make_transport(
        self, name: str, transport: str, links: str, labels: Sequence[int] | None
    ) -> Transport:
        """Return a new transport of the group's ranks over a plain group of its own, called `name`.

        `transport` is its backend ("gloo", "nccl"), `links` names what sends its messages; `labels`
        are the ranks' numbers in plans and errors, if not those in the group.
        """
        make = PlainGroupMaker(
            name,
            self.plans.ranks,
            transport,
            # A connection of its own: groups that are made at once would wait for each other's.
            store=self._store.clone(),  # type: ignore[attr-defined]
            number=self.plans.rank,
        )
        return Transport(make, self.plans.timeout, links, self._addresses, labels)

    def _make(self, key: Key, plan: Plan, number: int) -> Communicator:
        collective, _, device = key
        options, in_launch = self.options, not plan.collective.has_all_gpus
        transport = self.around.find_transport(device, plan)
        if transport is None:
            transport = self.transport(device, in_launch=in_launch)
        with (
            nullcontext()
            if self.around.takes_all
            else transport.faults.stock(f"setting up {collective} by plans", number, is_part=True)
        ):
            if isinstance(transport, SharedTransport):
                transport.open(options.transport)
            communicator = Communicator(
                plan,
                transport,
                policy=replace(
                    options.policy,
                    timeout=self.plans.timeout,
                    compress=self._codec(collective),
                    on_fault=ON_FAULTS[0],  # calls go through the group's own layers
                    on_slow=ON_SLOWS[0],
                    around=(),
                ),
            )
        dispatcher = communicator.dispatcher
        dispatcher.race_on_calls()
        self.plans.settle(dispatcher)
        find_usage_log().observe(dispatcher)
        return communicator

    def transport(self, device: str, *, in_launch: bool = False) -> Transport:
        """Return the transport that all communicators of a device type share, making it if needed.

        A launch is all ranks that were started together: `in_launch` is for plans that number the
        ranks as there, not as in the group. Collective the first time on GPUs.
        """
        in_launch = in_launch or self.plans.scope.is_within(device)
        key = device, in_launch
        if key not in self._shared:
            name, timeout = f"topoplan/{self.name}/{device}", self.plans.timeout
            labels: Sequence[int] | None = None
            if in_launch:
                labels, name = self.plans.scope.seats, f"{name}/launch"
            transport = self.transports.get(device, "gloo")
            if transport == "gloo":
                store = PrefixStore("launch", self._store) if in_launch else self._store
                self._shared[key] = SharedTransport(
                    self.plain, timeout, store, self._addresses, name, labels
                )
            else:
                links = self.options.transport
                self._shared[key] = self.make_transport(name, transport, links, labels)
            self.around.heed(device, self._shared[key])
        return self._shared[key]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of later calls by plans."""
        self.plans.timeout = timeout
        transports = [*self._shared.values(), *self.around.list_transports()]
        transports += [x.dispatcher.transport for x in self.by_key.values() if x is not None]
        for transport in dict.fromkeys(transports):
            transport.control.set_timeout(timeout)

    def break_off(self, error: ExecutionError) -> None:
        """Let all calls on CPU tensors fail with an error, those in progress too."""
        self.around.break_off(error)
        self.transport("cpu").faults.break_off(error)
        for (device, in_launch), transport in list(self._shared.items()):
            if device == "cpu" and in_launch:
                transport.faults.break_off(error)

    def queue(self, tensor: torch.Tensor) -> ThreadQueue:
        """Return the queue that orders calls on tensors of `tensor`'s device type."""
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
        """End the searches for plans, and wait some seconds for calls that have not ended.

        Calls that wait for a plan go without it once rank 0 has ended its search. It decides for
        all: otherwise some ranks would wait in a collective that others have left out.
        """
        self.plans.is_closing.set()
        for queue in self._queues.values():
            queue.close(self.break_off)
        self._queues.clear()
        self.plans.stop.set()
        for preparation in self._preparations.values():
            preparation.thread.join(_END_S)
            if preparation.thread.is_alive() and not is_answering(self.plans.store):
                end_past_waits()  # the thread is in a request that does not end
            else:
                preparation.thread.join()

    def abort(self, why: str) -> None:
        """Make all calls fail, those in progress too; ranks that wait for them notice.

        `why` completes "the process group was ...", as in "aborted".
        """
        error = ExecutionError(f"rank {self.plans.rank}: the process group was {why}")
        self.plans.stop.set()
        self.around.break_off(error)
        for transport in list(self._shared.values()):
            transport.faults.break_off(error)

    def close(self) -> None:
        """Close the queues, and destroy the communicators and their transports."""
        self.close_queues()
        self.around.close()
        self._preparations.clear()
        self._sizes.clear()
        self.by_key.clear()
        for transport in self._shared.values():
            transport.close()
        self._shared.clear()
