"""What on_fault="replan" costs as long as nothing breaks: a communicator with it and one without.

    torchrun --nproc-per-node 4 benchmarks/carry_on_cost.py PLAN [-b 4K] [-e 16M]

Both send messages over gloo by the same plan and take turns; times are medians of the slowest rank.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from harness import Table, make_parser

from topoplan import Communicator
from topoplan.synth.sizes import parse_size

COLUMNS = (
    ("bytes", "bytes", ">10"), ("raise_us", "raise us", ">10.0f"),
    ("replan_us", "replan us", ">10.0f"), ("ratio", "ratio", ">6.2f"),
)  # fmt: skip
_CALLS, _WARMUP = 60, 5


def main() -> None:
    """Print a row for each size."""
    parser = make_parser(__doc__)
    parser.add_argument("plan")
    parser.add_argument("-b", dest="first", default="4K")
    parser.add_argument("-e", dest="last", default="16M")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
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


if __name__ == "__main__":
    main()
