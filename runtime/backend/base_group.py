"""What a group of the backend "topo" is made of, and how its calls take their way: by a plan, or by the plain group."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from ...topo.errors import InputError
from ..communicator import Communicator
from ..ranks.attempts import agree_on_attempt
from ..ranks.groups import list_members
from ..ranks.plain_backends import find_engine
from ..reductions import kind_of_reduction
from ..task import Task
from ..works import get_done_work, start
from . import NAME
from .account import Account
from .communicators import Communicators, Key
from .options import BackendOptions, backend_options
from .plain import backend_type, make_plain_group
from .plan_finder import PlanFinder
from .seen import hide, show_as

_OPERATORS = {
    "all_reduce": "allreduce_",
    "reduce": "reduce_",
    "broadcast": "broadcast_",
    "all_gather": "allgather_",
    "reduce_scatter": "reduce_scatter_",
    "all_to_all": "alltoall_base_",
}
"""What torch calls the operator of a collective, where there is only one."""


class BaseGroup(dist.ProcessGroup):
    """The parts of a TopoGroup, its beginning and its end. Collectives that it does not have are the plain backends'."""

    def __init__(self, place: Any, options: BackendOptions | None) -> None:
        super().__init__(place.group_rank, place.group_size)  # type: ignore[call-arg]
        if options is not None and not isinstance(options, BackendOptions):
            raise InputError(
                f"pg_options is {type(options).__name__}; the backend topo expects topoplan.backend_options()"
            )
        self.ranks, self.whole = list_members(place)
        self.options = options or _inherit_options() or backend_options()
        self.attempt = agree_on_attempt(place.store, place.group_rank, place.group_size, place.timeout)
        store = PrefixStore(f"attempt/{self.attempt}", place.store)
        self.plain, self.transports = make_plain_group(place, store)
        for device in self.plain._device_types:
            self._register_backend(device, backend_type(self.transports[device.type]), self.plain._get_backend(device))
        self._set_default_backend(backend_type(self.transports["cuda"]))
        own_store = PrefixStore("topoplan", store)
        plans = PlanFinder(self.options, own_store, place.group_rank, self.ranks, place.timeout, whole=self.whole)
        self.planned = Communicators(f"{place.group_id}{self.attempt}", plans, self.transports)
        stock = find_engine(self.plain, torch.device("cuda"))
        self.account = Account(f"group {place.group_id}", self.ranks, is_first=place.group_rank == 0, stock=stock)
        self._started = 0
        self._devices_are_known, self._refused = False, dict[str, str]()
        atexit.register(_close, weakref.ref(self))

    @property
    def communicators(self) -> dict[Key, Communicator | None]:
        """The communicator of each collective that was used, by its name, root and type of device; None without a plan."""
        return self.planned.by_key

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives were called: it must rise alike on all ranks."""
        plain: Any = self.plain
        return self._started + int(plain._get_sequence_number_for_group())

    # -- which way -----------------------------------------------------------------------------------------------

    def _find(
        self,
        name: str,
        root: int | None,
        tensor: torch.Tensor,
        parts: int = 1,
        op: object = None,
        *,
        fits: bool = True,
    ) -> Communicator | None:
        """Return the communicator for a collective whose tensors fit each other; None where it is left to the plain group."""
        if not self._devices_are_known:
            self._learn_devices()
        if tensor.device.type in self._refused:
            raise InputError(self._refused[tensor.device.type])
        with hide():
            communicator = self.planned.find(name, root, tensor, parts, op) if fits else None
        if communicator is None and self.account.is_kept:
            why = self.planned.why_plain(name, tensor, parts, op) if fits else "parts of different sizes"
            self.account.leave(name, why or f"no plan: {self.planned.plans.whys.get(name, '')}")
        return communicator

    def _learn_devices(self) -> None:
        """Learn which devices are this backend's: torch makes it the whole group, also of "cpu:topo,cuda:nccl"."""
        self._devices_are_known = True
        named = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        others = {device: backend for device, backend in _split_config(named) if backend != NAME}
        self.planned.transports = {device: by for device, by in self.transports.items() if device not in others}
        self._refused = {
            device: f"backend {named!r}: tensors on {device} go by {self.transports[device]} beside {NAME}, not by {backend}; "
            f"name {self.transports[device]} or {NAME} for {device}"
            for device, backend in others.items()
            if backend != self.transports.get(device, backend)
        }

    # -- how -------------------------------------------------------------------------------------------------------

    def _repeat(self, name: str, tensor: torch.Tensor, opts: Any) -> dist.Work | None:
        """Carry out a call at once where the caller waits, the same call was made before on a tensor at the same address, and
        no other is under way. None otherwise: the usual way, which takes longer than a small message does.
        """
        communicator = self.planned.by_key.get((name, None, "cpu"))
        if communicator is None or opts.asyncOp or torch._C._len_torch_dispatch_stack():
            return None
        again = communicator.find_again(tensor, opts.reduceOp)
        if again is None or not self.planned.is_idle("cpu"):
            return None
        self._started += 1
        again()
        return get_done_work()

    def _start(
        self,
        name: str,
        task: Task,
        results: list[torch.Tensor],
        opts: Any,
        reads: Sequence[torch.Tensor] = (),
        operator: str = "",
    ) -> dist.Work:
        """Start a planned call, which counts as one call of the user's; torch knows it as `operator`."""
        self._started += 1
        queue, waits = self.planned.queue(results[0]), not opts.asyncOp
        return show_as(
            operator or _OPERATORS[name],
            lambda: start(task, queue, results, waits=waits, name=f"{NAME}:{name}", reads=reads),
        )

    def _start_together(
        self, name: str, tasks: Sequence[Task], results: list[torch.Tensor], opts: Any, operator: str
    ) -> dist.Work:
        """Start planned calls, none of which uses the stock collective, as one."""
        self._started += 1
        queue = self.planned.queue(results[0])
        waits = not opts.asyncOp or not all(task.is_settled for task in tasks)  # races: while the caller waits
        numbers = [task.engine.draw_number() for task in tasks]
        reads = [tensor for task in tasks for tensor in (task.source, task.target)]

        def carry_out() -> None:
            for task, number in zip(tasks, numbers, strict=True):
                task.run(number)

        return show_as(
            operator, lambda: queue.carry_out(carry_out, results, waits=waits, reads=reads, name=f"{NAME}:{name}")
        )

    def _reduce_by_plain(
        self, tensor: torch.Tensor, opts: Any, results: Sequence[torch.Tensor], start: Callable[[], dist.Work]
    ) -> dist.Work:
        """Start a reduction by the plain group; gloo has no AVG, so that is a sum, after which `results` are divided."""
        op = opts.reduceOp
        self.planned.check_plain(tensor, op)
        averages = kind_of_reduction(op) == dist.ReduceOp.AVG and tensor.is_floating_point()
        if not averages or self.transports.get(tensor.device.type) != "gloo":
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
        self._tell()
        self.planned.close()
        self.plain.shutdown()

    def abort(self) -> None:
        """End the thread, and abort all groups: what is under way fails."""
        self._tell()
        self.planned.close()
        self.plain.abort()

    def _tell(self) -> None:
        """Log what was used."""
        used = {}
        for (name, root, _), communicator in self.planned.by_key.items():
            if communicator is not None:
                way = "from" if name == "broadcast" else "to"
                used[name if root is None else f"{name} {way} {root}"] = communicator
        self.account.tell(used, self.options.choose)


def _split_config(config: str) -> list[tuple[str, str]]:
    """Return the pairs of device and backend in "cpu:topo,cuda:nccl"."""
    return [(device, backend) for device, _, backend in (pair.partition(":") for pair in config.split(",")) if backend]


def _inherit_options() -> BackendOptions | None:
    """Return the options of the group of all ranks, for groups that are given none."""
    world = dist.group.WORLD
    return world.options if isinstance(world, BaseGroup) else None


def _close(group: weakref.ref[BaseGroup]) -> None:
    """Close the queues at exit, where the group was not destroyed: a thread in a call would outlive the interpreter."""
    alive = group()
    if alive is not None:
        alive._tell()
        alive.planned.close_queues()
