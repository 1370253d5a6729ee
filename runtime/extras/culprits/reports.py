"""Pass reports of failures among the ranks of a group by every route that still works.

Each failing rank connects to the addresses of the others (ranks/addresses.py) and passes on every
report that it has or gets, so that a report also reaches ranks to which its author has no route.
There is one thread per process, from the first failure until some seconds after the last.
"""

import errno
import json
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...ranks.addresses import Addresses, choose_contacts, is_own_nonce, open_listener

# Polling interval of the thread and of callers that wait for reports: short compared with a
# deadline, long compared with a wake-up.
POLL_S = 0.02
# The thread goes on relaying for this long after a verdict: ranks that were in trouble later need
# the reports too.
_LINGER_S = 5.0
# The longest report: with 10,000 peers in `posted` it has 250 kB.
_MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 16  # per read, so that one connection does not keep others waiting
# Without an acknowledgement for this long a connection is lost: longer than the pauses of a busy
# network, and short enough to go on within seconds.
_LOST_AFTER_S = 3.0
# An idle connection is tried once a second.
_IDLE_S, _PROBES = 1, 3

Report = Mapping[str, Any]
# Fate of the connection to a rank: `ended` if it was refused, so that the rank's process has ended;
# `failed` if the network knows no route to its host, or carries nothing any more.
Reach = Literal["trying", "reached", "ended", "failed"]


@dataclass
class _TroubledGroup:
    """A group in trouble: its members' addresses, and the reports in order of arrival."""

    addresses: Addresses = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    heard: dict[int, tuple[int, Report]] = field(default_factory=dict)
    """By rank: the edition of its report, and the report; a later edition replaces an earlier one.
    """
    reach: dict[int, Reach] = field(default_factory=dict)
    redialed: set[int] = field(default_factory=set)


@dataclass(eq=False)
class _Connection:
    """A connection to or from another rank; `sent` counts the lines of each group that went out.

    The rank that dials first sends the nonce of the other's address, which proves that it has read
    the store.
    """

    socket: socket.socket
    dialed: tuple[str, int] | None = None
    """The group and rank that was dialed; None where the other rank dialed."""
    is_open: bool = True
    is_over: bool = False
    is_trusted: bool = False
    sent: dict[str, int] = field(default_factory=dict)
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)


class Relay:
    """All reports that this process has for any group, and the thread that passes them on.

    A group's `key` is the same on all its ranks and differs between groups; `rank` is a rank's
    number in the group. The process has one instance, `relay`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._groups: dict[str, _TroubledGroup] = {}
        self._connections: list[_Connection] = []
        self._to_dial: list[tuple[str, int]] = []
        self._until = 0.0
        self._thread: threading.Thread | None = None

    def join(self, key: str, rank: int, addresses: Addresses, seconds: float) -> None:
        """Begin to pass on a group's reports for `seconds`; this process is its rank `rank`.

        Begins to connect to some of the ranks at `addresses`, without waiting for them.
        """
        with self._lock:
            self._groups.setdefault(key, _TroubledGroup()).addresses = addresses
            self.dial(key, choose_contacts(rank, addresses))
            self._until = max(self._until, time.monotonic() + seconds + _LINGER_S)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="topoplan-reports", daemon=True
                )
                self._thread.start()

    def extend_relaying(self, seconds: float) -> None:
        """Keep passing reports on for at least `seconds` from now."""
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)

    def add(self, key: str, rank: int, edition: int, report: Report) -> None:
        """Store a rank's report and pass it on, unless this `edition` or a later one is known.

        Editions of a rank's report count from 0; a later one replaces an earlier one.
        """
        with self._lock:
            group = self._groups.setdefault(key, _TroubledGroup())
            if rank not in group.heard or group.heard[rank][0] < edition:
                group.heard[rank] = edition, report
                line = {"group": key, "rank": rank, "edition": edition, "report": report}
                group.lines.append(json.dumps(line).encode() + b"\n")

    def dial(self, key: str, ranks: Iterable[int]) -> None:
        """Begin to connect to `ranks` not tried yet, to see whether their processes are alive.

        Does not wait; `list_reach` returns the outcome.
        """
        with self._lock:
            group = self._groups[key]
            for rank in ranks:
                if rank not in group.reach and group.addresses.get(rank) is not None:
                    group.reach[rank] = "trying"
                    self._to_dial.append((key, rank))

    def hear(self, key: str) -> dict[int, Report]:
        """Return the latest report of each rank of a group; ranks not heard of are missing."""
        with self._lock:
            group = self._groups.get(key)
            heard = {} if group is None else group.heard
            return {rank: report for rank, (_, report) in heard.items()}

    def list_reach(self, key: str) -> dict[int, Reach]:
        """Return for each rank dialed: "trying", "reached", "ended" (refused) or "failed"."""
        with self._lock:
            return dict(self._groups[key].reach)

    def is_behind(self, key: str) -> bool:
        """Return whether a report of the group may have yet to be sent to a rank in reach.

        Lines of other groups that wait in a connection count as well, since the connection sends
        them in order.
        """
        with self._lock:
            count = len(self._groups[key].lines)
            return any(
                one.outbox or one.sent.get(key, count) < count
                for one in self._connections
                if one.is_open
            )

    def _note_end(self, connection: _Connection, *, refused: bool) -> None:
        """Note that a dialed rank's process has ended, since it refused the connection.

        If it only closed the connection, dial once more to see.
        """
        if connection.dialed is None:
            return
        key, rank = connection.dialed
        group = self._groups[key]
        if refused:
            group.reach[rank] = "ended"
        elif rank not in group.redialed:
            group.redialed.add(rank)
            del group.reach[rank]
            self.dial(key, [rank])

    def _serve(self) -> None:
        listener = open_listener()
        with selectors.DefaultSelector() as selector:
            if listener is not None:
                selector.register(listener, selectors.EVENT_READ)
            while (to_dial := self._draw_to_dial()) is not None:
                made = [self._open(selector, key, rank) for key, rank in to_dial]
                for ready, events in selector.select(POLL_S):
                    if ready.data is None:
                        made += _accept(selector, listener)
                    else:
                        self._progress(ready.data, events)
                with self._lock:
                    self._connections += made
                    for one in self._connections:
                        self._flush(selector, one)
                    self._connections = [one for one in self._connections if not one.is_over]

    def _draw_to_dial(self) -> list[tuple[str, int]] | None:
        """Return the groups and ranks to dial, or None to end the thread.

        When the thread ends, it has no connections left.
        """
        with self._lock:
            if time.monotonic() > self._until:
                for connection in self._connections:
                    connection.socket.close()
                self._connections, self._thread = [], None
                return None
            to_dial, self._to_dial = self._to_dial, []
            return to_dial

    def _open(self, selector: selectors.BaseSelector, key: str, rank: int) -> _Connection:
        with self._lock:
            address = self._groups[key].addresses[rank]
        assert address is not None
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        connection = _Connection(
            socket.socket(family, socket.SOCK_STREAM), (key, rank), is_open=False
        )
        connection.socket.setblocking(False)
        give_up_early(connection.socket)
        connection.is_trusted = True
        connection.sent[key] = 0
        connection.outbox += address.nonce.encode() + b"\n"
        failed = connection.socket.connect_ex((address.host, address.port))
        if failed not in (0, errno.EINPROGRESS):  # else the selector reports the outcome
            self._note_failure(connection, failed)
        selector.register(
            connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
        )
        return connection

    def _note_failure(self, connection: _Connection, failed: int) -> None:
        """Note the fate of a connection that could not be made, or is lost, by its error number."""
        connection.is_over = True
        with self._lock:
            if failed in (errno.ECONNREFUSED, errno.ECONNRESET):
                self._note_end(connection, refused=True)
            elif connection.dialed is not None:
                key, rank = connection.dialed
                self._groups[key].reach[rank] = "failed"

    def _progress(self, connection: _Connection, events: int) -> None:
        """Handle a connection that is made, has failed, or has data to read."""
        if connection.is_over:
            return
        if not connection.is_open and connection.dialed is not None:
            failed = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self._note_failure(connection, failed)
                return
            with self._lock:
                key, rank = connection.dialed
                self._groups[key].reach[rank] = "reached"
            connection.is_open = True
        if events & selectors.EVENT_READ:
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ECONNRESET:  # else as good as closed
                self._note_failure(connection, error.errno or 0)
                return
            data = b""
        connection.inbox += data
        *lines, rest = bytes(connection.inbox).split(b"\n")
        connection.inbox = bytearray(rest)
        with self._lock:
            is_sound = len(rest) <= _MAX_LINE_BYTES and all(
                self._take(connection, line) for line in lines
            )
            if not data:
                self._note_end(connection, refused=False)
        connection.is_over = not data or not is_sound

    def _take(self, connection: _Connection, line: bytes) -> bool:
        """Handle a line; return whether it is a nonce or report as expected."""
        if not connection.is_trusted:
            connection.is_trusted = is_own_nonce(line)
            return connection.is_trusted
        try:
            message = json.loads(line)
            key, rank, edition, report = (
                message[name] for name in ("group", "rank", "edition", "report")
            )
            self.add(str(key), int(rank), int(edition), dict(report))
        except (ValueError, TypeError, KeyError):
            return False
        connection.sent.setdefault(str(key), 0)
        return True

    def _flush(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        """Send the reports that the other end may not know; close a connection of no more use.

        Never waits, since the lock is held.
        """
        if connection.is_open and not connection.is_over:
            for key, sent in connection.sent.items():
                lines = self._groups[key].lines
                connection.outbox += b"".join(lines[sent:])
                connection.sent[key] = len(lines)
            try:
                if connection.outbox:
                    del connection.outbox[: connection.socket.send(connection.outbox)]
            except BlockingIOError:  # its buffer is full: the rest goes later
                wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
            except OSError:  # closed by the other end: reading says so
                wanted = selectors.EVENT_READ
            else:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
            selector.modify(connection.socket, wanted, connection)
        elif connection.is_over:
            selector.unregister(connection.socket)  # before its number can be another's
            connection.socket.close()


def _accept(
    selector: selectors.BaseSelector, listener: socket.socket | None
) -> Iterable[_Connection]:
    while listener is not None:
        try:
            accepted, _ = listener.accept()
        except OSError:  # none waits
            return
        accepted.setblocking(False)
        connection = _Connection(accepted)
        selector.register(accepted, selectors.EVENT_READ, connection)
        yield connection


def give_up_early(connection: socket.socket) -> None:
    """Make the kernel drop a connection soon if the other end stops acknowledging packets."""
    if sys.platform == "linux":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_USER_TIMEOUT, int(_LOST_AFTER_S * 1000)),
            (socket.TCP_KEEPIDLE, _IDLE_S),
            (socket.TCP_KEEPINTVL, _IDLE_S),
            (socket.TCP_KEEPCNT, _PROBES),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


# One per process, since a process has one address.
relay = Relay()
