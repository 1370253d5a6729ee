"""One socket per process for reports from other ranks, and the addresses of the others' sockets.

A rank that cannot go on reports that to the others, to find who is to blame. The socket is made,
and its address published in the default group's store, once per process and before any trouble,
since the store may be unreachable afterwards. No thread serves it until then: the kernel accepts
connections and buffers what arrives. So a refused connection also shows that a process has ended.
"""

import json
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from functools import cache
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from .cabled import find_cabling
from .store import poll_store

log = logging.getLogger("topoplan")
# Connections that the kernel buffers until this rank is in trouble too. More have to wait, but are
# not refused, so they are not mistaken for those to an ended process.
_BACKLOG = 1024
_SIOCGIFADDR = 0x8915  # the ioctl that returns an interface's address (linux/sockios.h)
_NONCE_BYTES = 8
# In larger groups a rank connects to those at distances of powers of two: all are reached in
# log2(ranks) hops.
_MAX_DIALED = 64
# A reachable machine answers a connection within a few milliseconds.
_REACHED_WITHIN_S = 0.2


@dataclass(frozen=True)
class Address:
    """The address (`host`, TCP `port`) at which a rank's process receives reports of failures.

    `nonce` is a random word known only to processes that can read the store.
    """

    host: str
    port: int
    nonce: str


# The addresses of a group's ranks, by rank; None for a rank that could bind none.
Addresses = Mapping[int, Address | None]


# The addresses that this process has published and read in each default group's store. Weak: rank 0
# hosts the store, and may make another at the same port later.
_published: WeakKeyDictionary[Store, dict[int, Address | None]] = WeakKeyDictionary()
# One for each store: groups that are made again in another store are different ones, although they
# have the same names.
_own_nonces: list[str] = []


def is_own_nonce(line: bytes) -> bool:
    """Return whether `line`, read from a connection, is a random word published by this process.

    Only processes that can read the store know it.
    """
    return any(secrets.compare_digest(line, nonce.encode()) for nonce in _own_nonces)


@cache
def open_listener() -> socket.socket | None:
    """Return the process's listening socket, opened by the first call; None if that fails."""
    for host in _list_own_hosts():
        with suppress(OSError):  # not an address of this machine: the next one may be
            listener = socket.create_server(
                (host, 0),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
            )
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


def publish_address() -> dict[int, Address | None]:
    """Publish this process's address in the default group's store, once per store, without waiting.

    Return the addresses that this process has published or read there so far, by global rank; the
    value None marks a rank that could bind no address.
    """
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    if store not in _published:
        _published[store] = {rank: _make_address()}
        _find_place().set(str(rank), _encode(_published[store][rank]))
    return _published[store]


def find_addresses(
    ranks: Sequence[int], timeout: timedelta, known: dict[int, Address | None] | None = None
) -> Addresses:
    """Return the addresses of the global `ranks`, by rank, waiting for all of them.

    They are read from the default group's store, and added to `known` as they come; None for a rank
    that could bind no address. Raise RuntimeError if that takes longer than `timeout`.
    """
    published, place = publish_address(), _find_place()
    found = {} if known is None else known
    found.update((rank, published[rank]) for rank in ranks if rank in published)
    missing = [rank for rank in ranks if rank not in published]

    def read(number: int) -> None:
        rank = missing[number]
        found[rank] = published[rank] = _read(place.get(str(rank)))

    poll_store(place, [str(rank) for rank in missing], timeout, read)
    return found


def publish_in(store: Store, rank: int) -> None:
    """Publish this process's address in a group's own store, as that of `rank`; do not wait.

    That is for groups without a default group; `read_published` reads it.
    """
    store.set(f"address/{rank}", _encode(_make_address()))


def read_published(store: Store, rank: int) -> Address | None:
    """Return the address that a rank of a group wrote with `publish_in`, waiting for it.

    None if that rank could bind no address.
    """
    return _read(store.get(f"address/{rank}"))


def find_ended(addresses: Addresses) -> list[int]:
    """Return the ranks whose processes have ended: connections to their addresses are refused.

    Ranks that cannot be reached at all are not among them.
    """
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


def choose_contacts(rank: int, addresses: Addresses) -> list[int]:
    """Return the ranks that `rank` connects to, so that reports spread to all in `addresses`.

    In small groups these are all others.
    """
    ranks = sorted(addresses)
    if len(ranks) <= _MAX_DIALED:
        return [other for other in ranks if other != rank]
    at, steps = ranks.index(rank), [1 << power for power in range(len(ranks).bit_length())]
    return sorted(
        {ranks[(at + sign * step) % len(ranks)] for step in steps for sign in (1, -1)} - {rank}
    )


def _find_place() -> Store:
    """Return the part of the store with addresses, a new one per attempt (see store.py)."""
    return PrefixStore(
        f"topoplan/addresses/{getattr(dist.group.WORLD, 'attempt', '')}",
        dist.distributed_c10d._get_default_store(),
    )


def _encode(address: Address | None) -> str:
    return json.dumps(None if address is None else astuple(address))


def _read(text: bytes) -> Address | None:
    if text == b"null":
        return None
    address = Address(*json.loads(text))
    if (cabling := find_cabling()) is not None:
        try:
            cabling.reach(address.host, address.port)
        except OSError as error:  # a program of this host has the port
            log.debug("rank at %s is out of reach: %s", address.host, error)
            return None
    return address


def _list_own_hosts() -> list[str]:
    """Return this machine's addresses, first the one that gloo uses too."""
    if (cabling := find_cabling()) is not None:
        return [cabling.address]
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    hosts = [_find_address(named)] if named else []
    with suppress(OSError):  # the hostname has no address: gloo takes the loopback then, too
        hosts += [
            str(info[4][0])
            for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        ]
    return [*dict.fromkeys(filter(None, hosts)), "127.0.0.1"]


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
