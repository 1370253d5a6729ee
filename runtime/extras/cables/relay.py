"""Carry connections between hosts that no cable joins, from host to host along the cables.

gloo connects all ranks of a group, each by the address at which it listens. With a cabling, every
rank listens at a loopback address of its own, 127.77.x.y. On each other host a proxy listens at the
same address, and carries what it accepts along the cables. gloo need not know of that. Little goes
through here: agreements and small collectives; messages of plans have connections of their own.
"""

import asyncio
import atexit
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("topoplan")
# One read: what a socket's buffer mostly holds; and a line, which has a key and two numbers.
_BYTES, _LINE_BYTES = 1 << 16, 1024
# A neighbour accepts within milliseconds; its process may be busy.
_CONNECT_s = 10.0
# Before this process ends: so long nothing must have come for others, and the longest wait for it.
_IDLE_s, _END_s = 0.4, 5.0


@dataclass(frozen=True)
class RelayHop:
    """The next relay on the route to a rank.

    Connect from this host's address `own` to the relay at `ip` and TCP port `port`. If `is_last`,
    it is the relay of that rank itself.
    """

    own: str
    ip: str
    port: int
    is_last: bool


def loopback_of(rank: int) -> str:
    """Return the loopback address (127.77.x.y) at which the rank with this number listens."""
    return f"127.77.{rank // 250}.{rank % 250 + 1}"


class CableRelay:
    """One rank's relay: a thread that forwards connections which no single cable could carry.

    It accepts at the host's IP `addresses`, and by proxies at other ranks' loopback addresses.
    `rank` is this rank; `ports` maps each of the addresses to the TCP port there. `key` is the
    launch's secret; connections of other relays without it are refused. Connections to other hosts
    wait for `set_hops`, at most 10 s. When the process exits, it waits until nothing has been
    carried for 0.4 s, at most 5 s.
    """

    def __init__(self, rank: int, addresses: Sequence[str], key: str) -> None:
        self._rank, self._key = rank, key
        self._loop = asyncio.new_event_loop()
        self._find_hop: asyncio.Future[Callable[[int], RelayHop]] = self._loop.create_future()
        self._proxies: dict[tuple[str, int], asyncio.Server] = {}
        self._carried = 0.0
        # asyncio refers weakly to tasks and their readers: an idle stream would be freed.
        self._tasks: set[asyncio.Task[Any] | None] = set()
        atexit.register(self._end)
        threading.Thread(target=self._loop.run_forever, name="topoplan-relay", daemon=True).start()
        self.ports: Mapping[str, int] = {
            address: self._run(self._serve(address)) for address in addresses
        }

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self, address: str) -> int:
        server = await asyncio.start_server(self._accept, address, 0, backlog=512)
        return int(server.sockets[0].getsockname()[1])

    def _end(self) -> None:
        """End the thread, once what others send through this rank has been passed on."""
        latest = time.monotonic() + _END_s
        while time.monotonic() < min(latest, self._carried + _IDLE_s):
            time.sleep(_IDLE_s / 4)

        self._loop.set_exception_handler(lambda *_: None)  # streams end here as they are

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(_IDLE_s)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def set_hops(self, find_hop: Callable[[int], RelayHop]) -> None:
        """Set `find_hop`, which returns the next hop to a rank (a number) on another host."""
        self._loop.call_soon_threadsafe(self._find_hop.set_result, find_hop)

    def open_proxy(self, rank: int, port: int) -> None:
        """Listen at another rank's loopback address and TCP port; forward connections to it.

        Raise OSError if the address is in use.
        """
        place = loopback_of(rank), port
        if place not in self._proxies:
            self._proxies[place] = self._run(self._listen_for(rank, *place))

    def close_proxy(self, rank: int, port: int) -> None:
        """Stop listening at another rank's loopback address and TCP port; open connections stay."""
        server = self._proxies.pop((loopback_of(rank), port), None)
        if server is not None:
            self._loop.call_soon_threadsafe(server.close)

    async def _listen_for(self, rank: int, address: str, port: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(rank, port, reader, writer)

        # Other ranks of this host have the same proxy; any of them may carry a connection.
        return await asyncio.start_server(accept, address, port, backlog=512, reuse_port=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection from another relay, and carry it on."""
        try:
            line = await asyncio.wait_for(reader.readline(), _CONNECT_s)
            asked = json.loads(line[:_LINE_BYTES])
            if asked["key"] != self._key:
                raise ValueError("another launch's")
            rank, port = int(asked["rank"]), int(asked["port"])
        except (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError) as error:
            log.debug("relay of rank %d: %r", self._rank, error)
            writer.transport.abort()
            return
        await self._carry(rank, port, reader, writer)

    async def _carry(
        self, rank: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection to `port` of a rank, until it ends."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._connect_through(rank, port, reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connect_through(
        self, rank: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        is_last = True
        try:
            if rank == self._rank:
                there = await asyncio.open_connection(loopback_of(rank), port)
            else:
                hop = (await asyncio.wait_for(asyncio.shield(self._find_hop), _CONNECT_s))(rank)
                is_last = hop.is_last
                there = await asyncio.wait_for(
                    asyncio.open_connection(hop.ip, hop.port, local_addr=(hop.own, 0)), _CONNECT_s
                )
                asked = {"key": self._key, "rank": rank, "port": port}
                there[1].write(json.dumps(asked).encode() + b"\n")
        except (OSError, asyncio.TimeoutError) as error:
            log.debug("relay of rank %d to rank %d: %r", self._rank, rank, error)
            if isinstance(error, ConnectionRefusedError) and not is_last:
                # A relay in between has ended, which says nothing of the rank: whoever wants to
                # know may wait.
                await reader.read()
            writer.transport.abort()
            return
        _send_at_once(writer)
        _send_at_once(there[1])
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        for end in (writer, there[1]):
            end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes until the end; a lost connection ends the other side too."""
        try:
            while data := await reader.read(_BYTES):
                self._carried = time.monotonic()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except (OSError, asyncio.CancelledError):  # lost, or this process ends
            writer.transport.abort()


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    opened = writer.get_extra_info("socket")
    with suppress(OSError):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
