"""Shake hands over every pair of ports that could be joined, and measure what joins them.

Each host serves a TCP socket on each port, all hosts at one number, so that whoever has an address
answers for it. Where two ports of a host are on one wire, its system resolves and answers for
either over the other one, so that a connection that is bound to ports at both ends may fail. A
socket at the next number is bound to an address only, and says that the host answers, but not over
which port. Each host also multicasts from each port by IPv6, which needs no address of the user's:
that shows where a cable leads even if the addresses at its ends do not fit.
"""

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ....topo.extras.cables.facts import FabricFacts, Flow, Hello, PortAnswer, list_possible_pairs

# All nodes on a link.
_ALL_NODES = "ff02::1"
# Hellos: the interval, and the time to hear them; hosts begin within milliseconds of each other.
_HELLO_s, _HEAR_s = 0.1, 0.8
# A neighbour answers within milliseconds; ARP gives an address up after 3 s.
_ANSWER_s = 0.6
_LINE_BYTES = 1024
_CHUNK_BYTES = 1 << 18
# Unsent bytes of a flow: little, so that it ends when its time is over.
_BUFFER_BYTES = 1 << 18
# Share of a flow's time that is not counted: buckets and windows fill.
_WARM = 0.25
# Time for a flow's last bytes to arrive.
_DRAIN_s = 5.0

PortKey = tuple[int, str]


@dataclass
class Handshake:
    """One host's side of the tests of all pairs of ports; a context manager with its sockets.

    Inside the context, threads answer the other hosts' connections. `facts` have the ports of all
    hosts, of which this is number `me`, and a secret key, which identifies the launch. `number` is
    the TCP port for connections bound to a network port, `number + 1` the one for those bound to
    its address only; multicasts go to the UDP port `number`.
    """

    facts: FabricFacts
    me: int
    number: int
    _servers: list[tuple[str, bool, socket.socket]] = field(default_factory=list)
    _rates: dict[tuple[PortKey, PortKey], float] = field(default_factory=dict)
    _is_over: bool = False

    def __enter__(self) -> "Handshake":
        for port in self.facts.hosts[self.me].ports:
            for is_bound in (True, False) if port.is_up and port.address else ():
                with suppress(OSError):  # another program has the number: this port is mute
                    number = self.number + (not is_bound)
                    server = socket.create_server((port.ip, number), backlog=128)
                    server.settimeout(0.1)
                    if is_bound:
                        _bind_to_port(server, port.name)
                    self._servers.append((port.name, is_bound, server))
        for served in self._servers:
            threading.Thread(
                target=self._serve, args=served, name="topoplan-fabric", daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        for served in self._servers:
            served[-1].close()

    def _serve(self, name: str, is_bound: bool, server: socket.socket) -> None:
        """Answer connections to one port, or to its address."""
        while not self._is_over:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            threading.Thread(
                target=self._answer,
                args=(name, is_bound, connection),
                name="topoplan-fabric",
                daemon=True,
            ).start()

    def _answer(self, name: str, is_bound: bool, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(_DRAIN_s)
            asked = _read_line(connection)
            if asked.get("key") != self.facts.key:
                return
            answer = {"key": self.facts.key, "host": self.me, "port": name if is_bound else ""}
            connection.sendall(json.dumps(answer).encode() + b"\n")
            if "flow_s" in asked:
                source = int(asked["host"]), str(asked["port"])
                self._rates[source, (self.me, name)] = _receive(connection, asked["flow_s"])
                connection.sendall(b".")

    # Who answers

    def ask(self) -> list[PortAnswer]:
        """Connect from each port to each address of its subnet; return which port answered each.

        The other hosts must be in their contexts; what does not answer within 0.6 s counts as mute.
        Each address is asked twice at once, bound to the port and bound to its address alone: many
        do not answer, and one wait after the other would take twice as long.
        """
        pairs = [(p, q) for p, q in list_possible_pairs(self.facts.hosts) if p[0] == self.me]
        answers: dict[tuple[PortKey, PortKey, bool], tuple[int, str]] = {}

        def ask_one(p: PortKey, q: PortKey, is_bound: bool) -> None:
            with suppress(OSError, ValueError), self._open(p, q, is_bound=is_bound) as connection:
                got = self._request(connection, p)
                if got.get("key") == self.facts.key:
                    answers[p, q, is_bound] = int(got["host"]), str(got["port"])

        _run_together([(ask_one, (*pair, bound)) for pair in pairs for bound in (True, False)])
        mute: tuple[int | None, str] = (None, "")
        return sorted(
            (
                PortAnswer(*p, *q, *answers.get((p, q, True), answers.get((p, q, False), mute)))
                for p, q in pairs
            ),
            key=lambda x: (x.port, x.to_host, x.to_port),
        )

    def _connect(self, p: PortKey, q: PortKey) -> socket.socket:
        """Return a connection that leaves through the own port `p`, to the address of `q`.

        If none comes about so, let the systems choose the ports.
        """
        try:
            return self._open(p, q, is_bound=True)
        except OSError:
            return self._open(p, q, is_bound=False)

    def _open(self, p: PortKey, q: PortKey, *, is_bound: bool) -> socket.socket:
        own, other = self.facts.ports[p].ip, self.facts.ports[q].ip
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_s)
            if is_bound:
                _bind_to_port(connection, p[1])
            connection.bind((own, 0))
            connection.connect((other, self.number + (not is_bound)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _request(self, connection: socket.socket, p: PortKey, **more: float) -> dict[str, Any]:
        asked = {"key": self.facts.key, "host": p[0], "port": p[1], **more}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        return _read_line(connection)

    # Who hears whom

    def greet(self) -> list[Hello]:
        """Multicast from every port for 0.8 s; return whose multicasts each received meanwhile.

        All hosts must call it at the same time, since a port hears others only while its host is in
        this call. There is one Hello for each pair of a port here and a port that it heard; none
        for ports without IPv6.
        """
        sockets: dict[int, tuple[str, socket.socket]] = {}
        for port in self.facts.hosts[self.me].ports:
            if port.is_up:
                with suppress(OSError):  # no IPv6 here: the answers must do
                    opened = _open_multicast(port.name, self.number)
                    sockets[opened.fileno()] = port.name, opened
        heard: dict[tuple[str, int, str], None] = {}
        ends, next_hello = time.monotonic() + _HEAR_s, 0.0
        while time.monotonic() < ends:
            if time.monotonic() >= next_hello:
                next_hello = time.monotonic() + _HELLO_s
                for name, opened in sockets.values():
                    hello = {"key": self.facts.key, "host": self.me, "port": name}
                    with suppress(OSError):
                        scope = socket.if_nametoindex(name)
                        opened.sendto(
                            json.dumps(hello).encode(), (_ALL_NODES, self.number, 0, scope)
                        )
            ready, _, _ = select.select(list(sockets), [], [], _HELLO_s / 2)
            for number in ready:
                name, opened = sockets[number]
                with suppress(OSError, ValueError, KeyError):
                    hello = json.loads(opened.recv(_LINE_BYTES))
                    if hello["key"] == self.facts.key and hello["host"] != self.me:
                        heard[name, int(hello["host"]), str(hello["port"])] = None
        for _, opened in sockets.values():
            opened.close()
        return [Hello(self.me, *key) for key in heard]

    # Rates

    def send_flows(self, flows: Iterable[tuple[PortKey, PortKey]], seconds: float) -> None:
        """Send for `seconds` along each (from port, to port) that starts here, all at once.

        The host at the other end measures the rate; its `take_rates` returns it. A flow whose
        connection fails is left out.
        """
        own = [flow for flow in flows if flow[0][0] == self.me]

        def send(p: PortKey, q: PortKey) -> None:
            with suppress(OSError, ValueError), self._connect(p, q) as connection:
                connection.settimeout(_DRAIN_s)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                self._request(connection, p, flow_s=seconds)
                data = bytes(_CHUNK_BYTES)
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    connection.send(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

        _run_together([(send, flow) for flow in own])

    def take_rates(self, flows: Iterable[tuple[PortKey, PortKey]]) -> list[Flow]:
        """Return the measured rates of the `flows` that ended at this host, and forget them.

        Call it when `send_flows` has returned on all hosts.
        """
        return [Flow(*p, *q, self._rates.pop((p, q))) for p, q in flows if (p, q) in self._rates]


def _run_together(calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    with ThreadPoolExecutor(max(1, len(calls))) as pool:
        list(pool.map(lambda call: call[0](*call[1]), calls))


def _bind_to_port(connection: socket.socket, name: str) -> None:
    """Let a socket use one interface only; where that takes a right, its address must do."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")


def _open_multicast(name: str, number: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        scope = socket.if_nametoindex(name)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, scope)
        _bind_to_port(opened, name)
        opened.bind((_ALL_NODES, number, 0, scope))
    except BaseException:
        opened.close()
        raise
    return opened


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """Return the JSON object of the next line; raise ValueError for anything else."""
    with connection.makefile("rb") as lines:  # the other side waits for an answer to its line
        read = json.loads(lines.readline(_LINE_BYTES))
    if not isinstance(read, dict):
        raise ValueError("not an object")
    return read


def _receive(connection: socket.socket, seconds: object) -> float:
    """Receive a flow until its end; return its rate in GB/s without its first part."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    warm = float(str(seconds)) * _WARM
    began = time.monotonic()
    counted, first, last = 0, 0.0, 0.0
    while got := connection.recv_into(buffer):
        last = time.monotonic()
        if not first and last - began >= warm:
            first = last
        elif first:
            counted += got
    return counted / (last - first) / 1e9 if last > first else 0.0
