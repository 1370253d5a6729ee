"""Ranks whose connection is closed in the middle of a message."""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import leave

from topoplan.runtime.players.in_order import PlayerInOrder
from topoplan.runtime.program.contract import AWAIT, LOCAL, RECEIVE, Operation, PlayError
from topoplan.runtime.program.instructions import Await, Post, Program, Span


def dies_within_a_message() -> str:
    """Return the error of rank 0, half of whose message has come when its connection is closed."""
    group, size, ready = dist.group.WORLD, 1 << 22, torch.ones(1)
    assert group is not None
    gloo: Any = group._get_backend(torch.device("cpu"))
    if dist.get_rank() == 1:
        dist.recv(ready, 0)  # after the receive, on the same connection
        try:
            gloo.send([make_half_readable(size)], 0, 0).wait()
        except RuntimeError:
            leave("")
        raise AssertionError("memory that cannot be read was sent")
    post = Post("receive", 1, 0, 0, 0, Span("work", 0, size))
    program = Program(0, size, 0, 0, (), (), (post, Await(0)))
    operations: list[Operation] = [
        (RECEIVE, [torch.zeros(size, dtype=torch.uint8)], 1, 0),
        (LOCAL, lambda: dist.send(ready, 1), 0, 0),
        (AWAIT, None, None, 0),
    ]
    try:
        PlayerInOrder(gloo, program, operations).play(time.monotonic() + patience.seconds(60))
    except PlayError as error:
        assert error.post is post
        leave(str(error))
    raise AssertionError("half a message was taken for a whole one")


def make_half_readable(size: int) -> torch.Tensor:
    """Return bytes of which only the first half can be read: gloo sends it, and then hangs up."""
    memory = mmap.mmap(-1, size)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    half = ctypes.c_void_p(tensor.data_ptr() + size // 2)
    no_access = 0  # PROT_NONE
    assert not ctypes.CDLL(None).mprotect(half, ctypes.c_size_t(size // 2), no_access)
    return tensor
