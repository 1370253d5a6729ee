"""What a group of the backend "topo" is made of, and how its calls take their way: by a plan, or by
the plain group.
"""

from __future__ import annotations

import atexit
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ...topo.errors import ExecutionError, InputError
from ..calls import PersistentCall
from ..communicator import Communicator
from ..ranks.addresses import publish_in, read_published
from ..ranks.attempts import agree_on_attempt
from ..ranks.groups import list_members
from ..ranks.plain_backends import find_engine
from ..ranks.stock import StartedStock
from ..ranks.store import find_client
from ..reductions import kind_of_reduction, make_contiguous
from ..works import CpuWork, PlannedWork, get_done_work, start
from . import NAME
from .account import Account
from .call_check import CallCheck
from .communicators import Communicators
from .options import BackendOptions, backend_options
from .plain import backend_type, make_plain_group
from .plain_calls import PlainCalls
from .plan_finder import PlanFinder
from .seen import show_as
from .sizes import Key, Size

# Starts a collective of the plain group on tensors.
StartPlain = Callable[[list[torch.Tensor]], dist.Work]
# What torch's users call a collective, as profiles show it.
_NAMES = {
    "allreduce": "all_reduce", "reduce": "reduce", "broadcast": "broadcast", "allgather": "all_gather",
    "reduce-scatter": "reduce_scatter", "alltoall": "all_to_all",
}  # fmt: skip
# So many calls of a group are compared between its ranks, whatever they are: a mismatch is mostly
# there from the start.
_COMPARED = 64


class BaseGroup(PlainCalls):
    """The parts of a TopoGroup, its beginning and its end. What it does not define is done by the
    plain group.
    """

    def __init__(self, place: Any, options: BackendOptions | None) -> None:
        super().__init__(place.group_rank, place.group_size)  # type: ignore[call-arg]
        if options is not None and not isinstance(options, BackendOptions):
            raise InputError(
                f"pg_options is {type(options).__name__}; the backend topo expects "
                "topoplan.backend_options()"
            )
        self.ranks, self.whole = list_members(place)
        self.options = options or _inherit_options() or backend_options()
        self.attempt = agree_on_attempt(
            place.store, place.group_rank, place.group_size, place.timeout
        )
        store = PrefixStore(f"attempt/{self.attempt}", place.store)
        shown = PrefixStore("topoplan", store)
        publish_in(shown, place.group_rank)
        if place.group_rank == 0:
            shown.set("nonce", uuid.uuid4().hex)
        self.plain, self.transports = make_plain_group(place, store)
        # Making the plain group has taken all ranks here: what they show is there, and the store is
        # not waited for any more.
        addresses = read_published(shown, place.group_size)
        self._client = find_client(place.store)
        own_store = PrefixStore(f"topoplan/{shown.get('nonce').decode()}", self._client.store)
        for device in self.plain._device_types:
            self._register_backend(
                device, backend_type(self.transports[device.type]), self.plain._get_backend(device)
            )
        self._set_default_backend(backend_type(self.transports["cuda"]))
        plans = PlanFinder(
            self.options, own_store, place.group_rank, self.ranks, place.timeout, whole=self.whole
        )
        plans.addresses = {self.ranks[number]: address for number, address in addresses.items()}
        name = f"{place.group_id}{self.attempt}"
        self.planned = Communicators(name, plans, self.plain, self.transports, own_store, addresses)
        self.check = CallCheck(own_store, place.group_rank, self.ranks, self._break_off)
        stock = find_engine(self.plain, torch.device("cuda"))
        self.account = Account(
            f"group {place.group_id}", self.ranks, is_first=place.group_rank == 0, stock=stock
        )
        self._number = 0
        self._devices_are_known, self._refused = False, dict[str, str]()
        atexit.register(_close, weakref.ref(self))

    @property
    def communicators(self) -> dict[Key, Communicator | None]:
        """The communicator of each collective that uses a plan, by its name, root and type of
        device; None without a plan.
        """
        return self.planned.by_key

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives were called: it rises alike on all ranks."""
        return self._number

    def _break_off(self, error: ExecutionError) -> None:
        self.planned.transport("cpu").faults.break_off(error)

    # -- which way
    # -----------------------------------------------------------------------------------------------

    def _find(
        self,
        name: str,
        root: int | None,
        tensor: torch.Tensor,
        parts: int = 1,
        op: object = None,
        *,
        fits: bool = True,
    ) -> Size | None:
        """Return a collective's calls at the size of its tensors; None where the plain group is to
        make them.
        """
        if not self._devices_are_known:
            self._learn_devices()
        if tensor.device.type in self._refused:
            raise InputError(self._refused[tensor.device.type])
        size = self.planned.find_size(name, root, tensor, parts, op) if fits else None
        if self.account.is_kept and size is None:
            self.account.leave(
                name,
                self.planned.why_plain(name, tensor, parts, op)
                if fits
                else "parts of different sizes",
            )
        return size

    def _note_no_plan(self, size: Size) -> None:
        name = size.key[0]
        self.account.leave(name, f"no plan: {self.planned.plans.whys.get(name, '')}")

    def _learn_devices(self) -> None:
        """Learn which devices are this backend's: torch makes it the whole group, also of
        "cpu:topo,cuda:nccl".
        """
        self._devices_are_known = True
        named = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        others = {device: backend for device, backend in _split_config(named) if backend != NAME}
        self.planned.transports = {
            device: by for device, by in self.transports.items() if device not in others
        }
        self._refused = {
            device: f"backend {named!r}: tensors on {device} go by {self.transports[device]} "
            f"beside {NAME}, not by {backend}; "
            f"name {self.transports[device]} or {NAME} for {device}"
            for device, backend in others.items()
            if backend != self.transports.get(device, backend)
        }

    def _begin(self, what: str, *, is_new: bool = False, is_awaited: bool = False) -> int:
        """Return the number of a collective that is called now. Raises ExecutionError where the
        ranks are known to differ.

        What the first calls of a group are, and those of a size that is not settled (`is_new`), is
        compared on the side; `is_awaited` says that the call waits for the answer.
        """
        self._number += 1
        if self.check.error is not None:
            raise self.check.error
        if (
            (is_new or self._number <= _COMPARED)
            and len(self.ranks) > 1
            and not self.planned.plans.off
        ):
            self.check.post(self._number, what, is_awaited=is_awaited)
        return self._number

    # -- how
    # -------------------------------------------------------------------------------------------------------

    def _repeat(self, name: str, tensor: torch.Tensor, opts: Any) -> dist.Work | None:
        """Carry out a call at once where the caller waits, the same call was made before on a
        tensor at the same address, and no other is under way. None otherwise: the usual road, which
        takes longer than a small message does.
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

    def _call(
        self,
        size: Size,
        tensor: torch.Tensor,
        results: list[torch.Tensor],
        opts: Any,
        prepare: Callable[[Communicator], PersistentCall],
        stock: Callable[[], dist.Work],
        what: str,
        reads: Sequence[torch.Tensor] = (),
        operator: str = "",
    ) -> dist.Work:
        """Start a collective for which plans are: `prepare` makes it a task of a communicator,
        `stock` starts it without.

        Nothing here waits for another rank, unless the caller does: what has to is left to the
        queue.
        """
        call = size.draw_call()
        is_first = size.is_first(call) and not self.planned.plans.off
        number = self._begin(what, is_new=size.is_new(call), is_awaited=is_first)

        def without_plan() -> dist.Work:
            self._note_no_plan(size)
            return stock()

        known = self.planned.by_key.get(size.key)
        holds_stock = self.planned.holds_stock(tensor.device.type)
        if known is None or not size.begun:
            has_none = size.key in self.planned.without_plan
            is_free = not holds_stock and not is_first
            if is_free and (has_none or (size.is_known(call) and not size.uses_plan(call))):
                return self._explain(without_plan() if has_none else stock(), number, what, results)
        queue, waits = self.planned.queue(tensor), not opts.asyncOp
        name = f"{NAME}:{_NAMES[size.key[0]]}"
        if known is not None and size.begun:
            task = prepare(known)
            return show_as(
                operator,
                lambda: start(
                    task, queue, results, waits=waits, name=name, reads=reads, number=number
                ),
            )

        def carry_out() -> None:
            if is_first:
                self.check.wait_until_same(number)
            communicator = (
                self.planned.open(size.key, number, self.check) if size.uses_plan(call) else None
            )
            if communicator is None:
                (without_plan() if size.begun else stock()).wait()
            else:
                prepare(communicator).run(number)

        return show_as(
            operator,
            lambda: queue.carry_out(
                carry_out,
                results,
                waits=waits,
                reads=[tensor, *reads],
                name=name,
                may_be_stock=True,
            ),
        )

    def _call_together(
        self,
        sizes: Sequence[Size],
        tensors: Sequence[torch.Tensor],
        results: list[torch.Tensor],
        opts: Any,
        prepare: Callable[[Communicator, int], PersistentCall],
        what: str,
        operator: str,
    ) -> dist.Work:
        """Start collectives on several tensors as one, all of which go through plans: `prepare`
        gets each one's place.
        """
        number = self._begin(what)
        queue = self.planned.queue(tensors[0])

        def carry_out() -> None:
            for place, (size, tensor) in enumerate(zip(sizes, tensors, strict=True)):
                communicator = self.planned.open(size.key, number, self.check)
                if communicator is None:
                    self.planned.check_plain(tensor, dist.ReduceOp.SUM)
                    raise InputError(f"{what}: there is no plan")
                prepare(communicator, place).run(number)

        return show_as(
            operator,
            lambda: queue.carry_out(
                carry_out, results, waits=not opts.asyncOp, reads=tensors, name=f"{NAME}:{operator.strip('_')}",
                may_be_stock=True,
            ),
        )  # fmt: skip

    def _leave(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        """Call a collective of the plain group, after all calls before it that may be collectives
        of the plain group.
        """
        tensor = next(_find_tensors(args), None)
        start = partial(getattr(self.plain, name), *args, **kwargs)
        if name == "monitored_barrier":  # it has no work: it is over when it returns
            self._begin(name)
            self.planned.queue(torch.empty(0)).carry_out(start, [], waits=True, may_be_stock=True)
            return None  # type: ignore[return-value]
        return self._call_plain(name, tensor, start, after_all=name == "barrier")

    def _call_plain(
        self,
        what: str,
        tensor: torch.Tensor | None,
        start: Callable[[], dist.Work],
        *,
        after_all: bool = False,
    ) -> dist.Work:
        """Start a collective of the plain group, after all calls before it that may be collectives
        of the plain group, or, as gloo's barriers do, `after_all` calls.
        """
        number = self._begin(what)
        device = "cpu" if tensor is None else tensor.device.type
        waits_for_others = (
            not self.planned.is_idle(device) if after_all else self.planned.holds_stock(device)
        )
        if not waits_for_others:
            is_compared = number <= _COMPARED and len(self.ranks) > 1 and not self.planned.plans.off
            return self._explain(start(), number, what, None) if is_compared else start()
        queue = self.planned.queue(torch.empty(0) if tensor is None else tensor)
        results: list[torch.Tensor] = []

        def carry_out() -> None:
            work = start()
            work.wait()
            with suppress(RuntimeError):  # reduce-scatter and barriers of gloo have no future
                results.extend(_find_tensors([work.get_future().value()]))

        return queue.carry_out(carry_out, results, waits=False, may_be_stock=True)

    def _copy_by_plain(
        self, tensor: torch.Tensor, start: Callable[[torch.Tensor], dist.Work]
    ) -> dist.Work:
        """Start a broadcast by the plain group: gloo takes tensors for contiguous that are not."""
        given = (
            make_contiguous(tensor) if self.transports.get(tensor.device.type) == "gloo" else tensor
        )
        work = start(given)
        if given is tensor:
            return work

        def finish() -> None:
            work.wait()
            tensor.detach().copy_(given)

        return self.planned.queue(tensor).carry_out(finish, [tensor], waits=False)

    def _explain(
        self, work: dist.Work, number: int, what: str, results: list[torch.Tensor] | None
    ) -> dist.Work:
        """Return the work of a stock collective under way whose failure says which rank is to
        blame.

        `results` are its tensors; None: those that the backend's own work has. Without a future it
        stays as it is.
        """
        if isinstance(work, PlannedWork) or any(tensor.is_cuda for tensor in results or []):
            return work
        try:
            future = work.get_future()
        except RuntimeError:  # gloo's reduce-scatter and barriers have none
            return work
        faults = self.planned.transport("cpu").faults
        faults.find_mismatch = self.check.find_error
        found: list[torch.Tensor] = [] if results is None else results
        explained = CpuWork(found)

        def fill() -> None:
            if results is None:
                found.extend(_find_tensors([future.value()]))

        stock = StartedStock(faults, faults.begin(f"{what} by gloo", number=number), work, fill)
        self.check.watch(explained)
        stock.call_when_done(explained.finish)
        return explained

    def _reduce_by_plain(
        self,
        tensors: Sequence[torch.Tensor],
        opts: Any,
        results: Sequence[torch.Tensor],
        start: StartPlain,
    ) -> dist.Work:
        """Start a reduction by the plain group on `tensors`, of which `results` are those that hold
        the result.

        gloo has no AVG, so that is a sum, which is divided afterwards; and it takes tensors for
        contiguous that are not.
        """
        op, device = opts.reduceOp, tensors[0].device.type
        self.planned.check_plain(tensors[0], op)
        by_gloo = self.transports.get(device) == "gloo"
        averages = (
            by_gloo
            and kind_of_reduction(op) == dist.ReduceOp.AVG
            and tensors[0].is_floating_point()
        )
        given = [make_contiguous(tensor) if by_gloo else tensor for tensor in tensors]
        if not averages and all(a is b for a, b in zip(given, tensors, strict=True)):
            return start(given)
        opts.reduceOp = dist.ReduceOp.SUM if averages else op
        work = start(given)
        opts.reduceOp = op

        def finish() -> None:
            work.wait()
            for tensor, own in zip(tensors, given, strict=True):
                if averages and any(tensor is result for result in results):
                    own.detach().div_(self.size())
                if own is not tensor:
                    tensor.detach().copy_(own)

        return self.planned.queue(tensors[0]).carry_out(finish, list(tensors), waits=False)

    # -- the end
    # -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End the thread, and destroy all groups."""
        self._tell()
        self.check.close()
        self.planned.close()
        self.plain.shutdown()

    def abort(self) -> None:
        """Abort all groups: what is under way fails, and then the threads end."""
        self._tell()
        self.plain.abort()
        self.check.close()
        self.planned.close()

    def _tell(self) -> None:
        """Log what was used."""
        used = {}
        for (name, root, _), communicator in self.planned.by_key.items():
            if communicator is not None:
                way = "from" if name == "broadcast" else "to"
                used[name if root is None else f"{name} {way} {root}"] = communicator
        self.account.tell(used, self.options.choose)


def _find_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, also those in lists of lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _find_tensors(value)


def _split_config(config: str) -> list[tuple[str, str]]:
    """Return the pairs of device and backend in "cpu:topo,cuda:nccl"."""
    return [
        (device, backend)
        for device, _, backend in (pair.partition(":") for pair in config.split(","))
        if backend
    ]


def _inherit_options() -> BackendOptions | None:
    """Return the options of the group of all ranks, for groups that are given none."""
    world = dist.group.WORLD
    return world.options if isinstance(world, BaseGroup) else None


def _close(group: weakref.ref[BaseGroup]) -> None:
    """Close the queues at exit, where the group was not destroyed: a thread in a call would outlive
    the interpreter.
    """
    alive = group()
    if alive is not None:
        alive._tell()
        alive.check.close()
        alive.planned.close_queues()
