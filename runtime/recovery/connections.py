"""Notice lost connections of a gloo group within seconds, whatever gloo itself is waiting for.

gloo waits for a message until the call's deadline, and it does not end such a wait when the
connection is lost in the middle of that message. The kernel knows better: with TCP_USER_TIMEOUT
and keepalives it gives a connection up once the other machine has not acknowledged anything for
some seconds, whether or not its process is busy or stopped. A thread polls copies of gloo's
sockets for that.
"""

import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# Without an acknowledgement for this long a connection is lost: longer than the pauses of a busy
# network, and short enough to go on within seconds.
LOST_AFTER_S = 3.0
# An idle connection is tried once a second.
_IDLE_S, _PROBES = 1, 3


def list_sockets() -> Mapping[int, str]:
    """Return the open sockets of this process: the name of each by its file descriptor."""
    names = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = str(link.readlink())
            if name.startswith("socket:"):
                names[int(link.name)] = name
    return names


def find_listening_ports(opened_since: Collection[str]) -> list[int]:
    """Return the ports of the sockets that this process has begun to listen at.

    `opened_since` are the names that `list_sockets` returned before.
    """
    ports = []
    for copy in _copy_new(opened_since):
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.append(int(copy.getsockname()[1]))
    return ports


def _copy_new(opened_since: Collection[str]) -> Iterator[socket.socket]:
    """Yield copies of the TCP sockets that were opened since."""
    for number, name in list_sockets().items():
        if name not in opened_since:
            with suppress(OSError):  # closed meanwhile
                copy = socket.socket(fileno=os.dup(number))
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield copy
                else:
                    copy.close()


class ConnectionWatch:
    """Watches the connections of one group from `follow` on; a thread calls `on_lost`, once.

    A connection is also lost when its other end closes it.
    """

    def __init__(self, on_lost: Callable[[], object]) -> None:
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._is_over = False
        self.is_lost = False

    def follow(self, opened_since: Collection[str], ports: Collection[int]) -> None:
        """Watch the connections made since `list_sockets` returned the names `opened_since`.

        They are those with one of `ports` at one end, at which the group's ranks listen.
        """
        for copy in _copy_new(opened_since):
            with suppress(OSError):  # it listens, or is closed already
                if not {copy.getsockname()[1], copy.getpeername()[1]}.isdisjoint(ports):
                    _give_up_early(copy)
                    self._copies.append(copy)
                    continue
            copy.close()
        threading.Thread(target=self._poll, name="topoplan-connections", daemon=True).start()

    def _poll(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for copy in self._copies:
            poll.register(copy, select.POLLRDHUP)
        poll.poll()
        with self._lock:
            self.is_lost = not self._is_over
        if self.is_lost:
            self._on_lost()

    def shut(self) -> None:
        """Close all connections, so that the other ends notice at once; nothing is reported."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._wake.send(b"x")
        for copy in self._copies:
            with suppress(OSError):  # closed by the other end, or lost
                copy.shutdown(socket.SHUT_RDWR)
            copy.close()


def _give_up_early(connection: socket.socket) -> None:
    """Have the kernel give up a connection whose other end does not acknowledge anything."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_USER_TIMEOUT, int(LOST_AFTER_S * 1000)),
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _IDLE_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
