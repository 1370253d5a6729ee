"""The option `expected_splits`: the sizes of an alltoall's parts, announced before the calls."""

from collections.abc import Sequence
from typing import Any

from ....topo.errors import InputError

# The sizes of the parts that each rank sends to each other, or those that this rank sends.
ExpectedSplits = tuple[tuple[int, ...], ...] | tuple[int, ...]


def parse_splits(given: Sequence[Any]) -> ExpectedSplits:
    """Return the `given` part sizes as a tuple (this rank's), or a tuple of tuples (all ranks').

    Sizes count rows of the tensor's first dimension, as torch's split sizes do. Raise InputError
    unless they are one row or a square matrix of integers of 0 or more.
    """
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
