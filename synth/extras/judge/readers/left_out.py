"""Notes on the lines of a text that are left out, by reason: no reason hides another one."""

from collections.abc import Iterable

from .....topo.grouping import group_by_key

# Most lines to name for a reason; the others are counted.
_MAX_LINES = 3


def describe_left_out(places: Iterable[tuple[int, str]]) -> list[str]:
    """Return a note for each reason, with its lines: "lines 3, 4: ...".

    `places` are (number of a line, reason).
    """
    notes = []
    for reason, lines in group_by_key((reason, line) for line, reason in places).items():
        named = ", ".join(map(str, lines[:_MAX_LINES]))
        more = len(lines) - _MAX_LINES
        left = f" and {more} more" if more > 0 else ""
        notes.append(f"line{'s' if len(lines) > 1 else ''} {named}{left}: {reason}")
    return notes
