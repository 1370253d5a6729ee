"""Manage scratch memory: one arena for all programs of a transport, one budget for the process.

A program is one rank's list of instructions for a schedule; a transport is a group of ranks with
what carries their messages. The programs of a transport run one after another, so they can share
memory. A program takes views of the arena when it runs: for messages in flight, for encoding, and
for a work buffer if it cannot work on the caller's tensor. The views are cached until the arena
moves, that is, grows or is freed; the next call then takes new ones.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch

from .ranks.transport import Transport

# The default budget, in multiples of the largest buffer: a program needs up to about one for
# staging and one as work buffer.
_BUFFERS = 2
# The default budget is at least this: less is not worth allocating at each call, as a process takes
# 300 MB anyway.
_MIN_BUDGET_BYTES = 16 << 20
# Alignment of views: a multiple of a cache line, of a GPU's widest load, and of every dtype's size.
_ALIGN_BYTES = 256
# CPU memory from this size on comes from mmap; for less, the system call and the page faults would
# take noticeable time.
MAPPED_BYTES = 1 << 20
# An arena grows in steps of an eighth of a power of two, so that slowly growing buffers seldom move
# it.
_STEPS = 8


def trim_heap() -> None:
    """Return the heap's free pages to the operating system, if the C library can do that.

    Programs live long and are allocated between users' tensors, so pages of freed tensors can stay
    resident. Calls of a plan at 96 slowly growing sizes of about 4 MiB left 640 MB of them without
    this function, 15 MB with it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


class ArenaUser(Protocol):
    """An object that caches views of an arena's memory until the arena allocates other memory."""

    def unbind(self) -> None:
        """Drop the views. The arena calls this before it frees its memory."""


class Budget:
    """The limit on the scratch memory that all arenas of a process may hold between calls.

    `given_bytes` is the user's option in Python, which takes precedence over TOPOPLAN_SCRATCH; the
    default is twice the largest buffer used so far, and at least 16 MiB. A call that needs more
    memory gets it, and frees it at its end.
    """

    def __init__(self) -> None:
        self.given_bytes: int | None = None
        self.environment_bytes: int | None = None  # TOPOPLAN_SCRATCH, read when a runner is made
        # Arenas move under this lock alone: one transport's call may free the idle arena of
        # another.
        self.lock = threading.RLock()
        self._largest_bytes = 0
        self.arenas: WeakSet[Arena] = WeakSet()

    @property
    def limit_bytes(self) -> int:
        """The bytes that arenas may hold between calls."""
        given = self.given_bytes if self.given_bytes is not None else self.environment_bytes
        if given is not None:
            return given
        return max(_MIN_BUDGET_BYTES, _BUFFERS * self._largest_bytes)

    def note_buffer(self, nbytes: int) -> None:
        """Record the size of a buffer that a collective uses, for the default limit."""
        self._largest_bytes = max(self._largest_bytes, nbytes)

    def make_room(self, arena: Arena, nbytes: int) -> bool:
        """Free idle arenas until `arena` may hold `nbytes`; return whether it may then.

        Those that grew longest ago are freed first. The caller must hold `lock`.
        """
        others = sorted(
            (x for x in self.arenas if x is not arena and x.nbytes), key=lambda x: x.last_move
        )
        held = nbytes + sum(x.nbytes for x in others)
        for other in others:
            if held <= self.limit_bytes:
                break
            if not other.busy:
                held -= other.nbytes
                other.free()
        return held <= self.limit_bytes


class Arena:
    """Scratch memory on one device for calls that run one after the other.

    A call sets `busy` while it runs. The arena moves when it needs a larger block of memory.
    `is_over` says that it exceeds the budget, so that `finish_call` frees it.
    """

    def __init__(self, device: torch.device, budget: Budget) -> None:
        self.device, self.budget = device, budget
        self.busy = self.is_over = False
        self.last_move = 0
        """The count of all moves in the process when this arena last moved."""
        self._block = allocate(0, device)
        self._users: WeakSet[ArenaUser] = WeakSet()
        self._stream: torch.cuda.Stream | None = None
        budget.arenas.add(self)  # under the lock (see find_arena)

    @property
    def nbytes(self) -> int:
        """The bytes that the arena holds."""
        return self._block.nbytes

    def reserve(self, nbytes: int, user: ArenaUser) -> torch.Tensor:
        """Return at least `nbytes` of memory, as a uint8 tensor, for views that `user` may cache.

        All users get the same memory. `user.unbind` is called before the arena moves or is freed.
        The caller must hold the budget's lock.
        """
        if nbytes > self.nbytes:
            self.free()  # before allocating: the two blocks would add up
            step = max(_ALIGN_BYTES, (1 << nbytes.bit_length()) // (2 * _STEPS))
            size = -(-nbytes // step) * step
            self.is_over = not self.budget.make_room(self, size)
            self._block = allocate(size, self.device)
            self.last_move = next(_moves)
        self._users.add(user)
        return self._block

    def free(self) -> None:
        """Free the memory; a call that is running keeps it alive through its views."""
        with self.budget.lock:
            for user in self._users:
                user.unbind()
            self._users.clear()
            if self._stream is not None and self._block.is_cuda:
                self._block.record_stream(self._stream)
            self._block, self.is_over = allocate(0, self.device), False

    def finish_call(self) -> None:
        """Mark the arena as idle after a call, and free it if it exceeds the budget."""
        self.busy = False
        if self.is_over:
            self.free()

    def follow_last_call(self) -> None:
        """Make the current CUDA stream wait for the last call's, because calls share the memory."""
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


class Slicer:
    """Cuts one block of memory into consecutive, aligned buffers."""

    def __init__(self, block: torch.Tensor) -> None:
        self._block, self._at = block, 0

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the next buffer, of `numel` elements, as a view of the block."""
        nbytes = numel * dtype.itemsize
        lo, self._at = self._at, self._at + count_aligned(nbytes)
        return self._block[lo : lo + nbytes].view(dtype)


def count_aligned(nbytes: int) -> int:
    """Return the bytes that a buffer of `nbytes` takes in an arena, rounded up for alignment."""
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES


# The budget of the process.
process_budget = Budget()
_arenas: WeakKeyDictionary[Transport, dict[torch.device, Arena]] = WeakKeyDictionary()
_moves = itertools.count(1)


def find_arena(transport: Transport, device: torch.device) -> Arena:
    """Return the arena that all programs of a transport share on a device.

    The first call makes it, without memory.
    """
    with process_budget.lock:
        arenas = _arenas.setdefault(transport, {})
        if device not in arenas:
            arenas[device] = Arena(device, process_budget)
        return arenas[device]


def free_arenas(transport: Transport) -> None:
    """Free the scratch memory of a transport's programs; later calls allocate it again."""
    for arena in list(_arenas.get(transport, {}).values()):
        arena.free()


def allocate(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return new, uninitialized memory as a tensor of uint8.

    While a CUDA graph is captured, it comes from the graph's own pool.
    """
    # A tensor made in inference mode cannot be written to outside of it.
    with torch.inference_mode(False):
        if device.type != "cpu" or nbytes < MAPPED_BYTES:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        # Mapped, so that freeing it returns it to the system: malloc would keep blocks of up to
        # 32 MiB in the heap, in which larger blocks do not fit.
        mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(mapped, dtype=torch.uint8)


def allocate_zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor of zeros from `allocate`, with the elements and dtype of `tensor`."""
    flat = allocate(tensor.nbytes, tensor.device)
    if tensor.device.type != "cpu" or tensor.nbytes < MAPPED_BYTES:
        flat.zero_()
    return flat.view(tensor.dtype)
