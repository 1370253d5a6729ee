"""Plays a program over MPI as its messages come: whatever has all that it needs goes on, in no
fixed order.

Which instruction needs which is in program/dependencies.py: those that touch the same elements keep
their order, so the result has the same bits as in the program's own order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from ...topo.errors import TopoplanError
from ..mpi.alarm import Alarm
from .contract import Stamp
from .requests import LATE, Requests, answer_bell

# After adding or copying at least so much, messages are looked for before the next: MPI moves them
# only when it is called.
_LARGE_BYTES = 32 << 10
# What stands in place of a message's number for the lane's bell, and for a message that has ended.
_BELL, _ENDED = -1, -2
# So many requests that have ended stay among those that are waited for: MPI passes them over;
# taking each out costs more.
_MOST_ENDED = 64


class PlayerAsTheyCome:
    """Plays `requests`; `dependencies` are those of the program's instructions."""

    def __init__(self, requests: Requests, dependencies: Sequence[Sequence[int]]) -> None:
        self.lane, self._requests = requests.lane, requests
        self._alarm = Alarm(self.lane.ring)
        node_of = requests.node_of
        self._needs = [len(dependencies[number]) for number in node_of]
        self._followers: list[list[int]] = [[] for _ in node_of]
        for number, node in node_of.items():
            for before in dependencies[number]:
                self._followers[node_of[before]].append(node)
        self._is_large = [size >= _LARGE_BYTES for size in requests.sizes]
        first = [node for node, needs in enumerate(self._needs) if not needs]
        self._first_posts = requests.put_receives_first(
            node for node in first if requests.actions[node] is None
        )
        self._first_local = [node for node in first if requests.actions[node] is not None]

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """See Player. Raises PlayError with the earliest message of the program that did not
        end.
        """
        active: list[Any] = [self.lane.bell]
        whose: list[int] = [_BELL]
        needs = self._needs.copy()
        self._alarm.deadline = deadline if self.lane.can_wait else 0.0
        try:
            self._play(needs, active, whose, deadline, stamp)
        except TopoplanError:
            raise
        except RuntimeError as error:
            stuck = [node for node in whose if node >= 0]
            self._requests.cancel(stuck)
            begun = {node for node, count in enumerate(needs) if not count}
            raise self._requests.explain(stuck, begun, str(error)) from error
        finally:
            self._alarm.stop(deadline)

    def _play(
        self,
        needs: list[int],
        active: list[Any],
        whose: list[int],
        deadline: float,
        stamp: Stamp | None,
    ) -> None:
        requests, actions = self._requests.requests, self._requests.actions
        followers, is_large, device = self._followers, self._is_large, self._requests.device
        start, look = self.lane.mpi.Prequest.Startall, self.lane.mpi.Prequest.Testsome
        wait = (
            self.lane.mpi.Prequest.Waitsome
            if self.lane.can_wait
            else lambda some: self._look(some, deadline)
        )
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
                if device is not None:  # MPI knows nothing of streams
                    torch.cuda.current_stream(device).synchronize()
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
                    answer_bell(self.lane, active, deadline)
                    continue  # it was rung for an earlier call
                under_way -= 1
                whose[place] = _ENDED
                for after in followers[node]:
                    needs[after] -= 1
                    if not needs[after]:
                        (ready if actions[after] else posts).append(after)
            if len(active) > under_way + _MOST_ENDED:
                kept = [place for place, node in enumerate(whose) if node != _ENDED]
                active[:], whose[:] = (
                    [active[place] for place in kept],
                    [whose[place] for place in kept],
                )

    def _look(self, active: list[Any], deadline: float) -> list[int]:
        """Look for messages until one has ended, where no other thread may ring."""
        while not (ended := self.lane.mpi.Prequest.Testsome(active)):
            if time.monotonic() > deadline:
                raise RuntimeError(LATE)
            if self.lane.yields:
                os.sched_yield()
        return list(ended)

    def _tell(self, stamp: Stamp, nodes: Sequence[int], kind: str) -> None:
        for node in nodes:
            post = self._requests.posts[node] if node >= 0 else None
            if post is not None and post.kind == kind:
                stamp(post)
