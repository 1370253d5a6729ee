"""What extras (optional parts of topoplan, extras.py at the root) add below topo-probe's tables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TablePart:
    """What is printed below the tables: a `heading`, and `lines` of text, indented below it.

    If `heading` is None, the lines are printed alone, such as one that says why there is no more.
    """

    heading: str | None
    lines: list[str]
