"""Carry the messages of communicators: a plain group with deadlines and fault handling, or MPI."""

import os
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from operator import contains
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, BarrierOptions, PrefixStore, Store

from ...topo.errors import InputError
from ..environment import TRANSPORT, read
from ..mpi.channel import MpiChannel, find_own_mpi_rank
from ..mpi.library import describe_mpi, takes_gpu_memory
from ..option_names import TRANSPORTS
from .addresses import Addresses
from .cabled import CableMessages, find_cabling, find_messages, forget_messages
from .faults import Faults, grace_s
from .groups import (
    GroupMaker,
    device_of,
    find_engine,
    leave_tables,
    make_group,
    uses_nccl,
)
from .launch import EMULATED
from .machine import are_crowded, count_cores, find_own_cores
from .set_up import make_private
from .shared_memory import HostMemory, SharedMemory, open_shared_memory
from .timing import find_slowest_s


def check_transport(name: str | None) -> str:
    """Return the transport's name: `name`, else TOPOPLAN_TRANSPORT; raise InputError if unknown."""
    chosen = name or read(TRANSPORT) or "auto"
    if chosen not in TRANSPORTS:
        raise InputError(
            f"{'transport' if name else TRANSPORT}={chosen!r}: expected one of "
            f"{', '.join(TRANSPORTS)}"
        )
    return chosen


class Transport:
    """A plain group over the ranks of `group` (None: all) for topoplan's messages alone.

    Communicators that share it must be called in one order on all ranks; after a failure none of
    them works any more. Construction is collective over the default group, like new_group; with a
    GroupMaker, over the maker's ranks. `timeout` is the deadline of a call. With `over` mpi (None:
    by TOPOPLAN_TRANSPORT) plans and stock collectives run over MPI, on the communicator `mpi`; the
    group is then only used for agreements. `labels` are the ranks' numbers in plans and in errors,
    ascending (default: those in the group). Raise InputError on ranks outside the group, and if MPI
    is missing or cannot reach the device's memory.
    """

    mpi: MpiChannel | None

    def __init__(
        self,
        group: dist.ProcessGroup | GroupMaker | None,
        timeout: timedelta,
        over: str | None = None,
        addresses: Addresses | None = None,
        labels: Sequence[int] | None = None,
    ) -> None:
        is_mpi = check_transport(over) == "mpi"
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
        if is_mpi:
            self.mpi = self._open_channel(private.group_name)
        self.batched = self.mpi is None and uses_nccl(private)
        self._is_private = True

    def _begin(self, group: Any, device: torch.device, timeout: timedelta, faults: Faults) -> None:
        self.group, self.device, self.faults = group, device, faults
        self.rank, self.size = group.rank(), group.size()
        self.announcer: Any = None
        """The Announcer of a group of the backend that has helpers."""
        self.guard: Any = None
        """The Guard through which all calls go, if they are to go on after a lost link."""
        self.unconnected: frozenset[tuple[int, int]] = frozenset()
        """Pairs of ranks without a connection; the smaller number comes first."""
        self._narrowed: Counter[tuple[int, ...]] = Counter()
        self.timeout_s = timeout.total_seconds()
        self.mpi, self.batched = None, False
        self.cables = self._find_cables()
        if self.cables is not None:
            faults.on_hang_up.append(self.cables.hang_up)
        self.has_logged_new_race = False
        """Whether a cached race of the group was found not to hold, and the log says so."""
        self._places: list[tuple[str, frozenset[int]]] | None = None
        self._memory: SharedMemory | HostMemory | str | None = None
        self.kernels: Any = None
        """The player of kernels on the ranks' GPUs, or why there is none; see kernels/opening."""

    def _open_channel(self, name: str) -> MpiChannel:
        """Return MPI's communicator over the group's ranks; if one rank refuses, all do.

        Collective.
        """
        cabling = find_cabling()
        try:
            if cabling is not None:
                cabling.check_mpi(describe_mpi())
            mine: Any = find_own_mpi_rank(*find_own_cores())
            if self.device.type == "cuda" and not takes_gpu_memory():
                mine = (
                    f"transport mpi: {describe_mpi()} does not say that it takes GPU memory; load "
                    "a CUDA-aware "
                    f"build, or leave {TRANSPORT} out"
                )
        except InputError as error:
            mine = str(error)
        answers = self.exchange(mine)
        refused = [
            f"rank {rank}: {answer}"
            for rank, answer in enumerate(answers)
            if isinstance(answer, str)
        ]
        if refused:
            raise InputError(mine if isinstance(mine, str) else refused[0])
        return MpiChannel(
            answers,
            self.rank,
            name,
            yields=are_crowded([(answer.host, answer.cores) for answer in answers]),
        )

    def _find_cables(self) -> CableMessages | None:
        """Return what carries the messages of plans over cables; None if gloo itself does."""
        if self.device.type != "cpu" or find_cabling() is None:
            return None
        return find_messages(self.group._get_backend(self.device))

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
        return Transport(make, timeout, "auto" if self.mpi is None else "mpi", labels=labels)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of this rank's later calls, agreements included."""
        self._set_deadline(timeout)
        self.group._get_backend(self.device)._set_default_timeout(
            timeout - timedelta(seconds=grace_s(timeout))
        )

    def _set_deadline(self, timeout: timedelta) -> None:
        self.faults.set_timeout(timeout)
        self.timeout_s = timeout.total_seconds()
        if self.kernels is not None and not isinstance(self.kernels, str):
            self.kernels.set_timeout(self.timeout_s)

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
        """The backend that carries the messages: "gloo", "nccl" or "mpi"."""
        return "mpi" if self.mpi is not None else "nccl" if self.batched else "gloo"

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank; raise RuntimeError if a rank does not answer.

        Collective.
        """
        return gather_objects(self.group, self.size, self.device, value)

    @property
    def stock_engine(self) -> str:
        """The engine of stock collectives: "gloo", "mpi", or torch's name ("nccl", "nccl2")."""
        return "mpi" if self.mpi is not None else find_engine(self.group, self.device)

    def find_slowest_s(self, seconds: list[float]) -> list[float]:
        """Return, for each item of `seconds`, the maximum over all ranks.

        Collective; raises like `meet`.
        """
        if self.mpi is not None:
            return self.mpi.find_largest(seconds, time.monotonic() + self.timeout_s)
        return find_slowest_s(seconds, self.group, self.device)

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
        if self.mpi is not None:
            self.mpi.barrier(time.monotonic() + self.timeout_s)
            return
        options = BarrierOptions()
        if self.device.type == "cuda":  # else NCCL guesses the device
            options.device_ids = [self.device.index]
        self.group.barrier(options).wait()

    def close(self) -> None:
        """Destroy the group if it is the transport's own; later calls raise ExecutionError."""
        if self._memory is not None and not isinstance(self._memory, str):
            self._memory.fail()
        if self.mpi is not None:
            self.mpi.close()
        if self.cables is not None and self._is_private:
            forget_messages(self.group._get_backend(self.device))
        if self._is_private and self.group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(self.group)


class SharedTransport(Transport):
    """A transport over the existing connections of a backend's plain gloo group.

    No other rank takes part. Messages of plans have tags from FIRST_TAG on, which users must not
    use. `store` is a separate client, so that no user thread blocks it; `addresses` are the
    addresses that receive reports of trouble; `name` is the group's. With `over` mpi, `open` must
    be called on all ranks.
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
        self._begin(plain, torch.device("cpu"), timeout, faults)

    def open(self, over: str) -> None:
        """Join MPI if `over` is "mpi" (the transport's name) and this has not been done.

        Collective the first time.
        """
        if check_transport(over) == "mpi" and self.mpi is None:
            self.mpi = self._open_channel(self._name)

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
