"""Try random legal programs of calls on gloo and the backend.

    python -m benchmarks orders             100 programs each for 2, 3 and 4 ranks, in all modes
    python -m benchmarks orders --programs 1000 --results orders.jsonl
    python -m benchmarks orders --seed 17 --programs 1 --ranks 3 --modes race

A program mixes asynchronous and synchronous collectives, messages, keys of the store, several
groups and threads (tests/call_generator.py). It must end, with the results that each rank computes
by itself, in each mode: `gloo`, `race` (the backend by default) and `plan` (all calls by plans).
Programs by hand come first. One that fails is printed with what every rank was doing. With
--results a second start continues where the first one ended. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Results, Table, list_of, make_parser

if TYPE_CHECKING:
    from call_programs import Program

# Programs of one mode before the next mode has its turn: as many as a launch runs.
_AT_ONCE = 25
_MODES = ("gloo", "race", "plan")


def main() -> int:
    """Run what is not in the results yet, and print the counts."""
    args = _arguments()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from program_runs import run_programs

    results = Results(args.results, ("program", "ranks", "mode"))
    with tempfile.TemporaryDirectory() as folder:
        for programs, mode in _list_work(args, results):
            for ending in run_programs(programs, mode, args.cache or Path(folder)):
                name, ranks = ending.program.name, ending.program.ranks
                row = {"program": name, "ranks": ranks, "mode": mode, "how": ending.how}
                more = {} if ending.how == "ok" else {"report": str(ending)}
                results.add({**row, "s": ending.seconds, **more})
                if ending.how != "ok":
                    print(f"{ending}\n", file=sys.stderr, flush=True)
    return _print_counts(args, results)


def _list_work(
    args: argparse.Namespace,
    results: Results,
) -> Iterator[tuple[list[Program], str]]:
    """Yield programs that are still to be run, and in which mode."""
    from call_generator import generate, list_named

    seeds = range(args.seed, args.seed + args.programs)
    for first in range(0, len(seeds), _AT_ONCE):
        for ranks in args.ranks:
            programs = [generate(seed, ranks) for seed in seeds[first : first + _AT_ONCE]]
            named = [] if first or args.random_only else list_named(ranks)
            for mode in args.modes:
                left = [
                    program
                    for program in [*named, *programs]
                    if not results.has(program=program.name, ranks=ranks, mode=mode)
                ]
                if left:
                    yield left, mode


def _print_counts(args: argparse.Namespace, results: Results) -> int:
    counts: dict[tuple[int, str], Counter[str]] = {}
    for row in results.rows:
        counts.setdefault((row["ranks"], row["mode"]), Counter())[row["how"]] += 1
    hows = ("ok", "hung", "wrong", "raised", "died")
    failed = [row for row in results.rows if row["how"] != "ok"]
    columns = [("ranks", "ranks", ">5"), ("mode", "mode", ">5"), *((h, h, ">6") for h in hows)]
    table = Table(columns, as_json=args.json)
    for (ranks, mode), counted in sorted(counts.items()):
        table.add({"ranks": ranks, "mode": mode} | {how: counted[how] for how in hows})
    table.end(failed=failed)
    if not args.json:
        for row in failed:
            print(f"{row['how']}: {row['program']}, {row['ranks']} ranks, {row['mode']}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--programs", type=int, default=100, metavar="N", help="for each number of ranks")
    add("--seed", type=int, default=0, help="of the first program (default: 0)")
    add("--ranks", default="2,3,4", help="numbers of ranks (default: 2,3,4)")
    add("--modes", type=list_of(_MODES), default=_MODES, help="gloo, race, plan (default: all)")
    add("--random-only", action="store_true", help="leave out the programs by hand")
    add("--results", type=Path, metavar="FILE", help="JSON lines; what is in them is not run again")
    add("--cache", type=Path, metavar="FOLDER", help="of plans and races (default: a new one)")
    args = parser.parse_args()
    if not all(part.isdecimal() and int(part) >= 2 for part in args.ranks.split(",")):
        parser.error(f"--ranks {args.ranks}: expected numbers from 2 on, such as 2,3,4")
    args.ranks = [int(part) for part in args.ranks.split(",")]
    if args.programs < 0:
        parser.error(f"--programs {args.programs}: expected 0 or more")
    return args


if __name__ == "__main__":
    sys.exit(main())
