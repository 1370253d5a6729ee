"""Where a small allreduce over gloo spends its time: posting, waiting, adding, and the rest of
Python.

    torchrun --nproc-per-node 4 -m benchmarks gloo_calls PLAN [-b 4K]

By the plan alone, on rank 0: each post, wait and sum is timed by its own clock, which adds about a
microsecond to each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import Table, make_parser

from topoplan import Communicator
from topoplan.runtime.players.in_order import PlayerInOrder
from topoplan.runtime.program.contract import LOCAL, Operation
from topoplan.runtime.program.instructions import Program
from topoplan.synth.sizes import parse_size

_CALLS, _WARMUP = 300, 30
spent: dict[str, float] = defaultdict(float)
counts: dict[str, int] = defaultdict(int)


def timed(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that adds its time to what is spent."""

    def run(*args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        spent[what] += time.perf_counter() - begin
        counts[what] += 1
        return result

    return run


class TimedWork:
    """A gloo work whose wait is timed."""

    def __init__(self, work: dist.Work) -> None:
        self.wait = timed("waiting for messages", work.wait)


class TimedBackend:
    """gloo's backend with posts that are timed."""

    def __init__(self, backend: Any) -> None:
        post = {name: timed("posting", getattr(backend, name)) for name in ("send", "recv")}
        self.send = lambda *args: TimedWork(post["send"](*args))
        self.recv = lambda *args: TimedWork(post["recv"](*args))


class TimedPlayer(PlayerInOrder):
    """A player of which each operation is timed."""

    def __init__(self, backend: Any, program: Program, operations: list[Operation]) -> None:
        own = [(x[0], timed("adding", x[1]), *x[2:]) if x[0] == LOCAL else x for x in operations]
        super().__init__(TimedBackend(backend), program, own)


def main() -> None:
    """Measure, and print the shares on rank 0."""
    parser = make_parser(__doc__)
    parser.add_argument("plan")
    parser.add_argument("-b", default="4K", help="size")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    x = torch.zeros(parse_size(args.b) // 4)
    communicator = Communicator(args.plan, choose="plan")

    def measure() -> float:
        times = []
        for turn in range(_WARMUP + _CALLS):
            if turn == _WARMUP:
                spent.clear()
                counts.clear()
            begin = time.perf_counter()
            communicator.allreduce(x)
            times.append(time.perf_counter() - begin)
        return statistics.mean(times[_WARMUP:]) * 1e6

    plain_us = measure()
    import topoplan.runtime.compiled as compiled

    compiled.PlayerInOrder = TimedPlayer  # type: ignore[misc]
    communicator = Communicator(args.plan, choose="plan")
    whole_us = measure()
    if dist.get_rank() == 0:
        print_times(args, plain_us, whole_us)
    dist.destroy_process_group()


def print_times(args: argparse.Namespace, plain_us: float, whole_us: float) -> None:
    """Print what a call spends its time on."""
    table = Table(
        [("what", "what", "<22s"), ("us", "us", ">8.1f"), ("operations", "operations", ">10d")],
        as_json=args.json,
    )
    for what, seconds in spent.items():
        us, operations = seconds / _CALLS * 1e6, counts[what] // _CALLS
        table.add({"what": what, "us": us, "operations": operations})
    rest_us = whole_us - sum(spent.values()) / _CALLS * 1e6
    table.add({"what": "the rest of Python", "us": rest_us})
    table.add({"what": "all, with the clocks", "us": whole_us})
    table.add({"what": "all, without", "us": plain_us})
    table.end(size=args.b, ranks=dist.get_world_size())


if __name__ == "__main__":
    main()
