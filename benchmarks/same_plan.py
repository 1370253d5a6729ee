"""Whether a request gives the same plan on a busy machine: python benchmarks/same_plan.py
[TOPOLOGY] [--runs 7] [--busy 8].

Runs `topo-synth --collective allreduce --topology TOPOLOGY --json` beside busy processes, each time
with another hash seed, and prints each plan's hash, seconds, and whether its search was complete.
Exit code 1 where hashes differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from harness import make_parser


def main() -> int:
    parser = make_parser(__doc__, json=False)
    parser.add_argument("topology", nargs="?", default="dgx1")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--busy", type=int, default=8)
    options = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.synth",
        "--collective",
        "allreduce",
        "--topology",
        options.topology,
    ]
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)
    ]
    hashes = set()
    try:
        for run in range(options.runs):
            started = time.monotonic()
            environment = {**os.environ, "PYTHONHASHSEED": str(run)}
            done = subprocess.run(
                [*command, "--json"], env=environment, capture_output=True, text=True, check=True
            )
            plan = json.loads(done.stdout)
            hashes.add(plan["plan_hash"])
            seconds = time.monotonic() - started
            print(
                f"{plan['plan_hash']}  {seconds:6.1f} s  search complete: "
                f"{plan['search_complete']}",
                flush=True,
            )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(
        f"{len(hashes)} plan{'' if len(hashes) == 1 else 's'} in {options.runs} runs beside "
        f"{options.busy} processes"
    )
    return int(len(hashes) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
