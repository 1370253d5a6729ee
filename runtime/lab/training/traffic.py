"""Count the bytes that this process has received over TCP, by the kernel's own counters.

The count is exact, needs no privileges, and is the same measure for every system: it includes
gloo's headers, not those of TCP and IP. All ranks together have received what they have sent.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
# Offset of tcpi_bytes_received in tcp_info, since Linux 4.1 (include/uapi/linux/tcp.h).
_RECEIVED_AT = 128


def received_bytes() -> int | None:
    """Return the bytes received over all open TCP connections, None if the kernel does not
    count.
    """
    if sys.platform != "linux" or not _DESCRIPTORS.is_dir():
        return None
    return sum(_received(int(path.name)) for path in _DESCRIPTORS.iterdir())


def _received(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if (
                connection.family not in (socket.AF_INET, socket.AF_INET6)
                or connection.type != socket.SOCK_STREAM
            ):
                return 0
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    except OSError:  # the connection has been closed since the folder was listed
        return 0
    return (
        int(struct.unpack_from("Q", tcp_info, _RECEIVED_AT)[0])
        if len(tcp_info) >= _RECEIVED_AT + 8
        else 0
    )
