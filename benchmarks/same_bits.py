"""How many elements differ between a tensor reduced whole and in pieces, and what plans without
that cost.

    python -m benchmarks same_bits               all of it: ranks, replay, cost (some minutes on 2
                                                 cores)
    python -m benchmarks same_bits --only ranks  gloo, a usual plan and a reproducible one on 4 real
                                                 ranks
    python -m benchmarks same_bits --only replay generated cases: elements whose bits are not those
                                                 of the plan's bracketing
    python -m benchmarks same_bits --only cost   the reproducible plan beside the best one, machine
                                                 by machine

A case of the replay is a machine, one of its plan's schedules, a segmentation and a size; all
ranks' programs are played in float32, and every element is compared with its contributions added up
in the bracketing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Table, make_parser

if TYPE_CHECKING:
    from topoplan.synth.extras.reproducible.bracket import Bracket

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
    ways: dict[str, Any] = {
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


def add_up(bracketing: str, contributions: Sequence[Any]) -> Any:
    """Return the sum of the ranks' arrays in a bracketing written by `find_bracketing`.

    `contributions` holds one array per rank; they are added in their own dtype.
    """
    from topoplan.synth.extras.reproducible.bracket import parse_bracket

    done: list[Any] = []
    rest: list[Bracket | None] = [parse_bracket(bracketing)]
    while rest:
        item = rest.pop()
        if item is None:
            second, first = done.pop(), done.pop()
            done.append(first + second)
        elif isinstance(item, int):
            done.append(contributions[item])
        else:
            rest += [None, item[1], item[0]]
    return done[0]


def replay(cases: int) -> tuple[int, int, int]:
    """Return the cases replayed, their elements, and the elements that differ."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from played import play

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


def count_differing(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the table of differing elements, on real ranks and replayed, and return its rows."""
    table = Table(
        [
            ("what", "what", "<34s"),
            ("cases", "cases", ">6d"),
            ("elements", "elements", ">9d"),
            ("differing", "differing", ">9d"),
            ("share", "share", ">7.2%"),
        ],
        as_json=args.json,
    )

    def add(what: str, elements: int, differing: int, **more: Any) -> None:
        row = {"what": what, "elements": elements, "differing": differing}
        table.add(row | {"share": differing / elements} | more)

    if args.only in (None, "ranks"):
        for name, share in compare_on_ranks(args.topology).items():
            what = f"{args.topology}, {RANKS} ranks: {name}"
            differing, is_kept = round(share * NUMEL), name.startswith("reproducible")
            add(what, NUMEL, differing, reproducible=is_kept)
    if args.only in (None, "replay"):
        cases, elements, wrong = replay(args.cases)
        add("replayed: reproducible plan", elements, wrong, cases=cases, reproducible=True)
    return table.rows


def add_costs(machines: list[str], *, as_json: bool) -> list[dict[str, Any]]:
    """Print the table of what reproducible plans cost, and return its rows."""
    table = Table(
        [
            ("topology", "", "<14s"),
            ("collective", "", "<15s"),
            ("best_GBps", "at 1 GiB: best", ">14.4g"),
            ("reproducible_GBps", "same", ">6.4g"),
            ("ratio", "ratio", ">6.3f"),
            ("bound_GBps", "bound", ">7.4g"),
            ("best_limit_GBps", "at most: best", ">13.4g"),
            ("reproducible_limit_GBps", "same", ">6.4g"),
            ("best_64K_us", "us at 64K: best", ">15.4g"),
            ("reproducible_64K_us", "same", ">6.4g"),
            ("reproducible_s", "s", ">5.1f"),
        ],
        as_json=as_json,
    )
    for topology in machines:
        for name in ADDING:
            row = compare_cost(topology, name)
            table.add(row | {"ratio": row["reproducible_GBps"] / row["best_GBps"]})
    return table.rows


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=("ranks", "replay", "cost", "one-rank"))
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--topology", default="ring:4", help="of the plans on ranks (4 GPUs)")
    parser.add_argument("machines", nargs="*", default=MACHINES)
    args = parser.parse_args()
    if args.only == "one-rank":
        run_rank()
        return 0
    rows = [] if args.only == "cost" else count_differing(args)
    costs = []
    if args.only in (None, "cost"):
        costs = add_costs(args.machines, as_json=args.json)
    if args.json:
        print(json.dumps({"rows": rows, "pieces": PIECES, "costs": costs}, indent=1))
    return 1 if any(row["differing"] for row in rows if row["reproducible"]) else 0


if __name__ == "__main__":
    sys.exit(main())
