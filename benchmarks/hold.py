"""Look for hangs of each method of a process group.

    python -m benchmarks hold --seconds 600                 the backend, all methods
    python -m benchmarks hold --backend gloo                for comparison
    python -m benchmarks hold --methods barrier,gather --seconds 60

A round makes eight asynchronous all_reduce(MAX), drops all their works but the last, waits for
that, and calls one method. A call that enters C++ with the interpreter's lock held hangs where
gloo's thread, which holds a mutex, needs that lock to let go of a dropped work. Four ranks run
beside eight busy processes, --seconds for all methods together. A method that hangs is printed with
the stacks of all ranks, and the others go on in new processes. Exit code 1 if any hung.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness import Results, Table, make_parser, start_ranks, wait_for_ranks
from hold_methods import Calls

# A round takes a second at most, beside four busy processes a core.
_HANG_S = 60.0
# When a rank that hangs is ended: all have left their stacks by then.
_END_S = 75.0
_TIMEOUT = timedelta(seconds=300)
# What four ranks may take to start beside busy processes.
_START_S = 120.0
_DROPPED = 8
COLUMNS = (
    ("method", "method", "34"),
    ("rounds", "rounds", ">7"),
    ("rounds_per_s", "per s", ">7.1f"),
    ("ended", "ended", "<100"),
)
_BUSY = "while True: pass"


def main() -> int:
    """Print rounds per method, and the stacks of hangs; or be a rank."""
    args = _arguments()
    if args.worker:
        work(args)
    every = list(Calls.list_methods())
    methods = args.methods.split(",") if args.methods else every
    if unknown := set(methods) - set(every):
        raise SystemExit(f"--methods: {', '.join(sorted(unknown))}; expected of {', '.join(every)}")
    results = Results(args.results, ("backend", "method"))
    before = len(results.rows)
    left = [method for method in methods if not results.has(backend=args.backend, method=method)]
    seconds = args.seconds / len(methods)
    table = Table(COLUMNS, as_json=args.json)
    with _keep_busy(args.busy):
        while left:
            for row in run_methods(args, left, seconds):
                results.add(row)
                left.remove(row["method"])
                rate = row["rounds"] / row["s"] if row["s"] else 0.0
                table.add({**row, "rounds_per_s": rate})
                if "stacks" in row:
                    print("\n".join(row["stacks"]), file=sys.stderr, flush=True)
    rows = [row for row in results.rows if row["backend"] == args.backend]
    hung = [row["method"] for row in rows if row["ended"] == "hung"]
    table.end(earlier=[row for row in rows if row not in results.rows[before:]], hung=hung)
    if not args.json:
        print(f"{args.backend}: {len(rows)} methods, {len(hung)} hung: {', '.join(hung) or 'none'}")
    return 1 if hung else 0


def run_methods(
    args: argparse.Namespace,
    methods: list[str],
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Run methods in one launch until one hangs or fails; yield a row for each tried."""
    arguments = ["--worker", ",".join(methods), "--backend", args.backend]
    arguments += ["--seconds", str(seconds), "--numel", str(args.numel)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start_ranks(__file__, arguments, args.ranks, folder)
        limit_s = _START_S + len(methods) * (seconds + _END_S)
        codes = wait_for_ranks(processes, limit_s)
        lines = (folder / "0.out").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        for row in rows:
            yield {"backend": args.backend, **row}
        if any(codes):
            files = [folder / f"{rank}.err" for rank in range(args.ranks)]
            errors = [file.read_text("utf-8", "replace") for file in files]
            hung = any("Timeout (" in text for text in errors)
            at = next((text for text in errors if text), f"exit codes {codes}")
            how = "hung" if hung else f"failed: {at.strip().splitlines()[-1]}"
            row = {"backend": args.backend, "method": methods[len(rows)], "rounds": 0, "s": seconds}
            shown = [f"rank {rank}:\n{text[-3000:]}" for rank, text in enumerate(errors)]
            yield {**row, "ended": how, **({"stacks": shown} if hung else {})}


@contextmanager
def _keep_busy(count: int) -> Iterator[None]:
    from topoplan.runtime.extras.emulate.network import die_with_parent

    command = [sys.executable, "-c", _BUSY]
    processes = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def work(args: argparse.Namespace) -> None:
    """Be a rank: run rounds of each method for its time; rank 0 prints a row after each."""
    import torch
    import torch.distributed as dist

    if args.backend == "topo":
        import topoplan.runtime.register  # noqa: F401  (as torch does)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(_START_S)
    dist.init_process_group(args.backend, timeout=_TIMEOUT)
    calls = Calls(args.numel)
    for method in args.worker.split(","):
        begin, rounds, ends = time.monotonic(), 0, time.monotonic() + args.seconds
        over = torch.zeros(1)
        try:
            while not over.item():
                _watch()
                _play_round(args.numel, calls, method)
                over.fill_(float(time.monotonic() > ends))
                dist.all_reduce(over)
                rounds += 1
            ended = "ok"
        except (NotImplementedError, TypeError, ValueError, RuntimeError) as error:
            if rounds:
                raise
            # Alike on all ranks, since it depends on no data.
            ended = f"refused: {str(error).splitlines()[0]}"
        if calls.rank == 0:
            row = {
                "method": method,
                "rounds": rounds,
                "s": time.monotonic() - begin,
                "ended": ended,
            }
            print(json.dumps(row), flush=True)
    _watch()
    dist.barrier()
    os._exit(0)  # the end of the interpreter is not what is tried here


def _watch() -> None:
    """Give the next round its time: stacks at _HANG_S, the end at _END_S, even without the lock."""
    faulthandler.dump_traceback_later(_HANG_S)
    signal.setitimer(signal.ITIMER_REAL, _END_S)


def _play_round(numel: int, calls: Calls, method: str) -> None:
    import torch
    import torch.distributed as dist

    for _ in range(_DROPPED):
        tensor = torch.ones(numel)
        last = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
    assert last is not None
    last.wait()
    del last, tensor
    calls.call(method)


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--backend", default="topo", help="topo (default), gloo")
    add("--seconds", type=float, default=600.0, help="for all methods together (default: 600)")
    add("--methods", help="some of the methods, separated by commas (default: all)")
    add("--ranks", type=int, default=4)
    add("--busy", type=int, default=8, help="processes that keep the cores busy (default: 8)")
    add("--numel", type=int, default=64, help="elements of a tensor (default: 64)")
    add("--results", type=Path, metavar="FILE", help="JSON lines; what is in them is not run again")
    add("--worker", metavar="METHODS", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
