"""Offers of graph files by topo-probe --check and topo-judge, beside what topo-synth writes.

    python -m benchmarks offers
    python -m benchmarks offers --only ncv4

Each recorded machine (of ../shared, where it is present, with 2 to 16 GPUs) and each preset is
given to the three commands; topo-judge judges a table of nccl-tests whose rates are far below any
bound. An offer is withdrawn if topo-synth --format nccl-graph writes no file for the machine. Exit
code 1 if one is.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import Table, make_parser
from single_path import SHARED

from topoplan.cli import probe, synth
from topoplan.cli.extras import judge
from topoplan.topo.errors import TopoplanError
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import PRESETS

FOLDERS = ("inputs", "machines")
_ENDINGS = (".xml", ".txt", ".json", ".md", ".log", ".bz2")
_MAX_RANKS = 16
_OFFER = "graph file, which topo-synth writes"
_NUMBERS = "# nThread 1 nGpus {ranks} minBytes 268435456 maxBytes 268435456 step: 1048576(bytes)\n"
_HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
_COLUMNS = (
    ("machine", "machine", "<44"),
    ("ranks", "GPUs", ">4"),
    ("check", "check offers", "<12"),
    ("judge", "judge offers", "<12"),
    ("written", "synth writes", "<12"),
    ("withdrawn", "withdrawn", "<9"),
)


def list_machines(only: str) -> Iterator[tuple[str, int]]:
    """Yield the arguments that name machines of 2 to 16 GPUs, and the numbers of their GPUs."""
    files = (
        str(path)
        for folder in FOLDERS
        for path in sorted((SHARED / folder).rglob("*"))
        if path.suffix in _ENDINGS and "graph.xml" not in path.name
    )
    for argument in (*(preset.example for preset in PRESETS.values()), *files):
        if only not in argument:
            continue
        try:
            ranks = len(resolve(argument).ranks)
        except (TopoplanError, UnicodeDecodeError):
            continue  # presets that need numbers, and files that describe no machine
        if 2 <= ranks <= _MAX_RANKS:
            yield argument, ranks


def call(main: Callable[[list[str]], int], *arguments: str) -> str:
    """Return the standard output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(list(arguments))
        except SystemExit:  # as without the extra that gives an option
            return ""
    return out.getvalue()


def measure(argument: str, ranks: int, folder: Path) -> dict[str, Any]:
    """Return who offers a graph file for a machine, and whether one is written."""
    checked = _OFFER in call(probe.main, "--check", argument)
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid {rank + 1:6} on n1 device {rank:2} [0x{rank:02x}] GPU\n"
        for rank in range(ranks)
    )
    # 256 MiB in 0.27 s: far below any bound.
    row = (
        f"   268435456      67108864     float     sum      -1   268435    1.00"
        f" {2 * (ranks - 1) / ranks:7.2f}      0\n"
    )
    table = folder / "all_reduce_perf.txt"
    head = _NUMBERS.format(ranks=ranks)
    table.write_text(f"{head}# Using devices\n{devices}{_HEADER}{row}", encoding="utf-8")
    said = call(judge.main, "--topology", argument, str(table), "--json")
    findings = [
        f for file in json.loads(said or '{"files": []}')["files"] for f in file["findings"]
    ]
    judged = any("nccl-graph" in (finding["advice"] or "") for finding in findings)
    written = folder / "graph.xml"
    written.unlink(missing_ok=True)
    call(synth.main, "allreduce", argument, "--format", "nccl-graph", "-o", str(written))
    return {
        "machine": argument[-44:],
        "ranks": ranks,
        "check": "yes" if checked else "",
        "judge": "yes" if judged else "",
        "written": "yes" if written.exists() else "",
        "withdrawn": "YES" if (checked or judged) and not written.exists() else "",
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="machines with this in their names")
    args = parser.parse_args()
    table = Table(_COLUMNS, as_json=args.json)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for argument, ranks in list_machines(args.only):
            rows.append(measure(argument, ranks, Path(folder)))
            table.add(rows[-1])
    withdrawn = sum(bool(row["withdrawn"]) for row in rows)
    offered = sum(bool(row["check"] or row["judge"]) for row in rows)
    print(f"{len(rows)} machines, {offered} offers, {withdrawn} withdrawn", file=sys.stderr)
    table.end(machines=len(rows), offered=offered, withdrawn=withdrawn)
    return int(withdrawn > 0)


if __name__ == "__main__":
    sys.exit(main())
