"""What the benchmarks share: arguments, tables, results that a second start continues, ranks.

A benchmark makes its parser with `make_parser`, which adds `--json`. It hands its rows to a
`Table`, which prints each line as soon as it is measured, or one JSON object at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_POLL_S = 0.05
_CLONE_NEWNET = 0x40000000  # a namespace of networks (linux/sched.h)
# After the first rank has failed the others may say what they saw.
_LAST_WORDS_S = 2.0


def make_parser(doc: str | None, *, json: bool = True) -> argparse.ArgumentParser:
    """Return a parser whose help is the benchmark's docstring, with `--json` unless told not to."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if json:
        parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    return parser


def be_emulated_rank(
    work: Callable[..., int], variables: Mapping[str, str], namespace: str, log: str, *args: Any
) -> None:
    """Be a rank of an emulated machine, in a process forked for it, and end with `work`'s code.

    `variables` say who the rank is, `namespace` is the file of its network; what it prints goes to
    the file `log`.
    """
    with Path(namespace).open() as entered:
        if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ.update(variables)
    with Path(log).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = work(*args)
    sys.stdout.flush()
    os._exit(code)


def add_sample(
    parser: argparse.ArgumentParser, runs: int, collectives: Collection[str], *, files: bool = True
) -> None:
    """Add the arguments of a benchmark over seeded machines, whose rows a second start continues.

    `runs` machines are the default; with `files`, topology files may take their place.
    """
    parser.add_argument("--seed", type=int, default=1, help="number of the first machine")
    parser.add_argument("--runs", type=int, default=runs, help=f"machines (default: {runs})")
    if files:
        parser.add_argument("--files", nargs="*", default=[], help="topology files instead")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    parser.add_argument(
        "--collectives", type=list_of(collectives), default=list(collectives), help="some of them"
    )


def list_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argument type: names out of `known`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: expected some of {', '.join(known)}"
            )
        return names

    return parse


class Table:
    """Print rows as a table, each as it comes, or all of them as JSON at the end.

    Columns are (key, title, format): a format such as ">8.2f" is also the width of the title.
    Values that are None, and keys that a row lacks, are blank.
    """

    def __init__(self, columns: Sequence[tuple[str, str, str]], *, as_json: bool) -> None:
        self.columns, self.as_json = columns, as_json
        self.rows: list[dict[str, Any]] = []
        if not as_json:
            self._print(f"{title:{_get_alignment(how)}}" for _, title, how in columns)

    def add(self, row: dict[str, Any], note: str = "") -> None:
        """Print a row and keep it; `note` follows it in the table alone."""
        self.rows.append(row)
        if not self.as_json:
            self._print([*(_format_cell(row.get(key), how) for key, _, how in self.columns), note])

    def end(self, **more: Any) -> None:
        """Print the JSON object, where JSON was asked for: rows, the machine's load, and `more`."""
        if self.as_json:
            print(json.dumps({"rows": self.rows, "load": os.getloadavg(), **more}, indent=1))

    @staticmethod
    def _print(cells: Any) -> None:
        print(" ".join(cells).rstrip(), flush=True)


def _get_alignment(how: str) -> str:
    """Return the alignment and the width of a format: ">8" of ">8.2f"."""
    return how.split(".")[0].rstrip("defgsx,%")


def _format_cell(value: Any, how: str) -> str:
    if value is None:
        return f"{'':{_get_alignment(how)}}"
    if isinstance(value, bool):
        value = "yes" if value else "NO"
    return f"{value:{_get_alignment(how) if isinstance(value, str) else how}}"


class Results:
    """Rows of a file; without a file they are only in memory."""

    def __init__(self, path: Path | None, keys: tuple[str, ...]) -> None:
        """Read the file, where it exists; `keys` are the fields by which a row is known."""
        self.path, self.keys = path, keys
        self.rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        self._known = {self._key(row) for row in self.rows}

    def has(self, **fields: Any) -> bool:
        """Return whether there is a row with these values of the keys."""
        return self._key(fields) in self._known

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, to the file at once: a run that is ended loses nothing."""
        self.rows.append(row)
        self._known.add(self._key(row))
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[key] for key in self.keys)


def start_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: int,
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> list[subprocess.Popen[bytes]]:
    """Start `script` once a rank, printing to `<rank>.out` and `<rank>.err` in `folder`."""
    from topoplan.runtime.extras.emulate.network import die_with_parent

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        **(variables or {}),
    }
    processes = []
    for rank in range(ranks):
        out, err = folder / f"{rank}.out", folder / f"{rank}.err"
        with out.open("wb") as output, err.open("wb") as errors:
            command = [sys.executable, script, *arguments]
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started = subprocess.Popen(
                command,
                env=own,
                stdout=output,
                stderr=errors,
                preexec_fn=die_with_parent,
            )
            processes.append(started)
    return processes


def wait_for_ranks(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[int]:
    """Wait for all ranks, or until time is over or one has failed; return their exit codes.

    Those that are left then are killed.
    """
    ends = time.monotonic() + limit_s
    while any(process.poll() is None for process in processes) and time.monotonic() < ends:
        if any(process.returncode for process in processes):
            ends = min(ends, time.monotonic() + _LAST_WORDS_S)
        time.sleep(_POLL_S)
    for process in processes:
        process.kill()
    return [process.wait() for process in processes]


def run_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: int,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run ranks to their end and return what each printed; SystemExit with the errors of all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start_ranks(script, arguments, ranks, folder, variables)
        codes = wait_for_ranks(processes, limit_s)
        if any(codes):
            texts = [path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.err"))]
            shown = [f"exit codes by rank: {codes}", *(text[-1500:] for text in texts)]
            raise SystemExit("\n".join([f"{script} {' '.join(arguments)}", *shown]))
        return [(folder / f"{rank}.out").read_text("utf-8") for rank in range(ranks)]
