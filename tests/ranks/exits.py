"""A script whose ranks end while calls are in progress, as the interpreter of a script ends.

`exits.py PLAN FOLDER WAYS` forks two ranks for each way and end, once torch is imported; WAYS is
JSON, the ends by way. It prints how they ended, as JSON: by way and end the exit code of each rank,
and what it printed. The way is how they call: by gloo, by the backend "topo" in several ways, or by
the DDP hook; with "stuck" rank 0 waits for what comes when its interpreter is finalizing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import forked_planners
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn import Linear, Sequential
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
import topoplan.runtime.backend.process_group  # imported once, not by each rank
from topoplan.runtime.backend.options import backend_options

WORLD = 2
# The exit codes of ranks by what they do at the end. With "alone" rank 1 makes no call, and ends
# when the interpreter of rank 0 has called all its exit handlers: connections then close while it
# is finalizing. With "drop" nobody waits for the calls; the last handler prints a sum.
CODES = {"raise": 1, "alone": 1, "exit": 3, "drop": 0}


class OwnError(Exception):
    """The script's own error."""


def begin_calls(way: str, plan: str, big: torch.Tensor, *, calls: bool) -> list[object]:
    """Begin calls on a matrix and others, the first of which wait for plans; return their works.

    The hook's are in progress when the backward pass raises OwnError. A rank that makes none
    `calls` not, but takes part in what comes before.
    """
    options = {
        "topo": {},
        "stuck": {},
        "search": {"choose": "plan", "least_bytes": 1},
        "file": {"plans": plan, "choose": "plan", "least_bytes": 1},
    }.get(way)
    dist.init_process_group(
        "gloo" if options is None else "topo",
        init_method=f"file://{os.environ['MEETING']}",
        rank=int(os.environ["RANK"]),
        world_size=WORLD,
        pg_options=None if options is None else backend_options(**options),  # type: ignore[arg-type]
    )
    if way == "hook":
        first = Linear(64, 64)
        model = DDP(Sequential(first, Linear(64, 64)), bucket_cap_mb=0.01)
        model.register_comm_hook(None, topoplan.ddp_hook(plan))
        first.weight.register_hook(lambda _: fail())
        if calls:
            model(big).sum().backward()
    if not calls:
        return []
    if way == "stuck":
        wake: Any = Wake()
        sys.wake = wake  # type: ignore[attr-defined]  # destroyed at last
        group: Any = dist.group.WORLD
        wait = wake.store.wait
        return [group.planned.queue(big).submit(lambda: wait(["end"]), [], waits=False)]
    works = [dist.all_reduce(x, async_op=True) for x in (big, torch.ones(5), big.clone())]
    return [*works, dist.all_gather([big.clone() for _ in range(WORLD)], big, async_op=True)]


class Wake:
    """Ends waits for "end" in a store when the interpreter destroys its modules."""

    def __init__(self) -> None:
        # `patience`, as all modules, is gone by then.
        self.store, self.pause = HashStore(), time.sleep

    def __del__(self) -> None:
        self.store.set("end", "")
        self.pause(0.3)  # for the thread to come back, were it not stopped


def fail() -> None:
    """Raise the script's own error."""
    raise OwnError


def play(way: str, plan: str, end: str, rank: int, peer: socket.socket) -> None:
    """Begin calls, and end in this way; `peer` is connected to the other rank."""
    makes_calls = rank == 0 or end != "alone"
    works: list[object] = []
    big = torch.ones(64, 64)
    # torch makes finalizers before topoplan is imported, so theirs is the last exit handler.
    if rank == 0 and end == "alone":
        weakref.finalize(fail, peer.shutdown, socket.SHUT_WR)
    if end == "drop":
        weakref.finalize(fail, lambda: print("sum", int(big.sum()), flush=True))
    try:
        works = begin_calls(way, plan, big, calls=makes_calls)
    except OwnError:
        if end in ("raise", "alone"):
            raise
    if not makes_calls:
        peer.recv(1)
        os._exit(CODES[end])
    if end == "exit":
        sys.exit(CODES[end])
    if end in ("raise", "alone"):
        fail()
    assert works or not makes_calls or way == "hook"


def fork_ranks(ends: list[str], folder: Path) -> tuple[str, int, socket.socket] | None:
    """Fork the ranks of each end; return in a rank its end, number, and connection to the other.

    In the parent return None once all ranks have ended, how they did being in `folder`.
    """
    pids: dict[tuple[str, int], int] = {}
    for end in ends:
        peers = socket.socketpair()
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                peers[1 - rank].close()
                output = os.open(folder / f"{end}-{rank}", os.O_WRONLY | os.O_CREAT)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ |= {
                    "RANK": str(rank),
                    "MEETING": str(folder / f"{end}-meeting"),
                    "TOPOPLAN_CACHE": str(folder / f"{end}-cache"),
                }
                return end, rank, peers[rank]
            pids[end, rank] = pid
        for peer in peers:
            peer.close()
    for (end, rank), pid in pids.items():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (folder / f"{end}-{rank}.code").write_text(str(code))
    return None


def read_end(folder: Path, end: str) -> list[tuple[int, str]]:
    """Return the exit code of each rank, and what it printed."""
    outputs = [folder / f"{end}-{rank}" for rank in range(WORLD)]
    return [(int(x.with_suffix(".code").read_text()), x.read_text()) for x in outputs]


def main(plan: str, folder: Path, ways: dict[str, list[str]]) -> None:
    """Play all ways one after the other; a rank comes back as soon as it has played."""
    forked_planners.use_forked()
    ended = {}
    for way, ends in ways.items():
        own = folder / way
        own.mkdir()
        forked = fork_ranks(ends, own)
        if forked is not None:
            play(way, plan, *forked)
            return
        ended[way] = {end: read_end(own, end) for end in ends}
    print(json.dumps(ended))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
