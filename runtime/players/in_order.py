"""The player of programs in their own order: by message over gloo, by a tick's batch over NCCL.

A program is one rank's list of instructions for a schedule; a tick is a step in which messages are
posted together. An extra may watch the player's waits, to end one that gloo would not end
(ranks/waits.py).
"""

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import TopoplanError
from ..program.contract import AWAIT, LOCAL, RECEIVE, SEND, Operation, PlayError, Stamp
from ..program.instructions import Exchange, Program
from ..ranks.waits import Waiting, find_watch


class PlayerInOrder:
    """Runs a program's operations one after the other over `backend`.

    That is gloo's backend for CPUs, or the group for NCCL. `operations` are the instructions of
    `program`, bound to memory.
    """

    def __init__(self, backend: Any, program: Program, operations: list[Operation]) -> None:
        self.backend, self.program, self.operations = backend, program, operations
        self._spent: list[dist.Work] = []
        self._peers = [b for code, _, b, _ in operations if code in (SEND, RECEIVE)]
        self._waiting = Waiting(backend)

    def play(self, deadline: float, stamp: Stamp | None = None) -> None:
        """Run the program once, on CPUs until it has ended; on GPUs, put it on the current stream.

        Raise PlayError if a message fails, at `deadline` (time.monotonic) at the latest. `stamp`,
        if given, is called for each message. Over gloo each operation is a Work of the backend,
        awaited exactly once (a second wait blocks).
        """
        send, receive, now = self.backend.send, self.backend.recv, time.monotonic
        posts = self.program.posts if stamp is not None else []
        works: list[dist.Work] = []
        waiting, peers, watch = self._waiting, self._peers, find_watch()
        # Only a stamp that distinguishes waiting from other work has this method.
        before_wait = getattr(stamp, "before_wait", None)
        current = 0  # the post that is being posted or awaited, for the error
        watch.begin(waiting)
        try:
            for code, a, b, tag in self.operations:
                if code == AWAIT:
                    current = tag
                    if before_wait is not None:
                        before_wait()
                    waiting.awaited = works[tag], peers[tag]
                    if not works[tag].wait(timedelta(seconds=max(0.001, deadline - now()))):
                        watch.check_arrived(works[tag])
                    if stamp is not None and posts[tag].kind == "receive":
                        stamp(posts[tag])
                elif code == SEND:
                    current = len(works)
                    if stamp is not None:
                        stamp(posts[current])
                    works.append(send(a, b, tag))
                elif code == RECEIVE:
                    current = len(works)
                    works.append(receive(a, b, tag))
                elif code == LOCAL:
                    a()
                else:
                    exchange(a) if stamp is None else _exchange_stamped(a, b, stamp)
        except TopoplanError:
            raise
        except RuntimeError as error:
            posts = self.program.posts
            raise PlayError(
                posts[min(current, len(posts) - 1)], posts[: len(works)], str(error)
            ) from error
        finally:
            # Freeing a gloo Work right after its wait costs about as much again as the transfer
            # (measured, 8 ranks on 2 cores): they are held until the next call has ended.
            self._spent = works
            watch.end(waiting)


def exchange(batches: list[list[dist.P2POp]]) -> None:
    """Post the batches one after the other, each as one group of sends and receives.

    On CPUs wait for each; on GPUs the current stream waits, not the host.
    """
    for batch in batches:
        for work in dist.batch_isend_irecv(batch):
            work.wait()


def _exchange_stamped(batches: list[list[dist.P2POp]], posted: Exchange, stamp: Stamp) -> None:
    """Exchange batches while the host waits, so that each batch can be timed.

    Earlier launches are not part of them, and they end when the device has done everything.
    """
    device = batches[0][0].tensor.device
    for kind in ("send", "receive"):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        for post in posted.posts:
            if post.kind == kind:
                stamp(post)
        if kind == "send":
            exchange(batches)
