"""Measures the time to post a send or a receive, by the executor and by torch.distributed: python
benchmarks/posting.py

Two ranks on loopback, 4 KiB each way, medians over 60 repeats of 100 messages; only the posting is
timed, not the waiting.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from topoplan.runtime.ranks.launch import init_method, is_rank, launch

REPEATS, MESSAGES, NUMEL = 60, 100, 1024


def main(arguments: list[str]) -> None:
    """Start two ranks, or be one of them."""
    if not is_rank():
        sys.exit(launch("posting", arguments, 2))
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=init_method(), rank=rank, world_size=2)
    other = 1 - rank
    outgoing = [torch.ones(NUMEL) for _ in range(MESSAGES)]
    incoming = [torch.empty(NUMEL) for _ in range(MESSAGES)]
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    views = [[view] for view in outgoing], [[view] for view in incoming]
    posts: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
        "executor (ProcessGroupGloo.send/recv)": (
            lambda i: backend.send(views[0][i], other, i),  # type: ignore[attr-defined]
            lambda i: backend.recv(views[1][i], other, i),  # type: ignore[attr-defined]
        ),
        "dist.isend/irecv": (
            lambda i: dist.isend(outgoing[i], other, tag=i),
            lambda i: dist.irecv(incoming[i], other, tag=i),
        ),
        "dist.batch_isend_irecv, one each": (
            lambda i: dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.irecv, incoming[i], other, tag=i),
                    dist.P2POp(dist.isend, outgoing[i], other, tag=i),
                ]
            ),
            lambda i: [],
        ),
    }
    for name, (send, receive) in posts.items():
        times = []
        for _ in range(REPEATS):
            dist.barrier()
            works = []
            started = time.perf_counter()
            for i in range(MESSAGES):
                works.append(receive(i))
                works.append(send(i))
            times.append((time.perf_counter() - started) / (2 * MESSAGES))
            for work in works:
                for one in work if isinstance(work, list) else [work]:
                    one.wait()  # type: ignore[attr-defined]
        if rank == 0:
            print(f"{statistics.median(times) * 1e6:7.1f} us a post   {name}", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
