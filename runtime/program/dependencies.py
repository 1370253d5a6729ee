"""Which of a program's instructions must be through before another may begin: those that touch the same elements.

Programs have one order, which is right for all; whoever plays one as messages come in keeps to these pairs alone. A receive
counts from where it is awaited: it may be posted before what it overwrites is sent, since the sender waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .instructions import Await, Combine, Copy, Decode, Divide, Encode, Instruction, Pack, Post, Program, Span

ERRORS = "errors"
WINDOW = 4
"""Sends to one rank that are under way at once. MPI sends the parts of several messages in turn: of many, none would be there
before all of them nearly are, and what the first is needed for would wait.
"""
_Region = tuple[str, int, int]
"""A buffer, and elements of it from one number to another."""


class _Touched:
    """The regions of one buffer that instructions have touched so far, and which instructions these are."""

    def __init__(self) -> None:
        self._rows = np.empty((64, 4), dtype=np.int64)
        self._count = 0

    def add(self, lo: int, hi: int, number: int, *, writes: bool) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = lo, hi, number, writes
        self._count += 1

    def find(self, lo: int, hi: int, *, writes: bool) -> Iterator[int]:
        """Return the instructions that touched elements from `lo` to `hi`; for a read only those that wrote them."""
        rows = self._rows[: self._count]
        meets = (rows[:, 0] < hi) & (rows[:, 1] > lo)
        if not writes:
            meets &= rows[:, 3] == 1
        return iter(rows[meets, 2].tolist())


def find_dependencies(program: Program) -> list[tuple[int, ...]]:
    """Return, for each instruction of a program that is not batched, the numbers of those that must be through before it
    begins: a message when it has been sent or has come. Awaits have none, and nothing depends on them. A send also waits for
    the one WINDOW before it to the same rank. Those that others of them wait for themselves are left out.
    """
    touched: dict[str, _Touched] = {}
    sends: dict[int, list[int]] = {}
    found: list[set[int]] = [set() for _ in program.instructions]
    least: list[tuple[int, ...]] = [()] * len(program.instructions)
    for number in _order_by_effect(program):
        instruction = program.instructions[number]
        reads, writes = list(_list_reads(instruction)), list(_list_writes(instruction))
        before: set[int] = set()
        for regions, is_write in ((reads, False), (writes, True)):
            for buffer, lo, hi in regions:
                if buffer in touched:
                    before.update(touched[buffer].find(lo, hi, writes=is_write))
        for regions, is_write in ((reads, False), (writes, True)):
            for buffer, lo, hi in regions:
                touched.setdefault(buffer, _Touched()).add(lo, hi, number, writes=is_write)
        if isinstance(instruction, Post) and instruction.kind == "send":
            sent = sends.setdefault(instruction.peer, [])
            if len(sent) >= WINDOW:
                before.add(sent[-WINDOW])
            sent.append(number)
        found[number] = before
        least[number] = tuple(sorted(before.difference(*(found[other] for other in before))))
    return least


def _order_by_effect(program: Program) -> Iterator[int]:
    """Return the numbers of the instructions, receives where they are awaited, without the awaits."""
    posts = [number for number, x in enumerate(program.instructions) if isinstance(x, Post)]
    for number, x in enumerate(program.instructions):
        if isinstance(x, Await):
            post = program.instructions[posts[x.post]]
            if isinstance(post, Post) and post.kind == "receive":
                yield posts[x.post]
        elif not isinstance(x, Post) or x.kind == "send":
            yield number


def _regions(spans: Iterable[Span]) -> Iterator[_Region]:
    return ((span.buffer, span.start, span.start + span.length) for span in spans)


def _list_reads(x: Instruction) -> Iterator[_Region]:
    if isinstance(x, Post):
        return _regions([x.span] if x.kind == "send" else [])
    if isinstance(x, Pack):
        return _regions(x.parts)
    if isinstance(x, Encode):
        return _regions(span for span, _ in x.parts)
    if isinstance(x, Decode):
        return _regions([x.message])
    if isinstance(x, (Combine, Copy)):
        return _regions(other for _, other in x.pairs)
    return iter(())


def _list_writes(x: Instruction) -> Iterator[_Region]:
    if isinstance(x, Post):
        return _regions([x.span] if x.kind == "receive" else [])
    if isinstance(x, (Pack, Decode)):
        return _regions([x.into])
    if isinstance(x, Encode):
        kept = _regions([x.into, *(span for span, _ in x.keeps)])
        # The errors of elements that are rounded twice add up, in one order.
        errors = ((ERRORS, span.start, span.start + span.length) for span, _ in x.errors)
        return iter([*kept, *errors])
    if isinstance(x, (Combine, Copy)):
        return _regions(into for into, _ in x.pairs)
    if isinstance(x, Divide):
        return _regions(x.spans)
    return iter(())
