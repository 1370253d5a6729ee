"""Tables of nccl-tests and rccl-tests, of all versions.

Launchers' prefixes and log messages may be between and in their rows. A row has size, count, type,
redop and root (fewer in older versions), then time, algbw, busbw and errors, twice: out of place
and in place. A message of the library may break a row: it is removed, and the rest of the row is
appended.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from ..file_contents import FileFinding, Location, Measurement
from .launchers import count_hosts, count_processes, names_launcher
from .log_lines import CALL, MEMBER, Signatures, name_collective
from .said_hosts import SaidHosts, find_said_hosts
from .table_collective import find_in_name
from .table_ranks import Started
from .table_rows import HOWS, Row, count_parts, read_halves
from .table_runs import RowsMeasurer
from .table_words import (
    NUMBER,
    is_mostly_numbers,
    read_bus,
    read_columns,
    read_version,
    split_numbers,
)

# Types as nccl-tests and rccl-tests print them, in all versions.
_TYPES = (
    r"u?int(?:8|16|32|64)?|u?char|half|float|double|bf(?:loat)?16|float(?:16|32|64)"
    r"|fp?8_?e[45]m[23](?:fn|fnuz)?|f8e[45]m[23]|fp(?:8|16|32|64)|uint8_t|int8_t"
)
_ROW = re.compile(rf"(?<![\w.\-])(\d+)\s+(\d+)\s+({_TYPES})\b(.*)$")
# Reduction operations; "none" for collectives that do not reduce.
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all", "multiply")
# What guides have in place of a time or a rate.
_MASK = re.compile(r"[Xx]{2,}(?:\.[Xx]+)?|\?+|<[\w-]{1,20}>")
# The line above a header, which says of which half each of its columns is.
_GROUPS = re.compile(r"[#\s]*(?:out-of-place\s+in-place|in-place\s+out-of-place)\s*")
# What a test says at its end.
_ENDED = re.compile(r"# *(?:Avg bus bandwidth|Collective test concluded)\b")
_HEADER = re.compile(r"\b(?:size|bytes)\b.*\btime\b.*\balgbw\b.*\bbusbw\b")
_COUNTS = re.compile(r"\bnThreads? (\d+) nGpus (\d+) ")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?(?:on\s+(\S+)|uses)"
    r"\s+device\s+(\d+)\s+\[\s*([0-9a-fA-Fx:.]+)\](?:\s+(\S.*?))?\s*$"
)
# What people put in the place of lines that they leave out.
_DOTS = re.compile(r"[ #>]*[\[(<]?(?:\.{3,}|(?: ?\.){3,}|\u2026)[\])>]?\s*")
# What mpirun puts before each part that a process writes at once: also within a row, whose values
# a test writes one after another. The time, the job and the rank are options of it.
_TAG = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?"
    r"(?:\[[\w,.:\-@]{1,100}\])?<std(?:out|err)>:? ?"
)
# What other launchers put there: a rank in brackets, within lines that begin with it.
_LABEL = re.compile(r"\s*(\[[\w,.:\-@]{1,100}\]:?)")
# What mpirun puts before each line, at the end of a row that a message broke.
_LAUNCHER = re.compile(r"\s*\[[\w,.:\- ]*\](?:<\w+>)?:?\s*$")
_STARTING = re.compile(r"Collective test starting: *(\S+)")
_COMMAND = re.compile(
    r"\b((?:all_?reduce|all_?gather|reduce_?scatter|broadcast|reduce|all_?to_?all|alltoallv|gather"
    r"|scatter|sendrecv|hypercube)_(?:perf|test)(?:_mpi)?)\b"
)
_OPTION = re.compile(r" +--?[a-z]")
# Options of a test: the GPUs of a thread, and the threads of a process.
_GPUS = re.compile(r"\s(?:-g|--ngpus)[ =]?([1-9]\d{0,3})\b")
_THREADS = re.compile(r"\s(?:-t|--nthreads)[ =]?([1-9]\d{0,3})\b")
_WORDS = re.compile(
    r"\b(?:all[_ -]?to[_ -]?all|all[_ -]?gather|all[_ -]?reduce|reduce[_ -]?scatter)\b"
)
# What a command line sets for the library, as mpirun's -x does.
_VARIABLE = re.compile(r"(?<![\w$])((?:NCCL|RCCL)_[A-Z0-9_]{1,60})=[\"']?([\w.,:^/\-]{1,200})")
# The GPUs that a program sees, by number.
_VISIBLE = re.compile(
    r"\b(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES=[\"']?(\d{1,4}(?:,\d{1,4}){0,256})(?![\w,\-])"
)
_VERSION = re.compile(r"\b([nr]ccl-tests)(?: version|: Version) (\S+)|nccl-library=(\d+)")
# Most rows, to bound memory; a test prints some thirty.
_MAX_ROWS = 100_000
# Longest line, in characters, to search for the name of a collective: longer ones are prose.
_MAX_HINT = 200
# Longest command on several lines, and longest list of a batch script's options, in characters.
_MAX_COMMAND = 4000
# Values after the root of a row: time, algbw, busbw and errors, twice.
_VALUES = 8
# Columns before those.
_SIZES = ("size", "count", "type")
# Values of one half that tell a rate: time, algbw and busbw.
_HALF = 3


@dataclass(frozen=True)
class _Begun:
    """A row of which more may follow: its words so far, and what was known where it began."""

    words: list[str]
    line: int
    table: int
    command: str | None
    started: Started
    hint: str | None
    said: SaidHosts | None


class TableReader:
    """Collector of the tables of a text: `take` each line, then call `finish`.

    `signatures` finds the messages of the library in lines; a reader of logs shares it. `rows` are
    the rows so far, `started` what the text says of the start of each test, `header_line` is the
    number of the first line of a header, 0 without one, and `kind` the name of the tests. `finish`
    fills `others`: tests that are no collective here, with the line that names them; and
    `findings`: how tests were started wrongly.
    """

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        self.rows: list[Row] = []
        self.started = [Started()]
        self.findings: list[FileFinding] = []
        self.header_line = 0
        self.kind = ""
        self.library: str | None = None
        self.others: dict[str, int] = {}
        # Lines with a row, or a half of one, that is left out, and why.
        self.left_out: list[tuple[int, str]] = []
        # What command lines set for the library: a name, a value and the line.
        self.variables: list[tuple[str, str, int]] = []
        # The first line of numbers below a header that is no row, and whether a test ended.
        self.odd_line = 0
        # The header of a table of AWS Neuron's nccom-test, whose rows look alike.
        self.neuron_line = 0
        self._is_neuron = False
        # Whether the columns in place come first, as in MSCCL++'s test.
        self._is_swapped = False
        self.has_ended = False
        self._columns: list[str] = []
        self._command: str | None = None
        self._pending: _Begun | None = None
        self._table = 0
        # The sizes of the table's rows so far, and the last of them.
        self._sizes: set[int] = set()
        self._last_size = 0
        # The lines before in a command on several lines, and what a batch script gives Slurm.
        self._continued = self._directives = ""
        self._hint: str | None = None
        self._said: SaidHosts | None = None

    def take(self, line: str, number: int) -> None:
        """Parse one line of the text; `number` counts lines from 1."""
        own = self.signatures.cut_off(line)
        if len(own) < len(line):
            own = _LAUNCHER.sub("", own)
        if "<std" in own:
            own = _TAG.sub(" ", own)
        elif (label := _LABEL.match(own)) is not None and own.count(label[1]) > 1:
            own = own.replace(label[1], " ")
        if not own.strip():
            return
        if own.count("|") > 2:  # a table in Markdown
            own = own.replace("|", " ")
        # The quick tests before each pattern keep large logs fast.
        if "ank" in own and (match := _RANK.search(own)) is not None:
            self.header_line = self.header_line or number
            self._take_rank(match)
        elif "algbw" in own and _HEADER.search(own):
            self._take_header(own, number)
        elif self._is_neuron and _ROW.search(own) is not None:
            self.left_out.append((number, "a row of nccom-test, of no GPU, is left out"))
        elif (match := _ROW.search(own)) is not None:
            self._begin_row(match, number, is_cut=len(own) < len(line))
        elif self._columns and "type" not in self._columns and self._take_bare_row(own, number):
            pass
        elif self._pending is None or not self._continue_row(self._pending.words, own):
            self._take_words(own, number)

    def _take_header(self, line: str, number: int) -> None:
        self._end_row()
        self._is_neuron = "(elems)" in line
        if self._is_neuron:
            self.neuron_line = number
            return
        self.header_line = self.header_line or number
        self._columns = read_columns(line)
        self._begin_table()
        self._find_start().has_header = True

    def take_calls(self, line: str) -> None:
        """Record which collectives a line of the library says are called, on how many ranks."""
        for name, ranks in CALL.findall(line):
            self.started[-1].calls.add(name_collective(name))
            self.started[-1].called.update([int(ranks)] if ranks else [])
        self.started[-1].called.update(map(int, MEMBER.findall(line)))

    def _take_words(self, line: str, number: int) -> None:
        if "#" in line and _ENDED.search(line) is not None:
            self.has_ended = True
            self._end_row()
            self._begin_table()  # rows below are another table's, also without a header
        if self._columns and not self.odd_line and is_mostly_numbers(line, _HALF):
            self.odd_line = number
        if _GROUPS.fullmatch(line) is not None:
            self._is_swapped = line.index("in-place") < line.index("out-of-place")
        if _DOTS.fullmatch(line):
            # Dots below the header stand for rows, else for ranks.
            started = self.started[-1]
            started.has_rows |= started.has_header
            started.is_open |= not started.has_header
        if "VISIBLE_DEVICES" in line and (match := _VISIBLE.search(line)) is not None:
            self._find_start().visible = tuple(map(int, match[1].split(",")))
        command = self._join_command(line)
        if "erf" in command or "_test" in command:
            match = _STARTING.search(command) or _COMMAND.search(command)
            if match is not None and not line.lstrip("# ").startswith("Collective test concluded"):
                self._command = match[1].rsplit("/", 1)[-1]
                self._take_command(command[: match.start()], command[match.end() :], number)
        elif len(line) < _MAX_HINT:
            names = {name_collective(word) for word in _WORDS.findall(line.lower())} - {None}
            if names:
                self._hint = names.pop() if len(names) == 1 else None
        if (said := find_said_hosts(line, number)) is not None:
            self._said = said
        if "nGpus" in line and (match := _COUNTS.search(line)) is not None:
            self._take_counts(match)
            self.header_line = self.header_line or number
        if "ccl-" in line and (match := _VERSION.search(line)) is not None:
            self.kind = self.kind or match[1] or ""
            if (code := re.search(r"library=(\d{4,6})", line)) is not None:
                name = "RCCL" if "rccl" in line else "NCCL"
                self.library = f"{name} {read_version(int(code[1]))}"

    def _find_start(self) -> Started:
        """Return what is known of the start of the next table."""
        if self._pending is not None and self._has_half(self._pending.words):
            # A row may end there, as that of a test that measures out of place only.
            self._pending.started.has_rows = True
        if self.started[-1].has_rows:
            self.started.append(Started())
        return self.started[-1]

    def _take_counts(self, match: re.Match[str]) -> None:
        """Record the GPUs of each process; other options than before are those of another run."""
        started, options = self._find_start(), match.string[match.start() :].strip()
        if started.jobs and started.options not in ("", options):
            started = Started()
            self.started.append(started)
        started.options = options
        started.gpus = int(match[1]) * int(match[2]) if len(match[1] + match[2]) < 10 else 0

    def _take_rank(self, match: re.Match[str]) -> None:
        rank, host, device, bus, model = match.groups()
        if len(rank) < 7 and len(device) < 7:
            started = self._find_start()
            started.jobs += int(rank) == 0
            started.is_open = False
            number = int(device)
            number = started.visible[number] if number < len(started.visible) else number
            location = Location(host, number, read_bus(bus), model=model)
            if host is not None:
                self.signatures.note_host(host)
            started.locations.setdefault(int(rank), location)

    def _join_command(self, line: str) -> str:
        """Return a line after those that it continues, which end with a backslash."""
        if line.lstrip().startswith("#!"):
            self._directives = ""
        elif line.lstrip().startswith("#SBATCH ") and len(self._directives) < _MAX_COMMAND:
            self._directives += line.partition("#SBATCH")[2].partition(" #")[0]
        command = self._continued + line
        is_open = command.rstrip().endswith("\\") and len(command) < _MAX_COMMAND
        self._continued = command.rstrip()[:-1] + " " if is_open else ""
        return command

    def _take_command(self, launcher: str, options: str, number: int) -> None:
        """Record what a command line says of ranks, before and after the name of the test."""
        processes = count_processes(launcher, self._directives)
        each = [int(found[1]) for p in (_GPUS, _THREADS) if (found := p.search(options))]
        is_command = _OPTION.match(options) is not None
        if not processes and not each and not is_command:
            return  # the name of the test alone, as in a sentence
        if is_command:
            self.variables += [(*found, number) for found in _VARIABLE.findall(launcher)]
        started = self._find_start()
        if started.jobs and is_command:
            # It is started again: what was listed before gave no row.
            started = Started()
            self.started.append(started)
        started.processes = processes or started.processes
        started.hosts = count_hosts(launcher, self._directives) or started.hosts
        if each and (started.processes or not names_launcher(launcher)):
            started.gpus = prod(each)

    @property
    def locations(self) -> dict[int, Location]:
        """The longest list of devices of a run that measured something, if one did."""
        measured = [started for started in self.started if started.has_rows]
        return max((started.locate() for started in measured or self.started), key=len)

    def _begin_table(self) -> None:
        self._table += 1
        self._sizes = set()

    def _begin_row(self, match: re.Match[str], number: int, is_cut: bool) -> None:
        """Parse the available part of a row; `is_cut` if a message follows on the same line."""
        self._end_row()
        size = int(match[1]) if len(match[1]) < 16 else 0
        if size in self._sizes and size < self._last_size and self.started[-1].jobs < 2:
            self._begin_table()  # sizes only grow: people often keep the rows of runs alone
        self._sizes.add(size)
        self._last_size = size
        pending = [*match.groups()[:3], *match[4].split()]
        if is_cut and pending[-1] == "-":
            pending[-1] = "-1"  # the digit was read as the beginning of a host's name
        self._pending = _Begun(
            pending, number, self._table, self._command, self.started[-1], self._hint, self._said
        )
        if not is_cut and self._is_whole(pending):
            self._end_row()

    def _take_bare_row(self, line: str, number: int) -> bool:
        """Store a row of a table whose type somebody removed; return whether the line is one."""
        values, columns = split_numbers(line), self._columns
        # A test may measure one of two halves only.
        halves = [*[at for at, name in enumerate(columns) if name == "time"][1:], len(columns)]
        if len(values) not in halves or len(values) < len(line.split()):
            return False
        named = dict(zip(columns, values, strict=False))
        rest = [v for name, v in zip(columns, values, strict=False) if name not in _SIZES]
        self._end_row()
        self._pending = _Begun(
            [named.get("size", "0"), named.get("count", "0"), "", *rest],
            number,
            self._table,
            self._command,
            self.started[-1],
            self._hint,
            self._said,
        )
        self._end_row()
        return True

    def _continue_row(self, pending: list[str], line: str) -> bool:
        """Append a line to the row that a message broke; return whether it belongs there."""
        prefix = r"^\s*(?:\[[\w,.:\- ]*\](?:<\w+>)?:?\s|[\w.\-]*\D[\w.\-]*:\s|\d+: )\s*"
        tokens = re.sub(prefix, "", line).split()
        if not tokens or not all(map(NUMBER.fullmatch, tokens)):
            return False
        pending += tokens
        if self._is_whole(pending):
            self._end_row()
        return True

    def _is_whole(self, row: list[str]) -> bool:
        if self._columns:
            return len(row) - 3 >= sum(name not in _SIZES for name in self._columns)
        return len(row) - 3 - any(word in _OPERATIONS for word in row[3:4]) >= _VALUES

    @staticmethod
    def _has_half(row: list[str]) -> bool:
        """Return whether a row has its values out of place: they are printed together."""
        return len(row) - 3 - any(word in _OPERATIONS for word in row[3:4]) >= _HALF

    def _end_row(self) -> None:
        """Store the pending row, even if it is incomplete."""
        begun, self._pending = self._pending, None
        if begun is None:
            return
        size, count, kind, *rest = begun.words
        if max(len(size), len(count)) > 15 or len(self.rows) >= _MAX_ROWS:
            return
        operation = rest.pop(0) if rest and rest[0] in _OPERATIONS else None
        # A time stamp or a remark may follow the row.
        numbers = list(takewhile(NUMBER.fullmatch, rest))
        masked = next(filter(_MASK.fullmatch, rest[len(numbers) :][:1]), "")
        row = read_halves(int(size), numbers, self._columns)
        believed = {how: v for how, v in row.values.items() if how not in row.doubtful}
        for how in row.doubtful:
            self._note_doubtful(begun.line, how, row.values[how], masked)
        begun.started.has_rows = True
        if not believed:
            return
        if self._is_swapped:
            believed = {HOWS[how == HOWS[0]]: values for how, values in believed.items()}
        self.rows.append(
            Row(
                begun.table,
                begun.command,
                int(size),
                count_parts(int(size), int(count), kind),
                operation,
                row.root,
                believed,
                begun.line,
                begun.started,
                begun.hint,
                begun.said,
                kind,
            )
        )

    def _note_doubtful(self, line: int, how: str, values: Sequence[str], masked: str) -> None:
        which = how.replace("-", " ")
        is_cut = len(values) < _HALF
        why = f"the row is cut {which}, which is left out"
        if masked:
            why = f"{masked} stands in place of numbers {which}, which are left out"
        wrong = f"{which} the size over the time is not algbw; left out"
        self.left_out.append((line, why if is_cut else wrong))

    def finish(self, asked: str | None, where: str = "") -> tuple[Measurement, ...]:
        """Return the measurements, after the last line.

        `asked` is the collective that the user named, if any, and `where` the name of the file.
        """
        self._end_row()
        measured = RowsMeasurer(asked, find_in_name(where), self.signatures.count_hosts() > 0)
        measurements = measured.measure(self.rows)
        self.findings, self.others = measured.findings, measured.others
        self.left_out += measured.left_out
        return measurements
