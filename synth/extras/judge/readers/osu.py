"""Collectives of the OSU micro-benchmarks, over MPI or NCCL, with buffers on GPUs.

A table has the bytes of a message and the average time in us. The number of ranks is not in it: it
is that of the launcher's command line, or of the lines "#Using NCCL", of which each rank prints
one. The bytes are those of the whole buffer for allreduce, reduce, reduce-scatter and broadcast,
and of one rank's part for the others.
"""

import re
from collections.abc import Sequence

from .....topo.errors import InputError
from .....topo.extras.measured.line_prefix import cut_prefix, make_prefix
from ....ir.collective import Collective
from ..file_contents import BenchmarkResults, Measurement
from .launchers import count_processes
from .left_out import describe_left_out
from .log_lines import name_collective
from .runs import Runs

# "# OSU MPI-CUDA Allreduce Latency Test v7.0"; what follows MPI or NCCL is where buffers are.
_HEADING = re.compile(
    r"#\s*OSU (?:MPI|NCCL|RCCL|[A-Z]CCL)(?P<memory>-\S+)? (?P<test>[A-Z][\w /-]{2,60}?) "
    r"(?:Latency )?Test\b"
)
_SIZE = re.compile(r"\d{1,15}")
_TIME = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
# What a launcher puts before a line: "[1,0]<stdout>:", "node-7:".
_LAUNCHER = re.compile(r"^\s*(?:\[[\w,.:\- ]{1,80}\](?:<\w{1,20}>)?:?|[\w.\-]{1,80}:)\s*")
_COMMAND = re.compile(r"\bosu_(?:nccl_|xccl_)?[a-z_]+\b")
_USING = re.compile(r"#Using [NR]CCL\b")
# Collectives of which OSU counts one rank's part as the size.
_BY_PART = ("allgather", "alltoall", "gather", "scatter")
# Most reasons to name why tables are left out.
_MAX_NOTES = 5
_WORDS = re.compile(r"\b(?:Personalized|Exchange)\b")


def looks_like(text: str) -> bool:
    """Return whether a text has a table of these benchmarks."""
    return "OSU " in text and _HEADING.search(text) is not None


def read(lines: Sequence[str], where: str) -> BenchmarkResults:
    """Return the measurements; notes say which tables are left out.

    These are tests for which there is no bound (such as those of two ranks), of buffers in host
    memory, and of an unknown number of ranks. `where` names the text in errors. Raise InputError,
    with the line, if no other table is there.
    """
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        reader.take(line, number)
    measured = reader.runs.number()
    if reader.left_out and not measured:
        first, why = reader.left_out[0]
        raise InputError(f"{where}, line {first}: {why}")
    return BenchmarkResults(measured, notes=tuple(describe_left_out(reader.left_out)[:_MAX_NOTES]))


class _Reader:
    """Collector of the tables of a text; `left_out` says which cannot be judged, and why."""

    def __init__(self) -> None:
        self.runs, self.left_out = Runs(), list[tuple[int, str]]()
        self._table = 0
        self._collective: str | None = None
        self._ranks = self._launched = self._said = 0
        self._prefix: re.Pattern[str] | None = None

    def take(self, line: str, number: int) -> None:
        """Parse one line; `number` counts lines from 1."""
        if _USING.search(line) is not None:
            self._said += 1
        elif (match := _HEADING.search(line)) is not None:
            self._begin(match, number)
        elif (command := _COMMAND.search(line)) is not None:
            self._launched = count_processes(line[: command.start()])
            self._collective = None
        elif self._collective is not None:
            words = _LAUNCHER.sub("", cut_prefix(self._prefix, line)).split()
            if len(words) > 1 and _SIZE.fullmatch(words[0]) and _TIME.fullmatch(words[1]):
                self._add(int(words[0]), float(words[1]), "Fail" in words)

    def _begin(self, match: re.Match[str], number: int) -> None:
        self._prefix = make_prefix(match.string[: match.start()])
        test = _WORDS.sub("", match["test"]).strip()
        name = name_collective(test.replace("All-to-All", "Alltoall"))
        self._ranks, self._said, self._collective = self._said or self._launched, 0, None
        if name is None:
            why = (
                f"OSU's {match['test']} test, for which there is no bound; give a collective's, "
                "such as osu_allreduce with buffers on GPUs"
            )
        elif match["memory"] is None:
            why = (
                f"OSU's {name} with buffers in host memory, which says nothing of links between "
                "GPUs; run it with buffers on GPUs (-d cuda or -d rocm)"
            )
        elif self._ranks < 2:
            why = (
                "OSU does not print the number of ranks; give the launcher's line above it, too "
                "(mpirun -np 8 ... osu_allreduce)"
            )
        else:
            self._collective, self._table = name, self._table + 1
            return
        self.left_out.append((number, why))

    def _add(self, size: int, time_us: float, wrong: bool) -> None:
        name = self._collective
        if name is None or not time_us or not size:
            return
        whole = size * self._ranks if name in _BY_PART else size
        algbw = whole / time_us * 1e-3
        busbw = algbw * float(Collective.with_default_root(name, self._ranks).bus_factor())
        m = Measurement(name, self._ranks, whole, algbw, busbw, time_us, wrong=wrong)
        self.runs.add(self._table, [m])
