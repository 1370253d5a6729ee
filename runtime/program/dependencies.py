"""Which of a program's instructions must be through before another may begin: those that touch the
same elements.

Programs have one order, which is right for all; whoever plays one as messages come in keeps to
these pairs alone. A receive counts from where it is awaited: it may be posted before what it
overwrites is sent, since the sender waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .instructions import (
    Await,
    Combine,
    Copy,
    Decode,
    Divide,
    Encode,
    Instruction,
    Pack,
    Post,
    Program,
    Span,
)

ERRORS = "errors"
# Sends to one rank that are under way at once. MPI sends the parts of several messages in turn: of
# many, none would be there before all of them nearly are, and what the first is needed for would
# wait.
WINDOW = 4
# A buffer, and elements of it from one number to another.
_Region = tuple[str, int, int]


class _Buffer:
    """Who wrote each part of a buffer last, and who has read it since. `ends` are all places where
    regions begin or end: between two of them, all elements are touched together.
    """

    def __init__(self, ends: Iterable[int]) -> None:
        self._parts = {end: part for part, end in enumerate(sorted(ends))}
        self._writers: list[int | None] = [None] * len(self._parts)
        self._readers: list[list[int]] = [[] for _ in self._parts]

    def read(self, lo: int, hi: int, number: int, before: set[int]) -> None:
        """Add to `before` whom an instruction must wait for that reads elements from `lo` to
        `hi`.
        """
        for part in range(self._parts[lo], self._parts[hi]):
            writer = self._writers[part]
            if writer is not None:
                before.add(writer)
            self._readers[part].append(number)

    def write(self, lo: int, hi: int, number: int, before: set[int]) -> None:
        """The same for one that writes: also those that read what was there. They are forgotten:
        later ones wait for this.
        """
        for part in range(self._parts[lo], self._parts[hi]):
            writer = self._writers[part]
            if writer is not None:
                before.add(writer)
            before.update(self._readers[part])
            self._writers[part] = number
            self._readers[part].clear()


def find_dependencies(program: Program) -> list[tuple[int, ...]]:
    """Return, for each instruction of a program that is not batched, the numbers of those that must
    be through before it begins: a message when it has been sent or has come. Awaits have none, and
    nothing depends on them. A send also waits for the one WINDOW before it to the same rank. Those
    that others of them wait for themselves are left out.
    """
    order = list(_order_by_effect(program))
    reads = {number: list(_list_reads(program.instructions[number])) for number in order}
    writes = {number: list(_list_writes(program.instructions[number])) for number in order}
    ends: dict[str, set[int]] = {}
    for regions in (*reads.values(), *writes.values()):
        for name, lo, hi in regions:
            ends.setdefault(name, set()).update((lo, hi))
    buffers = {name: _Buffer(places) for name, places in ends.items()}
    sends: dict[int, list[int]] = {}
    found: list[set[int]] = [set() for _ in program.instructions]
    least: list[tuple[int, ...]] = [()] * len(program.instructions)
    for number in order:
        before = found[number]
        for name, lo, hi in reads[number]:
            buffers[name].read(lo, hi, number, before)
        for name, lo, hi in writes[number]:
            buffers[name].write(lo, hi, number, before)
        before.discard(number)
        instruction = program.instructions[number]
        if isinstance(instruction, Post) and instruction.kind == "send":
            sent = sends.setdefault(instruction.peer, [])
            if len(sent) >= WINDOW:
                before.add(sent[-WINDOW])
            sent.append(number)
        least[number] = tuple(sorted(before.difference(*(found[other] for other in before))))
    return least


def _order_by_effect(program: Program) -> Iterator[int]:
    """Return the numbers of the instructions, receives where they are awaited, without the
    awaits.
    """
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
