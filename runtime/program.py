"""A schedule lowered to one rank's program: what it posts, awaits, adds and copies, in one fixed order.

All chunks that a rank holds lie in its work buffer. For allreduce, broadcast and reduce that is the tensor itself; for
allgather, gather, reduce-scatter and scatter it has a block for every rank; for alltoall it holds just the chunks that
the rank ever has, relayed ones too. Element boundaries are floor(exact share * elements), the same on every rank, so
any length works: a piece without elements is skipped on both sides.

A piece is a segment of a chunk. What goes from one rank to another in one tick is one message, its pieces packed side
by side where they do not lie so already. There are two orders:

- flow: a message goes as soon as its own pieces are there. Receives are posted some ticks ahead, and a send waits for
  just those that bring or change what it carries (over gloo).
- rounds: a tick's messages are posted as one batch, and all of them are awaited before the next tick (over NCCL).

Sums are taken from the lowest source rank to the highest, the rank's own value in its place (see synth/order.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..synth.schedule import Schedule
from ..synth.transfers import REDUCE
from .layout import Layout, Move, Range
from .slots import Slots

Buffer = Literal["work", "staging"]

AHEAD = 3
"""Receives are posted this many ticks before they are needed, and sends are awaited this many ticks after."""


@dataclass(frozen=True)
class Place:
    """`length` elements from `at` on, of the work or the staging buffer."""

    buffer: Buffer
    at: int
    length: int


@dataclass(frozen=True)
class Post:
    """Send `place` to rank `peer`, or receive from it into `place`. `number` counts the messages of that direction."""

    kind: Literal["send", "receive"]
    peer: int
    number: int
    tick: int
    step: int
    place: Place


@dataclass(frozen=True)
class Await:
    """Until the `post`-th Post of the program is through."""

    post: int


@dataclass(frozen=True)
class Pack:
    """Lay `parts` side by side at `into`."""

    parts: tuple[Place, ...]
    into: Place


@dataclass(frozen=True)
class Combine:
    """Add (or whatever the reduction is) each `other` to its `into`; none of them overlap, in any order."""

    pairs: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True)
class Copy:
    """Copy each `other` to its `into`."""

    pairs: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True)
class Exchange:
    """All of a tick's posts at once, and until all are through."""

    posts: tuple[Post, ...]


Instruction = Post | Await | Pack | Combine | Copy | Exchange


@dataclass(frozen=True)
class Program:
    """What one rank does. `fills` go from the input to the work buffer before, `drains` from work to output after."""

    rank: int
    work_numel: int
    staging_numel: int
    fills: tuple[Move, ...]
    drains: tuple[Move, ...]
    instructions: tuple[Instruction, ...]

    @property
    def posts(self) -> list[Post]:
        """Every message, in the order in which they are posted."""
        out: list[Post] = []
        for step in self.instructions:
            if isinstance(step, Post):
                out.append(step)
            elif isinstance(step, Exchange):
                out += step.posts
        return out


@dataclass(frozen=True)
class _Piece:
    """Segment `part` of chunk `chunk` in a message: what is done with it, and where it lies in this rank's work buffer."""

    step: int
    chunk: int
    part: int
    adds: bool
    lo: int
    hi: int

    @property
    def key(self) -> tuple[int, int]:
        return self.chunk, self.part


@dataclass
class _Message:
    """To or from `peer`; `at` is where it is staged, None while it is not or where it lies in the work buffer."""

    sent: bool
    peer: int
    number: int
    tick: int
    pieces: list[_Piece]
    at: int | None = None
    post: int | None = None
    awaited: bool = False
    unused: int = 0

    @property
    def length(self) -> int:
        return sum(p.hi - p.lo for p in self.pieces)

    @property
    def step(self) -> int:
        return min(p.step for p in self.pieces)


_Arrival = tuple[_Message | None, _Piece]
"""A piece and the message that it came in; None: the rank's own value."""


@dataclass
class _Group:
    """What lands on a piece in one step: the messages, by source, and how many operations of the sum are done."""

    step: int
    messages: list[tuple[_Message, _Piece]]
    done: int = 0


def lower(schedule: Schedule, rank: int, numel: int, *, rounds: bool = False) -> Program:
    """The program of `rank` for a buffer of `numel` elements (see synth/collective.py for which buffer).

    Where each rank has a part of its own, `numel` must be a multiple of the number of ranks.
    """
    layout = Layout(schedule, numel)
    sends, receives = _messages(layout, rank)
    writer = _Writer(layout, rank, sends, receives, rounds)
    instructions = tuple(writer.rounds() if rounds else writer.flow())
    return Program(
        rank=rank,
        work_numel=layout.work_numel(rank),
        staging_numel=writer.slots.size,
        fills=tuple(layout.fills(rank)),
        drains=tuple(layout.drains(rank)),
        instructions=instructions,
    )


def _messages(layout: Layout, rank: int) -> tuple[list[_Message], list[_Message]]:
    """A rank's messages by tick. Both ends cut and number them alike: tick, order of pieces and count come from the
    schedule alone.
    """
    schedule = layout.schedule
    t = schedule.transfers
    found: dict[tuple[int, bool, int], list[_Piece]] = defaultdict(list)
    for transfer in t.taken((t.src == rank) | (t.dst == rank)):
        sent = transfer.src == rank
        peer = transfer.dst if sent else transfer.src
        for part in range(schedule.segments):
            lo, hi = layout.segment(rank, transfer.chunk, part)
            if lo < hi:
                tick = schedule.tick(transfer.step, part)
                piece = _Piece(transfer.step, transfer.chunk, part, transfer.op == "reduce", lo, hi)
                found[tick, sent, peer].append(piece)
    sends: list[_Message] = []
    receives: list[_Message] = []
    count: dict[tuple[bool, int], int] = defaultdict(int)
    for (tick, sent, peer), pieces in sorted(found.items(), key=lambda item: item[0]):
        ordered = sorted(pieces, key=lambda p: (p.adds, p.chunk, p.part))
        message = _Message(sent, peer, count[sent, peer], tick, ordered)
        count[sent, peer] += 1
        (sends if sent else receives).append(message)
    return sends, receives


class _Writer:
    """Writes a rank's instructions, keeping track of what has been posted, awaited and added."""

    def __init__(
        self, layout: Layout, rank: int, sends: list[_Message], receives: list[_Message], rounds: bool
    ) -> None:
        self.rank, self.sends, self.receives = rank, sends, receives
        self.slots = Slots()
        self.out: list[Instruction] = []
        self.posted = 0
        self.last_sum = _last_sums(layout.schedule)
        self.reads: dict[tuple[int, int], list[tuple[int, _Message]]] = defaultdict(list)
        self.writes: dict[tuple[int, int], list[_Group]] = defaultdict(list)
        for message in sends:
            for piece in message.pieces:
                self.reads[piece.key].append((piece.step, message))
        for message in receives:
            message.unused = len(message.pieces)
            for piece in message.pieces:
                groups = self.writes[piece.key]
                if not groups or groups[-1].step != piece.step:
                    groups.append(_Group(piece.step, []))
                groups[-1].messages.append((message, piece))
        for groups in self.writes.values():
            for group in groups:
                group.messages.sort(key=lambda item: item[0].peer)
        self.first = dict.fromkeys(self.writes, 0)
        self.lands = {id(m): self._lands_in_place(m, rounds) for m in receives}

    # -- the two orders ------------------------------------------------------------------------------------------

    def flow(self) -> list[Instruction]:
        """Each send waits for its own pieces only."""
        waiting = iter(self.receives)
        following = next(waiting, None)
        open_sends: list[_Message] = []
        ticks = sorted({m.tick for m in [*self.sends, *self.receives]})
        by_tick: dict[int, list[_Message]] = defaultdict(list)
        for message in self.sends:
            by_tick[message.tick].append(message)
        for number, tick in enumerate(ticks):
            horizon = ticks[min(number + AHEAD, len(ticks) - 1)]
            late = ticks[max(number - AHEAD, 0)]
            for message in [m for m in open_sends if m.tick < late]:
                self._await(message)
            open_sends = [m for m in open_sends if not m.awaited]
            if number == 0:
                while following is not None and following.tick <= tick:
                    self._receive(following)
                    following = next(waiting, None)
            for message in by_tick[tick]:
                self._bring(message)
            for message in by_tick[tick]:
                self._send(message)
            open_sends += by_tick[tick]
            while following is not None and following.tick <= horizon:
                self._receive(following)
                following = next(waiting, None)
        for message in self.receives:
            self._settle(message)
        for message in open_sends:
            self._await(message)
        return self.out

    def rounds(self) -> list[Instruction]:
        """Tick by tick."""
        by_tick: dict[int, tuple[list[_Message], list[_Message]]] = defaultdict(lambda: ([], []))
        for message in self.receives:
            by_tick[message.tick][0].append(message)
        for message in self.sends:
            by_tick[message.tick][1].append(message)
        for tick in sorted(by_tick):
            receives, sends = by_tick[tick]
            posts = [self._post_of(m, self._landing(m)) for m in receives]
            posts += [self._post_of(m, self._packed(m)) for m in sends]
            self.out.append(Exchange(tuple(posts)))
            for message in [*receives, *sends]:
                message.awaited = True
            for message in sends:
                self._free(message)
            for message in receives:
                self._arrived(message)
        return self.out

    # -- posting -------------------------------------------------------------------------------------------------

    def _bring(self, message: _Message) -> None:
        """Have everything that a send carries: what comes to its pieces in earlier steps."""
        for piece in message.pieces:
            for group in self.writes.get(piece.key, [])[self.first.get(piece.key, 0) :]:
                if group.step < piece.step:
                    for other, _ in group.messages:
                        self._settle(other)

    def _send(self, message: _Message) -> None:
        place = self._packed(message)
        self._post(message, place)

    def _receive(self, message: _Message) -> None:
        self._post(message, self._landing(message))

    def _post(self, message: _Message, place: Place) -> None:
        self.out.append(self._post_of(message, place))

    def _post_of(self, message: _Message, place: Place) -> Post:
        message.post, self.posted = self.posted, self.posted + 1
        kind: Literal["send", "receive"] = "send" if message.sent else "receive"
        return Post(kind, message.peer, message.number, message.tick, message.step, place)

    def _packed(self, message: _Message) -> Place:
        """Where a message lies that is to be sent: in place, or packed."""
        parts = _joined([(p.lo, p.hi) for p in message.pieces])
        if len(parts) == 1:
            return Place("work", parts[0][0], message.length)
        message.at = self.slots.take(message.length)
        place = Place("staging", message.at, message.length)
        self.out.append(Pack(tuple(Place("work", lo, hi - lo) for lo, hi in parts), place))
        return place

    def _landing(self, message: _Message) -> Place:
        if self.lands[id(message)]:
            return Place("work", message.pieces[0].lo, message.length)
        message.at = self.slots.take(message.length)
        return Place("staging", message.at, message.length)

    def _lands_in_place(self, message: _Message, rounds: bool) -> bool:
        """Whether a message may be received where it belongs: it overwrites nothing that is still to be read or added.

        In rounds nothing is under way from one tick to the next. In a flow, what arrives must come after all that was
        done with the pieces before. That is sure where nothing was, and where the rank gave its value away in one send,
        after all additions, and the copy has the final sum: a sum that includes what was sent cannot come earlier.
        """
        if any(p.adds for p in message.pieces) or len(_joined([(p.lo, p.hi) for p in message.pieces])) > 1:
            return False
        for piece in message.pieces:
            earlier = [step for step, m in self.reads[piece.key] if step <= piece.step]
            if rounds:
                if any(step <= piece.step and m.tick == message.tick for step, m in self.reads[piece.key]):
                    return False
                continue
            written = [g.step for g in self.writes[piece.key] if g.step < piece.step]
            if not earlier and not written:
                continue
            given_away = len(earlier) == 1 and all(step < earlier[0] for step in written)
            once = sum(not p.adds for g in self.writes[piece.key] for _, p in g.messages) == 1
            if not (given_away and once and self.last_sum[piece.chunk] < piece.step):
                return False
        return True

    # -- awaiting ------------------------------------------------------------------------------------------------

    def _await(self, message: _Message) -> None:
        if not message.awaited:
            assert message.post is not None
            message.awaited = True
            self.out.append(Await(message.post))
            if message.sent:
                self._free(message)

    def _settle(self, message: _Message) -> None:
        """Await a received message, and do what can be done with it."""
        if message.awaited:
            return
        if message.post is None:
            self._receive(message)
        self._await(message)
        self._arrived(message)

    def _arrived(self, message: _Message) -> None:
        """Add up and copy what is complete now, in waves: within one, no two operations touch the same elements."""
        keys = [p.key for p in message.pieces]
        while True:
            wave = [operation for key in keys for operation in self._next(key)]
            if not wave:
                break
            for kind in (Combine, Copy):
                pairs = _merged([(into, other) for k, into, other in wave if k is kind])
                if pairs:
                    self.out.append(kind(pairs))

    def _next(self, key: tuple[int, int]) -> Iterator[tuple[type, Place, Place]]:
        """The next operation on a piece, if what it needs has arrived."""
        groups = self.writes[key]
        while self.first[key] < len(groups):
            group = groups[self.first[key]]
            operation = self._operation(group)
            if operation is None:
                if any(not message.awaited for message, _ in group.messages):
                    return
                self._finish(group, key)
                continue
            needs, kind, (into, other) = operation
            if any(message is not None and not message.awaited for message, _ in needs):
                return
            into_place, other_place = self._place(into), self._place(other)
            if into_place.buffer == "work":
                for step, reader in self.reads[key]:
                    if step <= group.step and reader.post is not None:
                        self._await(reader)
            group.done += 1
            if self._operation(group) is None:
                self._finish(group, key)
            yield kind, into_place, other_place
            return

    def _finish(self, group: _Group, key: tuple[int, int]) -> None:
        self.first[key] += 1
        for message, _ in group.messages:
            message.unused -= 1
            if message.unused == 0:
                self._free(message)

    def _operation(self, group: _Group) -> tuple[list[_Arrival], type, tuple[_Arrival, _Arrival]] | None:
        """The next of what makes a group's messages and the rank's own value into the piece's new value: what must have
        arrived for it, the kind, into what, and what. None when all is done.
        """
        message, piece = group.messages[0]
        mine: _Arrival = None, piece
        if not piece.adds:
            return (
                None if self.lands[id(message)] or group.done else ([(message, piece)], Copy, (mine, (message, piece)))
            )
        if group.done == len(group.messages):
            return None
        terms: list[_Arrival] = sorted(
            [*group.messages, mine], key=lambda term: self.rank if term[0] is None else term[0].peer
        )
        so_far, part = terms[: group.done + 1], terms[group.done + 1]
        total = mine if mine in so_far else so_far[0]
        # Addition commutes bit for bit: once the rank's own value is reached, the sum goes on in its place.
        pair = (mine, total) if part[0] is None else (total, part)
        return [term for term in [*so_far, part] if term[0] is not None], Combine, pair

    def _place(self, arrival: _Arrival) -> Place:
        message, piece = arrival
        return Place("work", piece.lo, piece.hi - piece.lo) if message is None else _staged(message, piece)

    def _free(self, message: _Message) -> None:
        if message.at is not None:
            self.slots.give(message.at, message.length)
            message.at = None


def _staged(message: _Message, piece: _Piece) -> Place:
    """Where a piece of a staged message lies."""
    assert message.at is not None
    before = 0
    for other in message.pieces:
        if other is piece:
            break
        before += other.hi - other.lo
    return Place("staging", message.at + before, piece.hi - piece.lo)


def _last_sums(schedule: Schedule) -> dict[int, int]:
    """The last step in which each chunk is added to anywhere; -1 where it never is."""
    t = schedule.transfers
    adds = t.op == REDUCE
    last = dict.fromkeys(range(len(schedule.chunks)), -1)
    for chunk, step in zip(t.chunk[adds].tolist(), t.step[adds].tolist(), strict=True):
        last[chunk] = max(last[chunk], step)
    return last


def _joined(ranges: list[Range]) -> list[Range]:
    """Ranges one after the other in the buffer become one."""
    out: list[Range] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = out[-1][0], hi
        else:
            out.append((lo, hi))
    return out


def _merged(pairs: list[tuple[Place, Place]]) -> tuple[tuple[Place, Place], ...]:
    """Neighbouring operations become one."""
    out: list[tuple[Place, Place]] = []
    for into, other in pairs:
        if out:
            before, beside = out[-1]
            if (
                (before.buffer, beside.buffer) == (into.buffer, other.buffer)
                and before.at + before.length == into.at
                and beside.at + beside.length == other.at
            ):
                out[-1] = (
                    Place(into.buffer, before.at, before.length + into.length),
                    Place(other.buffer, beside.at, beside.length + other.length),
                )
                continue
        out.append((into, other))
    return tuple(out)
