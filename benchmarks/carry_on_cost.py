"""What on_fault="replan" and on_slow="replan" cost as long as nothing breaks or becomes slow.

    torchrun --nproc-per-node 4 -m benchmarks carry_on_cost PLAN [-b 4K] [-e 16M]
    torchrun --nproc-per-node 4 -m benchmarks carry_on_cost PLAN --slow [--seconds 15]
    torchrun --nproc-per-node 2 -m benchmarks carry_on_cost PLAN --steps --seconds 60

A communicator with on_fault and one without send messages over gloo by the same plan and take
turns; times are medians of the slowest rank. With --slow it is one communicator, of which calls
that are not watched (`off`), not watched again (`again`) and watched take turns in changing order;
times are medians of rank 0. With --steps it is three models with the hook, whose steps of training
take turns (`bytes`: of all gradients). `noise` is again / off; `ratio` is watched / off and the
share of the watched calls' time in which the ranks agreed on durations (`agreeing`).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from harness import Table, make_parser
from torch.nn.parallel import DistributedDataParallel

from topoplan import Communicator, ddp_hook
from topoplan.runtime.persistent_calls import CallCache
from topoplan.synth.sizes import parse_size

COLUMNS = (
    ("bytes", "bytes", ">10"), ("raise_us", "raise us", ">10.0f"),
    ("replan_us", "replan us", ">10.0f"), ("ratio", "ratio", ">6.2f"),
)  # fmt: skip
SLOW_COLUMNS = (
    ("bytes", "bytes", ">10"), ("calls", "calls", ">7"), ("off_us", "off us", ">10.1f"),
    ("again_us", "again us", ">10.1f"), ("watched_us", "watched us", ">10.1f"),
    ("noise", "noise", ">7.4f"), ("agreeing", "agreeing", ">9.4f"), ("ratio", "ratio", ">7.4f"),
)  # fmt: skip
KINDS = ("off", "again", "watched")
_CALLS, _WARMUP = 60, 5
# The model of --steps: 4 MB of gradients in buckets of 1 MB.
_LAYERS, _WIDTH, _BATCH, _BUCKET_MB = 4, 512, 64, 1


def main() -> None:
    """Print a row for each size."""
    parser = make_parser(__doc__)
    parser.add_argument("plan")
    parser.add_argument("-b", dest="first", default="4K")
    parser.add_argument("-e", dest="last", default="16M")
    parser.add_argument("--slow", action="store_true", help="measure on_slow instead")
    parser.add_argument("--steps", action="store_true", help="on_slow in steps of training")
    parser.add_argument("--seconds", type=float, default=15, help="for each row of these two")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if args.slow or args.steps:
        (measure_steps if args.steps else measure_watching)(args)
        dist.destroy_process_group()
        return
    communicators = {
        on_fault: Communicator(
            args.plan, choose="plan", executor="point-to-point", on_fault=on_fault
        )
        for on_fault in ("raise", "replan")
    }
    table = Table(COLUMNS, as_json=args.json) if dist.get_rank() == 0 else None
    size, last = parse_size(args.first), parse_size(args.last)
    while size <= last:
        x = torch.zeros(size // 4)
        seconds: dict[str, list[float]] = {name: [] for name in communicators}
        for number in range(_WARMUP + max(10, _CALLS // (1 + (size >> 20)))):
            for name, communicator in communicators.items():
                dist.barrier()
                began = time.perf_counter()
                communicator.allreduce(x)
                spent = torch.tensor([time.perf_counter() - began])
                dist.all_reduce(spent, dist.ReduceOp.MAX)
                if number >= _WARMUP:
                    seconds[name].append(float(spent))
        us = {f"{name}_us": statistics.median(times) * 1e6 for name, times in seconds.items()}
        if table is not None:
            table.add({"bytes": size, **us, "ratio": us["replan_us"] / us["raise_us"]})
        size *= 4
    for communicator in communicators.values():
        communicator.close()
    if table is not None:
        table.end()
    dist.destroy_process_group()


def measure_watching(args: argparse.Namespace) -> None:
    """Print a row for each size: watched calls beside those that are not."""
    communicator = Communicator(
        args.plan, choose="plan", executor="point-to-point", on_slow="replan"
    )
    watch, unwatched = communicator.path, CallCache(communicator.dispatcher)
    table = Table(SLOW_COLUMNS, as_json=args.json) if dist.get_rank() == 0 else None
    size, last = parse_size(args.first), parse_size(args.last)

    def call(kind: str, x: torch.Tensor) -> float:
        calls = communicator.calls if kind == "watched" else unwatched
        dist.barrier()
        began = time.perf_counter()
        if play := calls.find_play(x, dist.ReduceOp.SUM):
            play()
        else:
            calls.prepare(x).run()
        return time.perf_counter() - began

    while size <= last:
        # A tensor of its own for each: calls on it are made as at first (CallCache).
        turns = {kind: partial(call, kind, torch.zeros(size // 4)) for kind in KINDS}
        row = take_turns(turns, watch, args.seconds)
        if table is not None:
            table.add({"bytes": size, **row})
        size *= 4
    communicator.close()
    if table is not None:
        table.end()


def measure_steps(args: argparse.Namespace) -> None:
    """Print one row: steps of DistributedDataParallel with the hook, watched and not watched."""
    turns, hooks, numel = {}, {}, 0
    for kind in KINDS:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=_BUCKET_MB)
        hooks[kind] = ddp_hook(
            args.plan,
            choose="plan",
            executor="point-to-point",
            on_slow="replan" if kind == "watched" else "warn",
        )
        model.register_comm_hook(None, hooks[kind])
        numel = sum(x.numel() for x in model.parameters())
        turns[kind] = partial(take_step, model, torch.optim.SGD(model.parameters(), lr=0.01))
        turns[kind]()  # makes the hook's communicator
    row = take_turns(turns, hooks["watched"].communicator.path, args.seconds)
    if dist.get_rank() == 0:
        table = Table(SLOW_COLUMNS, as_json=args.json)
        table.add({"bytes": numel * 4, **row})
        table.end()
    for hook in hooks.values():
        hook.communicator.close()


def take_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> float:
    """Take a step of training; return its seconds."""
    dist.barrier()
    began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.ones(_BATCH, _WIDTH)).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - began


def take_turns(
    turns: Mapping[str, Callable[[], float]], watch: Any, seconds: float
) -> dict[str, float]:
    """Call functions of KINDS in changing order, which return their seconds; compare medians.

    `watch` is that of the watched calls.
    """
    times: dict[str, list[float]] = {kind: [] for kind in turns}
    draw, ends, spent_s = random.Random(len(turns)), time.monotonic() + seconds, 0.0
    for number in count():
        if number == _WARMUP:
            spent_s = watch.spent_s
        for kind in draw.sample([*turns], len(turns)):
            elapsed_s = turns[kind]()
            if number >= _WARMUP:
                times[kind].append(elapsed_s)
        if number % _WARMUP == 0:
            is_over = torch.tensor([time.monotonic() > ends])
            dist.broadcast(is_over, 0)
            if is_over and number:
                break
    off_s, again_s, watched_s = (statistics.median(times[kind]) for kind in KINDS)
    agreeing = (watch.spent_s - spent_s) / sum(times["watched"])
    return {
        "calls": len(times["off"]),
        "off_us": off_s * 1e6,
        "again_us": again_s * 1e6,
        "watched_us": watched_s * 1e6,
        "noise": again_s / off_s,
        "agreeing": agreeing,
        "ratio": watched_s / off_s + agreeing,
    }


if __name__ == "__main__":
    main()
