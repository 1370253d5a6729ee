"""The sockets that this process has open, by which the connections of a group are told."""

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path


def list_sockets() -> Mapping[int, str]:
    """Return the open sockets of this process: the name of each by its file descriptor."""
    names = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = str(link.readlink())
            if name.startswith("socket:"):
                names[int(link.name)] = name
    return names


def find_listening_ports(opened_since: Collection[str], address: str = "") -> list[int]:
    """Return the ports of the sockets that this process has begun to listen at.

    `opened_since` are the names that `list_sockets` returned before. With `address` only sockets at
    that address count.
    """
    ports = []
    for copy in copy_new(opened_since):
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port, *_ = copy.getsockname()
                ports += [int(port)] if not address or host == address else []
    return ports


def copy_new(opened_since: Collection[str]) -> Iterator[socket.socket]:
    """Yield copies of the TCP sockets that were opened since."""
    for number, name in list_sockets().items():
        if name not in opened_since:
            with suppress(OSError):  # closed meanwhile
                copy = socket.socket(fileno=os.dup(number))
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield copy
                else:
                    copy.close()
