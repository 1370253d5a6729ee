"""Allocate memory that the ranks of a host share, through which the C++ library runs programs.

A host's first rank creates the memory as a memfd, which has no name: it is gone when the last rank
has ended, however it ended. The others open it through /proc.
"""

import ctypes
import mmap
import os
import select
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...ranks.control import Control, find_first
from ...ranks.launch import EMULATED
from ...ranks.machine import HOST, name_boot
from ...ranks.transport import Transport
from ..native.library import load_library

# Half a window of a rank. Both halves of it, and as much of a buffer, fit into the second-level
# cache of current servers (1 to 2 MB a core).
HALF_BYTES = 1 << 18
# A host with more ranks has several windows of megabytes of each of them.
MAX_RANKS = 64
# Turns of a waiting loop, about 20 to 100 us, before a rank lets others run. With more ranks than
# cores it does so at once: it would keep the rank that it waits for from running.
_SPINS, _SPINS_IF_CROWDED = 2000, 1

# Descriptors of processes by their numbers; see _open_process.
_processes: dict[int, int] = {}
_opening = threading.Lock()


class _Seat(NamedTuple):
    """What a rank says of itself before ranks share memory; `why_not` if it cannot."""

    why_not: str | None
    host: str
    process: int


class _MappedMemory:
    """Memory that ranks of one host share, as this rank sees it.

    It is freed when nothing refers to it any more, so that a call in progress never loses it.
    `prefix` begins the names of the library's functions for its kind of memory: `join`, which
    takes `arguments` of its own, `fail` and `leave`.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        prefix: str,
        arguments: tuple[int, ...],
        processes: Collection[int],
        spins: int,
    ) -> None:
        library = load_library()
        assert not isinstance(library, str)
        self._memory, self._base = memory, ctypes.c_char.from_buffer(memory)
        descriptors = (ctypes.c_int * len(processes))(*map(_open_process, processes))
        join, self._fail, self._leave = (
            getattr(library, prefix + name) for name in ("join", "fail", "leave")
        )
        self._joined: int = join(
            ctypes.addressof(self._base), *arguments, len(processes), spins, descriptors
        )

    def fail(self) -> None:
        """End this rank's calls, in progress and future, and those of ranks that wait for it."""
        self._fail(self._joined)

    def __del__(self) -> None:
        if hasattr(self, "_joined"):
            self.fail()
            self._leave(self._joined)


class SharedMemory(_MappedMemory):
    """Memory shared by all ranks of a group on one host, for one-sided programs.

    `processes` are the ranks' process ids; `spins` is how often a waiting rank polls before it
    yields. `channel` is the address of the library's object for this rank.
    """

    def __init__(self, memory: mmap.mmap, rank: int, processes: list[int], spins: int) -> None:
        super().__init__(memory, "topoplan_", (HALF_BYTES, rank), processes, spins)
        self.rank, self.channel = rank, self._joined


class HostMemory(_MappedMemory):
    """Memory shared by the ranks of one of several hosts, with a pipe between any two of them.

    `processes` maps these ranks' numbers in the group, this one's included, to their process ids;
    `slots` maps the numbers to the ranks' places in the memory. `spins` is how often a waiting rank
    polls before it yields. `links` is the address of the library's object for this rank.
    """

    def __init__(self, memory: mmap.mmap, rank: int, processes: dict[int, int], spins: int) -> None:
        slots = {number: slot for slot, number in enumerate(processes)}
        super().__init__(memory, "topoplan_pipes_", (slots[rank],), processes.values(), spins)
        self.rank, self.slots, self.links = rank, slots, self._joined


@dataclass(frozen=True)
class _Opened:
    """What a transport's ranks share, or why they share nothing."""

    memory: SharedMemory | HostMemory | str


def open_memory(transport: Transport) -> SharedMemory | HostMemory | str:
    """Return memory that all ranks share, or those of each host, or a text why there is none.

    The answer is of the same kind on all ranks of the transport. Collective the first time. Calls
    in the memory fail when the transport hangs up or is closed.
    """
    opened = transport.find_part(_Opened)
    if opened is None:
        why_not = None
        if transport.device.type != "cpu" or transport.links.is_batched:
            why_not = "the tensors are on GPUs"
        elif EMULATED in os.environ:
            why_not = "the machine is emulated: shared memory would bypass its links"
        opened = _Opened(_open(transport.control, why_not))
        transport.attach(opened)
        if not isinstance(opened.memory, str):
            transport.faults.on_hang_up.append(opened.memory.fail)
            transport.on_close.append(opened.memory.fail)
    return opened.memory


def _open(control: Control, why_not: str | None) -> SharedMemory | HostMemory | str:
    """Return memory that all ranks share, or those of each host, or why there is none.

    The answer is of the same kind on all ranks. `why_not` is this rank's own reason against it, if
    it has one. Collective.
    """
    library = load_library()
    if why_not is None and isinstance(library, str):
        why_not = library
    rank, ranks = control.rank, control.size
    seats: list[_Seat] = control.exchange(_Seat(why_not, _name_memory(), os.getpid()))
    if refused := find_first(seat.why_not for seat in seats):
        return refused
    of_hosts: dict[str, dict[int, int]] = {}
    for number, seat in enumerate(seats):
        of_hosts.setdefault(seat.host, {})[number] = seat.process
    largest = max(map(len, of_hosts.values()))
    if largest > MAX_RANKS:
        return f"{largest} ranks on one host; at most {MAX_RANKS} share memory"
    if largest == 1 < ranks:
        return "each rank is on a host of its own, or in a container that does not see the others"
    assert not isinstance(library, str)
    mine = of_hosts[seats[rank].host]
    size = (
        library.topoplan_lines_bytes(ranks) + 2 * ranks * HALF_BYTES
        if len(of_hosts) == 1
        else library.topoplan_pipes_bytes(len(mine))
    )
    memory = _share(control, mine, size)
    if isinstance(memory, str):
        return memory
    spins = _SPINS_IF_CROWDED if control.has_crowded_host() else _SPINS
    joined = (
        SharedMemory(memory, rank, list(mine.values()), spins)
        if len(of_hosts) == 1
        else HostMemory(memory, rank, mine, spins)
    )
    control.exchange(None)  # each rank's counter has its first value
    return joined


def _share(control: Control, processes: dict[int, int], size: int) -> mmap.mmap | str:
    """Return memory that the ranks of this host share, or why some rank of any host has none.

    `processes` are those of the host's ranks by number. Collective over the ranks of all hosts.
    """
    rank, first, memfd = control.rank, min(processes), -1
    created: int | str | None = None
    if rank == first:
        try:
            created = memfd = os.memfd_create("topoplan", os.MFD_CLOEXEC)
            os.ftruncate(memfd, size)
        except (OSError, AttributeError) as error:
            created = f"rank {rank}: no shared memory: {error}"
    answers = control.exchange(created)
    failed = [answer for answer in answers if isinstance(answer, str)]
    memory: mmap.mmap | str = (
        failed[0] if failed else _map(first, processes[first], answers[first], memfd)
    )
    # All have opened it before the first rank closes it.
    answers = control.exchange(memory if isinstance(memory, str) else None)
    if memfd >= 0:
        os.close(memfd)
    failed = [answer for answer in answers if answer is not None]
    return failed[0] if failed else memory


def _map(first: int, process: int, memfd: int, own: int) -> mmap.mmap | str:
    """Return the memory of a host's first rank, or why this rank cannot map it."""
    try:
        descriptor = os.dup(own) if own >= 0 else os.open(f"/proc/{process}/fd/{memfd}", os.O_RDWR)
        try:
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        return f"the memory of rank {first} cannot be opened: {error}"


def _name_memory() -> str:
    """Return a name that ranks have in common if they can share memory: host and PID namespace."""
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").readlink()
        return f"{name_boot()} {namespace} {os.environ.get(HOST, '')}"
    return f"unknown {os.getpid()}"


def _open_process(process: int) -> int:
    """Return a descriptor that is readable once a process has ended, or -1.

    It stays open, since all groups of a job have the same few processes.
    """
    with _opening:
        descriptor = _processes.get(process, -1)
        if descriptor >= 0 and _is_readable(descriptor):
            os.close(descriptor)  # its number is another process's now
            descriptor = -1
        if descriptor < 0:
            try:
                descriptor = os.pidfd_open(process)
            except (OSError, AttributeError):
                return -1
            _processes[process] = descriptor
        return descriptor


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
