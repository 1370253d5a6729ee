"""Runs programs of calls on a backend in real processes, and says how each of them ended."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from call_programs import Program
from launch import run_ranks
from ranks import orders

# Backends, and the environment variables of their ranks, by name.
MODES: dict[str, tuple[str, dict[str, str]]] = {
    "gloo": ("gloo", {}),
    "race": ("topo", {}),
    "plan": ("topo", {"TOPOPLAN_CHOOSE": "plan", "TOPOPLAN_LEAST_BYTES": "0"}),
}
# Programs that the same processes run: a launch may take 150 s, a program seldom takes 3 s.
_IN_A_LAUNCH = 25


@dataclass(frozen=True)
class Ending:
    """How a program ended: `ok`, `hung`, `wrong`, `raised`, or `died` (a process that aborted).

    `report` says what the ranks saw.
    """

    program: Program
    mode: str
    how: str
    seconds: float
    report: str = ""

    def __str__(self) -> str:
        """Return the ending, the program and what ranks saw as text."""
        return f"{self.how} in mode {self.mode}\n{self.program}\n{self.report}"


def run_programs(
    programs: Sequence[Program],
    mode: str,
    cache: Path,
    hang_s: float = 15.0,
) -> Iterator[Ending]:
    """Run programs that have equally many ranks; yield how each ended.

    After one that fails, the others go on in new processes. `cache` is the folder of cached plans.
    A program hangs that takes `hang_s` on a quiet machine; its groups time out a little later.
    """
    first = 0
    while first < len(programs):
        endings = _launch(programs[first : first + _IN_A_LAUNCH], mode, cache, hang_s)
        yield from endings
        first += len(endings)


def _launch(
    programs: Sequence[Program],
    mode: str,
    cache: Path,
    hang_s: float,
) -> list[Ending]:
    """Run programs in new processes until one fails; return how these ended."""
    backend, variables = MODES[mode]
    variables = {**variables, "TOPOPLAN_CACHE": str(cache)}
    ranks = programs[0].ranks
    printed = ""
    with tempfile.TemporaryDirectory(prefix="orders-") as name:
        folder = Path(name)
        plain = [program.to_json() for program in programs]
        try:
            run_ranks(orders.run_programs, ranks, plain, backend, variables, name, hang_s)
        except AssertionError as error:  # a rank had to be ended
            printed = str(error)
        return _read_endings(programs, mode, folder, printed)


def _read_endings(
    programs: Sequence[Program],
    mode: str,
    folder: Path,
    printed: str,
) -> list[Ending]:
    ranks = range(programs[0].ranks)
    results = [_read_results(folder / f"{rank}.jsonl") for rank in ranks]
    endings = []
    for number, program in enumerate(programs):
        rows = [of_rank[number] if number < len(of_rank) else None for of_rank in results]
        ended = [row for row in rows if row is not None]
        if len(ended) == len(ranks) and not any(row["error"] or row["hung"] for row in ended):
            endings.append(Ending(program, mode, "ok", max(row["s"] for row in ended)))
            continue
        stacks = [_read(folder / f"{rank}.stacks") for rank in ranks]
        errors = [str(row["error"]) for row in ended if row["error"]]
        report = [
            *errors,
            *(f"stacks of rank {r}:\n{s}" for r, s in zip(ranks, stacks, strict=True) if s),
        ]
        missing = [str(rank) for rank in ranks if rows[rank] is None]
        if missing:
            report.append(f"ended from outside: rank {', '.join(missing)}\n{printed}")
        how = "hung" if any(stacks) else "died" if missing else "raised"
        if how == "raised" and any("elements are wrong" in error for error in errors):
            how = "wrong"
        seconds = max((row["s"] for row in ended), default=0.0)
        endings.append(Ending(program, mode, how, seconds, "\n".join(report)))
        break
    return endings


def _read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(path).splitlines()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
