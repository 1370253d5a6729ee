"""The collective of a table: by the name of its test, what its log calls, or its columns.

Tables are those of nccl-tests. A half of a row is what was measured out of place, or in place:
time, algbw, busbw and errors.
"""

import re
from collections.abc import Sequence

from ..file_contents import ALLGATHER_OR_ALLTOALL, GATHER_OR_SCATTER
from .log_lines import name_collective
from .table_ranks import TOLERANCE, WHOLE, Half, ran_alone
from .table_rows import HOWS, Row, find_parts

# Collectives that reduce, so their rows name an operation.
_ADDING = ("allreduce", "reduce-scatter", "reduce")
_ROOTED = ("reduce", "broadcast", "gather", "scatter")
# Collectives in a file's name.
_FILE_WORDS = re.compile(
    r"(?<![a-z])(?:all[_ -]?to[_ -]?all|all[_ -]?gather|all[_ -]?reduce|reduce[_ -]?scatter|gather"
    r"|scatter|broadcast|reduce)(?![a-z])"
)


def find_in_name(where: str) -> str | None:
    """Return the collective that the name of a file has; None if it has none, or several."""
    named = {name_collective(word) for word in _FILE_WORDS.findall(where.lower())} - {None}
    return named.pop() if len(named) == 1 else None


def infer_collective(
    rows: Sequence[Row], halves: Sequence[Half], asked: str | None, file: str | None
) -> str | None:
    """Return the collective of a table, "A or B" if nothing decides; None for other tests.

    `halves` are the results of the rows, out of place and in place: (time in us, algbw and busbw in
    GB/s, whether results were wrong). `asked` is the collective that the user named, `file` the one
    in the file's name; they only break ties, such as allgather or alltoall.

    The name of the test decides, then the calls that the library logged, else the rows. The ratio
    busbw / algbw is 2(n-1)/n for allreduce, 1 for broadcast and reduce, and (n-1)/n for the others.
    Where rates are too low or ranks too many for that, the column `count` decides: it counts the
    elements of the whole buffer, or those of one of n parts.
    """
    first, named = rows[0], (asked, rows[0].hint, file)
    adds = first.operation not in (None, "none")
    parts = 0 if ran_alone(halves) else find_parts(rows)
    name = name_collective(first.command or "")
    # The name of a test may stem from an earlier table, so it is ignored if the rows have an
    # operation that this test cannot have, or lack one, or have parts that it has not.
    is_plausible = first.operation is None or name is None or adds == (name in _ADDING)
    if first.command is not None and is_plausible and not (parts > 1 and name in WHOLE):
        return name
    called = _find_called(first, parts)
    if called is not None or is_of_sendrecv(rows):
        return called
    fastest = max(halves, key=lambda half: half[1], default=None)
    is_exact = fastest is not None and fastest[1] > 1 and not ran_alone(halves)
    factor = fastest[2] / fastest[1] if fastest is not None and is_exact else None
    if first.root is not None and first.root >= 0:
        # Rates have two decimals, and (n-1)/n is close to 1 for many ranks.
        doubt = 0.012 / fastest[1] if fastest is not None and is_exact else 0
        is_part = parts > 1 or (factor is not None and factor < 1 - max(0.002, doubt))
        if adds:
            return "reduce"
        return _choose(GATHER_OR_SCATTER, *named) if is_part else "broadcast"
    if adds or (factor is not None and factor >= 1 + TOLERANCE):
        return _infer_adding(factor, parts, first.started.listed, asked)
    if factor is None and parts == 1 and first.operation is None:
        # It reduces, or has a root, but that column is lost.
        return next((known for known in named if known in WHOLE), None)
    return _infer_moving(rows, named)


def is_of_sendrecv(rows: Sequence[Row]) -> bool:
    """Return whether a table without a name is of the test of pairs.

    It names an operation, as those that reduce, but like alltoall's checks out of place only.
    """
    first = rows[0]
    adds = first.operation not in (None, "none") and (first.root is None or first.root < 0)
    return first.command is None and adds and {_is_checked_in_place(row) for row in rows} == {False}


def _infer_adding(factor: float | None, parts: int, listed: int, asked: str | None) -> str:
    """Return which collective without a root has rows with an operation."""
    if parts and (factor is None or abs(factor - 1) <= TOLERANCE):
        return "reduce-scatter" if parts > 1 else "allreduce"
    if factor is None:
        return "reduce-scatter" if asked == "reduce-scatter" else "allreduce"
    # With two ranks the factor of allreduce is 1, that of reduce-scatter a half.
    scatters = factor < (1 - TOLERANCE if listed != 2 else 0.75)
    return "reduce-scatter" if scatters else "allreduce"


def _infer_moving(rows: Sequence[Row], named: Sequence[str | None]) -> str:
    """Return which collective without a root has rows without an operation."""
    checked = {_is_checked_in_place(row) for row in rows} - {None}
    if len(checked) == 1:
        return "allgather" if checked.pop() else "alltoall"
    return _choose(ALLGATHER_OR_ALLTOALL, *named)


def _find_called(row: Row, parts: int) -> str | None:
    """Return the only collective that was called, by the log; None if the row is of another."""
    name = next(iter(row.started.calls)) if len(row.started.calls) == 1 else None
    if name is None:
        return None
    adds = row.operation not in (None, "none")
    fits = row.operation is None or adds == (name in _ADDING)
    fits &= parts == 0 or (parts == 1) == (name in WHOLE)
    fits &= row.root is None or (row.root >= 0) == (name in _ROOTED)
    return name if fits else None


def _choose(like: str, *named: str | None) -> str:
    """Return the first of the names that is one of `like` ("A or B"), else `like`."""
    return next((name for name in named if name in like.split(" or ")), like)


def _is_checked_in_place(row: Row) -> bool | None:
    """Return whether results in place were checked; None if none were, or the row is cut.

    Tests of alltoall and of pairs check out of place only, all others both or none.
    """
    out_of_place, in_place = ((*row.halves.get(how, ()), "", "", "", "")[3] for how in HOWS)
    if "" in (out_of_place, in_place) or out_of_place == "N/A":
        return None
    # Older versions print 1e+00 if nothing was checked.
    is_unchecked = in_place == "N/A" or (out_of_place == "0e+00" and in_place == "1e+00")
    return not is_unchecked
