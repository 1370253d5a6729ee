"""Lower bounds on the messages out of the part of a machine that holds one certain rank.

A part is some of the GPUs, such as those of a host, with the ranks on them. Ranks of a mesh that
differ in one dimension only are a group of it, and its messages have a pattern: around a ring,
between all pairs, between neighbours on a line, or those of a plan.

Means over ranks, as in check.py, show neither that numbers of members are whole, nor that the ends
of a line send less than its middle. The messages of one part show both.

In a mesh of two dimensions the ranks of a part have some shape, and shapes that send little along
one dimension send much along the other. A part with `units` members has them in r groups of the
first dimension (*across*) and in k groups of the second (*along*), so at r coordinates along and k
across. For each r and k, each dimension's messages are counted separately. A group with f of its n
members in the part sends out nothing if f = n; otherwise at least one message around a ring or to
neighbours on a line, f (n - f) messages between all pairs, and half of the bytes of a message for a
plan. On a line of coordinates 0 to n - 1 the members form stretches: one that begins with 0 or ends
with n - 1 sends out one message, any other two.

So the rank in the middle of a line is costly: either the r coordinates reach from it to an end of
the line, or a of them are at one end, b at the other, and the rest between; then its group, and all
others that use the ones between, send two messages more.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from operator import le

from ..job import LINE, PAIRS, SPREAD

# The cost of a part for each of several patterns: messages out of it, or their seconds.
Costs = tuple[Fraction, ...]
# Largest line and part for which stretches are distinguished, to bound the work.
_MAX_LINE, _MAX_UNITS = 24, 32
# More messages than any group sends: marks impossible cases.
_NEVER = 1 << 40


@cache
def list_shapes(
    units: int,
    across: int,
    along: int,
    patterns_across: tuple[str, ...],
    patterns_along: tuple[str, ...],
) -> tuple[tuple[Costs, Costs], ...]:
    """Return lower bounds on the messages out of a part with `units` members, one per shape.

    `across` and `along` are the sizes of the dimensions, the other arguments the patterns of their
    traffics ("around", "pairs", "line", "spread"; none for a dimension that sends nothing). Each
    entry has two tuples, with a number for each pattern across and along. The part that holds the
    rank in the middle sends at least one of the entries, in all its numbers. If the result is
    empty, no part can have this many members.
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
    """Return the Pareto-minimal entries: no other is as small or smaller in all numbers."""
    return {c for c in all_costs if not any(o != c and all(map(le, o, c)) for o in all_costs)}


def count_out(shape: str, size: int, inside: int) -> Fraction:
    """Return the least number of messages that one group sends out of a part.

    The part has `inside` of the group's `size` members; `shape` is that of its pattern. A plan
    counts as 1/2: it sends at least half of its bytes.
    """
    if inside in (0, size):
        return Fraction(0)
    if shape == PAIRS:
        return Fraction(inside * (size - inside))
    return Fraction(1, 2) if shape == SPREAD else Fraction(1)


def _fill_groups(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the least number of messages out of a part with `units` members of `groups` groups.

    Each group has 1 to `most` members in the part. The least is reached if as many groups as
    possible have the most, and all others but one have one.
    """
    if most == 1:
        return groups * count_out(shape, size, 1)
    full = (units - groups) // (most - 1)
    sent = full * count_out(shape, size, most)
    if full >= groups:
        return sent
    single = groups - full - 1
    sent += single * count_out(shape, size, 1)
    return sent + count_out(shape, size, units - full * most - single)


def _fill_line(units: int, groups: int, most: int, size: int, shape: str) -> Fraction:
    """Return the same as _fill_groups for groups on a line, one of them with its middle member.

    The members of all groups share `most` coordinates.
    """
    middle = (size - 1) // 2
    if shape != LINE or most > middle or size > _MAX_LINE or units > _MAX_UNITS:
        return _fill_groups(units, groups, most, size, shape)
    # Stretches of a and b coordinates at the ends. Neither reaches the middle; others are between.
    ends = (
        (a, b) for a in range(min(most, middle)) for b in range(min(most - a, size - 1 - middle))
    )
    return Fraction(min(_pack(units, a, b, most - a - b)[groups] for a, b in ends))


@cache
def _pack(units: int, a: int, b: int, between: int) -> list[int]:
    """Return, for each number of groups, the least number of messages of `units` members.

    Members are at `a` coordinates at one end, `b` at the other and some `between`, and at one of
    these one group must have a member. _NEVER stands for impossible numbers of groups.
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
        least = [
            min(
                (least[total - n] + any_group[n] for n in range(1, min(most, total) + 1)),
                default=_NEVER,
            )
            for total in range(units + 1)
        ]
    return packed


def _count_messages(caps: Sequence[int]) -> list[int]:
    """Return the number of messages that a group sends out, for each number of members.

    At most `caps[k]` of the members need k messages.
    """
    return [next(k for k, cap in enumerate(caps) if n <= cap) for n in range(caps[-1] + 1)]
