"""The base of the backend's process groups: each call goes through a plan or to the plain group.

A plan says how the ranks carry out one collective; a communicator runs it. A PersistentCall is a
call of a communicator that is ready to run. The plain group is gloo's or NCCL's, whose own
collectives are called stock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import InputError
from ..communicator import Communicator
from ..compiled import describe_call
from ..persistent_calls import PersistentCall
from ..queues import start
from ..usage_log import Summary, find_usage_log
from ..works import get_done_work
from . import NAME
from .lifetime import GroupLifetime
from .sizes import Key, SizeState
from .torch_tools import show_as

# The names of collectives in torch's API, as profiles show them.
_NAMES = {
    "allreduce": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


@dataclass(eq=False)
class GroupCall:
    """A collective called on a group, by its `name` in plans and its `operator` in c10d.

    The call writes to `results`, and also reads `reads`; its buffer has the size of `parts` tensors
    like `tensor`. `opts` are torch's options, `root` the root's rank in the group (None: no root),
    `op` the reduction (None: none). `prepare` makes it a call of a communicator, `stock` starts it
    on the plain group. `misfit` says why no plan can serve it, "" if one can. `what` describes it
    in errors, identically on all ranks that make the same call.
    """

    name: str
    operator: str
    tensor: torch.Tensor
    results: list[torch.Tensor]
    opts: Any
    prepare: Callable[[Communicator], PersistentCall]
    stock: Callable[[], Any]
    reads: Sequence[torch.Tensor] = ()
    parts: int = 1
    root: int | None = None
    op: object = None
    misfit: str = ""
    what: str = ""

    def __post_init__(self) -> None:
        if not self.what:
            self.what = describe_call(
                self.name, self.op, self.root, self.tensor.numel(), self.tensor.dtype
            )


class BaseGroup(GroupLifetime):
    """A process group that runs calls through plans where it has them.

    Its base sets it up. Subclasses define the collectives; all other methods are the plain group's.
    """

    @property
    def communicators(self) -> dict[Key, Communicator | None]:
        """The communicators used so far, by (collective, root, device type).

        The value is None where there is no plan.
        """
        return self.planned.by_key

    def summary(self) -> Summary:
        """Return which schedules this group's calls on this rank have used so far, by size.

        Raise InputError if the extra that counts calls is not installed.
        """
        return find_usage_log().summarize([self.usage])

    # Plan or plain group

    def _find(self, call: GroupCall) -> SizeState | None:
        """Return the state of a call's size, or None if the plain group makes its calls."""
        if not self._devices_are_known:
            self._learn_devices()
        tensor = call.tensor
        if tensor.device.type in self._refused:
            raise InputError(self._refused[tensor.device.type])
        size = (
            None
            if call.misfit
            else self.planned.find_size(call.name, call.root, tensor, call.parts, call.op)
        )
        if self.usage.is_wanted and size is None:
            why = call.misfit or self.planned.why_plain(call.name, tensor, call.parts, call.op)
            self.usage.note_stock_reason(call.name, why)
        return size

    def _note_no_plan(self, call: GroupCall) -> None:
        self.usage.note_stock_reason(
            call.name, f"no plan: {self.planned.plans.whys.get(call.name, '')}"
        )

    def _learn_devices(self) -> None:
        """Find the device types of this backend.

        torch makes this backend the whole group, even for "cpu:topo,cuda:nccl".
        """
        self._devices_are_known = True
        named = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        pairs = (pair.partition(":") for pair in named.split(","))
        others = {device: name for device, _, name in pairs if name and name != NAME}
        self.planned.transports = {
            device: by for device, by in self.transports.items() if device not in others
        }
        self._refused = {
            device: f"backend {named!r}: beside {NAME}, tensors on {device} go by "
            f"{self.transports[device]}, not by {backend}; "
            f"name {self.transports[device]} or {NAME} for {device}"
            for device, backend in others.items()
            if backend != self.transports.get(device, backend)
        }

    # Running

    def _repeat(self, name: str, tensor: torch.Tensor, opts: Any) -> dist.Work | None:
        """Run a cached call at once, or return None if `_call` must handle it.

        The caller must be waiting, the same call must have run on a tensor at the same address, and
        no other may be in progress. `_call` takes longer than a small message does.
        """
        communicator = self.planned.by_key.get((name, None, "cpu"))
        if communicator is None or opts.asyncOp or torch._C._len_torch_dispatch_stack():
            return None
        play = communicator.calls.find_play(tensor, opts.reduceOp)
        if play is None or not self.planned.is_idle("cpu"):
            return None
        self._number += 1
        play(self._number)
        return get_done_work()

    def _call(self, call: GroupCall) -> dist.Work:
        """Start a collective, by its plan if it has one.

        Nothing here waits for another rank unless the caller waits; the queue does all other
        waiting.
        """
        size = self._find(call)
        if size is None:
            self.usage.count_stock(call.name)
            return self._call_plain(call.what, call.tensor, call.stock)
        place = size.draw_call()
        is_first = size.is_first(place)
        number = self._begin(call.what, is_new=size.is_new(place), is_awaited=is_first)
        communicator = self.planned.by_key.get(size.key)
        # Asked before `uses_plan`, which may start a collective of its own.
        holds_stock = self.planned.holds_stock(call.tensor.device.type)
        if communicator is None or not size.begun:
            has_none = self.planned.by_key.get(size.key, size) is None  # unlike one not made yet
            if (
                not holds_stock
                and not is_first
                and (has_none or (size.is_known(place) and not size.uses_plan(place)))
            ):
                if has_none:
                    self._note_no_plan(call)
                self.usage.count_stock(call.name)
                self.planned.around.check_stock(call.what)
                return self._explain(call.stock(), number, call.what, call.results)
        queue, waits = self.planned.queue(call.tensor), not call.opts.asyncOp
        name = f"{NAME}:{_NAMES[call.name]}"
        if communicator is not None and size.begun:
            prepared = call.prepare(communicator)
            return show_as(
                call.operator,
                lambda: start(
                    prepared,
                    queue,
                    call.results,
                    waits=waits,
                    name=name,
                    reads=call.reads,
                    number=number,
                ),
            )
        return show_as(
            call.operator,
            lambda: queue.submit(
                partial(self._call_first, call, size, place, number, is_first=is_first),
                call.results,
                waits=waits,
                reads=[call.tensor, *call.reads],
                name=name,
                may_be_stock=True,
            ),
        )

    def _call_first(
        self, call: GroupCall, size: SizeState, place: int, number: int, *, is_first: bool
    ) -> None:
        """Carry out a call of a size whose plan may not be there yet; only the queue may do so.

        If it `is_first` of the size, ranks compare their calls before.
        """
        if is_first:
            self.planned.around.compare(number, call.what, self.check)
        opened = self.planned.open(size.key, number, self.check) if size.uses_plan(place) else None
        if opened is not None:
            call.prepare(opened).run(number)
            return
        if size.begun:
            self._note_no_plan(call)
        self.usage.count_stock(call.name)
        work = call.stock()
        if work is not None:  # NCCL returns none for a call whose caller waits
            work.wait()

    def _call_together(
        self,
        sizes: Sequence[SizeState],
        tensors: Sequence[torch.Tensor],
        results: list[torch.Tensor],
        opts: Any,
        prepare: Callable[[Communicator, int], PersistentCall],
        what: str,
        operator: str,
    ) -> dist.Work:
        """Start several collectives as one call, all by plans; `prepare` gets each index."""
        number = self._begin(what)

        def run_call() -> None:
            for place, (size, tensor) in enumerate(zip(sizes, tensors, strict=True)):
                communicator = self.planned.open(size.key, number, self.check)
                if communicator is None:
                    self.planned.check_plain(tensor, dist.ReduceOp.SUM)
                    raise InputError(f"{what}: there is no plan")
                prepare(communicator, place).run(number)

        return show_as(
            operator,
            lambda: self.planned.queue(tensors[0]).submit(
                run_call,
                results,
                waits=not opts.asyncOp,
                reads=tensors,
                name=f"{NAME}:{operator.strip('_')}",
                may_be_stock=True,
            ),
        )
