"""The GPU kernel without a GPU.

    python -m benchmarks kernels [compile] [replay] [interpret]

compile    for each target, dtype and reduction: registers, and those spilled to memory; fails if
           float32 or bfloat16 spill. `parked` are scalar registers that AMD's compiler moves to
           vector registers: those of the loop over slices, not of the loops inside (needs triton)
replay     calls of all schedules of the plans for boxes of up to 8 GPUs, in memory with weak
           ordering: random order of ranks and sizes
interpret  calls of the same plans on real processes, by Triton's interpreter (needs triton)

A second start with --results continues where the first ended. Averages are sums that are divided,
and compiled with sums.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from harness import Results, Table, list_of, make_parser, run_ranks
from one_sided_replay import OneSidedReplay

from topoplan.runtime.extras.one_sided.instructions import Mode, OneSidedProgram
from topoplan.runtime.extras.one_sided.lowering import lower_one_sided
from topoplan.runtime.program.layout import IN_PLACE
from topoplan.synth.plan import Plan
from topoplan.synth.planner.api import synthesize
from topoplan.topo.errors import VerificationError

if TYPE_CHECKING:
    from topoplan.runtime.extras.kernels.memory import Region

PARTS = ("compile", "replay", "interpret")
TARGETS = ("cuda:80", "cuda:90", "cuda:120", "hip:gfx942")
DTYPES = ("float32", "bfloat16", "float16", "int32", "int64")
REDUCTIONS = ("sum", "prod", "max", "min")
# Those that must not spill.
UNSPILLED = ("float32", "bfloat16")
SMI = Path(__file__).resolve().parents[2] / "shared/machines/smi"
BOXES = (
    "dgx1",
    "pcie-2socket",
    "pcie-4bridged",
    "mi300x",
    "switch:8",
    "09-pcie-8gpu-mlx5-2socket_lattice-quda-669.txt",
    "13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt",
)
# Four GPUs of PCIe, bridged in pairs, two on each socket.
BRIDGED = "pcie-4bridged"
BRIDGED_MATRIX = """
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     0-31            0
GPU1    NV4      X      SYS     SYS     0-31            0
GPU2    SYS     SYS      X      NV4     32-63           1
GPU3    SYS     SYS     NV4      X      32-63           1
"""
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall")
# Elements of each rank's part of a buffer: none, fewer than a vector, and several slices.
BLOCKS = (1, 5, 16, 63, 257, 1000)
CALLS_IN_A_ROW = 10
# Room for a slot of each of the thousand messages that a schedule has at most there.
WINDOW_NUMEL = 1 << 16
LIMIT_S = 7200.0


def main() -> None:
    """Run the parts that were asked for; exit 1 if a bar is missed."""
    if "--rank" in sys.argv:
        play_rank(Path(sys.argv[-1]))
        return
    parser = make_parser(__doc__)
    parser.add_argument("parts", nargs="*", help="some of " + ", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=1, help="of sizes, schedules and orders")
    parser.add_argument("--runs", type=int, help="calls of a machine and collective (1000; 20)")
    parser.add_argument("--boxes", nargs="*", default=BOXES, help="presets or files instead")
    parser.add_argument("--collectives", type=list_of(COLLECTIVES), default=list(COLLECTIVES))
    parser.add_argument("--targets", type=list_of(TARGETS), default=list(TARGETS))
    parser.add_argument("--dtypes", type=list_of(DTYPES), default=list(DTYPES))
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    args = parser.parse_args()
    parts = args.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    results = Results(args.results, ("part", "what", "how", "op"))
    table = Table(
        [
            ("part", "part", "<9s"),
            ("what", "target or box", "<24.24s"),
            ("how", "dtype", "<14s"),
            ("op", "reduction", "<9s"),
            ("registers", "registers", ">9d"),
            ("spills", "spills", ">6d"),
            ("parked", "parked", ">6d"),
            ("calls", "calls", ">6d"),
            ("wrong", "wrong", ">5d"),
            ("seconds", "seconds", ">8.1f"),
        ],
        as_json=args.json,
    )
    for row in results.rows:
        table.add(row)
    is_fine = True
    if "compile" in parts:
        compile_all(args, results, table)
    if "replay" in parts:
        replay_all(args, results, table)
    if "interpret" in parts:
        interpret_all(args, results, table)
    for row in results.rows:
        spilled = row["part"] == "compile" and row["how"] in UNSPILLED and row["spills"]
        is_fine &= not spilled and not row.get("wrong")
    table.end()
    if not is_fine:
        raise SystemExit(1)


def add_row(results: Results, table: Table, row: dict[str, Any]) -> None:
    """Add a row to the file and to the table."""
    results.add(row)
    table.add(row)


# Part 1: the compiler


def compile_all(args: argparse.Namespace, results: Results, table: Table) -> None:
    """Compile the kernel for each target, dtype and reduction."""
    for target in args.targets:
        for dtype in args.dtypes:
            for reduction in REDUCTIONS:
                key = {"part": "compile", "what": target, "how": dtype, "op": reduction}
                if not results.has(**key):
                    add_row(results, table, key | compile_one(target, dtype, reduction))


def compile_one(target: str, dtype: str, reduction: str) -> dict[str, Any]:
    """Return the registers and spilled registers of the kernel for a target."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from topoplan.runtime.extras.kernels.kernel import execute_program
    from topoplan.runtime.extras.kernels.player import LANES, find_block_numel, list_options

    name = {
        "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
    }[dtype]  # fmt: skip
    tables, tensors = ("table", "state", "errors"), ("source", "target", "scratch")
    backend, arch = target.split(":")
    constants = {
        "REDUCTION": reduction,
        "BLOCK": find_block_numel(getattr(torch, dtype)),
        "LANES": LANES,
        "TARGET": backend,
    }
    signature = {
        **dict.fromkeys(tables, "*i64"),
        **dict.fromkeys(tensors, f"*{name}"),
        **dict.fromkeys(constants, "constexpr"),
    }
    begun = time.monotonic()
    compiled = triton.compile(
        ASTSource(execute_program, signature=signature, constexprs=constants),
        target=(
            GPUTarget("cuda", int(arch), 32) if backend == "cuda" else GPUTarget("hip", arch, 64)
        ),
        options=list_options(backend),
    )
    seconds = time.monotonic() - begun
    usage = (
        read_cubin(compiled.asm["cubin"])
        if backend == "cuda"
        else read_amdgcn(compiled.asm["amdgcn"])
    )
    return usage | {"seconds": seconds}


def read_cubin(cubin: bytes) -> dict[str, int]:
    """Return the registers of a cubin, and the bytes of its stack, where spills would be."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout))
    return {"registers": int(usage["REG"]), "spills": int(usage["STACK"]) + int(usage["LOCAL"])}


def read_amdgcn(text: str) -> dict[str, int]:
    """Return the vector registers of AMD's assembly, and how many registers were spilled."""
    counts = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text))
    return {
        "registers": int(counts["vgpr_count"]),
        "spills": int(counts["vgpr_spill_count"]),
        "parked": int(counts["sgpr_spill_count"]),
    }


# Parts 2 and 3: calls


def find_plan(box: str, collective: str) -> Plan:
    """Return the plan of a preset or a recorded box."""
    if box == BRIDGED:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(BRIDGED_MATRIX)
            file.flush()
            return synthesize(cast(Any, collective), file.name)
    return synthesize(cast(Any, collective), str(SMI / box) if box.endswith(".txt") else box)


def draw_inputs(name: str, ranks: int, block: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """Return the input of each rank: small whole numbers, whose sums are exact in any dtype."""
    numel = block * (1 if name == "allgather" else ranks)
    return list(np.random.default_rng(seed).integers(0, 8, (ranks, numel)))


def expect(name: str, inputs: list[np.ndarray[Any, Any]], rank: int, root: int) -> Any:
    """Return what a rank must end with."""
    block = slice(rank * len(inputs[0]) // len(inputs), (rank + 1) * len(inputs[0]) // len(inputs))
    if name == "broadcast":
        return inputs[root]
    if name == "allgather":
        return np.concatenate(inputs)
    if name == "alltoall":
        return np.concatenate([x[block] for x in inputs])
    total = np.sum(inputs, axis=0)
    return total if name == "allreduce" else total[block]


def replay_all(args: argparse.Namespace, results: Results, table: Table) -> None:
    """Replay calls on every box."""
    for box in args.boxes:
        for collective in args.collectives:
            key = {"part": "replay", "what": box, "how": collective, "op": ""}
            if results.has(**key):
                continue
            plan, begun, calls = find_plan(box, collective), time.monotonic(), args.runs or 1000
            wrong = sum(
                replay_row(plan, min(CALLS_IN_A_ROW, calls - first), args.seed + first)
                for first in range(0, calls, CALLS_IN_A_ROW)
            )
            row = {"calls": calls, "wrong": wrong, "seconds": time.monotonic() - begun}
            add_row(results, table, key | row)


def replay_row(plan: Plan, calls: int, seed: int) -> int:
    """Return how many of some calls in a row are wrong; all of them if the replay finds a fault."""
    drawn, name, ranks = random.Random(seed), plan.collective.name, plan.collective.ranks
    programs, inputs, works = [], [], []
    for number in range(calls):
        block, mode = drawn.choice(BLOCKS), cast(Mode, drawn.choice(("pull", "push")))
        schedule, slices = drawn.choice(plan.schedules), drawn.choice((None, 2, 3))
        programs.append(
            [
                lower_one_sided(
                    schedule, rank, block * ranks, window_numel=WINDOW_NUMEL, mode=mode,
                    slices=slices,
                )
                for rank in range(ranks)
            ]
        )  # fmt: skip
        inputs.append(draw_inputs(name, ranks, block, seed + number))
        works.append(
            [fill(program, x) for program, x in zip(programs[-1], inputs[-1], strict=True)]
        )
    try:
        OneSidedReplay(programs, works, seed).run()
    except VerificationError as error:
        print(f"{plan.topology.name} {name}, seed {seed}: {error}", file=sys.stderr)
        return calls
    root = plan.collective.root or 0
    return sum(
        not all(
            np.array_equal(drain(program, work), expect(name, given, rank, root))
            for rank, (program, work) in enumerate(zip(of_call, played, strict=True))
        )
        for of_call, given, played in zip(programs, inputs, works, strict=True)
    )


def fill(program: OneSidedProgram, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a program's work buffer with its input."""
    if not program.fills and not program.drains:
        return data.copy()
    work = np.zeros(program.work_numel, np.int64)
    for move in program.fills:
        work[move.to : move.to + move.hi - move.lo] = data[move.lo : move.hi]
    return work


def drain(program: OneSidedProgram, work: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a program's output."""
    if not program.drains:
        return work
    output = np.zeros(max(x.to + x.hi - x.lo for x in program.drains), np.int64)
    for move in program.drains:
        output[move.to : move.to + move.hi - move.lo] = work[move.lo : move.hi]
    return output


def interpret_all(args: argparse.Namespace, results: Results, table: Table) -> None:
    """Play calls on every box by Triton's interpreter, a process a rank."""
    for box in args.boxes:
        keys = [
            {"part": "interpret", "what": box, "how": collective, "op": ""}
            for collective in args.collectives
        ]
        if all(results.has(**key) for key in keys):
            continue
        for key, row in zip(keys, interpret_box(box, args), strict=True):
            if not results.has(**key):
                add_row(results, table, key | row)


def interpret_box(box: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each collective of a box."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for collective in args.collectives:
            plan = find_plan(box, collective)
            plan.save(folder / f"{collective}.json")
        ranks = plan.collective.ranks
        calls = args.runs or 20
        job = {"calls": calls, "seed": args.seed, "collectives": args.collectives}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "memory").write_bytes(bytes(make_region(ranks).nbytes * ranks))
        variables = {"TRITON_INTERPRET": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        printed = run_ranks(__file__, ["--rank", str(folder)], ranks, LIMIT_S, variables)
    by_rank = [json.loads(text) for text in printed]
    return [
        {
            "calls": calls,
            "wrong": max(rows[number]["wrong"] for rows in by_rank),
            "seconds": max(rows[number]["seconds"] for rows in by_rank),
        }
        for number in range(len(args.collectives))
    ]


def make_region(ranks: int) -> Region:
    """Return the sizes of the memory that interpreted kernels share."""
    from topoplan.runtime.extras.kernels.memory import Region

    return Region(ranks, programs=2, half_bytes=WINDOW_NUMEL * 4)


def play_rank(folder: Path) -> None:
    """Play calls as one rank, and print how many were wrong for each collective."""
    import torch

    from topoplan.runtime.extras.kernels.memory import make_shared
    from topoplan.runtime.extras.kernels.player import KernelPlayer

    torch.set_num_threads(1)
    job = json.loads((folder / "job.json").read_text())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with (folder / "memory").open("r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), 0))
    player = KernelPlayer(make_shared(shared, rank, make_region(ranks), timeout_s=LIMIT_S))
    drawn, rows = random.Random(job["seed"]), []
    for name in job["collectives"]:
        plan, begun, wrong = Plan.load(folder / f"{name}.json"), time.monotonic(), 0
        for number in range(job["calls"]):
            block, mode = drawn.choice(BLOCKS), cast(Mode, drawn.choice(("pull", "push")))
            schedule = drawn.choice(plan.schedules)
            dtype = drawn.choice((torch.float32, torch.bfloat16, torch.int32))
            delay_s = drawn.choice((0, 0, 0.01)) * random.random()
            inputs = draw_inputs(name, ranks, block, job["seed"] + number)
            wanted = torch.from_numpy(expect(name, inputs, rank, plan.collective.root or 0))
            source = torch.from_numpy(inputs[rank]).to(dtype)
            in_place = name in IN_PLACE and drawn.random() < 0.5
            target = source if in_place else torch.full((len(wanted),), -1, dtype=dtype)
            loaded = player.load(schedule, block * ranks, dtype, mode=mode, in_place=in_place)
            time.sleep(delay_s)
            player.launch(loaded, source, target)
            player.check()
            wrong += not torch.equal(target, wanted.to(dtype))
        rows.append({"wrong": wrong, "seconds": time.monotonic() - begun})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
