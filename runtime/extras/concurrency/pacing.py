"""Programs whose sends wait for their turn: handovers (synth/extras/concurrency) as messages.

In a handover one rank tells another that what it receives in some tick is there; the other waits
for that before it sends in a later one. Schedules are in one segment here, so a tick is a step. A
program is one rank's instructions: in a flow a send waits for its own pieces only, in batches all
messages of a tick are posted and awaited together (runtime/program/instructions.py).

A token is a message of one element, after the others' in the numbering of each pair of ranks. In a
flow a rank gives its token as soon as what it received is there, and waits for others' before the
first send that needs them. In batches, tokens go in a batch of their own, after that of their tick.

Nothing deadlocks: a rank's instructions are in the order of ticks (sends, then what they brought,
then tokens, then the sends of later ticks), and each waits for earlier ones of other ranks alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....synth.extras.concurrency.handovers import Handover
from ...program.instructions import Await, Exchange, Instruction, Post, Program, Span

# Tokens are received so many ahead of the one that is waited for, so that none waits for its
# receiver.
_AHEAD = 4


def pace(program: Program, handovers: Sequence[Handover]) -> Program:
    """Return a rank's program, made for a schedule in one segment, that keeps to its handovers.

    `handovers` are those of all ranks. Without any of this rank's, it is `program` itself.
    """
    mine = [x for x in handovers if program.rank in (x.src, x.dst)]
    if not mine:
        return program
    tokens = _Tokens(program, mine)
    # An element for what is sent, and one for what each other rank sends.
    room = 1 + max(max(x.src, x.dst) for x in mine) + 1
    is_batched = any(isinstance(x, Exchange) for x in program.instructions)
    instructions = _pace_batches(program, tokens) if is_batched else _Flow(program, tokens).write()
    return replace(
        program, instructions=tuple(instructions), staging_numel=program.staging_numel + room
    )


class _Tokens:
    """The tokens that a rank gives and waits for, as posts, by the ticks after which they are."""

    def __init__(self, program: Program, handovers: Iterable[Handover]) -> None:
        rank = program.rank
        numbers = Counter((x.kind == "send", x.peer) for x in program.posts)
        free = program.staging_numel
        self.given: dict[int, list[Post]] = defaultdict(list)
        self.awaited: list[tuple[Handover, Post | None]] = []
        for handover in sorted(handovers):
            after, src, dst, _ = handover
            if src == dst:
                self.awaited.append((handover, None))
                continue
            gives, peer = src == rank, dst if src == rank else src
            number = numbers[gives, peer]
            numbers[gives, peer] += 1
            span = Span("staging", free if gives else free + 1 + peer, 1)
            post = Post("send" if gives else "receive", peer, number, after, after, span)
            if gives:
                self.given[after].append(post)
            else:
                self.awaited.append((handover, post))
        self.awaited.sort(key=lambda item: (item[0].before, item[0]))


def _pace_batches(program: Program, tokens: _Tokens) -> list[Instruction]:
    """Return the instructions with a batch of tokens after each tick that has some."""
    batches: dict[int, list[Post]] = defaultdict(list)
    for handover, post in tokens.awaited:
        if post is not None:
            batches[handover.after].append(post)
    for after, posts in tokens.given.items():
        batches[after] += posts
    left, out = sorted(batches), list[Instruction]()
    for instruction in program.instructions:
        if isinstance(instruction, Exchange):
            tick = instruction.posts[0].tick
            while left and left[0] < tick:
                out.append(Exchange(tuple(batches[left.pop(0)])))
        out.append(instruction)
    return [*out, *(Exchange(tuple(batches[after])) for after in left)]


class _Flow:
    """Writes the instructions of a flow anew, with tokens between them."""

    def __init__(self, program: Program, tokens: _Tokens) -> None:
        self.program, self.tokens = program, tokens
        self.posts = program.posts
        self.arriving: dict[int, list[int]] = defaultdict(list)
        for number, post in enumerate(self.posts):
            if post.kind == "receive":
                self.arriving[post.tick].append(number)
        self.out: list[Instruction] = []
        self.posted = 0
        # The new numbers of the program's posts, those that were awaited, and our own to await.
        self.number_of: dict[int, int] = {}
        self.ended: set[int] = set()
        self.unended: list[int] = []
        self.to_give = sorted(tokens.given)
        self.to_await = list(tokens.awaited)
        self.ahead = [post for _, post in tokens.awaited if post is not None]
        self.ears: dict[Post, int] = {}

    def write(self) -> list[Instruction]:
        """Return the instructions."""
        old = 0
        self._listen(_AHEAD)
        for instruction in self.program.instructions:
            if isinstance(instruction, Post):
                if instruction.kind == "send":
                    self._give(instruction.tick)
                    self._wait(instruction.tick)
                self.number_of[old] = self._post(instruction)
                old += 1
            elif isinstance(instruction, Await):
                self._end(instruction.post)
            else:
                self.out.append(instruction)
        self._give(None)
        self._wait(None)
        self.out += [Await(number) for number in self.unended]
        return self.out

    def _post(self, post: Post) -> int:
        self.out.append(post)
        self.posted += 1
        return self.posted - 1

    def _end(self, old: int) -> None:
        """Wait for one of the program's messages, unless that was done."""
        if old in self.ended:
            return
        self.ended.add(old)  # before tokens of earlier ticks, which may wait for messages too
        if self.posts[old].kind == "receive":
            self._give(self.posts[old].tick)
        self.out.append(Await(self.number_of[old]))

    def _end_tick(self, tick: int) -> None:
        """Wait for all that arrives in a tick."""
        for old in self.arriving[tick]:
            if old not in self.ended:
                self.ended.add(old)
                self.out.append(Await(self.number_of[old]))

    def _give(self, before: int | None) -> None:
        """Give the tokens of all ticks before one, or all that are left."""
        while self.to_give and (before is None or self.to_give[0] < before):
            after = self.to_give.pop(0)
            self._end_tick(after)
            self.unended += [self._post(post) for post in self.tokens.given[after]]

    def _listen(self, tokens: int) -> None:
        """Receive the next tokens, at most so many."""
        for post in self.ahead[:tokens]:
            self.ears[post] = self._post(post)
        del self.ahead[:tokens]

    def _wait(self, tick: int | None) -> None:
        """Wait for the tokens that sends of a tick need, or for all that are left."""
        while self.to_await and (tick is None or self.to_await[0][0].before <= tick):
            handover, post = self.to_await.pop(0)
            if post is None:
                self._end_tick(handover.after)
                continue
            self._listen(1)
            self.out.append(Await(self.ears[post]))
