"""How little the part that holds one certain rank can send: in a mesh of two dimensions its ranks
have some shape, and shapes that send little along one dimension send much along the other.

A part with `units` members of a mesh of two dimensions has them in r groups of the first dimension
(*across*) and in k groups of the second (*along*), so at r coordinates along and k across. For each
r and k what either dimension sends is counted for itself. A group with f of its n members in the
part sends out nothing where f = n, else around a ring or to neighbours on a line one message at
least, of pairs f (n - f), of a plan half of the bytes of a message. On a line, of coordinates 0 to
n - 1, the members are stretches: one that begins with 0 or ends with n - 1 sends out one message,
any other two.

So the rank in the middle of a line is dear: either the r coordinates reach from it to an end of the
line, or a of them are at one end, b at the other, and the rest between; and there its group, and
all others that use these, send two messages more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from operator import le

from ..patterns import LINE, PAIRS, SPREAD

# What is sent out of a part for each of several patterns: in messages, or in seconds.
Costs = tuple[Fraction, ...]
# To which sizes the stretches of a line are told apart.
_MOST_ON_A_LINE, _MOST_UNITS = 24, 32
_NEVER = 1 << 40


@cache
def list_shapes(
    units: int,
    across: int,
    along: int,
    patterns_across: tuple[str, ...],
    patterns_along: tuple[str, ...],
) -> tuple[tuple[Costs, Costs], ...]:
    """Return what parts of so many members send at least, where dimensions have the sizes `across`
    and `along`: entries with a number for each pattern of each dimension. The part that has the
    rank in the middle sends as much as one of the entries in all its numbers. Nothing is returned
    where no part can have so many members.
    """
    counts = {
        (
            *(_fill_groups(units, r, k, across, shape) for shape in patterns_across),
            *(_fill_line(units, k, r, along, shape) for shape in patterns_along),
        )
        for r in range(1, min(along, units) + 1)
        for k in range(1, min(across, units) + 1)
        if r * k >= units
    }
    at = len(patterns_across)
    return tuple((costs[:at], costs[at:]) for costs in sorted(keep_least(counts)))


def keep_least(all_costs: set[Costs]) -> set[Costs]:
    """Return those of which no other is at most as much in all numbers."""
    return {c for c in all_costs if not any(o != c and all(map(le, o, c)) for o in all_costs)}


def count_out(shape: str, size: int, inside: int) -> Fraction:
    """Return how many messages a group sends out at least with so many of its `size` members in a
    part.
    """
    if inside in (0, size):
        return Fraction(0)
    if shape == PAIRS:
        return Fraction(inside * (size - inside))
    return Fraction(1, 2) if shape == SPREAD else Fraction(1)


def _fill_groups(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the least that `groups` groups send out which have `units` members in a part together,
    each of them 1 to `most`: as many as can be have the most, all others but one have one.
    """
    if most == 1:
        return groups * count_out(shape, size, 1)
    full = (units - groups) // (most - 1)
    sent = full * count_out(shape, size, most)
    if full < groups:
        single = groups - full - 1
        sent += single * count_out(shape, size, 1) + count_out(
            shape, size, units - full * most - single
        )
    return sent


def _fill_line(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the same for groups whose members are at `most` coordinates together, and of which one
    has its middle member.
    """
    middle = (size - 1) // 2
    if shape != LINE or most > middle or size > _MOST_ON_A_LINE or units > _MOST_UNITS:
        return _fill_groups(units, groups, most, size, shape)
    ends = _list_ends(most, middle, size)
    return Fraction(min(_pack(units, a, b, most - a - b)[groups] for a, b in ends))


def _list_ends(most: int, middle: int, size: int) -> Iterator[tuple[int, int]]:
    """Return how many of a part's `most` coordinates can be a stretch at either end of a line,
    where none reaches from the middle to an end: others are between.
    """
    for a in range(min(most, middle)):
        for b in range(min(most - a, size - 1 - middle)):
            yield a, b


@cache
def _pack(units: int, a: int, b: int, between: int) -> list[int]:
    """Return, for each number of groups, the least messages with `units` members in them together,
    at a coordinates at one end, b at the other, and some between, where one of the groups has a
    member; _NEVER where they cannot be.
    """
    longer, most = max(a, b), a + b + between
    any_group = _count_ends((0, longer, max(a + b, between), longer + between, most))
    middle_group = _count_ends((0, 0, between, longer + between, most))
    least = [0, *([_NEVER] * units)]
    found = [_NEVER]
    for _ in range(units):
        found.append(
            min(least[units - n] + middle_group[n] for n in range(1, min(most, units) + 1))
        )
        least = [
            min(
                (least[total - n] + any_group[n] for n in range(1, min(most, total) + 1)),
                default=_NEVER,
            )
            for total in range(units + 1)
        ]
    return found


def _count_ends(caps: Sequence[int]) -> list[int]:
    """Return how many messages a group sends out for each number of members, where `caps[k]` is the
    most of them with k.
    """
    return [
        next(k for k, cap in enumerate(caps) if inside <= cap) for inside in range(caps[-1] + 1)
    ]
