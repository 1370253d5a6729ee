"""Plays a program over MPI as its messages come: whatever has all that it needs goes on, in no fixed order.

Which instruction needs which is in program/dependencies.py: those that touch the same elements keep their order, so the
result has the same bits as in the program's own order. Messages are persistent requests, made once. Small programs go in waves
(program/waves.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from ...topo.errors import TopoplanError
from ..mpi.alarm import Alarm
from ..mpi.lane import Lane
from ..program.instructions import Post, Program
from ..program.waves import Wave
from .contract import AWAIT, LOCAL, SEND, Operation, PlayError, Stamp

_LARGE_BYTES = 32 << 10
"""After adding or copying at least so much, messages are looked for before the next: MPI moves them only when it is called."""
_LATE = "it did not complete"
_BELL, _ENDED = -1, -2
"""What stands in place of a message's number for the lane's bell, and for a message that has ended."""
_MOST_ENDED = 64
"""So many requests that have ended stay among those that are waited for: MPI passes them over; taking each out costs more."""


_BoundWave = tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[int]]
"""Requests that start together, receives first; the receives among them, and room for what becomes of each; the sends; what is
done once all are through; and which messages the requests are."""
_AGAIN_S = 0.01
"""So often it is looked whether a call whose deadline has passed has gone on to another wave, to be interrupted there."""


class PlayerAsTheyCome:
    """Plays operations on one set of buffers over `lane`; `dependencies` are those of the program's instructions.

    A small program may be played in `waves`, which takes the host less.
    """

    def __init__(
        self,
        lane: Lane,
        program: Program,
        dependencies: Sequence[Sequence[int]],
        operations: Sequence[Operation],
        waves: Sequence[Wave] | None = None,
    ) -> None:
        self.lane = lane
        self._alarm = Alarm(self._interrupt)
        self._waves: list[_BoundWave] = []
        self._wave: _BoundWave | None = None
        kept = [number for number, operation in enumerate(operations) if operation[0] != AWAIT]
        place = {number: i for i, number in enumerate(kept)}
        self._needs = [len(dependencies[number]) for number in kept]
        self._followers: list[list[int]] = [[] for _ in kept]
        for number in kept:
            for before in dependencies[number]:
                self._followers[place[before]].append(place[number])
        posts = iter(program.posts)
        self._posts: list[Post | None] = []
        self._requests: list[Any] = []
        self._actions: list[Any] = []  # None for messages
        self._is_large: list[bool] = []
        self._device: torch.device | None = None
        for number in kept:
            code, a, b, tag = operations[number]
            is_local = code == LOCAL
            self._posts.append(None if is_local else next(posts))
            self._requests.append(None if is_local else _make_request(lane, code, a[0], b, tag))
            self._actions.append(a if is_local else None)
            self._is_large.append(is_local and tag >= _LARGE_BYTES)
            if not is_local and a[0].device.type == "cuda":
                self._device = a[0].device
        if waves is not None and lane.can_wait and self._device is None:
            self._waves = [self._bind(wave, place) for wave in waves]
        first = [i for i, needs in enumerate(self._needs) if not needs]
        self._first_posts = sorted((i for i in first if self._actions[i] is None), key=lambda i: _sends(self._posts[i]))
        self._first_local = [i for i in first if self._actions[i] is not None]

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """See Player. Raises PlayError with the earliest message of the program that did not end."""
        if self._waves and stamp is None:
            self._play_in_waves(deadline)
            return
        active: list[Any] = [self.lane.bell]
        whose: list[int] = [_BELL]
        needs = self._needs.copy()
        self._wave = None
        self._alarm.deadline = deadline if self.lane.can_wait else 0.0
        try:
            self._play(needs, active, whose, deadline, stamp)
        except TopoplanError:
            raise
        except RuntimeError as error:
            self._cancel([request for request, node in zip(active, whose, strict=True) if self._receives(node)])
            begun = {node for node, count in enumerate(needs) if not count}
            raise self._explain([node for node in whose if node >= 0], begun, str(error)) from error
        finally:
            self._alarm.stop(deadline)

    def _interrupt(self) -> None:
        """From another thread, end whatever the call waits for: by the bell, and in a wave by cancelling its receives."""
        self.lane.ring()
        cancelled: _BoundWave | None = None
        while self._alarm.deadline:
            wave = self._wave
            if wave is not None and wave is not cancelled:
                cancelled = wave
                for request in wave[1]:
                    with suppress(RuntimeError):  # it is through
                        request.Cancel()
            time.sleep(_AGAIN_S)

    # -- in waves: all receives of one are waited for at once, which takes the host less than one by one -------------

    def _bind(self, wave: Wave, place: Mapping[int, int]) -> _BoundWave:
        nodes = [place[number] for number in wave.posts]
        nodes.sort(key=lambda node: _sends(self._posts[node]))
        requests = [self._requests[node] for node in nodes]
        receives = sum(map(self._receives, nodes))
        statuses = [self.lane.mpi.Status() for _ in range(receives)]
        actions = [self._actions[place[number]] for number in wave.local]
        return requests, requests[:receives], statuses, requests[receives:], actions, nodes

    def _play_in_waves(self, deadline: float) -> None:
        prequest = self.lane.mpi.Prequest
        start, wait, look = prequest.Startall, prequest.Waitall, prequest.Testall
        stuck: list[int] = []
        alarm = self._alarm
        self._wave = None
        alarm.deadline = deadline
        try:
            for wave in self._waves:
                requests, receives, statuses, sends, actions, nodes = wave
                if requests:
                    start(requests)
                    self._wave = wave
                    wait(receives, statuses)
                    if alarm.struck == deadline:
                        stuck = [nodes[place] for place, status in enumerate(statuses) if status.Is_cancelled()]
                        if stuck:
                            raise RuntimeError(_LATE)
                    if not look(sends):
                        self._await_sends(sends, nodes[len(receives) :], stuck, deadline)
                for action in actions:
                    action()
        except TopoplanError:
            raise
        except RuntimeError as error:
            alarm.stop(deadline)
            if self._wave is not None and alarm.struck != deadline:  # Open MPI breaks where one is cancelled twice
                self._cancel(self._wave[1])
            raise self._explain(stuck, self._list_begun(self._wave), str(error)) from error
        finally:
            alarm.stop(deadline)

    def _await_sends(self, sends: list[Any], nodes: list[int], stuck: list[int], deadline: float) -> None:
        """Wait for sends, which MPI does not cancel: the bell ends the wait, and `stuck` has those that did not end."""
        active = [self.lane.bell, *sends]
        left = dict(enumerate(nodes, 1))
        while left:
            for place in self.lane.mpi.Prequest.Waitsome(active) or ():
                if place:
                    del left[place]
                else:
                    stuck[:] = left.values()
                    self._answer_bell(active, deadline)
        stuck.clear()

    def _list_begun(self, last: _BoundWave | None) -> set[int]:
        """Return the messages of all waves up to `last`."""
        begun: set[int] = set()
        for wave in self._waves:
            begun.update(wave[-1])
            if wave is last:
                break
        return begun

    # -- as they come -----------------------------------------------------------------------------------------------

    def _answer_bell(self, active: list[Any], deadline: float) -> None:
        """Raise RuntimeError if the bell, which is first of what is waited for, was rung for this call."""
        self.lane.hang_bell()
        active[0] = self.lane.bell
        if time.monotonic() > deadline:
            raise RuntimeError(_LATE)

    def _play(
        self, needs: list[int], active: list[Any], whose: list[int], deadline: float, stamp: Stamp | None
    ) -> None:
        requests, actions, followers, is_large = self._requests, self._actions, self._followers, self._is_large
        start, look = self.lane.mpi.Prequest.Startall, self.lane.mpi.Prequest.Testsome
        wait = self.lane.mpi.Prequest.Waitsome if self.lane.can_wait else lambda some: self._look(some, deadline)
        posts, ready, at, under_way = self._first_posts.copy(), self._first_local.copy(), 0, 0
        while True:
            # What is ready, in the order in which it became so. Messages go before what takes long.
            while at < len(ready):
                node = ready[at]
                if is_large[node] and posts:
                    break
                at += 1
                actions[node]()
                for after in followers[node]:
                    needs[after] -= 1
                    if not needs[after]:
                        (ready if actions[after] else posts).append(after)
                if is_large[node]:
                    break
            if posts:
                if stamp is not None:
                    self._tell(stamp, posts, "send")
                if self._device is not None:  # MPI knows nothing of streams
                    torch.cuda.current_stream(self._device).synchronize()
                starting = [requests[node] for node in posts]
                start(starting)
                active += starting
                whose += posts
                under_way += len(posts)
                posts = []
            if not under_way:
                if at == len(ready):
                    return
                continue
            ended = (wait if at == len(ready) else look)(active)
            if not ended:
                continue
            if stamp is not None:
                self._tell(stamp, [whose[place] for place in ended], "receive")
            for place in ended:
                node = whose[place]
                if node == _BELL:
                    self._answer_bell(active, deadline)
                    continue  # it was rung for an earlier call
                under_way -= 1
                whose[place] = _ENDED
                for after in followers[node]:
                    needs[after] -= 1
                    if not needs[after]:
                        (ready if actions[after] else posts).append(after)
            if len(active) > under_way + _MOST_ENDED:
                kept = [place for place, node in enumerate(whose) if node != _ENDED]
                active[:], whose[:] = [active[place] for place in kept], [whose[place] for place in kept]

    def _look(self, active: list[Any], deadline: float) -> list[int]:
        """Look for messages until one has ended, where no other thread may ring."""
        while not (ended := self.lane.mpi.Prequest.Testsome(active)):
            if time.monotonic() > deadline:
                raise RuntimeError(_LATE)
            if self.lane.yields:
                os.sched_yield()
        return list(ended)

    def _tell(self, stamp: Stamp, nodes: Sequence[int], kind: str) -> None:
        for node in nodes:
            post = self._posts[node] if node >= 0 else None
            if post is not None and post.kind == kind:
                stamp(post)

    def _receives(self, node: int) -> bool:
        post = self._posts[node] if node >= 0 else None
        return post is not None and post.kind == "receive"

    def _cancel(self, receives: list[Any]) -> None:
        """Let nothing arrive any more in memory that the caller lets go."""
        for request in receives:
            with suppress(RuntimeError):
                request.Cancel()
                request.Wait()

    def _explain(self, stuck_nodes: list[int], begun_nodes: set[int], reason: str) -> PlayError:
        begun = [post for node, post in enumerate(self._posts) if post is not None and node in begun_nodes]
        stuck = [post for node in sorted(stuck_nodes) if (post := self._posts[node]) is not None]
        return PlayError((stuck or begun)[0], begun, reason)

    def __del__(self) -> None:
        mpi = self.lane.mpi
        if not mpi.Is_finalized():
            for request in self._requests:
                if request is not None:
                    with suppress(mpi.Exception):
                        request.Free()


def _sends(post: Post | None) -> bool:
    return post is not None and post.kind == "send"


def _make_request(lane: Lane, code: int, view: torch.Tensor, peer: int, tag: int) -> Any:
    mpi, memory = lane.mpi, lane.mpi.buffer.fromaddress(view.data_ptr(), view.nbytes)
    make = lane.comm.Send_init if code == SEND else lane.comm.Recv_init
    return make([memory, view.nbytes, mpi.BYTE], peer, lane.tag(tag))
