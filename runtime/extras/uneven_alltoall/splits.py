"""The option `expected_splits`: the sizes of an alltoall's parts, announced before the calls."""

from collections.abc import Sequence
from typing import Any

from ....topo.errors import InputError

# The sizes of the parts that each rank sends to each other, or those that this rank sends.
ExpectedSplits = tuple[tuple[int, ...], ...] | tuple[int, ...]


def read_splits(given: Sequence[Any]) -> ExpectedSplits:
    """Return announced sizes of parts; raise InputError if they are no row and no matrix."""
    listed = given.tolist() if hasattr(given, "tolist") else given
    try:
        if all(isinstance(size, int) for size in listed):
            rows = [list(listed)]
        else:
            rows = [[int(size) for size in row] for row in listed]
            if len({len(rows), *map(len, rows)}) > 1:
                raise ValueError
        if not rows[0] or min(map(min, rows)) < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"expected_splits={given!r:.60}: expected sizes of 0 or more, as a square matrix or as "
            "this rank's row"
        ) from None
    return tuple(rows[0]) if isinstance(listed[0], int) else tuple(map(tuple, rows))
