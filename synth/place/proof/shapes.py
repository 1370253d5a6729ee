"""Bound from below what the part that holds one certain rank sends: in a mesh of two dimensions its
ranks have some shape, and shapes that send little along one dimension send much along the other.

A part with `units` members of a mesh of two dimensions has them in r groups of the first dimension
(*across*) and in k groups of the second (*along*), so at r coordinates along and k across. For each
r and k, each dimension's messages are counted separately. A group with f of its n members in the
part sends out nothing if f = n; otherwise at least one message around a ring or to neighbours on a
line, f (n - f) messages between all pairs, and half of the bytes of a message for a plan. On a line
of coordinates 0 to n - 1 the members form stretches: one that begins with 0 or ends with n - 1
sends out one message, any other two.

So the rank in the middle of a line is costly: either the r coordinates reach from it to an end of
the line, or a of them are at one end, b at the other, and the rest between; then its group, and all
others that use the ones between, send two messages more.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from operator import le

from ..job import LINE, PAIRS, SPREAD

# What is sent out of a part for each of several patterns: in messages, or in seconds.
Costs = tuple[Fraction, ...]
# Sizes of lines and of parts up to which stretches are distinguished, which bounds the work.
_MAX_LINE, _MAX_UNITS = 24, 32
# More messages than any group sends: stands for what cannot be.
_NEVER = 1 << 40


@cache
def list_shapes(
    units: int,
    across: int,
    along: int,
    patterns_across: tuple[str, ...],
    patterns_along: tuple[str, ...],
) -> tuple[tuple[Costs, Costs], ...]:
    """Return lower bounds on what a part with `units` members sends, in dimensions of the sizes
    `across` and `along`: entries with a number for each pattern of each dimension.

    The part that holds the rank in the middle sends at least one of the entries, in all its
    numbers. No part can have so many members if the result is empty.
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
    """Return the costs that no other entry undercuts or equals in all numbers."""
    return {c for c in all_costs if not any(o != c and all(map(le, o, c)) for o in all_costs)}


def count_out(shape: str, size: int, inside: int) -> Fraction:
    """Return the least number of messages that a group sends out of a part with `inside` of its
    `size` members.
    """
    if inside in (0, size):
        return Fraction(0)
    if shape == PAIRS:
        return Fraction(inside * (size - inside))
    return Fraction(1, 2) if shape == SPREAD else Fraction(1)


def _fill_groups(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the least that `groups` groups send out with `units` members in a part together, 1 to
    `most` each: as many groups as possible have the most, all others but one have one.
    """
    if most == 1:
        return groups * count_out(shape, size, 1)
    full = (units - groups) // (most - 1)
    sent = full * count_out(shape, size, most)
    if full >= groups:
        return sent
    single = groups - full - 1
    rest = count_out(shape, size, units - full * most - single)
    return sent + single * count_out(shape, size, 1) + rest


def _fill_line(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the same for groups whose members share `most` coordinates, one of the groups with its
    middle member.
    """
    middle = (size - 1) // 2
    if shape != LINE or most > middle or size > _MAX_LINE or units > _MAX_UNITS:
        return _fill_groups(units, groups, most, size, shape)
    # Stretches of a and b coordinates at the ends. Neither reaches the middle: others are between.
    ends = (
        (a, b) for a in range(min(most, middle)) for b in range(min(most - a, size - 1 - middle))
    )
    return Fraction(min(_pack(units, a, b, most - a - b)[groups] for a, b in ends))


@cache
def _pack(units: int, a: int, b: int, between: int) -> list[int]:
    """Return, for each number of groups, the least messages of `units` members at `a` coordinates
    at one end, `b` at the other and some `between`, at which one group must have a member; _NEVER
    if that is impossible.
    """
    longer, most = max(a, b), a + b + between
    any_group = _count_messages((0, longer, max(a + b, between), longer + between, most))
    middle_group = _count_messages((0, 0, between, longer + between, most))
    # The least messages for each number of members, in as many groups as the loop has counted.
    least = [0, *([_NEVER] * units)]
    packed = [_NEVER]
    for _ in range(units):
        packed.append(
            min(least[units - n] + middle_group[n] for n in range(1, min(most, units) + 1))
        )
        options = (
            [least[total - n] + any_group[n] for n in range(1, min(most, total) + 1)]
            for total in range(units + 1)
        )
        least = [min(costs, default=_NEVER) for costs in options]
    return packed


def _count_messages(caps: Sequence[int]) -> list[int]:
    """Return how many messages a group sends out for each number of members, at most `caps[k]` of
    which need k messages.
    """
    return [next(k for k, cap in enumerate(caps) if n <= cap) for n in range(caps[-1] + 1)]
