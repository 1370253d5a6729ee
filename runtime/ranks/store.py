"""Exchange JSON of any length through a store, over connections that no user's wait keeps busy.

A store is torch's key-value store of a launch. TCPStore closes connections at values above 8 MiB,
and serves one request of a client at a time, including waits. torchrun restarts its workers in a
store that may outlive them, so they agree on a name for each attempt.
"""

import json
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torch._C._distributed_c10d import Store

from ...topo.errors import ExecutionError

PART_BYTES = 4 << 20  # longer values are stored in parts: TCPStore refuses 8 MiB
_LOOK_S = 1.0  # between calls of `look`, which may be expensive
# Polling intervals, growing: a poll takes some 70 us of a core, and 8 ranks may share two cores.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
# Environment variable: "True" if torchrun itself hosts the store that its workers use.
KEPT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def put(store: Store, key: str, value: Any) -> None:
    """Write a JSON value of any length to the store under `key`, for other ranks to `take`."""
    data = zlib.compress(json.dumps(value).encode(), 1)
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set(f"{key}/{number}", part)  # type: ignore[arg-type]
    store.set(key, str(len(parts)))


def take(
    store: Store,
    key: str,
    timeout: timedelta,
    stop: threading.Event | None = None,
    look: Callable[[], object] = lambda: None,
) -> Any:
    """Return the value that another rank `put` under `key`, waiting for it; it stays in the store.

    Raise RuntimeError if that takes longer than `timeout` or `stop` is set. `look` is called every
    second meanwhile; it may raise an exception of its own to end the wait.
    """
    for _ in _poll(timeout, look, stop=stop):
        if store.check([key]):
            data = b"".join(store.get(f"{key}/{number}") for number in range(int(store.get(key))))
            return json.loads(zlib.decompress(data))
    raise RuntimeError(f"nothing came within {timeout.total_seconds():g} s")


def poll_store(
    store: Store,
    keys: Sequence[str],
    timeout: timedelta,
    note: Callable[[int], object] = lambda place: None,
) -> None:
    """Wait until all keys are in a store; call `note` with the index of each key that appears.

    Raise RuntimeError at `timeout`.
    """
    if not keys:
        return
    missing, next_look = list(range(len(keys))), time.monotonic() + _LOOK_S
    for _ in _poll(timeout):
        came = missing if store.check([keys[place] for place in missing]) else []
        now = time.monotonic()
        if not came and now > next_look:  # one by one only where some are late
            came, next_look = [x for x in missing if store.check([keys[x]])], now + _LOOK_S
        for place in came:
            note(place)
        missing = [place for place in missing if place not in set(came)]
        if not missing:
            return
    raise RuntimeError(f"not all ranks came within {timeout.total_seconds():g} s")


def _poll(
    timeout: timedelta,
    look: Callable[[], object] = lambda: None,
    look_every_s: float = _LOOK_S,
    stop: threading.Event | None = None,
) -> Iterator[None]:
    """Yield for each poll of a store until `timeout`, and call `look` now and then.

    `Store.wait` would occupy the connection all that time: other threads could not use it. Raise
    RuntimeError if `stop` is set.
    """
    stop = stop or threading.Event()
    deadline, pause_s = time.monotonic() + timeout.total_seconds(), _FIRST_PAUSE_S
    next_look = time.monotonic() + look_every_s
    while True:
        yield
        now = time.monotonic()
        if now > deadline:
            return
        if now > next_look:
            look()
            next_look = time.monotonic() + look_every_s
        if stop.wait(pause_s):
            raise RuntimeError("the group was shut down")
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class StoreClient:
    """This process's own connection to the store `original`, for requests that do not wait.

    All groups of the process with that store share it.
    """

    def __init__(self, original: Store) -> None:
        self._original = original  # its id is the key under which the client is found
        self.store: Store = original.clone()  # type: ignore[attr-defined]


_clients: WeakValueDictionary[int, StoreClient] = WeakValueDictionary()


def find_client(store: Store) -> StoreClient:
    """Return this process's own connection to a group's store, without the group's key prefixes.

    It is opened for the first caller, and closed when no reference to it is left.
    """
    original: Store = getattr(store, "_underlying_non_prefix_store", store)
    client = _clients.get(id(original))
    if client is None:
        client = _clients[id(original)] = StoreClient(original)
    return client


def may_outlive_ranks() -> bool:
    """Return whether the default group's store may be that of an earlier attempt of the launch."""
    return os.environ.get(KEPT_STORE) == "True"


def agree_on_attempt(store: Store, rank: int, ranks: int, timeout: timedelta) -> str:
    """Return a name for this attempt of the launch: all `ranks` ranks get it, no earlier one did.

    What workers of an earlier attempt left in the store, such as addresses and plans, must not be
    read again; torchrun's own count of attempts (TORCHELASTIC_RESTART_COUNT) differs between hosts.
    The name is "" if the store cannot outlive ranks. Collective over the ranks that share `store`;
    `rank` is this one. Raise ExecutionError if one of them does not come within `timeout`.
    """
    if not may_outlive_ranks():
        return ""
    try:
        return agree_on_name(store, rank, ranks, timeout)
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {rank} of a group of {ranks}: not all ranks came within "
            f"{timeout.total_seconds():g} s; are all of them running, and can they reach the store "
            "at MASTER_ADDR?"
        ) from error


def agree_on_name(
    store: Store,
    rank: int,
    ranks: int,
    timeout: timedelta,
    look: Callable[[list[int]], object] = lambda absent: None,
) -> str:
    """Return a name that all `ranks` ranks get and no earlier agreement in `store` got.

    Collective over the ranks that share `store`; `rank` is this one. `look` is called a few times a
    second with the ranks that this one waits for; it may raise an exception of its own to end the
    wait. Raise RuntimeError if a rank does not come within `timeout`; what rank 0 raises, the ranks
    that came raise too.
    """
    own_name = uuid.uuid4().hex
    if rank == 0:
        return _name_attempt(store, own_name, ranks, timeout, look)
    return _learn_attempt(store, own_name, rank, timeout, look)


def _name_attempt(
    store: Store,
    name: str,
    ranks: int,
    timeout: timedelta,
    look: Callable[[list[int]], object],
) -> str:
    """Name the attempt, wait for all ranks to add their own names to it, and confirm these."""
    keys = {other: f"{name}/{other}" for other in range(1, ranks)}
    store.set("attempt", name)
    absent, failure = list(keys), ""
    try:
        for _ in _poll(timeout, partial(look, absent), _LOOK_S / 4):
            absent[:] = [other for other in absent if not store.check([keys[other]])]
            if not absent:
                return name
        raise RuntimeError(
            f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} did not come within "
            f"{timeout.total_seconds():g} s"
        )
    except RuntimeError as error:
        failure = str(error)
        raise
    finally:
        came = [store.get(keys[other]) for other in keys if other not in absent]
        confirmed: Any = b"\n".join((b" ".join(came), failure.encode()))
        store.set(f"{name}/all", confirmed)


def _learn_attempt(
    store: Store,
    own_name: str,
    rank: int,
    timeout: timedelta,
    look: Callable[[list[int]], object],
) -> str:
    """Return the attempt's name: the one in which rank 0 confirmed this rank's own, unique name."""
    for _ in _poll(timeout, partial(look, [0]), _LOOK_S / 4):
        if not store.check(["attempt"]):
            continue
        attempt = store.get("attempt").decode()
        store.set(f"{attempt}/{rank}", own_name)
        if not store.check([f"{attempt}/all"]):
            continue  # a rank is late, or an earlier attempt with this name came no further
        names, _, failure = store.get(f"{attempt}/all").partition(b"\n")
        if own_name.encode() in names.split():
            if failure:
                raise RuntimeError(failure.decode())
            return attempt
    raise RuntimeError(f"rank 0 did not confirm this rank within {timeout.total_seconds():g} s")
