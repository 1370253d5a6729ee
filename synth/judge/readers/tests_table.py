"""Read the tables of nccl-tests and rccl-tests, of all versions, with logs or a launcher's prefixes
between and in their rows.

A row says size, count, type, redop and root (older ones less), then time, algbw, busbw and errors,
twice: out of place and in place. The library's messages may stand in the middle of a row: they are
taken out, and what comes after is put behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..found import Measurement, Place
from .log_lines import Signatures, name_collective

_TYPES = (
    r"u?int(?:8|16|32|64)?|u?char|half|float|double|bf(?:loat)?16|float(?:16|32|64)|fp?8_?e[45]m[23](?:fn|fnuz)?|"
    r"f8e[45]m[23]|fp(?:8|16|32|64)|uint8_t|int8_t"
)
_ROW = re.compile(rf"(?<![\w.\-])(\d+)\s+(\d+)\s+({_TYPES})\b(.*)$")
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all", "multiply")
_NUMBER = re.compile(r"(?:[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|[-+]?(?:nan|inf)|N/A)\*?", re.IGNORECASE)
_HEADER = re.compile(r"\b(?:size|bytes)\b.*\btime\b.*\balgbw\b.*\bbusbw\b")
_COUNTS = re.compile(r"\bnThreads? (\d+) nGpus (\d+) ")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?(?:on\s+(\S+)|uses)\s+device\s+(\d+)\s+\[\s*([0-9a-fA-Fx:.]+)\]"
)
_STARTING = re.compile(r"Collective test starting: *(\S+)")
_COMMAND = re.compile(
    r"\b((?:all_?reduce|all_?gather|reduce_?scatter|broadcast|reduce|all_?to_?all|alltoallv|gather|scatter|"
    r"sendrecv|hypercube)_(?:perf|test)(?:_mpi)?)\b"
)
_WORDS = re.compile(
    r"\b(?:all[_ -]?to[_ -]?all|all[_ -]?gather|all[_ -]?reduce|reduce[_ -]?scatter)\b"
)
_VERSION = re.compile(r"\b([nr]ccl-tests)(?: version|: Version) (\S+)|nccl-library=(\d+)")
_ADDING = ("allreduce", "reduce-scatter", "reduce")
_MOST_ROWS = 100_000
# How far busbw / algbw may be from the factor of a collective.
_EXACTLY = 0.02


# Time in us, algbw, busbw, and whether results were wrong.
_Half = tuple[float, float, float, bool]


@dataclass(frozen=True)
class _Row:
    """A row: the number of its table, the test's name where it is known, its size in bytes, and
    what follows the type.

    `ranks` is how many there were, as far as was said: `listed` one by one, else those of each
    process. `hint` is a collective that somebody named before the table.
    """

    table: int
    command: str | None
    size: int
    operation: str | None
    root: int | None
    values: tuple[str, ...]
    line: int
    width: int
    ranks: int
    listed: bool
    hint: str | None

    @property
    def halves(self) -> list[tuple[str, ...]]:
        """The values out of place, and in place where there are any."""
        if len(self.values) < 2 * self.width:
            return [self.values]
        return [self.values[: self.width], self.values[self.width :]]


class TableReader:
    """Takes a text line by line; `measurements` are what its tables say."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        self.rows: list[_Row] = []
        self.places: dict[int, Place] = {}
        self.header_line = 0
        self.kind = ""
        self.library: str | None = None
        self.others: dict[str, int] = {}
        """Tests that are no collective of ours, by name, and the line that says so."""
        self.notes: list[str] = []
        self._columns: list[str] = []
        self._command: str | None = None
        self._pending: list[str] | None = None
        self._pending_line = 0
        self._gpus = 0
        self._table = 0
        self._hint: str | None = None

    def take(self, line: str, number: int) -> None:
        """Take one line of the text."""
        own = self.signatures.cut_off(line)
        is_cut = len(own) < len(line)
        if not own.strip():
            return
        if "ank" in own and (found := _RANK.search(own)) is not None:
            self._take_rank(found)
            return
        if "algbw" in own and _HEADER.search(own):
            self.header_line = self.header_line or number
            self._end_row()
            self._columns = _read_columns(own)
            self._table += 1
            return
        if (found := _ROW.search(own)) is not None:
            self._begin_row(found, number, is_cut)
            return
        if self._pending is not None and self._continue_row(own):
            return
        self._take_words(own, number)

    def _take_words(self, line: str, number: int) -> None:
        """Take what stands around tables."""
        if "erf" in line or "_test" in line:
            found = _STARTING.search(line) or _COMMAND.search(line)
            if found is not None and not line.lstrip("# ").startswith("Collective test concluded"):
                self._command = found[1].rsplit("/", 1)[-1]
        elif len(line) < 200 and (
            words := {name_collective(word) for word in _WORDS.findall(line.lower())} - {None}
        ):
            self._hint = words.pop() if len(words) == 1 else None
        if "nGpus" in line and (found := _COUNTS.search(line)) is not None:
            self._gpus = int(found[1]) * int(found[2]) if len(found[1]) + len(found[2]) < 10 else 0
            self.header_line = self.header_line or number
            self.places = {}
        if "ccl-" in line and (found := _VERSION.search(line)) is not None:
            self.kind = self.kind or (found[1] or "")
            code = re.search(r"library=(\d{4,6})", line)
            if code is not None:
                self.library = (
                    f"{'RCCL' if 'rccl' in line else 'NCCL'} {read_version(int(code[1]))}"
                )

    def _take_rank(self, found: re.Match[str]) -> None:
        rank, host, device, bus = found.groups()
        if len(rank) < 7 and len(device) < 7:
            self.places[int(rank)] = Place(host, int(device), read_bus(bus))

    def _begin_row(self, found: re.Match[str], number: int, is_cut: bool) -> None:
        """Take the beginning of a row, or all of it."""
        self._end_row()
        self._pending = [*found.groups()[:3], *found[4].split()]
        if is_cut and self._pending[-1] == "-":
            self._pending[-1] = "-1"  # whose digit was taken for the beginning of a host's name
        self._pending_line = number
        if not is_cut and self._is_whole():
            self._end_row()

    def _continue_row(self, line: str) -> bool:
        """Return whether a line is the rest of a row that a message had broken, and take it."""
        assert self._pending is not None
        tokens = re.sub(
            r"^\s*(?:\[[\w,.:\- ]*\](?:<\w+>)?:?\s|[\w.\-]*\D[\w.\-]*:\s|\d+: )\s*", "", line
        ).split()
        if not tokens or not all(_NUMBER.fullmatch(token) for token in tokens):
            return False
        self._pending += tokens
        if self._is_whole():
            self._end_row()
        return True

    def _is_whole(self) -> bool:
        """Return whether a row has all of its columns."""
        assert self._pending is not None
        values = len(self._pending) - 3
        operation = values > 0 and self._pending[3] in _OPERATIONS
        wanted = (
            len([c for c in self._columns if c not in ("size", "count", "type")])
            if self._columns
            else 8
        )
        return values - (operation and not self._columns) >= wanted

    def _end_row(self) -> None:
        """Keep a row, in as far as it came."""
        if self._pending is None:
            return
        size, _, _, *rest = self._pending
        self._pending = None
        if len(size) > 15 or len(self.rows) >= _MOST_ROWS:
            return
        operation = rest.pop(0) if rest and rest[0] in _OPERATIONS else None
        for at, token in enumerate(rest):
            if not _NUMBER.fullmatch(token):
                rest = rest[:at]  # a time stamp, or somebody's remark behind the row
                break
        root = None
        after_root = (
            len(self._columns) - self._columns.index("time") if "time" in self._columns else 8
        )
        has_root = (
            len(rest) in (5, 9)
            or ("root" in self._columns and len(rest) > after_root)
            or rest[:1] == ["-1"]
        )
        if has_root and re.fullmatch(r"-?\d{1,6}", rest[0]):
            root = int(rest.pop(0))
        if len(rest) < min(after_root, 4):
            self.notes.append(f"line {self._pending_line}: a row that is cut, left out")
        else:
            width = _find_width(rest, self._columns)
            row = _Row(
                self._table,
                self._command,
                int(size),
                operation,
                root,
                tuple(rest),
                self._pending_line,
                width,
                len(self.places) or self._gpus,
                bool(self.places),
                self._hint,
            )
            self.rows.append(row)

    def finish(self, asked: str | None, where: str) -> tuple[Measurement, ...]:
        """Return the measurements. `asked` is the collective that was asked for, where one was."""
        self._end_row()
        out = []
        tables: dict[object, list[_Row]] = {}
        for row in self.rows:
            tables.setdefault(
                (row.table, row.command, row.operation in (None, "none"), row.root), []
            ).append(row)
        for rows in tables.values():
            name, n = _tell_collective(rows, asked)
            if name is None:
                self.others.setdefault(rows[0].command or "unknown", rows[0].line)
                continue
            for row in rows:
                for how, half in zip(("out-of-place", "in-place"), row.halves, strict=False):
                    measured = _read_half(half)
                    if measured is not None and row.size > 0:
                        time_us, algbw, busbw, wrong = measured
                        out.append(
                            Measurement(name, n, row.size, algbw, busbw, time_us, how, wrong)
                        )
        return tuple(out)


def _read_columns(line: str) -> list[str]:
    """Return the names of columns of a header, from size on."""
    words = line.replace("#wrong", "error").replace("#", " ").split()
    start = next(i for i, word in enumerate(words) if word in ("size", "bytes"))
    return [
        "size" if w == "bytes" else "count" if w == "N" else "redop" if w == "op" else w
        for w in words[start:]
    ]


def _find_width(values: Sequence[str], columns: list[str]) -> int:
    """Return how many values belong to one half of a row."""
    times = [at for at, name in enumerate(columns) if name == "time"]
    if len(times) == 2:
        return times[1] - times[0]
    return 4 if len(times) != 1 else max(len(values), 4)


def _read_half(values: Sequence[str]) -> _Half | None:
    """Return time, algbw, busbw and whether results were wrong, of one half of a row; None where
    they are no numbers.
    """
    if len(values) < 3:
        return None
    try:
        time_us, algbw, busbw = (float(value.rstrip("*")) for value in values[:3])
    except ValueError:
        return None
    error = values[3].rstrip("*") if len(values) > 3 else "0"
    counts_wrong = error.isdigit()  # older versions print the greatest difference: 1e-07
    if not (0 <= time_us < 1e15 and 0 <= algbw < 1e9 and 0 <= busbw < 1e9):
        return None
    return time_us, algbw, busbw, counts_wrong and int(error) > 0


def _tell_collective(rows: Sequence[_Row], asked: str | None) -> tuple[str | None, int]:
    """Return the collective of a table and its ranks: by the test's name, else by what its rows
    say; None for no collective.

    Of busbw / algbw, 2(n-1)/n is allreduce's, (n-1)/n that of the others that are not rooted;
    alltoall is not checked in place, and prints N/A there.
    """
    first = rows[0]
    ranks, listed = max((row.ranks, row.listed) for row in rows)
    fastest = max(
        (m for row in rows for half in row.halves if (m := _read_half(half))),
        key=lambda m: m[1],
        default=None,
    )
    factor = fastest[2] / fastest[1] if fastest and fastest[1] > 1 else None
    name = name_collective(first.command) if first.command is not None else None
    # A test that was named before another one's table is not believed where its rows add, or do
    # not, against its nature.
    adds = None if first.operation is None else first.operation != "none"
    if first.command is not None and (name is None or adds in (None, name in _ADDING)):
        return name, _choose_ranks(name, fastest, ranks, listed)
    if first.root is not None and first.root >= 0:
        name = "broadcast" if first.operation in (None, "none") else "reduce"
    elif first.operation in (None, "none") and (factor is None or factor < 1 + _EXACTLY):
        name = (
            "alltoall"
            if all(map(_is_unchecked, rows)) or "alltoall" in (asked, first.hint)
            else "allgather"
        )
    else:
        # Of two ranks allreduce has the factor 1, reduce-scatter a half.
        scatters = factor is not None and (factor < 1 - _EXACTLY if ranks != 2 else factor < 0.75)
        name = (
            "reduce-scatter"
            if scatters or (factor is None and asked == "reduce-scatter")
            else "allreduce"
        )
    return name, _choose_ranks(name, fastest, ranks, listed)


def _is_unchecked(row: _Row) -> bool:
    """Return whether the results in place were not checked, and those out of place were: older
    versions print 1e+00 there.
    """
    errors = [half[3] if len(half) > 3 else "" for half in row.halves]
    return (
        len(errors) == 2
        and errors[0] != errors[1]
        and (errors[1] == "N/A" or (errors[0] == "0e+00" and "e+" in errors[1]))
    )


def _choose_ranks(name: str | None, fastest: _Half | None, ranks: int, listed: bool) -> int:
    """Return how many ranks there were: those listed, unless busbw / algbw says that these are not
    all; else what that says, else what each process had.
    """
    guess = _guess_ranks(name, fastest)
    if listed and not (guess > ranks and fastest and not _is_factor(name, ranks, fastest)):
        return ranks
    return guess or (ranks if ranks > 1 else 0)


def _is_factor(name: str | None, ranks: int, fastest: _Half) -> bool:
    """Return whether busbw / algbw is what a collective has of that many ranks."""
    expected = (2 if name == "allreduce" else 1) * (ranks - 1) / ranks
    return abs(fastest[2] / fastest[1] - expected) <= _EXACTLY


def _guess_ranks(name: str | None, fastest: _Half | None) -> int:
    """Return the number of ranks that follows from busbw / algbw; 0 where none does, as figures
    have two digits only.
    """
    if fastest is None or fastest[1] <= 1 or name in (None, "broadcast", "reduce"):
        return 0
    _, algbw, busbw, _ = fastest
    ways = 2 if name == "allreduce" else 1
    part, doubt = busbw / algbw / ways, 0.006 / algbw * (1 + busbw / algbw) / ways
    if not 0.4 < part < 1:
        return 0
    n = round(1 / (1 - part))
    return n if 2 <= n <= 1024 and abs((n - 1) / n - part) <= doubt < 0.5 / n**2 else 0


def read_bus(text: str) -> str | None:
    """Return the PCI address in brackets: 0x1b (a bus alone), 0000:1b:00 or 0000:1b:00.0; None for
    0x00, which is none.
    """
    text = text.lower()
    if re.fullmatch(r"0x[0-9a-f]{1,2}", text):
        return None if int(text, 16) == 0 else f"{int(text, 16):02x}"
    return (
        text
        if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?", text)
        else None
    )


def read_version(code: int) -> str:
    """Return a version from NCCL_VERSION_CODE: 22304 is 2.23.4, 2408 was 2.4.8."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
