"""All ranks' programs of a schedule, played on numpy arrays over channels: what the executor does,
without processes. What a collective ends with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from topoplan.runtime.program.dependencies import find_dependencies, find_waves
from topoplan.runtime.program.instructions import (
    Await,
    Combine,
    Copy,
    Divide,
    Exchange,
    Instruction,
    Pack,
    Post,
    Program,
    Span,
)

Array = np.ndarray
PARTED = ("allgather", "reduce-scatter", "gather", "scatter", "alltoall")


def expected(name: str, inputs: list[Array], rank: int, root: int, part: int) -> Array | None:
    """Return what a collective ends with at a rank; None where that is left open."""
    total, own, joined = (
        np.add.reduce(inputs),
        slice(rank * part, (rank + 1) * part),
        np.concatenate(inputs),
    )
    results: dict[str, Array | None] = {
        "allreduce": total,
        "broadcast": inputs[root],
        "reduce": total if rank == root else None,
        "allgather": joined,
        "gather": joined if rank == root else None,
        "reduce-scatter": total[own],
        "scatter": inputs[root][own],
        "alltoall": np.concatenate([x[own] for x in inputs]),
    }
    return results[name]


class SentMessage:
    """A message between two ranks: read from the sender's buffer at any time from posting to
    awaiting, written likewise.
    """

    def __init__(self, length: int) -> None:
        self.length, self.arrived, self.is_awaited = length, False, False
        self.data: Array | None = None


class PlayedRank:
    """One rank's program over buffers of its own. What is in flight is read and written as late, or
    as early, as may be: a buffer that is overwritten too early shows in the result.
    """

    def __init__(
        self,
        program: Program,
        ranks: int,
        work: Array,
        wires: dict[tuple[int, int, int], SentMessage],
        late: random.Random,
    ) -> None:
        self.program, self.ranks, self.work, self.wires, self.late = (
            program,
            ranks,
            work,
            wires,
            late,
        )
        self.meets = False
        self.staging = np.full(program.staging_numel, -1e9, work.dtype)
        self.posts: list[Post] = []
        self.open: list[int] = []

    def view(self, span: Span) -> Array:
        buffer = self.work if span.buffer == "work" else self.staging
        assert span.start >= 0 and span.start + span.length <= len(buffer)
        return buffer[span.start : span.start + span.length]

    def post(self, post: Post) -> None:
        self.open.append(len(self.posts))
        self.posts.append(post)
        if self.late.random() < 0.5:
            self.move(self.open[-1])

    def move(self, number: int) -> bool:
        """Let a message go on, if it can; whether it is through."""
        post, rank = self.posts[number], self.program.rank
        if post.kind == "send":
            wire = self.wires.setdefault(
                (rank, post.peer, post.number), SentMessage(post.span.length)
            )
            if self.meets and not wire.is_awaited:
                return False
            if wire.data is None:
                wire.data = self.view(post.span).copy()
        else:
            wire = self.wires.setdefault(
                (post.peer, rank, post.number), SentMessage(post.span.length)
            )
            wire.is_awaited = True
            if wire.data is None:
                return False
            assert wire.length == post.span.length, (
                "sender and receiver cut the message differently"
            )
            self.view(post.span)[:] = wire.data
            wire.arrived = True
        if number in self.open:
            self.open.remove(number)
        return True

    def wait(self, number: int) -> Iterator[None]:
        while number in self.open and not self.move(number):
            self.move(self.late.choice(self.open))
            yield

    def run(self) -> Iterator[None]:
        for x in self.program.instructions:
            while self.open and self.late.random() < 0.3:
                self.move(self.late.choice(self.open))
                yield
            if isinstance(x, Post):
                self.post(x)
            elif isinstance(x, Exchange):
                first = len(self.posts)
                for post in x.posts:
                    self.post(post)
                for number in range(first, len(self.posts)):
                    yield from self.wait(number)
            elif isinstance(x, Await):
                yield from self.wait(x.post)
            else:
                self.do_locally(x)
        assert not self.open, "a message is never awaited"

    def do_locally(self, x: Instruction) -> None:
        if isinstance(x, Pack):
            self.view(x.into)[:] = np.concatenate([self.view(part) for part in x.parts])
        elif isinstance(x, Combine | Copy):
            for into, other in x.pairs:
                self.view(into)[:] = (
                    self.view(into) + self.view(other)
                    if isinstance(x, Combine)
                    else self.view(other)
                )
        elif isinstance(x, Divide):
            for span in x.spans:
                self.view(span)[:] /= self.ranks

    def run_in_any_order(self) -> Iterator[None]:
        """Play whatever has all that it needs, in a random order. No send ends before its receive
        is posted.
        """
        self.meets = True
        instructions = self.program.instructions
        needs = [set(before) for before in find_dependencies(self.program)]
        waiting = {n for n, x in enumerate(instructions) if not isinstance(x, Await)}
        in_flight: dict[int, int] = {}
        through: set[int] = set()
        while waiting or in_flight:
            for number, post in list(in_flight.items()):
                if post not in self.open:
                    through.add(number)
                    del in_flight[number]
            ready = sorted(n for n in waiting if needs[n] <= through)
            if ready and (not self.open or self.late.random() < 0.6):
                number = self.late.choice(ready)
                waiting.discard(number)
                x = instructions[number]
                if isinstance(x, Post):
                    self.post(x)
                    in_flight[number] = len(self.posts) - 1
                else:
                    self.do_locally(x)
                    through.add(number)
            elif self.open:
                self.move(self.late.choice(self.open))
            yield

    def run_in_waves(self) -> Iterator[None]:
        """Play in waves, if the program has them, and this rank is not one that plays as messages
        come all the same.
        """
        waves = find_waves(self.program, find_dependencies(self.program))
        if waves is None or self.late.random() < 0.2:
            yield from self.run_in_any_order()
            return
        self.meets = True
        instructions = self.program.instructions
        for wave in waves:
            for number in self.late.sample(wave.posts, len(wave.posts)):
                post = instructions[number]
                assert isinstance(post, Post)
                self.post(post)
            while self.open:
                self.move(self.late.choice(self.open))
                yield
            for number in wave.local:
                self.do_locally(instructions[number])


def advance(steps: Iterator[None]) -> bool:
    """Let a rank go on until it waits; return whether it is not done."""
    for _ in steps:
        return True
    return False


def play(
    programs: list[Program],
    inputs: list[Array],
    in_place: bool,
    out_numel: int,
    seed: int,
    how: str = "run",
    members: int | None = None,
) -> list[Array]:
    """Ranks in random turns, by a method of PlayedRank; when none can go on and some are not done
    it is a deadlock. Averages are over `members` (default: all).
    """
    late = random.Random(seed)
    wires: dict[tuple[int, int, int], SentMessage] = {}
    players = []
    for program, x in zip(programs, inputs, strict=True):
        work = x.copy() if in_place else np.full(program.work_numel, -1e9, x.dtype)
        for f in program.fills:
            work[f.to : f.to + f.hi - f.lo] = x[f.lo : f.hi]
        players.append(PlayedRank(program, members or len(programs), work, wires, late))
    going = {rank: getattr(p, how)() for rank, p in enumerate(players)}
    idle = 0
    while going and idle < 2000:
        rank = late.choice(list(going))
        before = (len(players[rank].posts), len(players[rank].open))
        if not advance(going[rank]):
            del going[rank]
            idle = 0
        idle = 0 if (len(players[rank].posts), len(players[rank].open)) != before else idle + 1
    assert not going, "deadlock"
    assert all(wire.arrived for wire in wires.values()), "something was sent that nobody received"
    out = []
    for player in players:
        y = player.work.copy() if in_place else np.full(out_numel, np.nan, player.work.dtype)
        for d in player.program.drains:
            y[d.to : d.to + d.hi - d.lo] = player.work[d.lo : d.hi]
        out.append(y)
    return out
