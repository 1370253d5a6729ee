"""What carries the messages of communicators: a group that finds faults, and its links."""

import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import contains
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store

from .addresses import Addresses
from .faults import Faults, grace_s
from .groups import (
    GroupMaker,
    device_of,
    leave_tables,
    make_group,
)
from .launch import EMULATED
from .links import AUTO, OVER_GLOO, Links, check_transport, connect, find_named
from .machine import are_crowded, count_cores, find_own_cores
from .set_up import make_private
from .shared_memory import HostMemory, SharedMemory, open_shared_memory

T = TypeVar("T")


class Transport:
    """A plain group over the ranks of `group` (None: all) for topoplan's messages alone.

    Communicators that share it must be called in one order on all ranks; after a failure none of
    them works any more. Construction is collective over the default group, like new_group; with a
    GroupMaker, over the maker's ranks. `timeout` is the deadline of a call. Plans and stock
    collectives run over `links`, those of the name `over` (None: by TOPOPLAN_TRANSPORT) or, with
    "auto", the group's own; the group is then only used for agreements. `labels` are the ranks'
    numbers in plans and in errors, ascending (default: those in the group). Raise InputError on
    ranks outside the group, and if the links are missing or cannot reach the device's memory.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | GroupMaker | None,
        timeout: timedelta,
        over: str | None = None,
        addresses: Addresses | None = None,
        labels: Sequence[int] | None = None,
    ) -> None:
        self._named = check_transport(over)
        made = make_private("setting up a group for the plan", group, timeout, addresses)
        private, self._client = made.group, made.client
        faults = Faults(
            private,
            timeout,
            made.store,
            made.addresses,
            is_open=partial(contains, dist.distributed_c10d._world.pg_map, private),
            labels=labels,
        )
        self._begin(private, device_of(private), timeout, faults)
        self.links: Links = (
            connect(private, self.device, faults)
            if self._named == AUTO
            else find_named(self._named).open(self, private.group_name)
        )
        self._is_private = True

    def _begin(self, group: Any, device: torch.device, timeout: timedelta, faults: Faults) -> None:
        self.group, self.device, self.faults = group, device, faults
        self.rank, self.size = group.rank(), group.size()
        self.on_timeout: list[Callable[[float], object]] = []
        """Called with the seconds of a new deadline of calls."""
        self._parts: dict[type, object] = {}
        self.unconnected: frozenset[tuple[int, int]] = frozenset()
        """Pairs of ranks without a connection; the smaller number comes first."""
        self._narrowed: Counter[tuple[int, ...]] = Counter()
        self.timeout_s = timeout.total_seconds()
        self.has_logged_new_race = False
        """Whether a cached race of the group was found not to hold, and the log says so."""
        self._places: list[tuple[str, frozenset[int]]] | None = None
        self._memory: SharedMemory | HostMemory | str | None = None

    def attach(self, part: object) -> None:
        """Keep something with the transport, for all that use it; see `find_part`."""
        self._parts[type(part)] = part

    def find_part(self, kind: type[T]) -> T | None:
        """Return what was attached of a type, None if nothing was."""
        part = self._parts.get(kind)
        return part if isinstance(part, kind) else None

    @property
    def batched(self) -> bool:
        """Whether the messages of a step are posted together, as NCCL needs it."""
        return self.links.is_batched

    @property
    def hosts(self) -> int:
        """The number of the ranks' hosts. Collective the first time."""
        return len({host for host, _ in self._find_places()})

    @property
    def cores_of_hosts(self) -> dict[str, int]:
        """The number of cores that the ranks may use, by host name. Collective the first time."""
        return count_cores(self._find_places())

    def _find_places(self) -> list[tuple[str, frozenset[int]]]:
        # No functools.cached_property: before Python 3.12 that holds one lock for all transports
        # while it waits for ranks.
        if self._places is None:
            self._places = self.exchange(find_own_cores())
        return self._places

    def open_shared_memory(self) -> SharedMemory | HostMemory | str:
        """Return memory that all ranks share, or those of each host, or why there is none.

        The answer is of the same kind on all ranks. Collective the first time.
        """
        if self._memory is None:
            why_not = None
            if self.device.type != "cpu" or self.batched:
                why_not = "the tensors are on GPUs"
            elif EMULATED in os.environ:
                why_not = "the machine is emulated: shared memory would bypass its links"
            self._memory = open_shared_memory(
                self.rank,
                self.size,
                self.exchange,
                why_not,
                crowded=are_crowded(self._find_places()),
            )
            if not isinstance(self._memory, str):
                self.faults.on_hang_up.append(self._memory.fail)
        return self._memory

    @property
    def labels(self) -> Sequence[int]:
        """The ranks' numbers in plans and errors, by number in the group."""
        return self.faults.ranks

    @property
    def label(self) -> int:
        """This rank's number in plans and errors."""
        return self.faults.rank

    def number_of(self, label: int) -> int:
        """Return the number in the group of the rank with a label."""
        return self.labels.index(label)

    def narrow(
        self, numbers: Sequence[int], labels: Sequence[int], kind: str | None = None
    ) -> "Transport":
        """Return a transport over some of the ranks, given by their numbers here, labelled anew.

        Collective over these ranks alone. `kind` replaces the backend of the group.
        """
        kind = kind or str(dist.distributed_c10d._world.pg_map[self.group][0])
        self._narrowed[tuple(numbers)] += 1  # the same on all of these ranks
        spelled = "-".join(map(str, numbers))
        make = partial(
            make_group,
            f"{self.group.group_name}/{spelled}/{self._narrowed[tuple(numbers)]}",
            [dist.get_global_rank(self.group, number) for number in numbers],
            kind,
            store=self._client.store,  # no user thread waits on it
        )
        timeout = timedelta(seconds=self.timeout_s)
        return Transport(make, timeout, self._named, labels=labels)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of this rank's later calls, agreements included."""
        self._set_deadline(timeout)
        self.group._get_backend(self.device)._set_default_timeout(
            timeout - timedelta(seconds=grace_s(timeout))
        )

    def _set_deadline(self, timeout: timedelta) -> None:
        self.faults.set_timeout(timeout)
        self.timeout_s = timeout.total_seconds()
        for tell in self.on_timeout:
            tell(self.timeout_s)

    def outlive_default_group(self) -> None:
        """Keep the transport's group out of destroy_process_group(), which then leaves it open.

        Not over NCCL, whose batches need torch's tables.
        """
        if self.batched:
            return
        leave_tables(self.group)
        self.faults.is_open = lambda: True

    @property
    def name(self) -> str:
        """What carries the messages, for tables: "gloo", "nccl" or "mpi"."""
        return self.links.name

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank; raise RuntimeError if a rank does not answer.

        Collective.
        """
        return gather_objects(self.group, self.size, self.device, value)

    @property
    def stock_engine(self) -> str:
        """The engine of stock collectives: "gloo", "mpi", or torch's name ("nccl", "nccl2")."""
        return self.links.stock_engine

    def find_slowest_s(self, seconds: list[float]) -> list[float]:
        """Return, for each item of `seconds`, the maximum over all ranks.

        Collective; raises like `meet`.
        """
        return self.links.find_largest(seconds, self.timeout_s)

    def find_span_s(self, began: float, ended: float) -> float:
        """Return the seconds from the last rank's start of a call to the last rank's end.

        Collective; the result is the same on all ranks. `began` and `ended` are this rank's
        (time.monotonic). If the ranks are on several hosts, whose clocks differ, it is the shortest
        time of any rank, since the last one to start does not wait.
        """
        last_began, last_ended, shortest = self.find_slowest_s([began, ended, began - ended])
        # Ranks on one host share one time.monotonic.
        return last_ended - last_began if self.hosts == 1 else -shortest

    def meet(self) -> None:
        """Wait for all ranks, with as little skew as the transport allows.

        Raise RuntimeError if a rank does not come.
        """
        self.links.meet(self.timeout_s)

    def close(self) -> None:
        """Destroy the group if it is the transport's own; later calls raise ExecutionError."""
        if self._memory is not None and not isinstance(self._memory, str):
            self._memory.fail()
        self.links.close(is_private=self._is_private)
        if self._is_private and self.group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(self.group)


class SharedTransport(Transport):
    """A transport over the existing connections of a backend's plain gloo group.

    No other rank takes part. Messages of plans have tags from FIRST_TAG on, which users must not
    use. `store` is a separate client, so that no user thread blocks it; `addresses` are the
    addresses that receive reports of trouble; `name` is the group's. For links of a name, `open`
    must be called on all ranks.
    """

    def __init__(
        self,
        plain: dist.ProcessGroup,
        timeout: timedelta,
        store: Store,
        addresses: Addresses,
        name: str,
        labels: Sequence[int] | None = None,
    ) -> None:
        self._name, self._is_private, self.is_open = name, False, True
        faults = Faults(
            plain, timeout, PrefixStore("faults", store), addresses, lambda: self.is_open, labels
        )
        self._named = AUTO
        self._begin(plain, torch.device("cpu"), timeout, faults)
        self.links = connect(plain, self.device, faults, OVER_GLOO)

    def open(self, over: str) -> None:
        """Open the links of the name `over`, a transport's, unless this has been done.

        Collective the first time.
        """
        named = check_transport(over)
        if named not in (AUTO, self._named):
            self.links, self._named = find_named(named).open(self, self._name), named

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of this rank's later calls; the plain group has a timeout of its own."""
        self._set_deadline(timeout)

    def close(self) -> None:
        """End the transport; the plain group's connections stay open."""
        super().close()
        self.is_open = False


def gather_objects(group: Any, size: int, device: torch.device, value: object) -> list[Any]:
    """Return the values of all ranks, by rank; raise RuntimeError if a rank does not answer.

    Collective.
    """
    data = pickle.dumps(value)
    lengths = _gather(group, torch.tensor([len(data)], device=device), size).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = _gather(group, padded.to(device), size).cpu().view(size, -1)
    return [
        pickle.loads(row[:length].numpy().tobytes())
        for row, length in zip(rows, lengths, strict=True)
    ]


def _gather(group: Any, tensor: torch.Tensor, size: int) -> torch.Tensor:
    result = tensor.new_empty(size * tensor.numel())
    # The new name is torch 2.13's.
    gather = getattr(group, "all_gather_single", None) or group._allgather_base
    gather(result, tensor, AllgatherOptions()).wait()
    return result
