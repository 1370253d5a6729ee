"""Ranks that die, stop, or make other calls than the rest; here also while a schedule is chosen."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import patience
import torch
import torch.distributed as dist
from rank_process import Events, init, leave
from torch._C._distributed_c10d import Store

import topoplan
from ranks.checks import SUMS, refused
from topoplan import Communicator
from topoplan.runtime.ranks.control import Control
from topoplan.runtime.ranks.set_up import set_up_in_time
from topoplan.runtime.ranks.transport import Transport


def die() -> NoReturn:
    """End without a word, as a rank that was killed does; the launcher hears that this was
    wanted.
    """
    leave()


def survive(call: Callable[[], object]) -> NoReturn:
    """Assert that a call fails, as a rank is gone, and hand back the error."""
    try:
        call()
    except topoplan.ExecutionError as error:
        leave(str(error))
    raise AssertionError("went on with a rank that is gone")


def die_at_call(module: Any, name: str, number: int) -> None:
    """Make this process end at the `number`-th call of a function."""
    function, calls = getattr(module, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            die()
        return function(*args, **kwargs)

    setattr(module, name, counted)


def repeat(call: Callable[[], object]) -> None:
    for _ in range(100):
        call()


def a_rank_is_gone(path: str) -> str | None:
    communicator = Communicator(path, timeout=patience.deadline(5), choose="plan")
    x = torch.ones(1000)
    communicator.allreduce(x)
    if dist.get_rank() == 1:
        die()
    started = time.monotonic()
    try:
        repeat(lambda: communicator.allreduce(x))
    except topoplan.ExecutionError as error:
        assert time.monotonic() - started < patience.seconds(30)
        leave(str(error))
    raise AssertionError("went on with a rank that is gone")


def the_group_is_destroyed(path: str) -> None:
    communicator = Communicator(path, choose="model")
    x = torch.ones(100)
    communicator.allreduce(x)
    dist.destroy_process_group()
    for y in (x, torch.ones(10_000)):  # one of a size that was used before, one that was not
        with refused("the process group was destroyed", topoplan.ExecutionError):
            communicator.allreduce(y)


def two_go_on(three: str, two: str) -> str | None:
    """Rank 2 dies; the others name it, tear their group down, and go on with a plan without it."""
    communicator = Communicator(three, timeout=patience.deadline(8), choose="plan")
    x = torch.ones(5000)
    communicator.allreduce(x)
    assert (x == 3).all()
    if dist.get_rank() == 2:
        die()
    try:
        while True:
            communicator.allreduce(x)
    except topoplan.ExecutionError as error:
        blamed = str(error)
    with refused("an earlier call failed", topoplan.ExecutionError):
        communicator.allreduce(x)
    del communicator
    dist.destroy_process_group()
    init("-again", world=2)
    again = Communicator(two)
    for numel in (100, 200_000):
        x = torch.full((numel,), float(dist.get_rank()))
        again.allreduce(x)
        assert (x == 1).all()
    return blamed


def different_lengths(path: str) -> str:
    return error_of_mismatch(path, 2000 if dist.get_rank() == 0 else 1000, SUMS)


def different_reductions(path: str) -> str:
    return error_of_mismatch(path, 1000, dist.ReduceOp.MAX if dist.get_rank() == 2 else SUMS)


def error_of_mismatch(path: str, numel: int, op: object) -> str:
    communicator = Communicator(path, timeout=patience.deadline(4), choose="plan")
    try:
        communicator.allreduce(torch.ones(numel), op)
    except topoplan.ExecutionError as error:
        return str(error)
    raise AssertionError("different calls were added up")


def not_everybody_sets_up(path: str) -> str | None:
    if dist.get_rank() == 3:
        die()
    survive(lambda: Communicator(path, timeout=patience.deadline(4)))


def dies_in_a_race(path: str, function: str, number: int) -> str | None:
    communicator = Communicator(path, timeout=patience.deadline(4))
    if dist.get_rank() == 1:
        die_at_call(Control if function == "exchange" else Transport, function, number)
    survive(lambda: communicator.allreduce(torch.ones(1000)))


def stops_in_a_race(path: str) -> str | None:
    """Rank 1 makes no call and closes nothing until the others have given up."""
    communicator = Communicator(path, timeout=patience.deadline(4))
    events = Events()
    if dist.get_rank() == 1:
        for rank in (0, 2):
            events.wait(f"rank {rank} has given up")
        die()
    try:
        communicator.allreduce(torch.ones(1000))
    except topoplan.ExecutionError as error:
        events.tell(f"rank {dist.get_rank()} has given up")
        leave(str(error))
    raise AssertionError("went on with a rank that stopped")


def dies_in_a_long_call(path: str) -> str | None:
    """Return the errors of the ranks that are left after one ends in the middle of a call."""
    communicator = Communicator(
        path, timeout=patience.deadline(60), choose="plan", executor="point-to-point"
    )
    x = torch.ones(1 << 22)
    communicator.allreduce(x)
    if dist.get_rank() == 2:
        threading.Thread(target=die_once_it_changes, args=(x, float(x[-1])), daemon=True).start()
    survive(lambda: repeat(lambda: communicator.allreduce(x)))


def die_once_it_changes(x: torch.Tensor, before: float) -> NoReturn:
    def has_changed() -> bool:
        return float(x[0]) != before or float(x[-1]) != before

    patience.wait_until(has_changed, "a part of the sum")
    die()


def stops_in_a_set_up(path: str) -> str | None:
    """Rank 2 stops after gloo has published its address; the others have it go on, and end."""
    events, rank = Events(), dist.get_rank()
    if rank == 2:
        events.store.set("pid", str(os.getpid()))
        act_within_gloo(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    try:
        Communicator(path, timeout=patience.deadline(4))
    except topoplan.ExecutionError as error:
        if rank != 2:
            events.tell(f"rank {rank} has given up")
            events.wait(f"rank {1 - rank} has given up")
            os.kill(int(events.store.get("pid")), signal.SIGCONT)
        leave(str(error))
    raise AssertionError("set up with a rank that stopped")


def dies_in_a_set_up(path: str) -> str | None:
    if dist.get_rank() == 2:
        act_within_gloo(die)
    survive(lambda: Communicator(path, timeout=patience.deadline(60)))


def act_within_gloo(action: Callable[[], object]) -> None:
    """Take an action in the set-up of the next group of gloo, once its address is published."""

    class ActingStore(Store):
        def __init__(self, store: Store) -> None:
            super().__init__()
            self.inner = store

        def set(self, key: str, value: Any) -> None:
            self.inner.set(key, value)
            action()

        def get(self, key: str) -> bytes:
            value: bytes = self.inner.get(key)
            return value

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            self.inner.wait(keys, timeout or patience.deadline(60))

    class ActingGloo(dist.ProcessGroupGloo):
        def __init__(self, store: Store, *args: Any, **kwargs: Any) -> None:
            super().__init__(ActingStore(store), *args, **kwargs)

    dist.distributed_c10d.ProcessGroupGloo = ActingGloo  # type: ignore[misc]


def waits_for_a_store() -> str:
    """Return the error of a set-up that hangs in a request to the store, for ever."""
    try:
        set_up_in_time(
            lambda _: threading.Event().wait(), "setting up", 1, range(3), timedelta(seconds=0.1)
        )
    except topoplan.ExecutionError as error:
        return str(error)
    raise AssertionError("set up without a store")
