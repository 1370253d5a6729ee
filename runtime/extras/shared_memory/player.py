"""Run one-sided programs by the C++ library, in memory that the ranks of a host share.

A one-sided program is one rank's instructions for a schedule: it puts values where others read
them, signals, waits and adds (one_sided/instructions.py).
"""

import ctypes
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ....topo.errors import ExecutionError
from ...program.contract import PlayError, Stamp
from ...program.instructions import Post, Span
from ...reductions import ReduceOp
from ..native.library import load_library, number
from ..one_sided.instructions import END, Fold, OneSidedProgram, Part, Put, Signal, Wait
from .memory import SharedMemory

# Codes of native/shared_memory.cpp, by their order there.
_PUT, _SIGNAL, _WAIT, _COMBINE = range(4)
# Codes of native/waiting.hpp.
DONE, PAUSED, _TIMED_OUT, _PEER_ENDED, _PEER_FAILED, _OTHER_CALL, GAVE_UP = range(7)
REASONS = {
    _TIMED_OUT: "timed out",
    _PEER_ENDED: "its process has ended",
    _PEER_FAILED: "it gave up",
    _OTHER_CALL: "it makes another call",
}


class PlayerInSharedMemory:
    """Runs one program on the work buffer `work`, in `memory` that the ranks share.

    `op` is what the program reduces by (None: nothing). `call`, a text, must be equal on ranks that
    make the same call; `labels` are the ranks' numbers in errors, by number in the group.
    """

    def __init__(
        self,
        memory: SharedMemory,
        program: OneSidedProgram,
        work: torch.Tensor,
        op: ReduceOp | None,
        call: str,
        labels: Sequence[int],
    ) -> None:
        self._memory, self._program, self._words = memory, program, _encode(program)
        self._labels = labels
        self._work = work  # a view that owns nothing if it is the caller's
        library = load_library()
        assert not isinstance(library, str)
        self._play, self._discard = library.topoplan_play, library.topoplan_discard
        self._blame = (ctypes.c_int64 * 2)()
        self._player = ctypes.c_void_p(
            library.topoplan_prepare(
                memory.channel,
                self._words.ctypes.data,
                work.data_ptr(),
                *number(work.dtype, op),
                program.slices,
                zlib.crc32(f"{call}, {program.slices} slices".encode()),
                self._blame,
            )
        )

    def __del__(self) -> None:
        if hasattr(self, "_player"):
            self._discard(self._player)

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; on return it has ended. There are no messages for `stamp` to time.

        Raise PlayError at `deadline` (time.monotonic), or if another rank has ended, has given up
        or makes another call. Raise ExecutionError if this rank has given up itself, since its
        group was destroyed or another of its calls failed, or if this process was forked from it.
        """
        outcome = self._play(self._player, deadline)
        while outcome == PAUSED:  # Python handles signals, such as Ctrl-C, in between
            outcome = self._play(self._player, deadline)
        if outcome != DONE:
            raise self._explain(outcome)

    def _explain(self, outcome: int) -> PlayError | ExecutionError:
        peer, word = self._blame
        if outcome == GAVE_UP:
            return describe_end(self._labels[self._memory.rank])
        waits = _find_wait(self._program, word)
        # A wait for a free slot is a wait for the peer to have received.
        step = max(0, waits.step)
        kind: Literal["send", "receive"] = "receive" if waits.step >= 0 else "send"
        post = Post(kind, self._labels[peer], 0, step, step, Span("work", 0, 0))
        return PlayError(post, [post], REASONS[outcome])


def describe_end(rank: int) -> ExecutionError:
    """Return the error to raise when a rank has already ended its calls in shared memory."""
    return ExecutionError(
        f"rank {rank}: the process group was destroyed, or another call failed; set one up, and "
        "make this anew"
    )


def _encode(program: OneSidedProgram) -> NDArray[np.int64]:
    """Return the words that native/shared_memory.cpp plays: their number, then the instructions."""
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
