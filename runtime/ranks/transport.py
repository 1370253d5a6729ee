"""Transports: what carries the messages of communicators, a group of ranks with control and links.

A communicator runs a plan's collective. Links carry messages; the control keeps deadlines, call
numbers and agreements; Faults end calls that cannot go on. Stock collectives are the backend's own,
without a plan.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import contains
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from .addresses import Addresses
from .control import Control
from .faults import Faults
from .groups import GroupMaker, PlainGroupMaker, device_of, leave_tables
from .links import AUTO, Links, check_transport, connect, connect_gloo, find_named
from .set_up import make_private

T = TypeVar("T")


class Transport:
    """A plain group over the ranks of `group` (None: all) for topoplan's messages alone.

    Communicators that share it must be called in one order on all ranks; after a failure none of
    them works any more. Construction is collective over the default group, like new_group; with a
    GroupMaker, over the maker's ranks. `timeout` is the deadline of a call. Plans and stock
    collectives run over `links`, those of the name `over` (None: by TOPOPLAN_TRANSPORT) or, with
    "auto", the group's own; the group is then only used for agreements. `labels` are the ranks'
    numbers in plans and in errors, ascending (default: those in the group); `addresses` are where
    they receive reports of failures (None: read from the store). Raise InputError on ranks outside
    the group, and if the links are missing or cannot reach the device's memory.
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
        self._begin(Control(private, device_of(private), timeout, faults, owns_group=True))
        self.links: Links = (
            connect(private, self.device, faults)
            if self._named == AUTO
            else find_named(self._named).open(self, private.group_name)
        )
        self._is_private = True

    def _begin(self, control: Control) -> None:
        self.control, self.faults = control, control.faults
        self.group, self.device = control.group, control.device
        self.rank, self.size = control.rank, control.size
        self._parts: dict[type, object] = {}
        self.unconnected: frozenset[tuple[int, int]] = frozenset()
        """Pairs of ranks, by number in the group, without a connection; the smaller comes first."""
        self._narrowed: Counter[tuple[int, ...]] = Counter()
        self.has_logged_new_race = False
        """Whether a cached race of the group was found not to hold, and the log says so."""
        self.on_close: list[Callable[[], object]] = []
        """Called before the transport's links are closed."""

    def attach(self, part: object) -> None:
        """Keep an object with the transport, in place of another of its type, for `find_part`."""
        self._parts[type(part)] = part

    def find_part(self, kind: type[T]) -> T | None:
        """Return the object of a type that was attached, None if none was."""
        part = self._parts.get(kind)
        return part if isinstance(part, kind) else None

    def narrow(
        self, numbers: Sequence[int], labels: Sequence[int], kind: str | None = None
    ) -> "Transport":
        """Return a new transport over some of the ranks; it has its own group.

        `numbers` are those ranks here, `labels` their numbers in plans and errors. `kind` replaces
        the backend of the group. Collective over these ranks alone.
        """
        kind = kind or str(dist.distributed_c10d._world.pg_map[self.group][0])
        self._narrowed[tuple(numbers)] += 1  # the same on all of these ranks
        spelled = "-".join(map(str, numbers))
        make = PlainGroupMaker(
            f"{self.group.group_name}/{spelled}/{self._narrowed[tuple(numbers)]}",
            [dist.get_global_rank(self.group, number) for number in numbers],
            kind,
            store=self._client.store,  # no user thread waits on it
        )
        timeout = timedelta(seconds=self.control.timeout_s)
        return Transport(make, timeout, self._named, labels=labels)

    def outlive_default_group(self) -> None:
        """Keep the transport's group out of destroy_process_group(), which then leaves it open.

        Not over NCCL, whose batches need torch's tables.
        """
        if self.links.is_batched:
            return
        leave_tables(self.group)
        self.faults.is_open = lambda: True

    def find_slowest_s(self, seconds: list[float]) -> list[float]:
        """Return, for each item of `seconds`, the maximum over all ranks. Collective.

        Raise RuntimeError if a rank does not come.
        """
        return self.links.find_largest(seconds, self.control.timeout_s)

    def find_span_s(self, began: float, ended: float) -> float:
        """Return the seconds from the last rank's start of a call to the last rank's end.

        Collective; the result is the same on all ranks. `began` and `ended` are this rank's
        (time.monotonic). If the ranks are on several hosts, whose clocks differ, it is the shortest
        time of any rank, since the last one to start does not wait.
        """
        last_began, last_ended, shortest = self.find_slowest_s([began, ended, began - ended])
        # Ranks on one host share one time.monotonic.
        return last_ended - last_began if self.control.count_hosts() == 1 else -shortest

    def meet(self) -> None:
        """Wait for all ranks at a barrier, with as little skew as the transport allows.

        Raise RuntimeError if a rank does not come.
        """
        self.links.meet(self.control.timeout_s)

    def close(self) -> None:
        """Destroy the group if it is the transport's own; later calls raise ExecutionError."""
        for end in self.on_close:
            end()
        self.links.close(is_private=self._is_private)
        if self._is_private and self.group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(self.group)


class SharedTransport(Transport):
    """A transport over the existing connections of the plain gloo group `plain` of a backend.

    No other rank takes part. Messages of plans have tags from FIRST_TAG on, which users must not
    use. `timeout` limits calls. `store` is a separate client, so that no user thread blocks it;
    `addresses` are where ranks receive reports of failures; `name` is the group's; `labels` are the
    ranks' numbers in plans, if not those in the group. For named links, `open` must be called on
    all ranks.
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
        self._begin(Control(plain, torch.device("cpu"), timeout, faults, owns_group=False))
        self.links = connect_gloo(plain, self.device, faults)

    def open(self, over: str) -> None:
        """Send messages over the links named `over` ("mpi", ...) from now on.

        "auto" changes nothing. Collective the first time. Raise InputError if nothing that is
        installed has such links.
        """
        named = check_transport(over)
        if named not in (AUTO, self._named):
            self.links, self._named = find_named(named).open(self, self._name), named

    def close(self) -> None:
        """End the transport; the plain group's connections stay open."""
        super().close()
        self.is_open = False
