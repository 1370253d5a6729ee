"""Play one-sided programs in memory that the ranks of a host share, by the C++ library.

The library (shared_memory.cpp) is built when topoplan is installed, if there is a compiler; without
it everything else works. Rank 0 creates the memory as a memfd, which has no name: it is gone when
the last rank has ended, however it ended. The others open it through /proc.
"""

import ctypes
import mmap
import os
import select
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ...topo.errors import ExecutionError
from ..program.instructions import Post, Span
from ..program.one_sided.instructions import END, Fold, OneSidedProgram, Part, Put, Signal, Wait
from ..reductions import ReduceOp
from .contract import PlayError, Stamp

# Half a window of a rank. Both halves of it, and as much of a buffer, fit into the second-level
# cache of current servers (1 to 2 MB a core).
HALF_BYTES = 1 << 18
# A host with more ranks has several windows of megabytes of each of them.
MAX_RANKS = 64
# Turns of a waiting loop, about 20 to 100 us, before a rank lets others run. With more ranks than
# cores it does so at once: it would keep the rank that it waits for from running.
_SPINS, _SPINS_IF_CROWDED = 2000, 1

# Codes of shared_memory.cpp, by their order there.
_PUT, _SIGNAL, _WAIT, _COMBINE = range(4)
_DONE, _PAUSED, _TIMED_OUT, _PEER_ENDED, _PEER_FAILED, _OTHER_CALL = range(6)
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
_REDUCTIONS: dict[ReduceOp, int] = {
    dist.ReduceOp.SUM: 0,
    dist.ReduceOp.AVG: 0,
    dist.ReduceOp.PRODUCT: 1,
    dist.ReduceOp.MAX: 2,
    dist.ReduceOp.MIN: 3,
}
# Programs without sums copy elements of any dtype of these widths in bytes.
_BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_REASONS = {
    _TIMED_OUT: "timed out",
    _PEER_ENDED: "its process has ended",
    _PEER_FAILED: "it gave up",
    _OTHER_CALL: "it makes another call",
}


# Descriptors of processes by their numbers; see _open_process.
_processes: dict[int, int] = {}
_opening = threading.Lock()


@cache
def load_library() -> ctypes.CDLL | str:
    """Return the C++ library, or why it cannot be used, as one line."""
    path = Path(__file__).with_name("_shared_memory.abi3.so")
    if not path.is_file():
        return (
            "the library of the shared-memory player was not built; install topoplan where a C++ "
            "compiler is at hand"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the library of the shared-memory player cannot be loaded: {error}"
    library.topoplan_lines_bytes.argtypes = [ctypes.c_int]
    library.topoplan_lines_bytes.restype = ctypes.c_int64
    library.topoplan_join.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    ]  # fmt: skip
    library.topoplan_join.restype = ctypes.c_void_p
    library.topoplan_leave.argtypes = library.topoplan_fail.argtypes = [ctypes.c_void_p]
    library.topoplan_leave.restype = library.topoplan_fail.restype = None
    library.topoplan_prepare.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p,
    ]  # fmt: skip
    library.topoplan_prepare.restype = ctypes.c_void_p
    library.topoplan_discard.argtypes = [ctypes.c_void_p]
    library.topoplan_discard.restype = None
    library.topoplan_play.argtypes = [ctypes.c_void_p, ctypes.c_double]
    return library


class _Seat(NamedTuple):
    """What a rank says of itself before the ranks share memory; `why_not` if it cannot."""

    why_not: str | None
    host: str
    process: int
    memfd: int


class SharedMemory:
    """The memory that the ranks of one host share, as this rank sees it.

    Its ranks play programs in one order. `fail` tells the others that this one has given up.
    """

    def __init__(self, memory: mmap.mmap, rank: int, processes: list[int], spins: int) -> None:
        library = load_library()
        assert not isinstance(library, str)
        self._library, self._memory = library, memory
        self.rank, self.ranks = rank, len(processes)
        descriptors = [_open_process(process) for process in processes]
        self._base = ctypes.c_char.from_buffer(memory)
        self.channel: int | None = library.topoplan_join(
            ctypes.addressof(self._base),
            HALF_BYTES,
            rank,
            self.ranks,
            spins,
            (ctypes.c_int * self.ranks)(*descriptors),
        )

    def fail(self) -> None:
        """Tell the ranks that wait for this one that it has given up."""
        if self.channel is not None:
            self._library.topoplan_fail(self.channel)

    def close(self) -> None:
        """Leave the memory, which is freed when the last rank has left."""
        if self.channel is None:
            return
        self.fail()
        self._library.topoplan_leave(self.channel)
        self.channel = None
        del self._base
        self._memory.close()


def open_shared_memory(
    rank: int,
    ranks: int,
    exchange: Callable[[object], list[Any]],
    why_not: str | None,
    crowded: bool,
) -> SharedMemory | str:
    """Return memory that all ranks share, or why there is none, the same on all ranks.

    `exchange` gathers a value of each rank. `why_not` is this rank's own reason against it, if it
    has one; `crowded` says that the host has more ranks than cores. Collective.
    """
    library = load_library()
    if why_not is None and isinstance(library, str):
        why_not = library
    if why_not is None and ranks > MAX_RANKS:
        why_not = f"{ranks} ranks; at most {MAX_RANKS} share memory"
    seats: list[_Seat]
    memfd = -1
    try:
        if why_not is None and rank == 0:
            assert not isinstance(library, str)
            memfd = os.memfd_create("topoplan", os.MFD_CLOEXEC)
            os.ftruncate(memfd, library.topoplan_lines_bytes(ranks) + 2 * ranks * HALF_BYTES)
    except (OSError, AttributeError) as error:
        why_not = f"no shared memory: {error}"
    seats = exchange(_Seat(why_not, _name_memory(), os.getpid(), memfd))
    memory: mmap.mmap | str
    refused = [f"rank {x}: {seat.why_not}" for x, seat in enumerate(seats) if seat.why_not]
    if refused:
        memory = refused[0]
    elif len({seat.host for seat in seats}) > 1:
        memory = "the ranks are on several hosts, or in containers that do not see each other"
    else:
        memory = _map(seats[0], memfd)
    # All have opened it before rank 0 closes it.
    answers = exchange(memory if isinstance(memory, str) else None)
    if memfd >= 0:
        os.close(memfd)
    failed = [answer for answer in answers if answer is not None]
    if isinstance(memory, str) or failed:
        return memory if isinstance(memory, str) else failed[0]
    joined = SharedMemory(
        memory,
        rank,
        [seat.process for seat in seats],
        _SPINS_IF_CROWDED if crowded else _SPINS,
    )
    exchange(None)  # each rank's counter has its first value
    return joined


def _map(seat: _Seat, own: int) -> mmap.mmap | str:
    """Return the memory of rank 0, or why this rank cannot map it."""
    try:
        descriptor = (
            os.dup(own) if own >= 0 else os.open(f"/proc/{seat.process}/fd/{seat.memfd}", os.O_RDWR)
        )
        try:
            return mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        return f"the memory of rank 0 cannot be opened: {error}"


def _name_memory() -> str:
    """Return a name that ranks have in common if they can share memory: host and PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
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


def suits(dtype: torch.dtype, op: ReduceOp | None) -> bool:
    """Return whether programs of a dtype can be played; `op` is None if nothing is reduced."""
    if op is None:
        return dtype.itemsize in _BY_WIDTH
    return dtype in _DTYPES and op in _REDUCTIONS


class PlayerInSharedMemory:
    """Plays one program on one work buffer; `call` is equal on ranks that make the same call."""

    def __init__(
        self,
        memory: SharedMemory,
        program: OneSidedProgram,
        work: torch.Tensor,
        op: ReduceOp | None,
        call: str,
    ) -> None:
        self._memory, self._program, self._words = memory, program, _encode(program)
        self._work = work  # a view that owns nothing if it is the caller's
        dtype = work.dtype if op is not None else _BY_WIDTH[work.dtype.itemsize]
        library = load_library()
        assert not isinstance(library, str)
        if memory.channel is None:
            raise ExecutionError(
                f"rank {memory.rank}: the process group was destroyed; set one up, and make this "
                "anew"
            )
        self._play, self._discard = library.topoplan_play, library.topoplan_discard
        self._blame = (ctypes.c_int64 * 2)()
        self._player = ctypes.c_void_p(
            library.topoplan_prepare(
                memory.channel,
                self._words.ctypes.data,
                work.data_ptr(),
                _DTYPES.index(dtype),
                0 if op is None else _REDUCTIONS[op],
                program.slices,
                zlib.crc32(f"{call}, {program.slices} slices".encode()),
                self._blame,
            )
        )

    def __del__(self) -> None:
        if hasattr(self, "_player"):
            self._discard(self._player)

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once. Raise PlayError, at `deadline` (time.monotonic) at the latest.

        Nothing is stamped, since there are no messages.
        """
        if self._memory.channel is None:
            raise ExecutionError("the shared memory was closed")
        outcome = self._play(self._player, deadline)
        while outcome == _PAUSED:  # Python handles signals, such as Ctrl-C, in between
            outcome = self._play(self._player, deadline)
        if outcome != _DONE:
            raise self._explain(outcome)

    def _explain(self, outcome: int) -> PlayError:
        peer, word = self._blame
        waits = _find_wait(self._program, word)
        # A wait for a free slot is a wait for the peer to have received.
        kind, step = ("receive", waits.step) if waits.step >= 0 else ("send", 0)
        post = Post(
            "receive" if kind == "receive" else "send", peer, 0, step, step, Span("work", 0, 0)
        )
        return PlayError(post, [post], _REASONS[outcome])


def _encode(program: OneSidedProgram) -> NDArray[np.int64]:
    """Return the words that shared_memory.cpp plays: their number, then the instructions."""
    words: list[int] = []
    for x in program.instructions:
        words += _encode_one(x, program.ranks)
    return np.array([len(words), *words], dtype=np.int64)


def _encode_one(x: object, ranks: int) -> list[int]:
    match x:
        case Put():
            return [_PUT, x.piece.start, x.piece.length, x.slot.owner, x.slot.start]
        case Signal():
            return [_SIGNAL, x.number]
        case Wait():
            return [_WAIT, x.peer, x.number, x.behind]
        case Fold():
            also = (-1, 0) if x.also is None else (x.also.owner, x.also.start)
            terms = [
                word
                for term in x.terms
                for word in (-1 if isinstance(term, Part) else term.owner, term.start)
            ]
            divisor = ranks if x.divides else 0
            return [
                _COMBINE, x.into.start, x.into.length, *also, divisor, len(x.terms), *terms,
            ]  # fmt: skip
    raise AssertionError(x)


def _find_wait(program: OneSidedProgram, word: int) -> Wait:
    """Return the wait at a place in the encoded program."""
    at = 0
    for x in program.instructions:
        if at == word and isinstance(x, Wait):
            return x
        at += len(_encode_one(x, program.ranks))
    return Wait(0, END)
