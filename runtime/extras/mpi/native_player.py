"""Run programs over MPI by the C++ library: one call from Python runs a whole program.

The order of operations is that of PlayerAsTheyCome (player.py), so results have the same bits.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...program.contract import Player, PlayError, Stamp
from ...program.instructions import Await, Post, Program
from ...reductions import ReduceOp
from ..native.library import load_library, number, suits
from ..native.words import BUFFERS, encode_local
from .player import Requests

# Codes of native/over_mpi.cpp, by their order there.
_MESSAGE, _LOCAL = range(2)
_DONE, _PAUSED, _TIMED_OUT, _FAILED = range(4)
_IDLE, _BEGUN, _ENDED = range(3)


def can_play_natively(requests: Requests, dtype: torch.dtype, op: ReduceOp | None) -> bool:
    """Return whether the C++ library can run an uncompressed program with these MPI requests.

    `op` is None if the program reduces nothing.
    """
    return requests.device is None and suits(dtype, op) and not isinstance(load_library(), str)


class NativePlayerOverMpi:
    """Runs one program in C++ on its work buffer and staging (room for what is received).

    `requests` are the program's messages as MPI's requests, `words` the program for C++ (`encode`).
    `buffers` has its tensors "work" and "staging", `op` is what it reduces by (None: nothing);
    `other` is the Python player that runs timed calls.
    """

    def __init__(
        self,
        requests: Requests,
        words: NDArray[np.int64],
        buffers: Mapping[str, torch.Tensor],
        op: ReduceOp | None,
        other: Player,
    ) -> None:
        library, channel = load_library(), requests.channel
        assert not isinstance(library, str)
        self._requests, self._other, self._words = requests, other, words
        self._play, self._discard = library.topoplan_mpi_play, library.topoplan_mpi_discard
        self._find_error = library.topoplan_mpi_error
        mpi = channel.mpi
        width = mpi._sizeof(mpi.Request)
        self._handles = b"".join(
            ctypes.string_at(mpi._addressof(request), width)
            for request in requests.requests
            if request is not None
        )
        self._states = ctypes.create_string_buffer(len(requests.posts))
        self._buffers = [buffers[name] for name in BUFFERS]  # views that may own nothing
        self._player = ctypes.c_void_p(
            library.topoplan_mpi_prepare(
                *_find_functions(channel.mpi),
                width,
                mpi._sizeof(mpi.Status),
                words.ctypes.data,
                (ctypes.c_void_p * len(BUFFERS))(*(x.data_ptr() for x in self._buffers)),
                *number(self._buffers[0].dtype, op),
                channel.yields,
                self._handles,
                self._states,
            )
        )

    def __del__(self) -> None:
        if hasattr(self, "_player"):
            self._discard(self._player)

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; with `stamp`, which times messages, by the Python player.

        It has ended when this returns. Raise PlayError, with the program's earliest message that
        has begun and not ended, at `deadline` (time.monotonic), or if a call of MPI fails.
        """
        if stamp is not None:
            self._other.play(deadline, stamp)
            return
        outcome = self._play(self._player, deadline, 0)
        if outcome != _DONE:
            self._go_on(outcome, deadline)

    def _go_on(self, outcome: int, deadline: float) -> None:
        """Go on after a pause, in which Python handles signals such as Ctrl-C, or fail."""
        try:
            while outcome == _PAUSED:
                outcome = self._play(self._player, deadline, 1)
            if outcome != _DONE:
                raise self._explain(outcome)
        except BaseException:
            # Nothing may arrive in the caller's memory any more.
            self._requests.cancel(self._list_nodes(_BEGUN))
            raise

    def _explain(self, outcome: int) -> PlayError:
        mpi = self._requests.channel.mpi
        reason = (
            "it did not complete"
            if outcome == _TIMED_OUT
            else mpi.Get_error_string(self._find_error(self._player))
        )
        stuck = self._list_nodes(_BEGUN)
        return self._requests.explain(stuck, {*stuck, *self._list_nodes(_ENDED)}, reason)

    def _list_nodes(self, state: int) -> list[int]:
        return [node for node, x in enumerate(self._states.raw) if x == state]


@cache
def _find_functions(mpi: Any) -> tuple[int, int]:
    """Return the addresses of the functions of the MPI library that mpi4py has loaded.

    A search that begins at mpi4py's own module goes to that library, whatever its name.
    """
    library = ctypes.CDLL(mpi.__file__)
    start, test = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        for name in ("MPI_Startall", "MPI_Testsome")
    )
    assert start and test
    return start, test


def encode(
    program: Program, dependencies: Sequence[Sequence[int]], ranks: int, width: int
) -> NDArray[np.int64]:
    """Return the words that native/over_mpi.cpp plays.

    They are the number of nodes, and for each node its kind, the number of nodes that it waits for,
    and two lists after their lengths: the nodes that wait for it, and its operations. The nodes
    that wait for nothing come last, receives before sends, in a list of the same kind.

    Nodes are the instructions but the Awaits, numbered anew in the program's order, as in Requests.
    `dependencies[i]` are the numbers of the instructions that must end before instruction i begins,
    no Awaits among them (find_dependencies in dependencies.py). `width` is the bytes of an element;
    averages divide by `ranks`.
    """
    kept = [at for at, x in enumerate(program.instructions) if not isinstance(x, Await)]
    node_of = {at: node for node, at in enumerate(kept)}
    followers: list[list[int]] = [[] for _ in kept]
    for at, node in node_of.items():
        for before in dependencies[at]:
            followers[node_of[before]].append(node)
    words = [len(kept)]
    first: list[tuple[bool, int]] = []
    for at, node in node_of.items():
        x = program.instructions[at]
        operations = list(encode_local(x, ranks, width))
        words += [_MESSAGE if isinstance(x, Post) else _LOCAL, len(dependencies[at])]
        words += [len(followers[node]), *followers[node], len(operations)]
        words += [word for operation in operations for word in operation]
        if not dependencies[at]:
            first.append((isinstance(x, Post) and x.kind == "send", node))
    words += [len(first), *(node for _, node in sorted(first))]
    return np.array(words, dtype=np.int64)
