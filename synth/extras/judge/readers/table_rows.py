"""The values of one row of a table of nccl-tests: its root, and what was measured twice.

A half of a row is what was measured out of place, or in place: time, algbw, busbw and errors.
Columns may be cut off on the right, and old tables leave some blank that their header names. What
tells is that the rate is the size over the time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .said_hosts import SaidHosts
from .table_ranks import TOLERANCE, Half, Started

# Values of one half without a header: time, algbw, busbw and errors.
_WIDTH = 4
# Half of the last digit of a rate in GB/s, with room for the rounding of sums.
_ROUNDING_GBps = 0.006
# Rates in GB/s below which two decimals say nothing about a ratio.
_MIN_GBps = 1.0
# How far a rate may be from the size over the time: tests average both over ranks.
_SLACK = 0.03
# How far busbw / algbw may be from that of other rows, beside rounding.
_FACTOR_SLACK = 0.002
# Times in the oldest tables are in milliseconds.
_UNITS = (1.0, 1e-3)
_ROOT = re.compile(r"-?\d{1,6}")
HOWS = ("out-of-place", "in-place")
# Bytes of an element of types without a width in their names.
_BYTES = {"char": 1, "uchar": 1, "half": 2, "int": 4, "uint": 4, "float": 4, "double": 8}
_WIDTH_IN_NAME = re.compile(r"8|16|32|64")


@dataclass(frozen=True)
class Row:
    """A row: its table, the test if named, its size in bytes, and the values after the root.

    `table` is the number of its table in the text, `command` the name of the test, and `line` the
    number of its line. `halves` are the values by variant: out of place and, if present, in place.
    `started` is what the text says of the start of the test. `hint` is a collective that was named
    before the table. `said` are hosts that prose states before it. `parts` is what `count_parts`
    returns for its size and its elements, and `kind` their type, "" if it is not printed.
    """

    table: int
    command: str | None
    size: int
    parts: int
    operation: str | None
    root: int | None
    halves: dict[str, list[str]]
    line: int
    started: Started
    hint: str | None
    said: SaidHosts | None = None
    kind: str = ""


@dataclass(frozen=True)
class Halves:
    """What a row measured, as printed: its root, None without one, and its values by variant.

    `doubtful` names the variants that contradict themselves or are cut off within.
    """

    root: int | None
    values: dict[str, list[str]]
    doubtful: tuple[str, ...] = ()


def count_parts(size: int, count: int, kind: str) -> int:
    """Return how many times `count` elements of the type `kind` are `size` bytes.

    Return 0 if that is no whole number, or the type is unknown. In rows of allgather, alltoall,
    reduce-scatter, gather and scatter the count is that of one rank's part and the size that of all
    parts, so the result is the number of ranks; in rows of other collectives it is 1.
    """
    width = _WIDTH_IN_NAME.search(kind)
    one = count * (int(width[0]) // 8 if width is not None else _BYTES.get(kind, 0))
    return size // one if one and size % one == 0 else 0


def find_parts(rows: Sequence[Row]) -> int:
    """Return the number of parts of a table (`count_parts`); 0 if it is unknown, or rows differ."""
    found = {row.parts for row in rows if row.size}
    return found.pop() if len(found) == 1 else 0


def read_halves(size: int, values: list[str], columns: Sequence[str]) -> Halves:
    """Return the root and the halves of a row of `size` bytes; `columns` are the header's names.

    `values` are the numbers after type and operation, of which the last may be missing.
    """
    bare = _split(None, values, columns)
    if not values or _ROOT.fullmatch(values[0]) is None:
        return _find_doubtful(size, bare)
    rooted = _split(int(values[0]), values[1:], columns)
    if values[0] == "-1":
        return _find_doubtful(size, rooted)
    after_root = len(columns) - columns.index("time") if "time" in columns else 2 * _WIDTH
    is_likely = "root" in columns or len(values) in (after_root + 1, _WIDTH + 1)
    ways = (rooted, bare) if is_likely else (bare, rooted)
    best = max(ways, key=lambda way: sum(_agrees(size, half) for half in way.values.values()))
    return _find_doubtful(size, best)


def read_half(values: Sequence[str]) -> Half | None:
    """Return the values of one half of a row; None if they are not usable numbers.

    They are the time in us, algbw and busbw in GB/s, and whether results were wrong.
    """
    if len(values) < 3:
        return None
    try:
        time_us, algbw, busbw = (float(value.rstrip("*")) for value in values[:3])
    except ValueError:
        return None
    if not (0 <= time_us < 1e15 and 0 <= algbw < 1e9 and 0 <= busbw < 1e9):
        return None
    # Older versions print the greatest difference (1e-07) instead of the number of wrong elements.
    error = values[3].rstrip("*") if len(values) > 3 else "0"
    return time_us, algbw, busbw, error.isdigit() and int(error) > 0


def find_odd_factors(halves: Sequence[Sequence[str]]) -> set[int]:
    """Return the indices of the halves in which the text was cut within the number for busbw.

    `halves` are the values of all rows of a table, out of place and in place. A half was cut there
    if it lacks the column of errors, and its busbw / algbw differs from that of the others.
    """
    read = [read_half(values) for values in halves]
    whole: list[float] = []
    cut: dict[int, tuple[float, float]] = {}
    for at, (values, half) in enumerate(zip(halves, read, strict=True)):
        if half is None or half[1] < _MIN_GBps:
            continue
        if len(values) > 3:
            whole.append(half[2] / half[1])
        else:
            cut[at] = half[2] / half[1], 2 * _ROUNDING_GBps / half[1]
    usual = median(whole or [factor for factor, _ in cut.values()] or [1.0])
    return {
        at
        for at, (factor, doubt) in cut.items()
        if abs(factor - usual) > doubt * (1 + usual) + _FACTOR_SLACK
    }


def _split(root: int | None, values: list[str], columns: Sequence[str]) -> Halves:
    """Return the values out of place and, unless the header has one time column, in place."""
    times = [at for at, name in enumerate(columns) if name == "time"]
    width = times[1] - times[0] if len(times) == 2 else _WIDTH
    parts = [values] if len(times) == 1 else [values[:width], values[width : 2 * width]]
    return Halves(root, {how: part for how, part in zip(HOWS, parts, strict=False) if part})


def _find_doubtful(size: int, row: Halves) -> Halves:
    values = row.values or {HOWS[0]: []}
    doubtful = tuple(how for how, half in values.items() if not _agrees(size, half))
    return Halves(row.root, values, doubtful)


def _agrees(size: int, values: Sequence[str]) -> bool:
    """Return whether size, time and algbw fit each other.

    Until June 2020 allgather and reduce-scatter printed busbw in place of algbw, which is up to
    half of it.
    """
    half = read_half(values)
    if half is None:
        # Text such as N/A or nan in place of a rate is no contradiction.
        return len(values) > 2
    time_us, algbw, busbw, _ = half
    if not time_us:
        return not algbw
    digits = len(values[0].rstrip("*").partition(".")[2])
    slack = _SLACK + 0.5 * 10**-digits / time_us
    rates = [size / time_us * 1e-3 * unit for unit in _UNITS]
    if any(abs(rate - algbw) <= _ROUNDING_GBps + slack * max(rate, algbw) for rate in rates):
        return True
    is_old = abs(busbw - algbw) <= TOLERANCE
    return is_old and any(algbw <= rate <= (2 + slack) * algbw for rate in rates)
