"""Find tests that fail by chance: run one tier again and again, in random order, beside busy loops.

    python scripts/flaky.py 10                     `make flaky N=10`: 10 runs of `make test`'s tests
    python scripts/flaky.py 5 --tier network       `make test-network`'s, without busy loops
    python scripts/flaky.py 200 -k members_get     only some tests, however often

Each run has an order of its own, drawn from its number. Results go to FOLDER/results.jsonl, a line
for each run, beside the run's log; a second start on the same commit goes on where the first one
ended. Ends with 1 if a test failed at least once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from harness import Results  # noqa: E402

# The targets of the Makefile that run the tiers.
TIERS = {"test": "test", "long": "test-long", "network": "test-network"}
# Four a core of the smallest machine that runs them all, which has two cores.
BUSY_LOOPS = 8


def main(argv: list[str] | None = None) -> int:
    """Run the tests as often as is asked for, print those that failed; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int, nargs="?", default=10, help="runs (default: 10)")
    parser.add_argument("--first", type=int, default=1, help="number of the first run (default: 1)")
    parser.add_argument("--tier", choices=TIERS, default="test")
    parser.add_argument("--loops", type=int, help=f"busy loops ({BUSY_LOOPS}; network: none)")
    parser.add_argument("-k", dest="only", metavar="WORDS", help="tests with these words alone")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "flaky")
    args = parser.parse_args(argv)
    loops = args.loops if args.loops is not None else BUSY_LOOPS * (args.tier != "network")
    args.folder.mkdir(parents=True, exist_ok=True)
    results = Results(args.folder / "results.jsonl", ("commit", "tier", "only", "run"))
    asked = {"commit": _name_commit(), "tier": args.tier, "only": args.only or ""}
    for number in range(args.first, args.first + args.runs):
        if results.has(run=number, **asked):
            continue
        with _keep_busy(loops):
            row = _run_once(args.folder, args.tier, args.only, number)
        results.add({**asked, "run": number, "loops": loops, **row})
        print(_format_row(results.rows[-1]), flush=True)
    return _report([row for row in results.rows if asked.items() <= row.items()])


def _run_once(folder: Path, tier: str, only: str | None, number: int) -> dict[str, Any]:
    """Run the tests once, in the order that `number` draws; return the outcome."""
    log = folder / f"{tier}-{number}.log"
    table = log.with_suffix(".xml")
    table.unlink(missing_ok=True)
    options = ["-p", "randomly", f"--randomly-seed={number}", f"--junitxml={table}"]
    options += ["-k", only] if only else []
    command = ["make", "--silent", TIERS[tier], f"PYTEST_ARGS={shlex.join(options)}"]
    started = time.monotonic()
    with log.open("wb") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
    cases = list(ElementTree.parse(table).iter("testcase")) if table.exists() else []
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - started, 1),
        "passed": len(cases) - len(failed) - skipped,
        "skipped": skipped,
        "failed": failed,
        "log": str(log.relative_to(ROOT) if log.is_relative_to(ROOT) else log),
    }


@contextmanager
def _keep_busy(loops: int) -> Iterator[None]:
    """Run as many processes as `loops` inside the context that compute without end."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _name_commit() -> str:
    """Return what git calls the checked-out state, with "-dirty" where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or os.environ.get("GITHUB_SHA", "unknown")


def _format_row(row: dict[str, Any]) -> str:
    return (
        f"run {row['run']}: {row['passed']} passed, {len(row['failed'])} failed, "
        f"{row['skipped']} skipped in {row['seconds']:.0f} s beside {row['loops']} busy loops"
        + ("" if bool(row["exit_code"]) == bool(row["failed"]) else f"; look into {row['log']}")
    )


def _report(rows: list[dict[str, Any]]) -> int:
    """Print the tests that failed at least once, with their logs; return 1 where a run failed."""
    logs: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for name in row["failed"]:
            logs[name].append(row["log"])
    for name, where in sorted(logs.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{len(where)} of {len(rows)}: {name} ({', '.join(where)})")
    bad = sum(row["exit_code"] != 0 for row in rows)
    print(f"{len(rows)} runs, {bad} of them failed, {len(logs)} tests failed at least once")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
