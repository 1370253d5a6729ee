"""A program's messages over MPI as persistent requests, and what else it does, made once for one
set of buffers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..mpi.lane import Lane
from ..program.instructions import Post, Program
from .contract import AWAIT, LOCAL, SEND, Operation, PlayError

LATE = "it did not complete"


class Requests:
    """The nodes of a program: its operations without the waits, numbered anew.

    A node is a message, with a post and a request, or an action of this rank alone. `node_of` has
    their numbers by those of the operations, `sizes` the bytes that actions work on. `device` is
    the GPU whose memory is sent, if it is one.
    """

    def __init__(self, lane: Lane, program: Program, operations: Sequence[Operation]) -> None:
        self.lane = lane
        kept = [number for number, operation in enumerate(operations) if operation[0] != AWAIT]
        self.node_of = {number: node for node, number in enumerate(kept)}
        self.posts: list[Post | None] = []
        self.requests: list[Any] = []
        self.actions: list[Any] = []
        self.sizes: list[int] = []
        self.device: torch.device | None = None
        # MPI knows addresses alone: what lies there must stay for as long as the requests do.
        self._views = [
            operation[1] for operation in operations if operation[0] not in (AWAIT, LOCAL)
        ]
        posts = iter(program.posts)
        for number in kept:
            code, a, b, tag = operations[number]
            is_local = code == LOCAL
            self.posts.append(None if is_local else next(posts))
            self.requests.append(None if is_local else _make_request(lane, code, a[0], b, tag))
            self.actions.append(a if is_local else None)
            self.sizes.append(tag if is_local else 0)
            if not is_local and a[0].device.type == "cuda":
                self.device = a[0].device

    def is_post(self, node: int, kind: str) -> bool:
        """Return whether a node is a message of a kind, "send" or "receive"."""
        post = self.posts[node]
        return post is not None and post.kind == kind

    def put_receives_first(self, nodes: Iterable[int]) -> list[int]:
        """Return messages in the order in which they are best started."""
        return sorted(nodes, key=lambda node: self.is_post(node, "send"))

    def cancel(self, nodes: Iterable[int]) -> None:
        """Let nothing arrive any more, by the receives among these messages, in memory that the
        caller lets go.
        """
        for node in nodes:
            if self.is_post(node, "receive"):
                with suppress(RuntimeError):
                    self.requests[node].Cancel()
                    self.requests[node].Wait()

    def explain(self, stuck: Iterable[int], begun: set[int], reason: str) -> PlayError:
        """Return what to raise where messages are stuck: it names the earliest of them."""
        posts = [post for node, post in enumerate(self.posts) if post is not None and node in begun]
        first = [post for node in sorted(stuck) if (post := self.posts[node]) is not None]
        return PlayError((first or posts)[0], posts, reason)

    def __del__(self) -> None:
        mpi = self.lane.mpi
        if not mpi.Is_finalized():
            for request in self.requests:
                if request is not None:
                    with suppress(mpi.Exception):
                        request.Free()


def answer_bell(lane: Lane, active: list[Any], deadline: float) -> None:
    """Hang up the bell again, which is first of what is waited for.

    Raises RuntimeError if it was rung for this call, and not for an earlier one.
    """
    lane.hang_bell()
    active[0] = lane.bell
    if time.monotonic() > deadline:
        raise RuntimeError(LATE)


def _make_request(lane: Lane, code: int, view: torch.Tensor, peer: int, tag: int) -> Any:
    mpi, memory = lane.mpi, lane.mpi.buffer.fromaddress(view.data_ptr(), view.nbytes)
    make = lane.comm.Send_init if code == SEND else lane.comm.Recv_init
    return make([memory, view.nbytes, mpi.BYTE], peer, lane.tag(tag))
