"""Divide the ranks of a run into workers and helpers, exchange values, and count received bytes."""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_DESCRIPTORS = Path("/proc/self/fd")
# Offset of tcpi_bytes_received in tcp_info, since Linux 4.1 (include/uapi/linux/tcp.h).
_RECEIVED_AT = 128


class Workers:
    """All ranks but the last `helpers`, which hold no model.

    Construction is collective; a single process needs no process group.
    """

    def __init__(self, rank: int, world: int, helpers: int) -> None:
        self.rank, self.count = rank, world - helpers
        self.helpers = tuple(range(self.count, world))
        self.group: Any = dist.new_group(list(range(self.count))) if helpers else None

    @property
    def is_helper(self) -> bool:
        """Whether this rank does not train."""
        return self.rank in self.helpers

    def barrier(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            dist.barrier(self.group)

    def gather(self, value: float) -> list[float]:
        """Return every worker's value, by rank. Collective among workers."""
        if self.count == 1:
            return [value]
        values = [torch.zeros(1, dtype=torch.float64) for _ in range(self.count)]
        dist.all_gather(values, torch.tensor([value], dtype=torch.float64), self.group)
        return [float(x) for x in values]

    def have_same(self, text: str) -> bool:
        """Return whether all workers passed the same text. Collective among workers."""
        if self.count == 1:
            return True
        texts: list[Any] = [None] * self.count
        dist.all_gather_object(texts, text, self.group)
        return len(set(texts)) == 1

    def add_over_all(self, value: float) -> float:
        """Return the sum over all ranks, including helpers. Collective among all."""
        if self.count + len(self.helpers) == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)


def received_bytes() -> int | None:
    """Return the bytes received over all open TCP connections; None if the kernel does not count.

    The count is exact, needs no privileges, and is the same measure for every system: it includes
    gloo's headers, not those of TCP and IP. All ranks together have received what they have sent.
    """
    if sys.platform != "linux" or not _DESCRIPTORS.is_dir():
        return None
    return sum(_received(int(path.name)) for path in _DESCRIPTORS.iterdir())


def _received(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        # A duplicate, because closing the socket object must not close the connection.
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            is_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
            if not is_ip or connection.type != socket.SOCK_STREAM:
                return 0
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    except OSError:  # the connection has been closed since the folder was listed
        return 0
    # Older kernels return a shorter structure, without this counter.
    is_counted = len(tcp_info) >= _RECEIVED_AT + 8
    return int(struct.unpack_from("Q", tcp_info, _RECEIVED_AT)[0]) if is_counted else 0
