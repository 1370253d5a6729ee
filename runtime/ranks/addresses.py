"""One socket per process for reports from other ranks, and the addresses of the others' sockets.

The socket is made, and its address published in the default group's store, once per process and
before any trouble, since the store may be unreachable afterwards. No thread serves it until then:
the kernel accepts connections and buffers what arrives. So a refused connection also shows that a
process has ended.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

log = logging.getLogger("topoplan")
# Connections that the kernel buffers until this rank is in trouble too. More have to wait, but are
# not refused, so they are not mistaken for those to an ended process.
_BACKLOG = 1024
_SIOCGIFADDR = 0x8915  # the ioctl that returns an interface's address (linux/sockios.h)
_NONCE_BYTES = 8
# A reachable machine answers a connection within a few milliseconds.
_REACHED_WITHIN_S = 0.2


@dataclass(frozen=True)
class Address:
    """The address at which a rank's process listens.

    `nonce` is known only to processes that can read the store.
    """

    host: str
    port: int
    nonce: str

    def to_json(self) -> str:
        """Return the text to publish."""
        return json.dumps([self.host, self.port, self.nonce])

    @classmethod
    def from_json(cls, text: str | bytes) -> Address:
        """Parse a published address."""
        host, port, nonce = json.loads(text)
        return cls(host, port, nonce)


# The addresses of a group's ranks, by rank; None for a rank that could bind none.
Addresses = Mapping[int, Address | None]


class _Published:
    """The addresses that this process has published and read in the current default group's store.

    It holds no reference to the store: rank 0 hosts it, and may make another at the same port
    later.
    """

    def __init__(self) -> None:
        self._store: weakref.ref[Store] | None = None
        self.addresses: dict[int, Address | None] = {}

    def is_in(self, store: Store) -> bool:
        """Return whether this process has published its address in a store."""
        return self._store is not None and self._store() is store

    def begin(self, store: Store, own: Address | None) -> None:
        """Start again with a store in which this process has just published its own address."""
        self._store, self.addresses = weakref.ref(store), {dist.get_rank(): own}


_published = _Published()
# One for each store: groups that are made again in another store are different ones, although they
# have the same names.
_own_nonces: list[str] = []


def is_own_nonce(line: bytes) -> bool:
    """Return whether this process has published a nonce."""
    return any(secrets.compare_digest(line, nonce.encode()) for nonce in _own_nonces)


@cache
def open_listener() -> socket.socket | None:
    """Return the process's listening socket, None if no address can be bound."""
    for host in _list_own_hosts():
        with suppress(OSError):  # not an address of this machine: the next one may be
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
            listener.setblocking(False)
            # A forked worker would hold the socket open after this process has ended, which then
            # would seem alive.
            os.register_at_fork(after_in_child=listener.close)
            return listener
    return None


def _make_address() -> Address | None:
    """Return this process's address with a new nonce, None if none can be bound."""
    listener = open_listener()
    _own_nonces.append(secrets.token_hex(_NONCE_BYTES))
    if listener is None:
        return None
    host, port = listener.getsockname()[:2]
    return Address(host, port, _own_nonces[-1])


def publish_address() -> None:
    """Publish this process's listening address, once per store of the default group.

    Does not wait.
    """
    store = dist.distributed_c10d._get_default_store()
    if _published.is_in(store):
        return
    address = _make_address()
    _published.begin(store, address)
    _find_place().set(str(dist.get_rank()), "null" if address is None else address.to_json())


def find_addresses(group: dist.ProcessGroup, timeout: timedelta) -> Addresses:
    """Return the addresses of a group's ranks, waiting until all have published theirs.

    Raise RuntimeError if that takes longer than `timeout`.
    """
    ranks = dist.get_process_group_ranks(group)
    publish_address()
    known, place = _published.addresses, _find_place()
    missing = [rank for rank in ranks if rank not in known]
    if missing:
        place.wait([str(rank) for rank in missing], timeout)
        for rank in missing:
            known[rank] = _read(place.get(str(rank)))
    return {number: known[rank] for number, rank in enumerate(ranks)}


def publish_in(store: Store, rank: int) -> None:
    """Publish this process's listening address, as the group's `rank`, in the group's store.

    Does not wait.
    """
    address = _make_address()
    store.set(f"address/{rank}", "null" if address is None else address.to_json())


def read_published(store: Store, ranks: int) -> Addresses:
    """Return the addresses that a group's ranks have published in its store."""
    return {rank: _read(store.get(f"address/{rank}")) for rank in range(ranks)}


def find_ended(addresses: Addresses) -> list[int]:
    """Return the ranks whose processes have ended: connections to their addresses are refused."""
    ended = []
    for rank, address in addresses.items():
        if address is not None:
            try:
                socket.create_connection((address.host, address.port), _REACHED_WITHIN_S).close()
            except ConnectionRefusedError:
                ended.append(rank)
            except OSError as error:  # out of reach, which says nothing of the process
                log.debug("rank %d at %s: %s", rank, address.host, error)
    return ended


def find_known_addresses(ranks: Sequence[int]) -> Addresses:
    """Return the addresses published so far among some global ranks, by global rank."""
    publish_address()
    known, place = _published.addresses, _find_place()
    for rank in ranks:
        if rank not in known and place.check([str(rank)]):
            known[rank] = _read(place.get(str(rank)))
    return list_cached_addresses(ranks)


def list_cached_addresses(ranks: Sequence[int]) -> Addresses:
    """Return the addresses this process has already read, by global rank.

    They are needed if the store is gone.
    """
    return {rank: _published.addresses[rank] for rank in ranks if rank in _published.addresses}


def _find_place() -> Store:
    """Return the part of the store with addresses, a new one per attempt (attempts.py)."""
    attempt, store = (
        getattr(dist.group.WORLD, "attempt", ""),
        dist.distributed_c10d._get_default_store(),
    )
    return PrefixStore(f"topoplan/addresses/{attempt}", store)


def _read(text: bytes) -> Address | None:
    return None if text == b"null" else Address.from_json(text)


def _list_own_hosts() -> list[str]:
    """Return this machine's addresses, first the one that gloo uses too."""
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    hosts = [] if not named else [host for host in [_find_address(named)] if host is not None]
    with suppress(OSError):  # the hostname has no address: gloo takes the loopback then, too
        hosts += [
            str(info[4][0])
            for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        ]
    return [*dict.fromkeys(hosts), "127.0.0.1"]


def _find_address(interface: str) -> str | None:
    """Return an interface's IPv4 address, or None."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
