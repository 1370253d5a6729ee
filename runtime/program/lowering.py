"""Lowering: a schedule to the program of one rank (see instructions.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Literal

from ...synth.ir.schedule import Schedule
from ...synth.ir.transfers import REDUCE
from .encoding import Blocks, MessageEncoder
from .instructions import (
    Await,
    Combine,
    Copy,
    Decode,
    Divide,
    Exchange,
    Instruction,
    Pack,
    Post,
    Program,
    Span,
)
from .layout import Layout
from .messages import (
    Group,
    Message,
    Piece,
    Reads,
    Slots,
    Writes,
    join_ranges,
    list_messages,
    merge_pairs,
)

# Receives are posted this many ticks before they are needed, so that no message waits for its
# receiver; sends are awaited this many ticks after, so that their staging can be used again.
AHEAD = 3

# A piece and the message that it came in; None: the rank's own value.
_Arrival = tuple[Message | None, Piece]


def lower(
    schedule: Schedule,
    rank: int,
    numel: int,
    *,
    batched: bool = False,
    codec: Blocks | None = None,
    averages: bool = False,
) -> Program:
    """Return the program of `rank` for a buffer of `numel` elements.

    See synth/ir/collective.py for which buffer that is. If each rank has its own part, `numel` must
    be a multiple of the number of ranks. With `averages` (of an allreduce) sums are divided as soon
    as they are completed, before they are forwarded: so each is divided once, by few ranks.
    """
    layout = Layout(schedule, numel)
    sends, receives = list_messages(layout, rank)
    completing = find_completing_steps(schedule, rank) if averages else {}
    writer = _Writer(layout, rank, sends, receives, batched, codec, completing)
    instructions = tuple(writer.write_batches() if batched else writer.write_flow())
    return Program(
        rank=rank,
        work_numel=layout.work_numel(rank),
        staging_numel=writer.slots.size,
        wire_bytes=0 if writer.encoder is None else writer.encoder.slots.size,
        fills=tuple(layout.fills(rank)),
        drains=tuple(layout.drains(rank)),
        instructions=instructions,
    )


class _Writer:
    """Writes a rank's instructions, and tracks which messages are posted, awaited and added."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        sends: list[Message],
        receives: list[Message],
        batched: bool,
        codec: Blocks | None,
        completing: Mapping[int, int],
    ) -> None:
        self.completing = completing
        self.rank, self.sends, self.receives = rank, sends, receives
        self.slots = Slots()
        self.out: list[Instruction] = []
        self.posted = 0
        self.last_sum = _find_last_sums(layout.schedule)
        self.reads: Reads = defaultdict(list)
        self.writes: Writes = defaultdict(list)
        for message in sends:
            for piece in message.pieces:
                self.reads[piece.key].append((piece.step, message))
        for message in receives:
            message.unused = len(message.pieces)
            for piece in message.pieces:
                groups = self.writes[piece.key]
                if not groups or groups[-1].step != piece.step:
                    groups.append(Group(piece.step, []))
                groups[-1].messages.append((message, piece))
        for groups in self.writes.values():
            for group in groups:
                group.messages.sort(key=lambda item: item[0].peer)
        self.first = dict.fromkeys(self.writes, 0)
        self.lands = {id(m): codec is None and self._lands_in_place(m, batched) for m in receives}
        self.encoder = (
            None if codec is None else MessageEncoder(layout, rank, codec, self.reads, self.writes)
        )

    # The two orders

    def write_flow(self) -> list[Instruction]:
        """Return the instructions in which each send waits for its own pieces only."""
        posted = 0

        def receive_until(tick: int) -> None:
            nonlocal posted
            while posted < len(self.receives) and self.receives[posted].tick <= tick:
                self._receive(self.receives[posted])
                posted += 1

        open_sends: list[Message] = []
        ticks = sorted({m.tick for m in [*self.sends, *self.receives]})
        by_tick: dict[int, list[Message]] = defaultdict(list)
        for message in self.sends:
            by_tick[message.tick].append(message)
        for number, tick in enumerate(ticks):
            late = ticks[max(number - AHEAD, 0)]
            # Old sends are awaited, so that their staging can be used again.
            for message in [m for m in open_sends if m.tick < late]:
                self._await(message)
            open_sends = [m for m in open_sends if not m.awaited]
            # Peers send at once in the first tick: receives of it are posted before anything else.
            if number == 0:
                receive_until(tick)
            # All inputs of the tick first: awaiting one send's inputs must not hold up another that
            # is ready.
            for message in by_tick[tick]:
                self._settle_inputs(message)
            for message in by_tick[tick]:
                self.out.append(self._post_of(message, self._pack(message)))
            open_sends += by_tick[tick]
            # Receives are posted ahead, so that a message never waits for its receiver to be ready.
            receive_until(ticks[min(number + AHEAD, len(ticks) - 1)])
        for message in self.receives:
            self._settle(message)
        for message in open_sends:
            self._await(message)
        self._round_unsent_sums()
        return self.out

    def write_batches(self) -> list[Instruction]:
        """Return the instructions in which each tick is one batch."""
        by_tick: dict[int, list[Message]] = defaultdict(list)
        for message in [*self.receives, *self.sends]:
            by_tick[message.tick].append(message)
        for tick in sorted(by_tick):
            messages = by_tick[tick]
            posts = [
                self._post_of(m, self._pack(m) if m.sent else self._landing_span(m))
                for m in messages
            ]
            self.out.append(Exchange(tuple(posts)))
            # Only now: the staging of a tick's sends must not be used again within the tick.
            for message in messages:
                message.awaited = True
                if message.sent:
                    self._free(message)
            receives = [message for message in messages if not message.sent]
            for message in receives:
                self._decode(message)
            for message in receives:
                self._operate(message)
        self._round_unsent_sums()
        return self.out

    # Posting

    def _settle_inputs(self, message: Message) -> None:
        """Settle every receive that brings or changes the pieces of a send."""
        for piece in message.pieces:
            for group in self.writes.get(piece.key, [])[self.first.get(piece.key, 0) :]:
                if group.step < piece.step:
                    for other, _ in group.messages:
                        self._settle(other)

    def _receive(self, message: Message) -> None:
        self.out.append(self._post_of(message, self._landing_span(message)))

    def _post_of(self, message: Message, span: Span) -> Post:
        message.post, self.posted = self.posted, self.posted + 1
        kind: Literal["send", "receive"] = "send" if message.sent else "receive"
        return Post(kind, message.peer, message.number, message.tick, message.step, span)

    def _pack(self, message: Message) -> Span:
        """Return the place of a message to send, after packing or encoding it if necessary."""
        if self.encoder is not None:
            encode = self.encoder.encode(message)
            self.out.append(encode)
            return encode.into
        parts = join_ranges([(p.lo, p.hi) for p in message.pieces])
        if len(parts) == 1:
            return Span("work", parts[0][0], message.length)
        span = self._staging(message, message.length)
        self.out.append(Pack(tuple(Span("work", lo, hi - lo) for lo, hi in parts), span))
        return span

    def _landing_span(self, message: Message) -> Span:
        if self.encoder is not None:
            return self.encoder.take_room(message)
        if self.lands[id(message)]:
            return Span("work", message.pieces[0].lo, message.length)
        return self._staging(message, message.length)

    def _staging(self, message: Message, length: int) -> Span:
        start = self.slots.take(length)
        message.slot = self.slots, start, length
        return Span("staging", start, length)

    def _decode(self, message: Message) -> None:
        if self.encoder is not None:
            encoded = self.encoder.span_of(message)
            self._free(message)
            self.out.append(Decode(encoded, self._staging(message, self.encoder.padded(message))))

    def _round_unsent_sums(self) -> None:
        unsent = None if self.encoder is None else self.encoder.encode_unsent_sums()
        if unsent is not None:
            message, encode = unsent
            self.out.append(encode)
            self._free(message)

    def _lands_in_place(self, message: Message, batched: bool) -> bool:
        """Return whether a message may be received directly into its final place.

        It must not overwrite anything that is still to be read or added. In batches nothing is in
        flight from one tick to the next. In a flow, a message must arrive after all uses of the
        pieces' old values. That is certain if there were none, and if the rank gave its value away
        in one send, after all additions, and the copy has the final sum: a sum that includes the
        value that was sent cannot come earlier.
        """
        ranges = join_ranges([(p.lo, p.hi) for p in message.pieces])
        if any(p.adds for p in message.pieces) or len(ranges) > 1:
            return False
        for piece in message.pieces:
            readers = [(step, m) for step, m in self.reads[piece.key] if step <= piece.step]
            if batched:
                if any(m.tick == message.tick for _, m in readers):
                    return False
                continue
            written = [g.step for g in self.writes[piece.key] if g.step < piece.step]
            if not readers and not written:
                continue
            given_away = len(readers) == 1 and all(step < readers[0][0] for step in written)
            once = sum(not p.adds for g in self.writes[piece.key] for _, p in g.messages) == 1
            if not (given_away and once and self.last_sum[piece.chunk] < piece.step):
                return False
        return True

    # Awaiting

    def _await(self, message: Message) -> None:
        if not message.awaited:
            assert message.post is not None
            message.awaited = True
            self.out.append(Await(message.post))
            if message.sent:
                self._free(message)

    def _settle(self, message: Message) -> None:
        """Await a received message, and add up or copy the pieces that it completes."""
        if message.awaited:
            return
        if message.post is None:
            self._receive(message)
        self._await(message)
        self._decode(message)
        self._operate(message)

    def _operate(self, message: Message) -> None:
        """Add up and copy the pieces that a message completes, in waves.

        Within a wave no two operations touch the same elements.
        """
        keys = [p.key for p in message.pieces]
        whole: list[Span] = []
        while wave := [operation for key in keys for operation in self._next(key, whole)]:
            for kind in (Combine, Copy):
                pairs = merge_pairs([(into, other) for k, into, other in wave if k is kind])
                if pairs:
                    self.out.append(kind(pairs))
        if whole:
            self.out.append(
                Divide(tuple(into for into, _ in merge_pairs([(span, span) for span in whole])))
            )

    def _next(self, key: tuple[int, int], whole: list[Span]) -> Iterator[tuple[type, Span, Span]]:
        """Yield the next operation on a piece, if its messages have arrived.

        Add the piece to `whole` if the operation completes a sum.
        """
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
            into_span, other_span = self._span(into), self._span(other)
            if into_span.buffer == "work" and self.encoder is None:  # an encoded message is a copy
                for step, reader in self.reads[key]:
                    if step <= group.step and reader.post is not None:
                        self._await(reader)
            group.done += 1
            if self._operation(group) is None:
                self._finish(group, key)
                if kind is Combine and self.completing.get(key[0]) == group.step:
                    whole.append(self._span((None, group.messages[0][1])))
            yield kind, into_span, other_span
            return

    def _finish(self, group: Group, key: tuple[int, int]) -> None:
        self.first[key] += 1
        for message, _ in group.messages:
            message.unused -= 1
            if message.unused == 0:
                self._free(message)

    def _operation(
        self, group: Group
    ) -> tuple[list[_Arrival], type, tuple[_Arrival, _Arrival]] | None:
        """Return the next operation that makes a piece's new value, or None when all is done.

        The operation turns a group's messages and the rank's own value into the new value. It is a
        tuple of the arrivals that it needs, the kind of instruction, and the two operands.
        """
        message, piece = group.messages[0]
        own: _Arrival = None, piece
        if not piece.adds:
            is_done = self.lands[id(message)] or group.done
            return None if is_done else ([(message, piece)], Copy, (own, (message, piece)))
        if group.done == len(group.messages):
            return None
        terms: list[_Arrival] = sorted(
            [*group.messages, own], key=lambda term: self.rank if term[0] is None else term[0].peer
        )
        so_far, part = terms[: group.done + 1], terms[group.done + 1]
        total = own if own in so_far else so_far[0]
        # Addition commutes bit for bit: once the rank's own value is reached, the sum goes on in
        # its place.
        pair = (own, total) if part[0] is None else (total, part)
        return [term for term in [*so_far, part] if term[0] is not None], Combine, pair

    def _span(self, arrival: _Arrival) -> Span:
        message, piece = arrival
        if message is None:
            return Span("work", piece.lo, piece.hi - piece.lo)
        padded = None if self.encoder is None else self.encoder.codec.padded
        return Span(
            "staging", message.start + message.offset_of(piece, padded), piece.hi - piece.lo
        )

    def _free(self, message: Message) -> None:
        if message.slot is not None:
            slots, start, length = message.slot
            slots.give_back(start, length)
            message.slot = None


def find_completing_steps(schedule: Schedule, rank: int) -> dict[int, int]:
    """Return the step in which `rank` completes each chunk's sum itself, by additions.

    Chunks that it does not complete are left out.
    """
    t, ranks = schedule.transfers, schedule.collective.ranks
    all_ranks = (1 << ranks) - 1  # sets of ranks as bits
    holds = {(chunk, r): 1 << r for chunk in range(len(schedule.chunks)) for r in range(ranks)}
    completing: dict[int, int] = {}
    columns = t.step, t.chunk, t.src, t.dst, t.op == REDUCE
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for step, group in groupby(sorted(rows), key=itemgetter(0)):
        sent = [(chunk, dst, holds[chunk, src], adds) for _, chunk, src, dst, adds in group]
        for chunk, dst, contributions, adds in sent:
            before = holds[chunk, dst]
            holds[chunk, dst] = before | contributions if adds else contributions
            if dst == rank and adds and before != all_ranks == holds[chunk, dst]:
                completing[chunk] = step
    return completing


def _find_last_sums(schedule: Schedule) -> dict[int, int]:
    """Return the last step in which each chunk is added to on any rank; -1 if it never is."""
    t = schedule.transfers
    adds = t.op == REDUCE
    last = dict.fromkeys(range(len(schedule.chunks)), -1)
    for chunk, step in zip(t.chunk[adds].tolist(), t.step[adds].tolist(), strict=True):
        last[chunk] = max(last[chunk], step)
    return last
