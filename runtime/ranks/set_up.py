"""Set up groups in a bounded time, whatever happens to other ranks or to the store meanwhile.

A store that is cut off, or whose host is stopped, keeps requests waiting without any limit, and
gloo tries five times to connect, each time for as long as a call may take. So a thread sets the
group up, and is left behind when time is over or a rank's process has ended. The ranks end a set-up
together: where one fails, all do. Addresses are where ranks receive reports of failures.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...topo.errors import ExecutionError, TopoplanError
from .addresses import Address, Addresses, choose_contacts, find_addresses, find_ended
from .faults import NOBODY, Stuck, find_finder, first_line, grace_s
from .groups import GroupMaker, find_members, find_store, make_private_group
from .store import StoreClient, find_client, poll_store

T = TypeVar("T")
# Polling interval for processes that have ended: a usual set-up is over before the first look.
_LOOK_S = 1.0
# Patience with a store that may be gone; one that is there answers within milliseconds.
_STORE_S = 1.0


@cache
def end_past_waits() -> None:
    """Have this process exit without C++'s destructors, which abort it if threads wait in gloo.

    Python's own part of the exit is over by then; the exit code stays.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # glibc has it: its handlers get the exit code
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


@dataclass
class Known:
    """What a set-up knows so far: ranks' addresses by rank, and its own connection to the store.

    That connection must not be used for waits.
    """

    addresses: dict[int, Address | None] = field(default_factory=dict)
    store: Store | None = None


def set_up_in_time(
    make: Callable[[Known], T],
    what: str,
    rank: int,
    ranks: Sequence[int],
    timeout: timedelta,
) -> T:
    """Run `make` in a thread, with all other `ranks`, and return its result; `rank` is this one.

    `make` notes addresses and store, as soon as it has them, in the Known that it is given. `what`
    describes the set-up, `ranks` are global. Raise ExecutionError, which names the rank at fault if
    it can, if `make` fails, a process ends, or `timeout` is over, of which a part is for finding
    the rank.
    """
    known, limit_s = Known(), timeout.total_seconds() - grace_s(timeout)
    try:
        return _run(partial(make, known), rank, known, limit_s)
    except TopoplanError:
        raise
    except RuntimeError as error:
        is_store_gone = known.store is None or not is_answering(known.store)
        addresses = dict(known.addresses)
        raise explain_failure(
            rank, ranks, what, error, timeout, addresses, is_store_gone=is_store_gone
        ) from error


def explain_failure(
    rank: int,
    ranks: Sequence[int],
    what: str,
    error: Exception,
    timeout: timedelta,
    addresses: Addresses,
    *,
    is_store_gone: bool,
) -> ExecutionError:
    """Return the error to raise after a failed set-up, which names the rank at fault if it can.

    `what` describes the set-up ("finding a plan for allreduce") among `ranks`, and `error` is how
    it failed here, on `rank`. Each rank on which it failed calls this: finding the culprit takes up
    to a quarter of `timeout`, at most 5 s. `addresses` are those that are known here, by rank.
    """
    failed, finder = f"{what} failed ({first_line(error)})", find_finder()
    if finder is None:
        return ExecutionError(f"rank {rank}: {failed}")
    own = Stuck("stock", NOBODY, 0, 0, timed_out=False, reason=first_line(error), call=what)
    verdict = finder.explain_set_up(
        rank, ranks, own, 0.9 * grace_s(timeout), addresses, is_store_gone=is_store_gone
    )
    return ExecutionError(f"rank {rank}: {verdict}; here {failed}")


def is_answering(store: Store) -> bool:
    """Return whether a store answers within a short time; not if its process is gone."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(store.check(["topoplan"]) is not None)

    asking = threading.Thread(target=ask, name="topoplan-store", daemon=True)
    asking.start()
    asking.join(_STORE_S)
    return bool(answers)


def _run(make: Callable[[], T], rank: int, known: Known, limit_s: float) -> T:
    """Return what `make` makes in a thread; raise RuntimeError if that takes too long."""
    made: list[T] = []
    errors: list[BaseException] = []
    # Which GPU is the current one is a matter of the thread.
    cuda: Any = torch.cuda
    gpu = cuda.current_device() if cuda.is_initialized() else None

    def work() -> None:
        try:
            if gpu is not None:
                cuda.set_device(gpu)
            made.append(make())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="topoplan-set-up", daemon=True)
    ends = time.monotonic() + limit_s
    thread.start()
    while True:
        thread.join(min(_LOOK_S, max(0.0, ends - time.monotonic())))
        if errors:
            raise errors[0]
        if made:
            return made[0]
        addresses = {rank: None, **known.addresses}
        ended = find_ended({other: addresses[other] for other in choose_contacts(rank, addresses)})
        if (ended or time.monotonic() > ends) and not (made or errors):
            end_past_waits()
            raise RuntimeError(
                "a rank has ended" if ended else f"it did not end within {limit_s:g} s"
            )


@dataclass(frozen=True)
class Made:
    """A new private group, with this process's own connection to the store in which it was made.

    `store` has the group's keys alone, over the connection `client`; `addresses` are where its
    ranks receive reports of failures, by number in it.
    """

    group: dist.ProcessGroup
    client: StoreClient
    store: Store
    addresses: Addresses


def make_private(
    what: str,
    group: dist.ProcessGroup | GroupMaker | None,
    timeout: timedelta,
    addresses: Addresses | None = None,
) -> Made:
    """Make a plain group (gloo or NCCL) over the ranks of `group` (None: all) in bounded time.

    It ends before `timeout`, which leaves time to find the culprit. `what` describes it, and
    `addresses` are known ones, by number. Raise ExecutionError, which names the rank at fault if it
    can, if the group cannot be made.
    """
    ranks, limit = find_members(group), timeout - timedelta(seconds=grace_s(timeout))
    store, number = find_store(group)
    own = dist.get_rank() if number is None else ranks[number]

    def make(known: Known) -> Made:
        client = find_client(store)
        known.store = client.store
        if addresses is None:
            find_addresses(ranks, limit, known.addresses)
        else:
            known.addresses.update((rank, addresses[i]) for i, rank in enumerate(ranks))
        private = make_private_group(group, limit)
        client = find_client(dist.distributed_c10d._world.pg_map[private][1])
        shared = PrefixStore(f"topoplan/{private.group_name}", client.store)
        wait_until_made(shared, private.rank(), private.size(), limit)
        by_number = {number: known.addresses[rank] for number, rank in enumerate(ranks)}
        return Made(private, client, shared, by_number)

    return set_up_in_time(make, what, own, ranks, timeout)


def wait_until_made(store: Store, rank: int, size: int, timeout: timedelta) -> None:
    """Return once all `size` ranks of a group have called this: then it is made on all.

    Ranks whose connections are made would otherwise go on while others still wait for theirs, and
    their first call would blame those. `rank` is this one, `store` the group's. Raise RuntimeError
    at `timeout`.
    """
    store.set(f"made/{rank}", "yes")
    poll_store(store, [f"made/{other}" for other in range(size)], timeout)
