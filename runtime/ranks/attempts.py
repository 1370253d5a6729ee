"""Name the attempts of a launch: torchrun restarts its workers in a store that may outlive them.

What workers of an earlier attempt left there, such as addresses and plans, must not be read again.
torchrun's own count of attempts (TORCHELASTIC_RESTART_COUNT) differs between hosts, so the ranks
agree on a name themselves.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import Store

from ...topo.errors import ExecutionError

# Environment variable: "True" if torchrun itself hosts the store that its workers use.
KEPT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_LOOK_AGAIN = timedelta(seconds=0.25)
_PAUSE_S = 0.02  # between polls of the store


def agree_on_attempt(store: Store, rank: int, ranks: int, timeout: timedelta) -> str:
    """Return a name that all `ranks` get and no earlier attempt got.

    The name is "" if the store cannot outlive ranks. Collective over the ranks that share `store`.
    Raise ExecutionError if one of them does not come in time.
    """
    if os.environ.get(KEPT_STORE) != "True":
        return ""
    own_name = uuid.uuid4().hex
    try:
        if rank == 0:
            return _name_attempt(store, own_name, ranks, timeout)
        return _learn_attempt(store, own_name, rank, timeout)
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {rank} of a group of {ranks}: not all ranks came within "
            f"{timeout.total_seconds():g} s; are all of them "
            "running, and can they reach the store at MASTER_ADDR?"
        ) from error


def _name_attempt(store: Store, name: str, ranks: int, timeout: timedelta) -> str:
    """Name the attempt, wait for all ranks to add their own names to it, and confirm these."""
    store.set("attempt", name)
    keys = [f"{name}/{rank}" for rank in range(1, ranks)]
    if keys:
        store.wait(keys, timeout)
    store.set(f"{name}/all", b" ".join(store.get(key) for key in keys))  # type: ignore[arg-type]
    return name


def _learn_attempt(store: Store, own_name: str, rank: int, timeout: timedelta) -> str:
    """Return the attempt's name: the one in which rank 0 confirmed this rank's own, unique name."""
    deadline = time.monotonic() + timeout.total_seconds()
    store.wait(["attempt"], timeout)
    while time.monotonic() < deadline:
        attempt = store.get("attempt").decode()
        store.set(f"{attempt}/{rank}", own_name)
        try:
            store.wait([f"{attempt}/all"], _LOOK_AGAIN)
        except (
            RuntimeError
        ):  # a rank is late, or this is the name of an earlier attempt, which did not come so far
            continue
        if own_name.encode() in store.get(f"{attempt}/all").split():
            return attempt
        time.sleep(_PAUSE_S)
    raise RuntimeError("out of time")
