"""The kernel on GPUs.

    torchrun --nproc-per-node 4 -m benchmarks kernels_on_gpu [--calls 10000]
    python -m benchmarks kernels_on_gpu --streams 4

With --streams one process plays all ranks on one GPU, each on a stream of its own, so that they run
together and not in turns.

Plays random calls (collectives, schedules, sizes, dtypes, pull and push) and compares each with
what it must be, then an allreduce from a CUDA graph, and measures the time of a call of one
element. Ranks of several processes share GPUs if there are fewer (it sets
TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1): then times are those of one card that takes turns, and
no links are measured. Prints one JSON object. Exit 1 if a call was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

# Symmetric memory reads it when it is first used.
os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")

import torch
import torch.distributed as dist
from harness import make_parser
from kernels import COLLECTIVES, draw_inputs, expect

from topoplan.runtime.extras.kernels.memory import make_on_one_gpu, make_symmetric
from topoplan.runtime.extras.kernels.player import KernelPlayer
from topoplan.runtime.extras.one_sided.instructions import Mode
from topoplan.runtime.program.layout import IN_PLACE
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan
from topoplan.synth.planner.api import synthesize

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
# The programs that a player caches are more.
CASES = 60
# Elements of a rank's part: one, odd, and more than the slices of a whole grid.
BLOCKS = (1, 5, 64, 1000, 4096, 30_000, 500_000)
TIMED_CALLS = 200
TIMED_BYTES = (4, 4096, 65_536, 1 << 20, 16 << 20, 64 << 20)
CALLS_IN_GRAPH, TIMED_GRAPHS = 20, 5
TIMEOUT_S = 120.0


def main() -> None:
    """Play, compare and measure; rank 0 prints one JSON object."""
    parser = make_parser(__doc__, json=False)
    parser.add_argument("--calls", type=int, default=10_000, help="random calls, and replays")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=32, help="of a grid")
    parser.add_argument("--streams", type=int, help="ranks of one process, in place of processes")
    args = parser.parse_args()
    if args.streams:
        sys.exit(play_on_streams(args))
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    group = dist.group.WORLD
    assert group is not None
    count = torch.cuda.get_device_properties(device).multi_processor_count
    memory = make_symmetric(group, device, count, programs=args.programs, timeout_s=TIMEOUT_S)
    player = KernelPlayer(memory)
    plans = {name: share_plan(name, ranks) for name in COLLECTIVES}
    cases = draw_cases(plans, ranks, [rank], args.seed, device)
    wrong = play_random([player], [torch.cuda.current_stream()], cases, args.calls, args.seed)
    wrong += play_captured(player, plans["allreduce"], args.calls, device)
    eager_us, graph_us = time_empty_call(player, plans["allreduce"], device)
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    if rank == 0:
        row = {
            "gpu": torch.cuda.get_device_name(device),
            "ranks": ranks,
            "cards": min(ranks, torch.cuda.device_count()),
            "calls": args.calls,
            "wrong": int(total),
            "eager_us": eager_us,
            "graph_us": graph_us,
        }
        print(json.dumps(row))
    dist.destroy_process_group()
    sys.exit(int(bool(total)))


def share_plan(collective: str, ranks: int) -> Plan:
    """Return rank 0's plan for a box whose GPUs are joined by one switch, on all ranks."""
    plans: list[Plan | None] = [None]
    if dist.get_rank() == 0:
        plans = [synthesize(cast(Any, collective), f"switch:{ranks}")]
    dist.broadcast_object_list(plans, 0)
    assert plans[0] is not None
    return plans[0]


@dataclass(frozen=True)
class Case:
    """A call, with the input and the result of each rank that this process plays."""

    schedule: Schedule
    numel: int
    dtype: torch.dtype
    mode: Mode
    in_place: bool
    offset: int
    inputs: list[torch.Tensor]
    wanted: list[torch.Tensor]


def draw_cases(
    plans: dict[str, Plan], ranks: int, own: Sequence[int], seed: int, device: torch.device
) -> list[Case]:
    """Return random calls, the same on all ranks; as many as a player caches."""
    drawn, cases = random.Random(seed), []
    for number in range(CASES):
        name, block, dtype = drawn.choice(COLLECTIVES), drawn.choice(BLOCKS), drawn.choice(DTYPES)
        schedule, mode = drawn.choice(plans[name].schedules), drawn.choice(("pull", "push"))
        in_place = name in IN_PLACE and drawn.random() < 0.5
        offset = drawn.choice((0, 0, 1))
        inputs, root = draw_inputs(name, ranks, block, seed + number), plans[name].collective.root
        wanted = [torch.from_numpy(expect(name, inputs, rank, root or 0)) for rank in own]
        cases.append(
            Case(
                schedule,
                block * ranks,
                dtype,
                cast(Mode, mode),
                in_place,
                offset,
                [torch.from_numpy(inputs[rank]).to(device, dtype) for rank in own],
                [result.to(device, dtype) for result in wanted],
            )
        )
    return cases


def play_random(
    players: list[KernelPlayer], streams: list[Any], cases: list[Case], calls: int, seed: int
) -> int:
    """Return how many results of random calls in a row were wrong in this process."""
    drawn = random.Random(seed)
    wrong = torch.zeros((), dtype=torch.int64, device=players[0].memory.device)
    for _ in range(calls):
        case = drawn.choice(cases)
        played = []
        for player, given, wanted in zip(players, case.inputs, case.wanted, strict=True):
            loaded = player.load(
                case.schedule, case.numel, case.dtype, mode=case.mode, in_place=case.in_place
            )
            source = place(given, case.offset)
            target = source if case.in_place else place(torch.full_like(wanted, 77), case.offset)
            played.append((loaded, source, target))
        play_together(players, streams, played)
        for (_, _, target), wanted in zip(played, case.wanted, strict=True):
            wrong += (target != wanted).any()
    torch.cuda.synchronize()
    for player in players:
        player.check()
    return int(wrong)


def place(data: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a copy of data that begins `offset` elements after an aligned address."""
    room = data.new_empty(len(data) + offset)
    room[offset:] = data
    return room[offset:]


def play_captured(player: KernelPlayer, plan: Plan, calls: int, device: torch.device) -> int:
    """Return how many replays of a graph with one allreduce were wrong."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    numel = 1000 * ranks
    x = torch.zeros(numel, device=device)
    loaded = player.load(plan.entry_for(numel * 4).schedule, numel, torch.float32, in_place=True)
    player.launch(loaded, x, x)  # compiles
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        player.launch(loaded, x, x)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for number in range(calls):
        x.fill_(number % 1000 + rank)
        graph.replay()
        wrong += (x != (number % 1000) * ranks + ranks * (ranks - 1) // 2).any()
    torch.cuda.synchronize()
    player.check()
    return int(wrong)


def time_empty_call(player: KernelPlayer, plan: Plan, device: torch.device) -> tuple[float, float]:
    """Return the median microseconds of an allreduce of one element, eager and from a graph."""
    x = torch.zeros(1, device=device)
    loaded = player.load(plan.entry_for(4).schedule, 1, torch.float32, in_place=True)
    player.launch(loaded, x, x)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        player.launch(loaded, x, x)
    medians = []
    for call in (lambda: player.launch(loaded, x, x), graph.replay):
        times_us = []
        for _ in range(TIMED_CALLS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times_us.append((time.perf_counter() - begun) * 1e6)
        medians.append(round(statistics.median(times_us), 1))
    return medians[0], medians[1]


# Streams of one process


def play_on_streams(args: argparse.Namespace) -> int:
    """Play random calls, then time allreduces from a CUDA graph; return the exit code."""
    device, ranks = torch.device("cuda", 0), args.streams
    torch.cuda.set_device(device)
    memories = make_on_one_gpu(ranks, device, programs=args.programs, timeout_s=TIMEOUT_S)
    players = [KernelPlayer(memory) for memory in memories]
    streams: list[Any] = [torch.cuda.Stream(device) for _ in players]
    plans = {name: synthesize(cast(Any, name), f"switch:{ranks}") for name in COLLECTIVES}
    cases = draw_cases(plans, ranks, range(ranks), args.seed, device)
    wrong = play_random(players, streams, cases, args.calls, args.seed)
    row: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device),
        "streams": ranks,
        "programs": memories[0].region.programs,
        "calls": args.calls,
        "wrong": wrong,
        "times": [
            time_on_streams(players, streams, plans["allreduce"], size, mode, device)
            for size in TIMED_BYTES
            for mode in ("pull", "push")
        ],
    }
    print(json.dumps(row))
    return int(wrong > 0)


def play_together(players: list[KernelPlayer], streams: list[Any], calls: list[Any]) -> None:
    """Start a call of all ranks, after all work so far and before all later work."""
    begun = torch.cuda.current_stream().record_event()
    for player, stream, call in zip(players, streams, calls, strict=True):
        stream.wait_event(begun)
        with torch.cuda.stream(stream):
            player.launch(*call)
        torch.cuda.current_stream().wait_event(stream.record_event())


def time_on_streams(
    players: list[KernelPlayer],
    streams: list[Any],
    plan: Plan,
    size_bytes: int,
    mode: str,
    device: torch.device,
) -> dict[str, Any]:
    """Return the microseconds of an allreduce of a size, of all schedules the fastest."""
    times_us = {}
    numel = size_bytes // 4
    for schedule in plan.schedules:
        calls = []
        for player in players:
            x = torch.zeros(numel, device=device)
            loaded = player.load(
                schedule, numel, torch.float32, mode=cast(Mode, mode), in_place=True
            )
            calls.append((loaded, x, x))
        play_together(players, streams, calls)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS_IN_GRAPH):
                play_together(players, streams, calls)
        medians = []
        for _ in range(TIMED_GRAPHS):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            graph.replay()
            ended.record()
            torch.cuda.synchronize()
            medians.append(begun.elapsed_time(ended) * 1e3 / CALLS_IN_GRAPH)
        times_us[schedule.label] = round(statistics.median(medians), 2)
    best = min(times_us, key=lambda label: times_us[label])
    return {"bytes": size_bytes, "mode": mode, "schedule": best, "us": times_us[best]}


if __name__ == "__main__":
    main()
