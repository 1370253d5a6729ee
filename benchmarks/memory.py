"""Measure the memory of a rank's first calls beside gloo's.

    python -m benchmarks memory                                 all cases, in all modes
    python -m benchmarks memory --cases all_reduce --modes gloo,race --runs 3

Cases: the first 50 calls of all_reduce, all_gather_into_tensor and reduce_scatter_tensor on 96 MiB;
`ddp`, ten steps of DDP with 25 million parameters; `sizes`, all_reduce of 96 sizes of
about 4 MiB, each three times. Modes: gloo, race (the backend by default), plan (the backend, by
plans alone) and hook (topoplan.ddp_hook, DDP only). Each is a launch of its own. The peak is what
the kernel recorded (VmHWM, reset before the first call), `held` what is resident after the last
call; both beyond what was resident before, of the rank with most, in multiples of the buffer (or of
the gradients, or of one size). Races are included: they are among the first calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Table, list_of, make_parser, run_ranks

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
CASES = (*COLLECTIVES, "ddp", "sizes")
MODES = {
    "gloo": {},
    "race": {"TOPOPLAN_CHOOSE": "race"},
    "plan": {"TOPOPLAN_CHOOSE": "plan", "TOPOPLAN_LEAST_BYTES": "0"},
    "hook": {},
}
COLUMNS = (
    ("case", "case", ">22"),
    ("mode", "mode", ">5"),
    ("peak_x", "peak x", ">7.2f"),
    ("held_x", "held x", ">7.2f"),
    ("over_gloo_x", "peak over gloo x", ">16.2f"),
)
_MiB = 1 << 20
_FLOAT_BYTES = 4
# Elements of the calls before: they connect the ranks and find the plan.
_WARM_NUMEL = 3 << 12
_STEPS = 10
# Of the model: 25 million parameters.
_WIDTH, _LAYERS = 1024, 24
_SIZES, _SIZE_STEP_BYTES, _CALLS_A_SIZE = 96, 4096, 3
_SIZE_BYTES = 4 * _MiB
# A launch takes a minute on two quiet cores; longer than this it hangs.
_LIMIT_S = 900.0


def main() -> None:
    """Print the table, or the rows as JSON; or be a rank."""
    args = _arguments()
    if args.worker:
        work(args)
    table = Table(COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory() as folder:
        plan = _make_plan(args, Path(folder)) if "hook" in args.modes else ""
        for case in args.cases:
            for mode in args.modes:
                if mode == "hook" and case != "ddp":
                    continue
                table.add(measure(args, case, mode, plan, Path(folder), table.rows))
    table.end()


def measure(
    args: argparse.Namespace,
    case: str,
    mode: str,
    plan: str,
    folder: Path,
    earlier: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the medians over the runs of a case in a mode; `earlier` has gloo's row."""
    arguments = ["--worker", "--cases", case, "--modes", mode, "--MiB", str(args.MiB)]
    arguments += ["--calls", str(args.calls), "--plan", plan]
    peaks, helds = [], []
    for run in range(args.runs):
        own = {"TOPOPLAN_PLANS": args.plans, **MODES[mode]}
        own["TOPOPLAN_CACHE"] = str(folder / f"cache-{case}-{mode}-{run}")
        lines = run_ranks(__file__, arguments, args.ranks, _LIMIT_S, own)
        found = [json.loads(line) for line in lines]
        peaks.append(max(one["peak_x"] for one in found))
        helds.append(max(one["held_x"] for one in found))
    peak, held = statistics.median(peaks), statistics.median(helds)
    row: dict[str, Any] = {"case": case, "mode": mode, "peak_x": peak, "held_x": held}
    base = [one for one in earlier if (one["case"], one["mode"]) == (case, "gloo")]
    return {**row, "over_gloo_x": peak - base[0]["peak_x"] if base else None, "peaks_x": peaks}


def _make_plan(args: argparse.Namespace, folder: Path) -> str:
    from wire_speed import synthesize_to_file

    return synthesize_to_file("hook", args.plans, folder)


def work(args: argparse.Namespace) -> None:
    """Be a rank: print the peak and what is held in multiples of the buffer."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    case, mode = args.cases[0], args.modes[0]
    if mode in ("race", "plan"):
        import topoplan.runtime.register  # noqa: F401  (as torch does)
    dist.init_process_group("topo" if mode in ("race", "plan") else "gloo")
    prepare = {"ddp": _prepare_ddp, "sizes": _prepare_sizes}.get(case, _prepare_collective)
    calls, unit_bytes = prepare(args)
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts anew
    before = _read_status_bytes("VmRSS")
    calls()
    peak, held = (_read_status_bytes(name) - before for name in ("VmHWM", "VmRSS"))
    print(json.dumps({"peak_x": peak / unit_bytes, "held_x": held / unit_bytes}), flush=True)
    dist.barrier()
    os._exit(0)  # what an interpreter's end makes of groups is not measured here


def _prepare_collective(args: argparse.Namespace) -> tuple[Callable[[], None], int]:
    import torch
    import torch.distributed as dist

    world, case = dist.get_world_size(), args.cases[0]

    def call(whole: torch.Tensor, part: torch.Tensor) -> None:
        if case == "all_reduce":
            dist.all_reduce(whole)
        elif case == "all_gather_into_tensor":
            dist.all_gather_into_tensor(whole, part)
        else:
            dist.reduce_scatter_tensor(part, whole)

    def make(numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(numel // world * world), torch.ones(numel // world)

    call(*make(_WARM_NUMEL))
    whole, part = make(args.MiB * _MiB // _FLOAT_BYTES)

    def calls() -> None:
        for _ in range(args.calls):
            call(whole, part)
            whole.fill_(1)  # sums of sums would become infinite

    return calls, whole.nbytes


def _prepare_ddp(args: argparse.Namespace) -> tuple[Callable[[], None], int]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    if args.modes[0] == "hook":
        from topoplan import ddp_hook

        model.register_comm_hook(None, ddp_hook(args.plan))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(4, _WIDTH)

    def calls() -> None:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()

    return calls, _FLOAT_BYTES * sum(p.numel() for p in model.parameters())


def _prepare_sizes(args: argparse.Namespace) -> tuple[Callable[[], None], int]:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(_WARM_NUMEL))

    def calls() -> None:
        for number in range(_SIZES):
            numel = (_SIZE_BYTES + number * _SIZE_STEP_BYTES) // _FLOAT_BYTES
            for _ in range(_CALLS_A_SIZE):
                dist.all_reduce(torch.ones(numel))

    return calls, _SIZE_BYTES


def _read_status_bytes(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.split(f"{name}:")[1].split()[0]) * 1024


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--cases", type=list_of(CASES), default=CASES, help=f"some of {', '.join(CASES)}")
    add("--modes", type=list_of(MODES), default=list(MODES), help=f"some of {', '.join(MODES)}")
    add("--MiB", type=int, default=96, help="of the buffer (default: 96)")
    add("--ranks", type=int, default=3)
    add("--calls", type=int, default=50, help="calls of the buffer (default: 50)")
    add("--runs", type=int, default=1, help="launches of each case in each mode (default: 1)")
    add("--plans", default="full:3", help="topology that the ranks are on (default: full:3)")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--plan", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
