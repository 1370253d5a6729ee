"""Find which instructions of a program depend on which, and divide small programs into waves.

Instructions that touch the same elements depend on each other. Running a program in its order is
always right; a player that runs instructions as messages come keeps only these dependencies. A
receive counts from where it is awaited: it may be posted before the rank has sent the elements that
it overwrites, since the sender waits for them.

A tick is a step of a program, in which its messages start together. In a batched program, which is
for NCCL, they are one instruction (Exchange); here each message has its own (Post and Await).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...program.instructions import (
    ERRORS,
    Await,
    Combine,
    Copy,
    Decode,
    Divide,
    Encode,
    Exchange,
    Instruction,
    Pack,
    Post,
    Program,
    Span,
)

# Sends to one rank that are in flight at once. MPI sends the parts of several messages in turn: if
# they were many, all would arrive only at the end, and instructions that need the first would wait.
WINDOW = 4
# Waves are faster only if messages are small. Limits on the elements in all messages that a rank
# sends and receives, and on the number of waves.
_MAX_ELEMENTS, _MAX_WAVES = 1 << 14, 8


class _Buffer:
    """The last writer of each part of a buffer, and its readers since then.

    `ends` are all positions at which regions begin or end: the elements between two of them are
    always touched together.
    """

    def __init__(self, ends: Iterable[int]) -> None:
        self._parts = {end: part for part, end in enumerate(sorted(ends))}
        self._writers: list[int | None] = [None] * len(self._parts)
        self._readers: list[list[int]] = [[] for _ in self._parts]

    def touch(self, lo: int, hi: int, number: int, before: set[int], *, writes: bool) -> None:
        """Add to `before` the instructions that must end before instruction `number` begins.

        That instruction reads or writes the elements from `lo` to `hi`.
        """
        for part in range(self._parts[lo], self._parts[hi]):
            writer = self._writers[part]
            if writer is not None:
                before.add(writer)
            if not writes:
                self._readers[part].append(number)
                continue
            before.update(self._readers[part])
            self._writers[part] = number
            # Later instructions wait for this one, which waits for them.
            self._readers[part].clear()


def find_dependencies(program: Program) -> list[tuple[int, ...]]:
    """Return, for each instruction, the numbers of those that must end before it begins.

    The program must not be batched. A message ends when it has been sent or received. Awaits have
    no dependencies, and nothing depends on them. A send also waits for the one WINDOW before it to
    the same rank. Dependencies that follow from others are left out.
    """
    touched = {
        number: [
            (span, writes)
            for writes, spans in zip(
                (False, True), _list_spans(program.instructions[number]), strict=True
            )
            for span in spans
        ]
        for number in _order_by_effect(program)
    }
    ends: dict[str, set[int]] = defaultdict(set)
    for spans in touched.values():
        for span, _ in spans:
            ends[span.buffer].update((span.start, span.end))
    buffers = {name: _Buffer(places) for name, places in ends.items()}
    sends: dict[int, list[int]] = defaultdict(list)
    all_before: list[set[int]] = [set() for _ in program.instructions]
    nearest: list[tuple[int, ...]] = [()] * len(program.instructions)
    for number, spans in touched.items():
        before = all_before[number]
        for span, writes in spans:
            buffers[span.buffer].touch(span.start, span.end, number, before, writes=writes)
        before.discard(number)
        instruction = program.instructions[number]
        if isinstance(instruction, Post) and instruction.kind == "send":
            sent = sends[instruction.peer]
            if len(sent) >= WINDOW:
                before.add(sent[-WINDOW])
            sent.append(number)
        nearest[number] = tuple(sorted(before.difference(*(all_before[x] for x in before))))
    return nearest


def _order_by_effect(program: Program) -> Iterator[int]:
    """Yield the instructions' numbers without awaits, each receive in place of its await."""
    posts = [(number, x) for number, x in enumerate(program.instructions) if isinstance(x, Post)]
    for number, x in enumerate(program.instructions):
        if isinstance(x, Await):
            posted, post = posts[x.post]
            if post.kind == "receive":
                yield posted
        elif not isinstance(x, Post) or x.kind == "send":
            yield number


def _list_spans(x: Instruction) -> tuple[Iterable[Span], Iterable[Span]]:
    """Return the spans that an instruction reads, and those that it writes."""
    if isinstance(x, Post):
        return ([x.span], []) if x.kind == "send" else ([], [x.span])
    if isinstance(x, Pack):
        return x.parts, [x.into]
    if isinstance(x, Encode):
        return [span for span, _ in x.parts], [
            x.into,
            *(span for span, _ in x.keeps),
            # The errors of elements that are rounded twice are added, which needs a fixed order.
            *(Span(ERRORS, span.start, span.length) for span, _ in x.errors),
        ]
    if isinstance(x, Decode):
        return [x.message], [x.into]
    if isinstance(x, (Combine, Copy)):
        return [other for _, other in x.pairs], [into for into, _ in x.pairs]
    return [], x.spans if isinstance(x, Divide) else []


@dataclass
class Wave:
    """Messages that start together (`posts`), and operations after all have ended (`local`).

    Both are indices of the program's instructions; `local` is in order. For small messages the
    host's work per message dominates, so waiting for all of them costs little.
    """

    posts: list[int] = field(default_factory=list)
    local: list[int] = field(default_factory=list)


def find_waves(program: Program, dependencies: Sequence[Sequence[int]]) -> list[Wave] | None:
    """Divide a program that is not batched into waves; the first has no messages.

    `dependencies` are those of `find_dependencies`. Return None if the program is not small, or if
    an instruction would have to wait for another of its own wave. Ticks have one order on all
    ranks, and the sends of a tick depend on earlier ticks alone: no rank waits for a message that
    waits for it.
    """
    ticks = sorted({post.tick for post in program.posts})
    if len(ticks) > _MAX_WAVES or sum(post.span.length for post in program.posts) > _MAX_ELEMENTS:
        return None
    waves = [Wave() for _ in range(1 + len(ticks))]
    place = {
        number: 1 + ticks.index(x.tick)
        for number, x in enumerate(program.instructions)
        if isinstance(x, Post)
    }
    for number, wave in place.items():
        waves[wave].posts.append(number)
    posts = list(place)
    for number, x in enumerate(program.instructions):
        if not isinstance(x, (Post, Await, Exchange)):
            # Instructions that need no message are in the first wave.
            place[number] = max((place[before] for before in dependencies[number]), default=0)
            waves[place[number]].local.append(number)
    late = any(
        place[before] >= place[number] for number in posts for before in dependencies[number]
    )
    return None if late else waves
