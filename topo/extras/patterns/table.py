"""Tables of patterns: lines that people write, and matrices of tools with both directions.

A pattern is a set of flows, each from one rank to another, that were measured at once. A line is
`0>2 1>3 = 2.7 of 37 write`: the flows, the GB/s of all together, those of the fastest of them
alone, and write, read or copy (the default): whether senders wrote, receivers read, or neither is
known. `#` begins a comment. Matrices are those of nvbandwidth, p2pBandwidthLatencyTest and the
like, of which one has each pair in one direction and another in both at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...errors import InputError
from ...exact import parse_fraction
from ..measured.pair_rates import PairRates, find_pair_rates
from .facts import Pattern, parse_flow

HOWS = ("write", "read", "copy")
_LINE = re.compile(
    r"(?P<flows>\d{1,6}>\d{1,6}(?:[ ,]{1,9}\d{1,6}>\d{1,6}){0,9999}) {0,9}= {0,9}"
    r"(?P<together>\d{1,9}\.?\d{0,9}) of (?P<alone>\d{1,9}\.?\d{0,9})(?: (?P<how>[a-z]{1,9}))?"
)


def read_patterns(text: str, where: str, ranks: int) -> list[Pattern]:
    """Return the patterns of a table; `where` names it as their source, and in errors.

    `ranks` is the number of the machine's ranks; matrices count for the first so many GPUs. Raise
    InputError if the text is no such table, or if its lines name other ranks.
    """
    matrices = [rates for rates in find_pair_rates(text) if rates.is_of_pairs]
    if matrices:
        found = [*_pair_directions(matrices, where, ranks)]
        if not found:
            raise InputError(
                f"{where}: no pair of GPUs has both rates one way and rates of both ways at once; "
                "expected both matrices of one test"
            )
        return found
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if said:
            found.append(_read_line(said, f"{where}: line {number}", ranks))
    if not found:
        raise InputError(f"{where}: no pattern in it; expected lines such as 0>2 1>3 = 2.7 of 37")
    return found


def _read_line(line: str, where: str, ranks: int) -> Pattern:
    match = _LINE.fullmatch(line)
    how = "copy" if match is None else match["how"] or "copy"
    if match is None or how not in HOWS:
        raise InputError(
            f"{where}: {line!r:.60}: expected flows, GB/s of all and of one alone, and "
            f"{', '.join(HOWS)}: 0>2 1>3 = 2.7 of 37 write"
        )
    try:
        flows = tuple(parse_flow(x, ranks) for x in re.split(r"[ ,]+", match["flows"].strip()))
    except ValueError as error:
        raise InputError(
            f"{where}: {error}: expected a flow between two of ranks 0 to {ranks - 1}"
        ) from None
    together, alone = parse_fraction(match["together"]), parse_fraction(match["alone"])
    if not together or not alone:
        raise InputError(f"{where}: expected rates above 0")
    return Pattern(flows, together, alone, how, where.partition(": ")[0])


def _pair_directions(matrices: list[PairRates], where: str, ranks: int) -> Iterator[Pattern]:
    """Yield what each pair of GPUs gets in both directions at once, beside one direction alone."""
    one_way: dict[tuple[str, bool], PairRates] = {}
    for rates in matrices:
        if rates.is_one_way:
            one_way[rates.tool, rates.is_through_memory] = rates
    for both in matrices:
        alone = one_way.get((both.tool, both.is_through_memory))
        if both.is_one_way or alone is None:
            continue
        for i in range(min(both.count, ranks)):
            for j in range(i):
                sums = [_find_cell(both, *pair) for pair in ((i, j), (j, i))]
                single = [_find_cell(alone, *pair) for pair in ((i, j), (j, i))]
                known = [rate for rate in sums if rate]
                if known and all(single):
                    yield Pattern(
                        ((j, i), (i, j)),
                        parse_fraction(str(min(known))),
                        parse_fraction(str(max(x for x in single if x))),
                        "read" if both.is_read else "copy",
                        f"{where} ({both.tool})",
                    )


def _find_cell(rates: PairRates, i: int, j: int) -> float | None:
    return rates.rows[i][j] if i < len(rates.rows) and j < len(rates.rows[i]) else None
