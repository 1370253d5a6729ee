"""Find the bracketing in which a schedule adds every element, as text.

A bracketing is the order of additions, such as "((0+1)+(2+3))".
"""

from functools import lru_cache

from ...ir.addition_order import INPUT, Expressions, list_ends
from ...ir.schedule import Schedule


@lru_cache(maxsize=64)
def find_bracketing(schedule: Schedule) -> str | None:
    """Return the one bracketing in which all chunks are added up, at every rank that gets them.

    None if two differ, or if the collective adds nothing. The spelling is unique: the operand with
    the lowest rank comes first, "((0+1)+(2+3))". If two schedules have the same bracketing, an
    element's bits depend neither on the schedule nor on the chunk.
    """
    if not schedule.collective.reduces:
        return None
    expressions = Expressions()
    ends = set[int]().union(*list_ends(schedule, expressions))
    return _write(expressions, ends.pop()) if len(ends) == 1 else None


def _write(expressions: Expressions, whole: int) -> str:
    """Return expression number `whole` as text, such as "((0+1)+(2+3))"; it has no roundings.

    Of two operands that with the lowest rank comes first.
    """
    # An expression may be as deep as there are ranks, so recursion could exceed Python's limit.
    # Operands have lower numbers than sums.
    operands = expressions.operands
    needed, lowest = {whole}, dict[int, int]()
    for number in range(whole, -1, -1):
        if number in needed and operands[number][1] >= 0:
            needed.update(operands[number])
    for number in sorted(needed):
        a, b = operands[number]
        lowest[number] = a if b == INPUT else min(lowest[a], lowest[b])
    parts: list[str] = []
    rest: list[int | str] = [whole]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            parts.append(item)
        elif operands[item][1] == INPUT:
            parts.append(str(lowest[item]))
        else:
            first, second = sorted(operands[item], key=lowest.__getitem__)
            rest += [")", second, "+", first, "("]
    return "".join(parts)
