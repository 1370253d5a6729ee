"""Notice lost connections of a gloo group within seconds, whatever gloo itself is waiting for.

gloo waits for a message until the call's deadline, and it does not end such a wait when the
connection is lost in the middle of that message. The kernel knows better: with TCP_USER_TIMEOUT
and keepalives it gives a connection up once the other machine has not acknowledged anything for
some seconds, whether or not its process is busy or stopped. A thread polls copies of gloo's
sockets for that.
"""

import ctypes
import logging
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from ..culprits.reports import give_up_early
from ..sockets import copy_new

log = logging.getLogger("topoplan")


class ConnectionWatch:
    """Watches the TCP connections of one group; a thread calls `notify` when one changes.

    `is_lost` says that a connection was lost or aborted. `is_closed` says that a peer closed one in
    order: all that it sent before has arrived, or is on its way.
    """

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._is_over = self.is_lost = self.is_closed = False

    def follow(self, opened_since: Collection[str], ports: Collection[int]) -> None:
        """Begin to watch the group's connections made since the sockets `opened_since` were listed.

        A connection is the group's if either end has one of the TCP ports `ports`, at which its
        ranks listen.
        """
        for copy in copy_new(opened_since):
            with suppress(OSError):  # it listens, or is closed already
                if not {copy.getsockname()[1], copy.getpeername()[1]}.isdisjoint(ports):
                    give_up_early(copy)
                    self._copies.append(copy)
                    continue
            copy.close()
        threading.Thread(target=self._watch, name="topoplan-connections", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for copy in list(self._copies):
            poll.register(copy, select.POLLRDHUP)
        while not (self.is_lost or self._is_over):
            changes = dict(poll.poll())
            with self._lock:
                if not self._is_over:
                    self.is_closed, self.is_lost = True, _show_loss(changes.values())
            for number in changes:
                poll.modify(number, 0)  # a loss is reported all the same
            self._notify()
        self._woken.close()

    def abort(self) -> None:
        """Abort all watched connections, so that peers notice at once, and stop watching."""
        for copy in self._end():
            with copy:
                _reset(copy)

    def stop(self) -> None:
        """Stop watching, and leave the connections open."""
        for copy in self._end():
            copy.close()

    def _end(self) -> list[socket.socket]:
        with self._lock:
            copies, self._copies = self._copies, []
            # gloo may have noticed a loss before the thread.
            poll = select.poll()
            for copy in copies:
                poll.register(copy, 0)
            self.is_lost = self.is_lost or _show_loss(events for _, events in poll.poll(0))
            self._is_over = True
            self._wake.close()  # which wakes the thread
        return copies


def _show_loss(events_of_connections: Iterable[int]) -> bool:
    return any(events & (select.POLLERR | select.POLLHUP) for events in events_of_connections)


def _reset(connection: socket.socket) -> None:
    """Abort a connection, which closing it would not do while gloo has it open too."""
    no_address = bytes(16)  # of the family AF_UNSPEC
    if ctypes.CDLL(None).connect(connection.fileno(), no_address, len(no_address)):
        log.debug("a connection could not be reset")
    # So that gloo reads, and sees it: it would go on polling a socket that is merely reset.
    with suppress(OSError):  # it is not connected any more
        connection.shutdown(socket.SHUT_RDWR)
