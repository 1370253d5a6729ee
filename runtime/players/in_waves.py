"""Plays a small program over MPI in waves (program/waves.py): all messages of a tick start at once
and are awaited at once.

That takes the host less than to go on with each as it comes: one wait a wave, which another thread
ends at the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...topo.errors import TopoplanError
from ..mpi.alarm import Alarm
from ..program.waves import Wave
from .contract import Player, Stamp
from .requests import LATE, Requests, answer_bell

# Requests that start together, receives first; the receives among them, and room for what becomes
# of each; the sends; what is done once all are through; and which messages the requests are.
_BoundWave = tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[int]]
# So often it is looked whether a call whose deadline has passed has gone on to another wave, to be
# interrupted there.
_AGAIN_S = 0.01


def can_play_in_waves(requests: Requests) -> bool:
    """Return whether waits can be ended by another thread, and nothing has to wait for a GPU's
    stream.
    """
    return requests.lane.can_wait and requests.device is None


class PlayerInWaves:
    """Plays the waves of a program; what is to be stamped message by message is left to `other`."""

    def __init__(self, requests: Requests, waves: Sequence[Wave], other: Player) -> None:
        self._requests, self._other = requests, other
        self._alarm = Alarm(self._interrupt)
        self._waves = [self._bind(wave) for wave in waves]
        self._wave: _BoundWave | None = None
        prequest = requests.lane.mpi.Prequest
        self._calls = prequest.Startall, prequest.Waitall, prequest.Testall

    def _bind(self, wave: Wave) -> _BoundWave:
        all_of, node_of = self._requests, self._requests.node_of
        nodes = all_of.put_receives_first(node_of[number] for number in wave.posts)
        requests = [all_of.requests[node] for node in nodes]
        receives = sum(all_of.is_post(node, "receive") for node in nodes)
        statuses = [all_of.lane.mpi.Status() for _ in range(receives)]
        actions = [all_of.actions[node_of[number]] for number in wave.local]
        return requests, requests[:receives], statuses, requests[receives:], actions, nodes

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """See Player. Raises PlayError with the earliest message of the program that did not
        end.
        """
        if stamp is not None:
            self._other.play(deadline, stamp)
            return
        (start, wait, look), alarm = self._calls, self._alarm
        stuck: list[int] = []
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
                        stuck = [
                            nodes[place]
                            for place, status in enumerate(statuses)
                            if status.Is_cancelled()
                        ]
                        if stuck:
                            raise RuntimeError(LATE)
                    if not look(sends):
                        self._await_sends(sends, nodes[len(receives) :], stuck, deadline)
                for action in actions:
                    action()
        except TopoplanError:
            raise
        except RuntimeError as error:
            alarm.stop(deadline)
            if (
                self._wave is not None and alarm.struck != deadline
            ):  # Open MPI breaks where one is cancelled twice
                self._requests.cancel(self._wave[-1])
            raise self._requests.explain(stuck, self._list_begun(), str(error)) from error
        finally:
            alarm.stop(deadline)

    def _interrupt(self) -> None:
        """From another thread, end whatever the call waits for: receives by cancelling them, sends
        by the bell.
        """
        self._requests.lane.ring()
        cancelled: _BoundWave | None = None
        while self._alarm.deadline:
            wave = self._wave
            if wave is not None and wave is not cancelled:
                cancelled = wave
                for request in wave[1]:
                    with suppress(RuntimeError):  # it is through
                        request.Cancel()
            time.sleep(_AGAIN_S)

    def _await_sends(
        self, sends: list[Any], nodes: list[int], stuck: list[int], deadline: float
    ) -> None:
        """Wait for sends, which MPI does not cancel: the bell ends the wait, and `stuck` has those
        that did not end.
        """
        lane = self._requests.lane
        active = [lane.bell, *sends]
        left = dict(enumerate(nodes, 1))
        while left:
            for place in lane.mpi.Prequest.Waitsome(active) or ():
                if place:
                    del left[place]
                else:
                    stuck[:] = left.values()
                    answer_bell(lane, active, deadline)
        stuck.clear()

    def _list_begun(self) -> set[int]:
        """Return the messages of all waves up to the one that was under way."""
        begun: set[int] = set()
        for wave in self._waves:
            begun.update(wave[-1])
            if wave is self._wave:
                break
        return begun
