"""Run programs on several hosts: within a host through shared memory, by the C++ library.

Messages to other hosts go over gloo. parts.py defines the order in which a rank posts, sends and
waits.
"""

import ctypes
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ....topo.errors import ExecutionError, TopoplanError
from ...program.contract import PlayError, Stamp
from ...program.instructions import Post, Program
from ...ranks.waits import Waiting, find_watch
from ...reductions import ReduceOp
from ..native.library import load_library, number
from ..native.words import BUFFERS, encode_local, find_place
from .memory import HostMemory
from .parts import Arrived, Inside, Outside, split_by_host
from .player import DONE, GAVE_UP, PAUSED, REASONS, describe_end

# Codes of native/within_hosts.cpp, by their order there.
_SEND, _EXPECT, _AWAIT, _OPERATE = range(4)
_GO_ON, _BEGIN_PART, _BEGIN_CALL = range(3)
# Kinds of steps of a player.
_INSIDE, _POST, _WAIT = range(3)


class EncodedParts:
    """A program divided into messages to other hosts and parts for the C++ library; any buffers.

    `labels` are the ranks' numbers in the program, by their numbers in the group; `ranks` is the
    number of ranks, by which averages divide; `width` is the bytes of an element. `parts` are those
    of the program in order, and `bounds` where each begins and ends in `words`, which the library
    plays; messages to other hosts have no words. `receives` tells the library of the messages from
    each rank of the host. `peers` maps the ranks' places in `memory` to their numbers in the
    program; `posts_at` maps places in `words` to the messages that they are for.
    """

    def __init__(
        self, program: Program, memory: HostMemory, labels: Sequence[int], ranks: int, width: int
    ) -> None:
        self.memory, self.program, self._ranks, self._width = memory, program, ranks, width
        self._slots = {labels[x]: slot for x, slot in memory.slots.items() if x != memory.rank}
        self.peers = {place: label for label, place in self._slots.items()}
        self.parts = split_by_host(program, self._slots)
        words: list[int] = []
        # For errors.
        self.posts_at: dict[int, Post] = {}
        self.bounds: list[tuple[int, int]] = []
        for part in self.parts:
            begin = len(words)
            if not isinstance(part, Outside):
                self._encode(part, words)
            self.bounds.append((begin, len(words)))
        self.words = np.array(words, dtype=np.int64)
        self.receives = np.array(self._list_receives(), dtype=np.int64)

    def list_posts(self, numbers: Iterable[int]) -> list[Post]:
        """Return the program's messages with these indices."""
        posts = self.program.posts
        return [posts[number] for number in numbers]

    def _encode(self, part: Inside, words: list[int]) -> None:
        operations: list[int] = []
        for x in (*part, None):
            encoded = () if x is None else encode_local(x, self._ranks, self._width)
            local = [word for operation in encoded for word in operation]
            operations += local
            if local:
                continue
            if operations:
                words += [_OPERATE, len(operations) // 7, *operations]
                operations = []
            if isinstance(x, Arrived):
                self.posts_at[len(words)] = x.post
                words += [_AWAIT, self._slots[x.post.peer], x.count]
            elif isinstance(x, Post):
                self.posts_at[len(words)] = x
                place = self._slots[x.peer]
                words += [_EXPECT, place] if x.kind == "receive" else [_SEND, place, *self._span(x)]

    def _span(self, post: Post) -> tuple[int, int, int, int]:
        return (
            *find_place(post.span, self._width),
            post.span.length * self._width,
            post.number,
        )

    def _list_receives(self) -> list[int]:
        words = []
        for place in range(len(self.memory.slots)):
            receives = [
                x
                for x in self.program.posts
                if x.kind == "receive" and self._slots.get(x.peer) == place
            ]
            words += [len(receives), *(word for x in receives for word in self._span(x))]
        return words


class PlayerWithinHosts:
    """Runs one program on its buffers; `call` must be equal on ranks that make the same call.

    `buffers` has its tensors "work" and "staging"; `op` is what it reduces by (None: nothing).
    `messages` has, for each message to or from another host, what gloo's `backend` takes: a list of
    one view, the peer, and the tag. It is indexed like the program's messages.
    """

    def __init__(
        self,
        encoded: EncodedParts,
        backend: Any,
        messages: Mapping[int, tuple[list[torch.Tensor], int, int]],
        buffers: Mapping[str, torch.Tensor],
        op: ReduceOp | None,
        call: str,
    ) -> None:
        library = load_library()
        assert not isinstance(library, str)
        self._encoded, self._memory = encoded, encoded.memory
        self._buffers = [buffers[name] for name in BUFFERS]  # views that may own nothing
        self._play, self._discard = library.topoplan_pipes_play, library.topoplan_pipes_discard
        self._blame = (ctypes.c_int64 * 2)()
        self._player = ctypes.c_void_p(
            library.topoplan_pipes_prepare(
                self._memory.links,
                encoded.words.ctypes.data,
                encoded.receives.ctypes.data,
                (ctypes.c_void_p * len(BUFFERS))(*(x.data_ptr() for x in self._buffers)),
                len(BUFFERS),
                *number(self._buffers[0].dtype, op),
                zlib.crc32(call.encode()),
                self._blame,
            )
        )
        self._steps: list[tuple[int, Any, Any, Post | None]] = []
        for part, bounds in zip(encoded.parts, encoded.bounds, strict=True):
            if not isinstance(part, Outside):
                self._steps.append((_INSIDE, *bounds, None))
            elif part.begins:
                start = backend.send if part.post.kind == "send" else backend.recv
                self._steps.append((_POST, start, messages[part.number], part.post))
            else:
                self._steps.append((_WAIT, part.number, messages[part.number][1], part.post))
        self._posted = [x.number for x in encoded.parts if isinstance(x, Outside) and x.begins]
        self._spent: list[dist.Work] = []
        self._waiting = Waiting(backend)

    def __del__(self) -> None:
        if hasattr(self, "_player"):
            self._discard(self._player)

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once; `stamp`, if given, times the messages between hosts.

        If the stamp has a method `before_wait`, it is called before each wait for another host.
        Raise PlayError, which names the message, at `deadline` (time.monotonic), if gloo fails, or
        if the rank at the message's other end has ended, has given up or makes another call. Raise
        ExecutionError if this rank has given up itself, since its group was destroyed or another of
        its calls failed, or if this process was forked from it.
        """
        works: dict[int, dist.Work] = {}
        posted = iter(self._posted)
        before_wait = getattr(stamp, "before_wait", None)
        start = _BEGIN_CALL
        current: Post | None = None
        waiting, watch = self._waiting, find_watch()
        watch.begin(waiting)
        try:
            for kind, a, b, current in self._steps:
                if kind == _INSIDE:
                    outcome = self._play(self._player, a, b, deadline, start)
                    start = _BEGIN_PART
                    while outcome == PAUSED:  # Python handles signals, such as Ctrl-C, in between
                        outcome = self._play(self._player, a, b, deadline, _GO_ON)
                    if outcome != DONE:
                        raise self._explain(outcome, works)
                elif kind == _POST:
                    assert current is not None
                    if stamp is not None and current.kind == "send":
                        stamp(current)
                    works[next(posted)] = a(*b)
                else:
                    assert current is not None
                    if before_wait is not None:
                        before_wait()
                    left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
                    waiting.awaited = works[a], b
                    if not works[a].wait(left):
                        watch.check_arrived(works[a])
                    if stamp is not None and current.kind == "receive":
                        stamp(current)
        except TopoplanError:
            raise
        except RuntimeError as error:
            assert current is not None
            raise PlayError(current, self._encoded.list_posts(works), str(error)) from error
        finally:
            # As in PlayerInOrder: freeing a gloo Work right after its wait takes long.
            self._spent = [*works.values()]
            watch.end(waiting)

    def _explain(self, outcome: int, posted: Iterable[int]) -> PlayError | ExecutionError:
        place, word = self._blame
        if outcome == GAVE_UP:
            return describe_end(self._encoded.program.rank)
        encoded = self._encoded
        post, peer = encoded.posts_at[word], encoded.peers[place]
        if post.peer != peer:  # something else has come from that rank meanwhile
            post = replace(post, kind="receive", peer=peer)
        return PlayError(post, encoded.list_posts(posted), REASONS[outcome])
