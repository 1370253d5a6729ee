"""Allreduce in shared memory beside gloo and Open MPI, taking turns in one group of processes.

    mpirun --oversubscribe -n 4 python -m benchmarks one_sided [-b 1K] [-e 64M] [--json]

Columns are MPI's own allreduce by mpi4py alone; gloo's through torch.distributed; a Communicator,
and the backend "topo" through torch.distributed, both with executor="one-sided"; one memcpy of the
buffer by each rank, at the same time; and the flat schedules played alone, called from Python. A
time is the slowest rank's from a barrier on, the median over the turns.

--hosts 2 makes the ranks pass for those of two hosts, each with its share of the cores. Columns are
then gloo's allreduce; Communicators with executor="point-to-point" and "one-sided", each with the
winner of its race; and the latter's schedule, by its player alone and as messages over gloo.

--check plays random sizes, dtypes and collectives beside busy processes instead (with --hosts on
pretended hosts), and counts wrong results and calls above 50 ms.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from harness import make_parser
from mpi import make_player, time_in_turns

from topoplan import Communicator, Plan, backend_options, synthesize
from topoplan.runtime.candidates import MESSAGES, Candidate
from topoplan.runtime.extras.mpi.launched import join_mpi
from topoplan.runtime.ranks.transport import Transport
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.sizes import parse_size
from topoplan.topo.derived.hosts import join_cpu_hosts
from topoplan.topo.graph import Topology

TIMEOUT = timedelta(seconds=30)
# Calls up to this size must take less than SLOW_S beside busy processes.
MAX_CHECKED_BYTES = 256 << 10
SLOW_S = 0.05
CHECKED_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.int64,
)


def main() -> None:
    """Measure or check, and print the result on rank 0."""
    parser = make_parser(__doc__)
    parser.add_argument("-b", default="1K", help="smallest size")
    parser.add_argument("-e", default="64M", help="largest size")
    parser.add_argument("--hosts", type=int, help="pretended hosts of equal numbers of ranks")
    parser.add_argument("--check", type=int, metavar="CALLS", help="calls beside busy processes")
    parser.add_argument("--busy", type=int, default=4, help="busy processes (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="of the calls that --check makes")
    args = parser.parse_args()
    if not join_mpi():
        raise SystemExit("start it by mpirun")
    torch.set_num_threads(1)
    if args.hosts:
        pretend_hosts(args.hosts)
    with tempfile.TemporaryDirectory(prefix="topoplan-") as cache:
        if args.check:
            check(args)
        elif args.hosts:
            measure_hosts(args, cache)
        else:
            measure(args, cache)


def share_plan(collective: str, machine: str | Topology) -> Plan:
    """Return rank 0's plan on all ranks."""
    plans: list[Plan | None] = [None]
    if dist.get_rank() == 0:
        plans = [synthesize(collective, machine)]
    dist.broadcast_object_list(plans, 0)
    assert plans[0] is not None
    return plans[0]


def measure(args: argparse.Namespace, cache: str) -> None:
    """Print a row for each size."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    plan = share_plan("allreduce", f"switch:{world}")
    dist.destroy_process_group()
    options = backend_options(plans=plan, cache=cache, least_bytes=0, executor="one-sided")
    dist.init_process_group("topo", pg_options=options, timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo")
    transport = Transport(None, TIMEOUT, "mpi")
    channel = transport.links.channel
    assert channel is not None
    raced = Communicator(plan, Transport(None, TIMEOUT), cache=cache, executor="one-sided")
    candidates = raced.dispatcher.candidates
    flat = [
        x
        for other in candidates.others
        for x in other.list_candidates(candidates.sent)
        if x.strategy in ("direct", "one-shot")
    ]
    rows = []
    size = parse_size(args.b)
    while size <= parse_size(args.e):
        # Tensors of their own: what another process has read takes longer to write.
        own, over_gloo, played, through, source, target = (torch.zeros(size // 4) for _ in range(6))
        array = own.numpy()
        ways: dict[str, Callable[[], object]] = {
            "MPI's own": lambda array=array: channel.comm.Allreduce(channel.mpi.IN_PLACE, array),
            "gloo": lambda x=over_gloo: dist.all_reduce(x, group=gloo),
            "Communicator": lambda x=played: raced.allreduce(x),
            "backend": lambda x=through: dist.all_reduce(x),
            "memcpy": lambda x=source, target=target: target.copy_(x),
        }
        for candidate in flat:
            ways[candidate.strategy] = make_player(raced, candidate, size // 4)
        row: dict[str, object] = {"size_bytes": size, "ranks": world}
        row |= dict(zip(ways, time_in_turns(list(ways.values()), transport), strict=True))
        choice = raced.choice(size)
        row["used"] = None if choice is None else choice.label
        rows.append(row)
        size *= 4
    if rank == 0:
        print_rows(rows, args.json, channel.what, world)
    dist.destroy_process_group()


def find_host(hosts: int, rank: int, world: int) -> int:
    """Return the number of a rank's pretended host."""
    return rank * hosts // world


def pretend_hosts(hosts: int) -> None:
    """Make this rank pass for one of its host, with that host's share of the cores."""
    host = find_host(hosts, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    cores = sorted(os.sched_getaffinity(0))
    share = cores[host * len(cores) // hosts : (host + 1) * len(cores) // hosts]
    os.sched_setaffinity(0, share or cores)
    os.environ["TOPOPLAN_HOST"] = f"host{host}"


def measure_hosts(args: argparse.Namespace, cache: str) -> None:
    """Print a row for each size, on pretended hosts."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank, world = dist.get_rank(), dist.get_world_size()
    host_of = [find_host(args.hosts, other, world) for other in range(world)]
    names = [f"host{other}" for other in range(args.hosts)]
    plan = share_plan("allreduce", join_cpu_hosts(names, host_of))
    clock = Transport(None, TIMEOUT, "mpi")
    transport = Transport(None, TIMEOUT)
    sent, shared = (
        Communicator(plan, transport, cache=cache, executor=executor)
        for executor in ("point-to-point", "one-sided")
    )
    rows = []
    size = parse_size(args.b)
    while size <= parse_size(args.e):
        x, y, z = (torch.zeros(size // 4) for _ in range(3))
        shared.allreduce(z)
        choice = shared.choice(size)
        assert choice is not None and choice.own.runner != MESSAGES
        own = choice.own
        ways: dict[str, Callable[[], object]] = {
            "stock": lambda x=x: dist.all_reduce(x),
            "messages": lambda x=y: sent.allreduce(x),
            "within hosts": lambda x=z: shared.allreduce(x),
            "its player": make_player(shared, own, size // 4),
            "as messages": make_player(shared, Candidate(own.schedule), size // 4),
        }
        row: dict[str, object] = {"size_bytes": size, "ranks": world, "hosts": args.hosts}
        row |= dict(zip(ways, time_in_turns(list(ways.values()), clock), strict=True))
        row["used"] = own.label
        rows.append(row)
        size *= 4
    if rank == 0:
        print_rows(rows, args.json, f"gloo, {args.hosts} hosts", world)
    dist.destroy_process_group()


def print_rows(rows: list[dict[str, object]], as_json: bool, what: str, ranks: int) -> None:
    """Print the rows as a table of microseconds, or as JSON."""
    if as_json:
        print(json.dumps({"mpi": what, "ranks": ranks, "rows": rows}))
        return
    ways = [key for key in rows[0] if key not in ("size_bytes", "ranks", "hosts", "used")]
    print(f"# {what}, {ranks} ranks; microseconds, and in brackets as a part of {ways[0]}'s time")
    print(f"{'bytes':>10} " + " ".join(f"{way:>18}" for way in ways) + "  used")
    for row in rows:
        own = float(str(row[ways[0]]))
        cells = " ".join(
            f"{float(str(row[way])):>10.1f} ({float(str(row[way])) / own:5.2f})" for way in ways
        )
        print(f"{row['size_bytes']:>10} {cells}  {row['used']}")


def check(args: argparse.Namespace) -> None:
    """Make random calls beside busy processes; print how many were wrong or slow."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    communicators = {
        name: Communicator(
            share_plan(name, f"switch:{world}"), None, TIMEOUT, "plan", executor="one-sided"
        )
        for name in COLLECTIVES
    }
    busy = []
    if rank == 0:
        busy = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)
        ]
    # A full collection of what torch and the plans left behind takes up to 180 ms here, and is
    # Python's, not the call's.
    gc.collect()
    gc.freeze()
    dist.barrier()
    order, wrong, times_s = random.Random(args.seed), 0, list[float]()
    try:
        for _ in range(args.check):
            name, dtype = order.choice(COLLECTIVES), order.choice(CHECKED_DTYPES)
            part = order.randint(1, int(MAX_CHECKED_BYTES / world / dtype.itemsize) ** 2) ** 0.5
            wrong += play_and_check(communicators[name], name, dtype, int(part), times_s)
    finally:
        for process in busy:
            process.kill()
    times_s.sort()
    mine = torch.tensor([wrong, sum(t > SLOW_S for t in times_s)])
    dist.all_reduce(mine)
    if rank == 0:
        calls, slow = f"{args.check} calls, {world} ranks", mine[1].item() / len(times_s) / world
        median_us, longest_ms = times_s[len(times_s) // 2] * 1e6, times_s[-1] * 1e3
        print(
            f"{calls}, {args.busy} busy processes: {mine[0].item()} wrong, {slow:.4%} above "
            f"{SLOW_S * 1e3:.0f} ms, median {median_us:.0f} us, longest {longest_ms:.1f} ms"
        )
    dist.destroy_process_group()


def play_and_check(
    communicator: Communicator, name: str, dtype: torch.dtype, part: int, times_s: list[float]
) -> bool:
    """Make one call, note its seconds, and return whether its result is wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    root = rank == 0
    ramp = torch.arange(part) % 5
    mine = (ramp + rank).to(dtype)
    whole = torch.cat([ramp + of for of in range(world)]).to(dtype)
    row = torch.cat([ramp + to + rank for to in range(world)]).to(dtype)
    total = sum(range(world))
    x = row.clone()
    every, out = torch.zeros_like(row), torch.zeros_like(mine)
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: communicator.allreduce(x),
        "reduce": lambda: communicator.reduce(x),
        "broadcast": lambda: communicator.broadcast(x),
        "allgather": lambda: communicator.allgather(every, mine),
        "gather": lambda: communicator.gather(every if root else None, mine),
        "reduce-scatter": lambda: communicator.reduce_scatter(out, row),
        "scatter": lambda: communicator.scatter(out, whole if root else None),
        "alltoall": lambda: communicator.alltoall(every, row),
    }
    began = time.perf_counter()
    calls[name]()
    times_s.append(time.perf_counter() - began)
    sums = torch.cat([(ramp + to) * world + total for to in range(world)]).to(dtype)
    got, wanted = {
        "allreduce": (x, sums),
        "reduce": (x, sums if root else x),
        "broadcast": (x, whole),
        "allgather": (every, whole),
        "gather": (every, whole if root else every),
        "reduce-scatter": (out, ((ramp + rank) * world + total).to(dtype)),
        "scatter": (out, mine),
        "alltoall": (every, torch.cat([ramp + of + rank for of in range(world)]).to(dtype)),
    }[name]
    return not torch.equal(got, wanted)


if __name__ == "__main__":
    main()
