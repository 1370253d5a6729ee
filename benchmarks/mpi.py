"""Plans and MPI's own allreduce on this host.

    mpirun --oversubscribe -n 4 python -m benchmarks mpi [-e 64M] [--json]

These ways take turns at each size, in a random order: MPI's own allreduce by mpi4py alone; the same
through torch.distributed with nothing else behind it, which is as fast as a backend in Python can
be; a Communicator (the plan, or MPI's own where that won the race); the backend "topo" through
torch.distributed; plans alone, over MPI; the plans' programs without a Communicator, played by the
library in C++ and by Python; and, with --gloo, plans alone over gloo. A time is the slowest rank's
from MPI's barrier on, the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from harness import make_parser

from topoplan import Communicator, Plan, backend_options, synthesize
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.extras.mpi import links
from topoplan.runtime.extras.mpi.channel import MpiChannel
from topoplan.runtime.extras.mpi.launched import join_mpi
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.works import get_done_work
from topoplan.synth.sizes import parse_size

_TURNS = (9, 200)
_PATIENCE_S = 1.5
TIMEOUT = timedelta(seconds=120)


def main() -> None:
    """Measure, and print the table on rank 0."""
    parser = make_parser(__doc__)
    parser.add_argument("-b", default="1K", help="smallest size")
    parser.add_argument("-e", default="64M", help="largest size")
    parser.add_argument("--topology", help="the machine that plans are for (default: full:N)")
    parser.add_argument("--gloo", action="store_true", help="plans over gloo as well")
    args = parser.parse_args()
    if not join_mpi():
        raise SystemExit("start it by mpirun")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="topoplan-") as cache:
        _measure(args, cache)


def _measure(args: argparse.Namespace, cache: str) -> None:
    dist.init_process_group("gloo")
    plans: list[Plan | None] = [None]
    if dist.get_rank() == 0:
        topology = args.topology or f"full:{dist.get_world_size()}"
        plans = [synthesize("allreduce", topology)]
    dist.broadcast_object_list(plans, 0)
    plan = plans[0]
    assert plan is not None
    dist.destroy_process_group()
    options = backend_options(plans=plan, transport="mpi", cache=cache, least_bytes=0)
    dist.init_process_group("topo", pg_options=options, timeout=TIMEOUT)
    transport = Transport(None, TIMEOUT, "mpi")
    channel = transport.links.channel
    assert channel is not None
    dist.Backend.register_backend(
        "bare", partial(_BareGroup, channel), extended_api=True, devices=["cpu"]
    )
    bare = dist.new_group(backend="bare")
    raced = Communicator(plan, transport, cache=cache)
    planned = Communicator(plan, transport, choose="plan")
    over_gloo = (
        Communicator(plan, Transport(None, TIMEOUT, "auto"), choose="plan") if args.gloo else None
    )
    rows = []
    size = parse_size(args.b)
    while size <= parse_size(args.e):
        x = torch.zeros(size // 4)
        array = x.numpy()
        ways: dict[str, Callable[[], object]] = {
            "MPI's own": lambda array=array: channel.comm.Allreduce(channel.mpi.IN_PLACE, array),
            "through torch": lambda x=x: dist.all_reduce(x, group=bare),
            "raced": lambda x=x: raced.allreduce(x),
            "backend": lambda x=x: dist.all_reduce(x),
            "plan": lambda x=x: planned.allreduce(x),
        }
        by_plan = Candidate(plan.entry_for(size).schedule)
        ways["in C++"] = make_player(planned, by_plan, size // 4)
        with mock.patch.object(links, "can_play_natively", lambda *_: False):
            ways["in Python"] = make_player(planned, by_plan, size // 4)
        if over_gloo is not None:
            ways["plan over gloo"] = lambda x=x: over_gloo.allreduce(x)
        times = time_in_turns(list(ways.values()), transport)
        choice, entry = raced.choice(size), plan.entry_for(size)
        rows.append(
            {
                "size": size,
                "used": None if choice is None else choice.label,
                "by_plan": entry.schedule.label,
            }
        )
        rows[-1] |= dict(zip(ways, times, strict=True))
        size *= 4
    if dist.get_rank() == 0:
        _print(rows, args.json, channel.what, dist.get_world_size())
    dist.destroy_process_group()


def make_player(
    communicator: Communicator, candidate: Candidate, numel: int
) -> Callable[[], object]:
    """Return a function that plays a candidate on scratch memory, by the player alone."""
    dispatcher = communicator.dispatcher
    buffers = dispatcher.make_scratch(numel, torch.float32)
    dispatcher.runners[candidate.runner].run(candidate, buffers)
    (program,) = buffers.bindings or {}
    binding = program.find_binding(buffers)
    player = (binding.bound or program.bind(binding)).player
    return lambda buffers=buffers: player.play(time.monotonic() + 60)


class _BareGroup(dist.ProcessGroup):
    """MPI's own allreduce on one tensor, and nothing that a backend needs besides."""

    def __init__(self, channel: MpiChannel, place: Any, _: object) -> None:
        super().__init__(place.group_rank, place.group_size)
        self.comm, self.in_place = channel.comm, channel.mpi.IN_PLACE
        self.work = get_done_work()

    def allreduce(self, tensors: list[torch.Tensor], _: object = None) -> dist.Work:
        self.comm.Allreduce(self.in_place, tensors[0].numpy())
        return self.work


def time_in_turns(calls: list[Callable[[], object]], transport: Transport) -> list[float]:
    """Return the median microseconds of each call."""
    for call in calls * 4:
        call()
    begin = time.perf_counter()
    for call in calls:
        call()
    (once,) = transport.find_slowest_s([time.perf_counter() - begin])
    turns = max(_TURNS[0], min(_TURNS[1], int(_PATIENCE_S / once)))
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(turns):
        order = random.Random(turn).sample(
            range(len(calls)), len(calls)
        )  # what comes before a call slows it down
        for place in order:
            transport.meet()
            begin = time.perf_counter()
            calls[place]()
            times[place].append(time.perf_counter() - begin)
    return [statistics.median(transport.find_slowest_s(own)) * 1e6 for own in times]


def _print(rows: list[dict[str, object]], as_json: bool, what: str, ranks: int) -> None:
    if as_json:
        print(json.dumps({"mpi": what, "ranks": ranks, "rows": rows}))
        return
    ways = [key for key in rows[0] if key not in ("size", "used", "by_plan")]
    print(f"# {what}, {ranks} ranks; microseconds, and in brackets MPI's own time as a part of it")
    print(f"{'bytes':>10} " + " ".join(f"{way:>18}" for way in ways) + "  used, the plan's")
    for row in rows:
        own = float(str(row[ways[0]]))
        cells = " ".join(
            f"{float(str(row[way])):>10.1f} ({own / float(str(row[way])):5.2f})" for way in ways
        )
        print(f"{row['size']:>10} {cells}  {row['used']}, {row['by_plan']}")


if __name__ == "__main__":
    main()
