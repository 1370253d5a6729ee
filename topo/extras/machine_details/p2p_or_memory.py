"""Compare measured rates between GPUs: peer-to-peer (P2P), or by copies through the host's memory.

A topology has such measurements in `extra["measured"]["pairs"]`, each with the ids `src` and `dst`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from ...exact import parse_positive

if TYPE_CHECKING:
    from ...graph import Topology

# Fields of the measured pairs in a topology's JSON: rates in GB/s.
DIRECT, THROUGH_MEMORY = "GBps", "through_memory_GBps"
# A rate below this share of the other is slower by more than noise: chosen, not measured.
_SLOWER = Fraction(9, 10)


def is_slower(GBps: Fraction, other_GBps: Fraction) -> bool:
    """Return whether one rate (GB/s) is below another by more than the noise of measurements."""
    return GBps < _SLOWER * other_GBps


def find_faster(topology: Topology) -> dict[frozenset[str], str]:
    """Return which way between two GPUs is faster, DIRECT or THROUGH_MEMORY, by their two ids.

    Only pairs with both rates are in it, if these differ by more than noise. If the directions of a
    pair differ, P2P that is slower in one of them is slower.
    """
    measured = topology.extra.get("measured")
    pairs = measured.get("pairs") if isinstance(measured, Mapping) else None
    faster: dict[frozenset[str], str] = {}
    for pair in pairs if isinstance(pairs, Sequence) else ():
        if not isinstance(pair, Mapping):
            continue
        direct, other = (parse_positive(pair.get(key)) for key in (DIRECT, THROUGH_MEMORY))
        ends = frozenset((str(pair.get("src")), str(pair.get("dst"))))
        if direct is None or other is None:
            continue
        if is_slower(direct, other):
            faster[ends] = THROUGH_MEMORY
        elif is_slower(other, direct):
            faster.setdefault(ends, DIRECT)
    return faster
