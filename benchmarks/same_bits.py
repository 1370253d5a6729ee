"""How many elements differ between a tensor reduced whole and in pieces, and what plans without
that cost.

    python benchmarks/same_bits.py               all of it: ranks, replay, cost (some minutes on 2
                                                 cores)
    python benchmarks/same_bits.py --only ranks  gloo, a usual plan and a reproducible one on 4 real
                                                 ranks
    python benchmarks/same_bits.py --only replay generated cases: elements whose bits are not those
                                                 of the plan's bracketing
    python benchmarks/same_bits.py --only cost   the reproducible plan beside the best one, machine
                                                 by machine

A case of the replay is a machine, one of its plan's schedules, a segmentation and a size; all
ranks' programs are played in float32, and every element is compared with its contributions added up
in the bracketing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import make_parser

RANKS = 4
NUMEL = 1_000_003
PIECES = (1, 1000, 4096, 65_537, 300_000)
MACHINES = ("dgx1", "dgx-a100", "dgx-a100:2", "dgx-h100", "pcie-2socket", "mesh:3x3", "torus:4x4")
REPLAYED = ("switch:4", "ring:4", "mesh:2x2", "switch:5", "path:3", "pcie-2socket", "dgx1")
ADDING = ("allreduce", "reduce-scatter", "reduce")
LARGE_BYTES = 1 << 30


def make_plan(topology: str, collective: str, *, reproducible: bool) -> Any:
    from planned import synthesize

    from topoplan.synth.ir.collective import collective_on
    from topoplan.topo.loader.resolve import load_for_planning

    machine = load_for_planning(topology)[0]
    return synthesize(collective_on(collective, machine), machine, reproducible=reproducible).plan


def compare_on_ranks(topology: str) -> dict[str, float]:
    """Return the share of differing elements for gloo, a usual plan and a reproducible one."""
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        for kind in (False, True):
            make_plan(topology, "allreduce", reproducible=kind).save(Path(folder) / f"{kind}.json")
        common = {
            "WORLD_SIZE": str(RANKS),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "SAME_BITS": folder,
        }
        command = [sys.executable, __file__, "--only", "one-rank"]
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **common, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit("a rank failed; see above")
    found: dict[str, float] = json.loads(outputs[0])
    return found


def run_rank() -> None:
    import torch
    import torch.distributed as dist

    from topoplan import Communicator

    folder, rank = Path(os.environ["SAME_BITS"]), int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))
    ways = {
        "gloo": dist.all_reduce,
        "usual plan": Communicator(folder / "False.json", choose="model").allreduce,
        "reproducible plan": Communicator(folder / "True.json", choose="same-bits").allreduce,
    }
    shares = {}
    for name, reduce in ways.items():
        whole = values.clone()
        reduce(whole)
        differs = torch.zeros(NUMEL, dtype=torch.bool)
        for piece in PIECES:
            pieces = values.clone()
            # The smallest pieces are too many to reduce one by one over all of the tensor.
            for low in range(0, min(NUMEL, 400 * piece), piece):
                reduce(pieces[low : low + piece])
            reached = min(NUMEL, 400 * piece)
            differs[:reached] |= pieces[:reached].view(torch.int32) != whole[:reached].view(
                torch.int32
            )
        shares[name] = float(differs.double().mean())
    if rank == 0:
        print(json.dumps(shares))
    dist.barrier()
    dist.destroy_process_group()


def replay(cases: int) -> tuple[int, int, int]:
    """Return the cases replayed, their elements, and the elements that differ."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from played import add_up, play

    from topoplan.runtime.program.lowering import lower
    from topoplan.synth.cost.segmentation import families

    plans = [
        make_plan(topology, name, reproducible=True) for topology in REPLAYED for name in ADDING
    ]
    variants = [
        (plan, schedule)
        for plan in plans
        for family in families(plan.schedules, plan.router)
        for schedule in (*family.stepwise, *family.piped)
        if schedule.segments <= 16
    ]
    chance, elements, differing = random.Random(1), 0, 0
    for case in range(cases):
        plan, schedule = chance.choice(variants)
        n, parted = plan.collective.ranks, plan.collective.name == "reduce-scatter"
        numel = n * chance.randrange(1, 300) if parted else chance.randrange(1, 2400)
        data = np.random.default_rng(case)
        inputs = [
            (data.normal(size=numel) * 2.0 ** data.integers(-8, 8, numel)).astype(np.float32)
            for _ in range(n)
        ]
        programs = [lower(schedule, rank, numel, batched=case % 2 == 0) for rank in range(n)]
        outputs = play(programs, inputs, not parted, numel // n, case)
        wanted = add_up(plan.bracketing, inputs).view(np.int32)
        for rank in range(n) if plan.collective.root is None else [plan.collective.root]:
            part = wanted[rank * numel // n : (rank + 1) * numel // n] if parted else wanted
            differing += int((outputs[rank].view(np.int32) != part).sum())
            elements += len(part)
    return cases, elements, differing


def compare_cost(topology: str, collective: str) -> dict[str, Any]:
    """Return predicted GB/s at 1 GiB and us at 64 KiB of the best plan and of the reproducible
    one.
    """
    out: dict[str, Any] = {"topology": topology, "collective": collective}
    for kind in (False, True):
        started = time.monotonic()
        plan = make_plan(topology, collective, reproducible=kind)
        large, small = plan.entry_for(LARGE_BYTES), plan.entry_for(1 << 16)
        name = "reproducible" if kind else "best"
        out[f"{name}_GBps"] = LARGE_BYTES / plan.time_s(large, LARGE_BYTES) / 1e9
        out[f"{name}_limit_GBps"] = max(float(plan.limit_GBps(entry)) for entry in plan.entries)
        out[f"{name}_64K_us"] = plan.time_s(small, 1 << 16) * 1e6
        out[f"{name}_s"] = time.monotonic() - started
        out["bound_GBps"], out["bracketing"] = float(plan.bound_one_way.algbw_GBps), plan.bracketing
    return out


def print_cost(rows: list[dict[str, Any]]) -> None:
    print(f"{'':<30}    GB/s at 1 GiB            GB/s at most            us at 64 KiB      s")
    print(f"{'':<30}    best   same  ratio    bound   best   same      best   same")
    for row in rows:
        print(
            f"{row['topology']:<14} {row['collective']:<15} {row['best_GBps']:>7.4g} "
            f"{row['reproducible_GBps']:>6.4g} "
            f"{row['reproducible_GBps'] / row['best_GBps']:>6.3f}  {row['bound_GBps']:>7.4g} "
            f"{row['best_limit_GBps']:>6.4g} "
            f"{row['reproducible_limit_GBps']:>6.4g}   {row['best_64K_us']:>7.4g} "
            f"{row['reproducible_64K_us']:>6.4g} "
            f"{row['reproducible_s']:>6.1f}",
            flush=True,
        )


def main() -> int:
    parser = make_parser(__doc__, json=False)
    parser.add_argument("--only", choices=("ranks", "replay", "cost", "one-rank"))
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--topology", default="ring:4", help="of the plans on ranks (4 GPUs)")
    parser.add_argument("machines", nargs="*", default=MACHINES)
    args = parser.parse_args()
    if args.only == "one-rank":
        run_rank()
        return 0
    differing = 0
    if args.only in (None, "ranks"):
        shares = compare_on_ranks(args.topology)
        print(
            f"{args.topology}, {RANKS} ranks over gloo, {NUMEL} float32, whole and in pieces of "
            f"{PIECES}:"
        )
        for name, share in shares.items():
            print(f"  {name:<18} {share:>7.2%} of the elements differ")
        differing += round(shares["reproducible plan"] * NUMEL)
    if args.only in (None, "replay"):
        cases, elements, wrong = replay(args.cases)
        print(f"replayed: {cases} cases, {elements} elements, {wrong} differing", flush=True)
        differing += wrong
    if args.only in (None, "cost"):
        print_cost([compare_cost(topology, name) for topology in args.machines for name in ADDING])
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
