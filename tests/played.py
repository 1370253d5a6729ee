"""All ranks' programs of a schedule, played on numpy arrays over channels: what the executor does,
without processes. What a collective ends with.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

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


class PlayedHosts:
    """The hosts that ranks are on, and the pipes between ranks of a host, by sender and receiver.

    Each holds `room` elements.
    """

    def __init__(self, host_of: Sequence[int], room: int) -> None:
        self.host_of, self.room = host_of, room
        self.pipes: dict[tuple[int, int], deque[float]] = defaultdict(deque)

    def list_peers(self, rank: int) -> list[int]:
        return [
            x for x, host in enumerate(self.host_of) if host == self.host_of[rank] and x != rank
        ]


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
        hosts: PlayedHosts | None = None,
    ) -> None:
        self.hosts, self.moved, self.arrived = hosts, 0, defaultdict[int, int](int)
        self.expected: dict[int, list[Post]] = defaultdict(list)
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

    def count_progress(self) -> tuple[int, int, int]:
        return len(self.posts), len(self.open), self.moved

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
        from topoplan.runtime.extras.mpi.dependencies import find_dependencies

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
        from topoplan.runtime.extras.mpi.dependencies import find_dependencies, find_waves

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

    def run_within_hosts(self) -> Iterator[None]:
        """Play messages within hosts over pipes, which are read while waiting for one alone."""
        from topoplan.runtime.extras.shared_memory.parts import Outside, split_by_host

        assert self.hosts is not None
        self.meets = True
        opened: dict[int, int] = {}
        for part in split_by_host(self.program, self.hosts.list_peers(self.program.rank)):
            if self.late.random() < 0.3:
                yield
            if not isinstance(part, Outside):
                for x in part:
                    yield from self.do_within_host(x, self.hosts)
            elif part.begins:
                opened[part.number] = len(self.posts)
                self.post(part.post)
            else:
                yield from self.wait(opened[part.number])
        assert not any(self.expected.values()), "a message of the host is never awaited"

    def do_within_host(self, x: Any, hosts: PlayedHosts) -> Iterator[None]:
        from topoplan.runtime.extras.shared_memory.parts import Arrived

        if isinstance(x, Post) and x.kind == "receive":
            self.expected[x.peer].append(x)
        elif isinstance(x, Post):
            pipe = hosts.pipes[self.program.rank, x.peer]
            for value in self.view(x.span):
                while len(pipe) == hosts.room:
                    yield from self.read_pipes(hosts)
                pipe.append(value)
                self.moved += 1
        elif isinstance(x, Arrived):
            while self.arrived[x.post.peer] < x.count:
                yield from self.read_pipes(hosts)
        else:
            self.do_locally(x)

    def read_pipes(self, hosts: PlayedHosts) -> Iterator[None]:
        """Read what has come; what goes to other hosts moves meanwhile."""
        for peer, posts in self.expected.items():
            pipe = hosts.pipes[peer, self.program.rank]
            while posts and len(pipe) >= min(hosts.room, posts[0].span.length):
                # Messages longer than a pipe come in parts.
                post, span = posts[0], posts[0].span
                n = min(len(pipe), span.length)
                self.view(Span(span.buffer, span.start, n))[:] = [pipe.popleft() for _ in range(n)]
                posts[0] = replace(post, span=Span(span.buffer, span.start + n, span.length - n))
                self.moved += n
                if n == span.length:
                    posts.pop(0)
                    self.arrived[peer] += 1
        if self.open:
            self.move(self.late.choice(self.open))
        yield


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
    hosts: PlayedHosts | None = None,
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
        players.append(PlayedRank(program, members or len(programs), work, wires, late, hosts))
    going = {rank: getattr(p, how)() for rank, p in enumerate(players)}
    idle = 0
    while going and idle < 2000:
        rank = late.choice(list(going))
        before = players[rank].count_progress()
        if not advance(going[rank]):
            del going[rank]
            idle = 0
        idle = 0 if players[rank].count_progress() != before else idle + 1
    assert not going, "deadlock"
    assert all(wire.arrived for wire in wires.values()), "something was sent that nobody received"
    out = []
    for player in players:
        y = player.work.copy() if in_place else np.full(out_numel, np.nan, player.work.dtype)
        for d in player.program.drains:
            y[d.to : d.to + d.hi - d.lo] = player.work[d.lo : d.hi]
        out.append(y)
    return out
