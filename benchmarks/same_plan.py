"""Whether a request gives the same plan on a busy machine.

    python -m benchmarks same_plan [TOPOLOGY] [--runs 7] [--busy 8]

Runs `topo-synth allreduce TOPOLOGY --json` beside busy processes, each time
with another hash seed, and prints each plan's hash, seconds, and whether its search was complete.
Exit code 1 where hashes differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from harness import Table, make_parser


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("topology", nargs="?", default="dgx1")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--busy", type=int, default=8)
    args = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "topoplan.cli.synth",
        "--collective",
        "allreduce",
        "--topology",
        args.topology,
    ]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    table = Table(
        [
            ("plan", "plan", "<64s"),
            ("seconds", "seconds", ">8.1f"),
            ("search_complete", "search complete", ">15s"),
        ],
        as_json=args.json,
    )
    try:
        for run in range(args.runs):
            started = time.monotonic()
            environment = {**os.environ, "PYTHONHASHSEED": str(run)}
            done = subprocess.run(
                [*command, "--json"], env=environment, capture_output=True, text=True, check=True
            )
            plan = json.loads(done.stdout)
            seconds = time.monotonic() - started
            complete = plan["search_complete"]
            row = {"plan": plan["plan_hash"], "seconds": seconds, "search_complete": complete}
            table.add(row)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    table.end(topology=args.topology, busy=args.busy)
    return int(len({row["plan"] for row in table.rows}) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
