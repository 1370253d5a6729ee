"""Kill or stop a rank while groups are set up: how long do the others take, and whom do they blame?

    python benchmarks/setup_faults.py [--rounds N] [--timeout SECONDS]

Each round starts three ranks, which make the default group of the backend "topo", a communicator
and another group, and one of which ends (SIGKILL) or stops (SIGSTOP) at some moment of that. The
others must raise an error within the timeout plus 10 s, and blame no other rank.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import topoplan
from topoplan.runtime.backend import membership
from topoplan.runtime.ranks import control

RANKS = 3
# Beyond the timeout of the group.
ALLOWED_S = 10.0
ACCUSED = re.compile(r"ranks? ([\d, ]+) (?:do|does|did) not (?:answer|come)")


def strike(victim: int, folder: Path, act: int) -> None:
    """End or stop this process if it is the victim, and note when."""
    if int(os.environ["RANK"]) == victim:
        (folder / "struck").write_text(str(time.time()), encoding="utf-8")
        os.kill(os.getpid(), act)


def before(module: Any, name: str, action: Callable[[], None], number: int = 1) -> None:
    """Take an action before the `number`-th call of a function."""
    function, calls = getattr(module, name), itertools.count(1)

    def acting(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            action()
        return function(*args, **kwargs)

    setattr(module, name, acting)


def within_gloo(number: int, action: Callable[[], None]) -> None:
    """Take an action in the `number`-th group of gloo, once its address is published."""
    made = itertools.count(1)

    class ActingStore(dist.Store):
        def __init__(self, store: dist.Store) -> None:
            super().__init__()
            self.inner = store

        def set(self, key: str, value: Any) -> None:
            self.inner.set(key, value)
            action()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    class ActingGloo(dist.ProcessGroupGloo):
        def __init__(self, store: dist.Store, *args: Any, **kwargs: Any) -> None:
            acts = next(made) == number
            super().__init__(ActingStore(store) if acts else store, *args, **kwargs)

    dist.ProcessGroupGloo = ActingGloo  # type: ignore[misc]
    dist.distributed_c10d.ProcessGroupGloo = ActingGloo  # type: ignore[misc]


MOMENTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "before all": lambda action: before(dist, "init_process_group", action),
    "before gloo": lambda action: before(membership, "make_plain_group", action),
    "in gloo": partial(within_gloo, 1),
    "after gloo": lambda action: before(membership, "meet_made", action),
    "before a communicator": lambda action: before(topoplan, "Communicator", action),
    "in its gloo": partial(within_gloo, 2),
    "before its agreement": lambda action: before(control, "gather_objects", action),
    "before a group": lambda action: before(dist, "new_group", action, 2),
    "in its gloo too": partial(within_gloo, 3),
    "before a call": lambda action: before(dist, "all_reduce", action),
}


def work(timeout_s: float, plan: topoplan.Plan) -> None:
    """Make all kinds of groups, and a call."""
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("topo", timeout=timeout)
    communicator = topoplan.Communicator(plan, timeout=timeout)
    group = dist.new_group(list(range(RANKS)), timeout=timeout, backend="topo")
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    communicator.allreduce(x)


def run_rank(
    rank: int, port: int, folder: Path, timeout_s: float, plan: topoplan.Plan, fault: Any
) -> None:
    """Do a rank's work, and write how it ended."""
    victim, moment, act = fault
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TOPOPLAN_CACHE=str(folder),
    )
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if rank == victim:
        MOMENTS[moment](partial(strike, victim, folder, act))
    said = "no error"
    try:
        work(timeout_s, plan)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
    (folder / f"{rank}.json").write_text(json.dumps([time.time(), said]), encoding="utf-8")


def run_round(timeout_s: float, plan: topoplan.Plan, fault: Any) -> bool:
    """Run three ranks with one fault, print how the others ended, and return whether well."""
    victim, moment, act = fault
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    is_good = True
    # Ranks are forked, and must not remove it when they end.
    folder, pids = Path(tempfile.mkdtemp()), list[int]()
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, port, folder, timeout_s, plan, fault)
            sys.exit()
        pids.append(pid)
    ends = time.time() + 3 * timeout_s + 60
    left = {rank for rank in range(RANKS) if rank != victim}
    while left and time.time() < ends:
        left -= {rank for rank in left if os.waitpid(pids[rank], os.WNOHANG)[0]}
        time.sleep(0.05)
    for rank in {victim, *left}:
        os.kill(pids[rank], signal.SIGKILL)
        os.waitpid(pids[rank], 0)
    struck = float((folder / "struck").read_text(encoding="utf-8"))
    for rank in sorted({*range(RANKS)} - {victim}):
        path = folder / f"{rank}.json"
        ended, said = json.loads(path.read_text("utf-8")) if path.exists() else (ends, "no end")
        accused = {int(x) for found in ACCUSED.findall(said) for x in found.split(",")}
        is_well = (
            rank not in left
            and "Error" in said
            and ended - struck < timeout_s + ALLOWED_S
            and ("not known" in said or accused <= {victim})
        )
        is_good &= is_well
        what = "kill" if act == signal.SIGKILL else "stop"
        print(
            f"{'ok ' if is_well else 'BAD'} {what} {victim} {moment}: rank {rank} after "
            f"{ended - struck:.1f} s{' (did not exit)' * (rank in left)}: {said}",
            flush=True,
        )
    shutil.rmtree(folder)
    return is_good


def main() -> None:
    """Run the rounds, and exit 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faults = [
        (victim, moment, act)
        for victim in (2, 0)
        for act in (signal.SIGKILL, signal.SIGSTOP)
        for moment in MOMENTS
        # Without the store's host, torch's own client tries to connect for 2.7 times the timeout.
        if (victim, moment) != (0, "before all")
    ]
    plan = topoplan.synthesize("allreduce", topoplan.load(f"full:{RANKS}"))
    rounds = range(options.first, options.first + options.rounds)
    good = [run_round(options.timeout, plan, faults[k % len(faults)]) for k in rounds]
    print(f"{sum(good)} of {len(good)} rounds ended well")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
