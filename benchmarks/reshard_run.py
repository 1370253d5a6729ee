"""Move tensors between meshes, and uneven parts between ranks.

    python -m benchmarks reshard_run                        everything (about 15 minutes on 2 cores)
    python -m benchmarks reshard_run --cases pairs --runs 200 --results pairs.jsonl
    python -m benchmarks reshard_run --cases serve,hosts,dgx1 --rate 40Mbit

pairs: random pairs of placements on 8 ranks over gloo, 50 at a time; what arrives has to equal
`DTensor.full_tensor()` bit for bit, and what torch.distributed.checkpoint loads. memory: what the
resident memory grows by while 64 MB move, in multiples of the largest shard. The others are
emulated (root and iproute2, see topo-emulate). serve: 16 MB from 4 hosts that train to 4 that
serve, each with an idle rank whose link relays; against alltoall with parts padded to the largest.
hosts, dgx1: an alltoall in which one rank gets ten times as much, by the backend, against gloo's
all_to_all_single and a padded alltoall. "of bound" is the single-path bound's time over the median
time. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Results, Table, list_of, make_parser, run_ranks

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
CASES = ["pairs", "memory", "serve", "hosts", "dgx1"]
# Random pairs of one start of the ranks.
_AT_ONCE = 50
COLUMNS = [
    ("case", "case", "<7"),
    ("seed", "seed", ">5"),
    ("shard_multiple", "x shard", ">8.2f"),
    ("plan_us", "us", ">10.0f"),
    ("bound_fraction", "of bound", ">8.3f"),
    ("stock_us", "stock us", ">10.0f"),
    ("padded_us", "padded us", ">10.0f"),
    ("wrong", "wrong", ">5"),
]


def main() -> int:
    """Print the table; return the exit code."""
    if sys.argv[1:2] == ["rank"]:
        row = RANKS[sys.argv[2]](*sys.argv[3:])
        # Emulated ranks share their output, where lines of several ranks would mix.
        if sys.argv[2] in ("pairs", "memory") or os.environ["RANK"] == "0":
            print(json.dumps(row))
        return 0
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=list_of(CASES), default=CASES)
    parser.add_argument("--seed", type=int, default=1, help="of the first pair")
    parser.add_argument("--runs", type=int, default=200, help="pairs (default: 200)")
    parser.add_argument("--rate", default="40Mbit", help="of the slowest link")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    args = parser.parse_args()
    results, table = Results(args.results, ("case", "seed")), Table(COLUMNS, as_json=args.json)
    for case in args.cases:
        is_pairs = case == "pairs"
        seeds = range(args.seed, args.seed + args.runs, _AT_ONCE) if is_pairs else [args.seed]
        for seed in seeds:
            if not results.has(case=case, seed=seed):
                count = min(_AT_ONCE, args.seed + args.runs - seed)
                results.add({"case": case, "seed": seed, **measure(case, seed, count, args.rate)})
    for row in results.rows:
        table.add(row)
    table.end()
    return int(any(row["wrong"] for row in results.rows))


def measure(case: str, seed: int, count: int, rate: str) -> dict[str, Any]:
    """Run the ranks of a case, and return their figures."""
    if case in ("pairs", "memory"):
        variables = {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}
        printed = run_ranks(__file__, ["rank", case, str(seed), str(count)], 8, 900, variables)
        rows = [json.loads(text.splitlines()[-1]) for text in printed]
        return dict(max(rows, key=lambda row: row.get("shard_multiple", 0)))
    with tempfile.TemporaryDirectory() as folder:
        topology = {"hosts": "two", "dgx1": "dgx1", "serve": "eight"}[case]
        if topology != "dgx1":
            path = Path(folder) / "topology.json"
            path.write_text(join_hosts(*((2, 4) if case == "hosts" else (8, 2))), encoding="utf-8")
            topology = str(path)
        command = [
            sys.executable,
            "-m",
            "topoplan.cli.extras.emulate",
            topology,
            "--slowest",
            rate,
            "--",
        ]
        emulated = subprocess.run(
            [*command, sys.executable, __file__, "rank", case, str(seed)],
            check=False, capture_output=True, text=True,
            env={**os.environ, "TOPOPLAN_CACHE": str(Path(folder) / "cache")},
        )  # fmt: skip
        if emulated.returncode:
            raise SystemExit(emulated.stderr[-3000:])
        line = next(x for x in emulated.stdout.splitlines() if '"plan_us"' in x)
        return dict(json.loads(line[line.index("{") :]))


def join_hosts(hosts: int, gpus: int) -> str:
    """Return a machine of hosts whose GPUs all have a link to a switch, and fast ones inside."""
    from topoplan.topo.devices import Device, Link
    from topoplan.topo.graph import Topology

    devices, links = [Device("switch", "switch")], []
    for host in range(hosts):
        names = [f"h{host}g{gpu}" for gpu in range(gpus)]
        devices += [Device(name) for name in names]
        for name in names:
            pairs = [(name, "switch", 1), *((name, other, 4) for other in names if other > name)]
            links += [Link(a, b, GBps) for x, y, GBps in pairs for a, b in ((x, y), (y, x))]
    return Topology(f"{hosts}x{gpus}", tuple(devices), tuple(links)).dumps()


# On ranks


def check_pairs(seed: str, count: str) -> dict[str, Any]:
    """Move random pairs, one by one and as a state dict."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from ranks import resharding

    import topoplan

    join()
    pairs = resharding.random_pairs_equal_full_tensor(int(seed), int(count))
    before = {str(number): tensor for number, (tensor, _) in pairs.items()}
    after = {str(number): tensor for number, (_, tensor) in pairs.items()}
    for tensor in after.values():
        tensor.to_local().zero_()
    wrong = 0
    topoplan.reshard_state_dict(before, after)
    whole = {n: t for n, t in before.items() if not any(p.is_partial() for p in t.placements)}
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    loaded = {name: resharding.lay_like(after[name]) for name in whole}
    dcp.save(whole, checkpoint_id=folder[0])
    dcp.load(loaded, checkpoint_id=folder[0])
    for name in before:
        resharding.check_equal(before[name], after[name], name)
    for name in whole:
        wrong += not torch.equal(loaded[name].to_local(), after[name].to_local())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return {"wrong": wrong, "pairs": int(count), "loaded": len(whole)}


def measure_memory(seed: str, count: str) -> dict[str, Any]:
    """Move 64 MB between placements that differ, and return the growth of resident memory.

    `seed` and `count`, which other measurements take, are not used.
    """
    import torch
    import torch.distributed as dist
    from ranks import resharding
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Partial, Replicate, Shard

    import topoplan

    join()
    world = dist.get_world_size()
    flat = DeviceMesh("cpu", torch.arange(world))
    halves = [DeviceMesh("cpu", torch.arange(world // 2) + i * world // 2) for i in range(2)]
    grid = DeviceMesh("cpu", torch.arange(world).view(2, -1))
    full, multiples = torch.rand(4096, 4096), {}
    for name, source, destination in [
        ("rows to columns", (flat, [Shard(0)]), (flat, [Shard(1)])),
        ("half to half", (halves[0], [Shard(0)]), (halves[1], [Shard(1)])),
        ("half to all", (halves[0], [Shard(0)]), (grid, [Replicate(), Shard(1)])),
        ("sums", (grid, [Partial(), Shard(0)]), (flat, [Shard(1)])),
    ]:
        before = resharding.lay(full, source)
        after = resharding.lay_like(resharding.lay(full, destination))
        shard = max(t.to_local().nbytes for t in (before, after))
        largest = torch.tensor([shard])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        plan = topoplan.reshard(
            (source[0], source[1]), (destination[0], destination[1]), full.shape, full.dtype
        )
        Path("/proc/self/clear_refs").write_text("5")
        start_bytes = resharding.read_status("VmRSS")
        plan.run(before, after)
        growth = resharding.read_status("VmHWM") - start_bytes
        multiples[name] = growth / largest.item()
    return {"wrong": 0, "shard_multiple": max(multiples.values()), "multiples": multiples}


def measure_serve(seed: str) -> dict[str, Any]:
    """Move a tensor from the first ranks of 4 hosts to those of 4 others, which get all of it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard

    import topoplan
    from topoplan.runtime.ranks.launch import EMULATED
    from topoplan.runtime.ranks.race_timing import MAX_CALLS

    join()
    rank, world = dist.get_rank(), dist.get_world_size()
    training, serving = (list(range(first, first + 8, 2)) for first in (0, 8))
    shape = (2048, 2048)
    full = torch.rand(shape, generator=torch.Generator().manual_seed(int(seed)))
    plan = topoplan.reshard(
        (training, [Shard(0)]), (serving, [Replicate()]), shape, full.dtype, os.environ[EMULATED]
    )
    own = full.chunk(4)[training.index(rank)].clone() if rank in training else None
    got = torch.zeros(shape) if rank in serving else None
    for _ in range(MAX_CALLS):  # until the trial of candidates has ended
        plan.run(own, got)
    plan_s = time_calls(lambda: plan.run(own, got), 5)
    wrong = got is not None and not torch.equal(got, full)
    part = shape[0] // 4
    padded = torch.zeros(world * part, shape[1]), torch.zeros(world * part, shape[1])
    padded_s = time_calls(lambda: dist.all_to_all_single(*padded), 1)
    assert plan.plan is not None
    bound_s = float(plan.plan.bound_one_way.s_per_GB) * full.nbytes / 1e9
    return {**count_wrong(wrong=wrong), **spell(plan_s, bound_s, padded_s=padded_s)}


def measure_alltoall(seed: str) -> dict[str, Any]:
    """Make an alltoall in which one rank gets ten times as much, in three ways."""
    import torch
    import torch.distributed as dist

    import topoplan
    from topoplan.runtime.backend.process_group import TopoGroup
    from topoplan.runtime.ranks.launch import EMULATED

    world, width = int(os.environ["WORLD_SIZE"]), 1024
    sizes = [[20 if to == int(seed) % world else 2 for to in range(world)] for _ in range(world)]
    scale = 32  # parts of 256 KiB, of 2.5 MiB for one rank
    sizes = [[size * scale for size in row] for row in sizes]
    options = topoplan.backend_options(plans=os.environ[EMULATED], expected_splits=sizes)
    dist.init_process_group("topo", pg_options=options)
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    give, get = sizes[rank], [row[rank] for row in sizes]
    rows = torch.cat([torch.full((n,), 100.0 * rank + to) for to, n in enumerate(give)])
    given, got = rows[:, None].repeat(1, width), torch.zeros(sum(get), width)

    def call(group: Any = None) -> None:
        dist.all_to_all_single(got, given, get, give, group=group)

    for _ in range(30):  # until the race is settled
        call()
        group = dist.group.WORLD
        assert isinstance(group, TopoGroup)
        one = group.communicators.get(("alltoallv", None, "cpu"))
        numel = sum(map(sum, sizes)) * width
        if one is not None and one.choice(numel * 4) is not None:
            break
    plan_s, stock_s = [], []
    for _ in range(5):
        got.zero_()
        plan_s.append(time_calls(call, 1))
        expected = torch.cat([torch.full((n,), 100.0 * of + rank) for of, n in enumerate(get)])
        wrong = not torch.equal(got, expected[:, None].expand(-1, width))
        stock_s.append(time_calls(lambda: call(gloo), 1))
    most = max(map(max, sizes))
    padded = torch.zeros(world * most, width), torch.zeros(world * most, width)
    padded_s = time_calls(lambda: dist.all_to_all_single(*padded, group=gloo), 2)
    assert one is not None
    bound_s = float(one.plan.bound_one_way.s_per_GB) * numel * 4 / 1e9
    choice = one.choice(numel * 4)
    return {
        "uses": "stock" if choice is None or choice.schedule is None else choice.schedule.label,
        **count_wrong(wrong=wrong),
        **spell(
            statistics.median(plan_s),
            bound_s,
            stock_s=statistics.median(stock_s),
            padded_s=padded_s,
        ),
    }


def join() -> None:
    """Make the default group, over gloo."""
    import torch.distributed as dist

    dist.init_process_group("gloo")


def time_calls(call: Callable[[], object], runs: int) -> float:
    """Return the median seconds of the slowest rank, after a call that is not timed.

    Without that one, calls that take turns would be those of memory that the other has not used
    for seconds: some virtual machines need 0.3 s then to copy 16 MB.
    """
    import torch
    import torch.distributed as dist

    call()
    times = []
    for _ in range(runs):
        dist.barrier()
        began = time.monotonic()
        call()
        slowest = torch.tensor([time.monotonic() - began])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(slowest.item())
    return statistics.median(times)


def count_wrong(*, wrong: bool) -> dict[str, Any]:
    """Return the number of ranks with wrong results."""
    import torch
    import torch.distributed as dist

    count = torch.tensor([int(wrong)])
    dist.all_reduce(count)
    return {"wrong": int(count)}


def spell(plan_s: float, bound_s: float, **others_s: float) -> dict[str, Any]:
    """Return the fields of a row for times in seconds."""
    others = {f"{name.removesuffix('_s')}_us": s * 1e6 for name, s in others_s.items()}
    return {"plan_us": plan_s * 1e6, "bound_fraction": bound_s / plan_s, **others}


RANKS: dict[str, Callable[..., dict[str, Any]]] = {
    "pairs": check_pairs,
    "memory": measure_memory,
    "serve": measure_serve,
    "hosts": measure_alltoall,
    "dgx1": measure_alltoall,
}

if __name__ == "__main__":
    sys.exit(main())
