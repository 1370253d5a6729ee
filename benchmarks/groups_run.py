"""Measure groups with helpers on an emulated machine against stock gloo.

    python -m benchmarks groups_run                          2 and 4 of 8 GPUs, all linked to each
                                                             other (about 2 minutes on 2 cores)
    python -m benchmarks groups_run --topology dgx1 --groups 0,1 0,4 --collective allgather
    python -m benchmarks groups_run --helpers none --json    the members alone

Needs root and iproute2 (see topo-emulate). The plan is `topo-synth --group`'s, its schedules with
and without help race against the stock collective of the members alone, whose time is `stock`.
"of bound" is the fraction of the certified single-path bound with help that was reached. Each time
is a median, the slowest member's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import Table, make_parser
from wire_speed import run, topo

COLUMNS = [
    ("group", "group", "<10"),
    ("size_bytes", "bytes", ">10"),
    ("schedule", "schedule", ">20"),
    ("plan_us", "us", ">10.0f"),
    ("stock_us", "stock us", ">10.0f"),
    ("ratio", "x stock", ">8.2f"),
    ("bound_fraction", "of bound", ">8.3f"),
    ("relayed", "relayed MB", ">10.1f"),
    ("wrong", "wrong", ">5"),
]


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--topology", default="full:8")
    parser.add_argument("--groups", nargs="+", default=["0,1", "0,1,2,3"], metavar="RANKS")
    parser.add_argument("--helpers", default="rest")
    parser.add_argument("--collective", default="allreduce")
    parser.add_argument("--rate", default="50Mbit", help="of the slowest link")
    parser.add_argument("-b", default="4M")
    parser.add_argument("-e", default="32M")
    parser.add_argument("-f", default="8")
    parser.add_argument("-n", default="5")
    args = parser.parse_args()
    table = Table(COLUMNS, as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        for group in args.groups:
            plan = str(Path(name) / f"{group}.json")
            synthesis = ["--group", group, "--helpers", args.helpers, "-o", plan]
            run([*topo("synth"), args.collective, args.topology, *synthesis], parse=False)
            sizes = ["-b", args.b, "-e", args.e, "-f", args.f, "-n", args.n, "-w", "1", "--json"]
            emulated = [*topo("emulate"), args.topology, "--slowest", args.rate, "--"]
            for row in run([*emulated, *topo("run"), plan, *sizes]):
                relayed = sum(row["relayed_bytes"]) / 1e6
                table.add({"group": group, **row, "relayed": relayed})
    table.end()


if __name__ == "__main__":
    main()
