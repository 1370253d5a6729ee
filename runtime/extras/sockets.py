"""List this process's open sockets, to find those that a new gloo group has opened."""

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path


def list_sockets() -> Mapping[int, str]:
    """Return the open sockets of this process: file descriptor to the kernel's name of each."""
    names = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = str(link.readlink())
            if name.startswith("socket:"):
                names[int(link.name)] = name
    return names


def find_listening_ports(opened_since: Collection[str], address: str = "") -> list[int]:
    """Return the TCP ports at which this process has begun to listen since an earlier moment.

    `opened_since` are the names that `list_sockets` returned then. With `address` only sockets at
    that IP address count.
    """
    ports = []
    for copy in copy_new(opened_since):
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port, *_ = copy.getsockname()
                ports += [int(port)] if not address or host == address else []
    return ports


def copy_new(opened_since: Collection[str]) -> Iterator[socket.socket]:
    """Yield copies of the TCP sockets opened since `list_sockets` returned these names."""
    for number, name in list_sockets().items():
        if name not in opened_since:
            with suppress(OSError):  # closed meanwhile
                copy = socket.socket(fileno=os.dup(number))
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield copy
                else:
                    copy.close()
