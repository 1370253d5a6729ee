"""Lowering: a schedule to the program of one rank, whose instructions are in instructions.py.

A schedule moves chunks of a buffer from rank to rank, in steps, and adds them; a tick is a step cut
finer, for parts of chunks.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter

import numpy as np

from ...synth.ir.schedule import Schedule
from ...synth.ir.transfers import REDUCE
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
    MessageCodec,
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
    codec: MessageCodec | None = None,
    averages: bool = False,
) -> Program:
    """Return the program of `rank` for a collective's buffer of `numel` elements.

    If each rank has its own part of the buffer, `numel` must be a multiple of the number of ranks.
    `batched` programs, for NCCL, exchange all messages of a tick at once. With a `codec`, a
    compressed format, messages are encoded. With `averages` (of an allreduce) sums are divided as
    soon as they are completed, before they are forwarded: so each is divided once, by few ranks.
    """
    layout = Layout(schedule, numel)
    writer = _Writer(layout, rank, batched, codec, averages)
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
        batched: bool,
        codec: MessageCodec | None,
        averages: bool,
    ) -> None:
        self.rank = rank
        self.sends, self.receives = sends, receives = list_messages(layout, rank)
        self.completing = find_completing_steps(layout.schedule, rank) if averages else {}
        self.slots = Slots()
        self.out: list[Instruction] = []
        self.posted = 0
        t = layout.schedule.transfers
        adds = t.op == REDUCE
        # The last step in which each chunk is added to on any rank; -1 if it never is.
        self.last_sum = np.full(len(layout.schedule.chunks), -1)
        np.maximum.at(self.last_sum, t.chunk[adds], t.step[adds])
        self.ticks = sorted({m.tick for m in [*sends, *receives]})
        self.sends_at, self.receives_at = _group_by_tick(sends), _group_by_tick(receives)
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
        # Pieces of which a helper gets the first value as a term of a sum.
        self.begun_by_adding: set[tuple[int, int]] = set()
        if rank not in layout.collective.members:
            self._begin_sums()
        self.first = dict.fromkeys(self.writes, 0)
        self.lands = {id(m): codec is None and self._lands_in_place(m, batched) for m in receives}
        self.encoder = (
            None
            if codec is None
            else codec.make_message_encoder(layout, rank, self.reads, self.writes)
        )

    def _begin_sums(self) -> None:
        """Make the first term of each sum of a helper, which has no value of its own, a copy."""
        for key, groups in self.writes.items():
            message, piece = groups[0].messages[0]
            if piece.adds:
                self.begun_by_adding.add(key)
                first = replace(piece, adds=False)
                groups[0].messages[0] = message, first
                message.pieces[message.pieces.index(piece)] = first

    # The two orders

    def write_flow(self) -> list[Instruction]:
        """Return the instructions in which each send waits for its own pieces only."""
        # Peers send at once in the first tick: receives of it are posted before anything else.
        self._receive(self.ticks[:1])
        for number, tick in enumerate(self.ticks):
            # Old sends are awaited, so that their staging can be used again.
            if number > AHEAD:
                for message in self.sends_at[self.ticks[number - AHEAD - 1]]:
                    self._await(message)
            # All inputs of the tick first: awaiting one send's inputs must not hold up another that
            # is ready.
            for message in self.sends_at[tick]:
                self._settle_inputs(message)
            for message in self.sends_at[tick]:
                self.out.append(self._post_of(message, self._pack(message)))
            # Receives are posted ahead, so that a message never waits for its receiver to be ready.
            self._receive(self.ticks[number + AHEAD if number else 1 : number + AHEAD + 1])
        for message in self.receives:
            self._settle(message)
        for message in self.sends:
            self._await(message)
        self._round_unsent_sums()
        return self.out

    def write_batches(self) -> list[Instruction]:
        """Return the instructions in which each tick is one batch."""
        for tick in self.ticks:
            messages = [*self.receives_at[tick], *self.sends_at[tick]]
            posts = tuple(
                self._post_of(m, self._pack(m) if m.sent else self._landing_span(m))
                for m in messages
            )
            self.out.append(Exchange(posts))  # after what packs them
            # Only now: the staging of a tick's sends must not be used again within the tick.
            for message in messages:
                message.awaited = True
                if message.sent:
                    self._free(message)
            for message in self.receives_at[tick]:
                self._decode(message)
            for message in self.receives_at[tick]:
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

    def _receive(self, ticks: Sequence[int]) -> None:
        for message in (m for tick in ticks for m in self.receives_at[tick]):
            self.out.append(self._post_of(message, self._landing_span(message)))

    def _post_of(self, message: Message, span: Span) -> Post:
        message.post, self.posted = self.posted, self.posted + 1
        return Post(
            "send" if message.sent else "receive",
            message.peer,
            message.number,
            message.tick,
            message.step,
            span,
        )

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
        return (
            Span("work", message.pieces[0].lo, message.length)
            if self.lands[id(message)]
            else self._staging(message, message.length)
        )

    def _staging(self, message: Message, length: int) -> Span:
        message.slot = self.slots, self.slots.take(length), length
        return Span("staging", message.start, length)

    def _decode(self, message: Message) -> None:
        if self.encoder is not None:
            encoded = self.encoder.span_of(message)
            self._free(message)
            self.out.append(Decode(encoded, self._staging(message, self.encoder.padded(message))))

    def _round_unsent_sums(self) -> None:
        if self.encoder is not None and (unsent := self.encoder.encode_unsent_sums()):
            message, encode = unsent
            self.out.append(encode)
            self._free(message)

    def _lands_in_place(self, message: Message, batched: bool) -> bool:
        """Return whether a message may be received directly into its final place."""
        return (
            not any(p.adds for p in message.pieces)
            and len(join_ranges([(p.lo, p.hi) for p in message.pieces])) == 1
            and all(self._may_overwrite(p, message.tick, batched) for p in message.pieces)
        )

    def _may_overwrite(self, piece: Piece, tick: int, batched: bool) -> bool:
        """Return whether a piece that arrives overwrites nothing still to be read or added.

        In batches nothing is in flight from one tick to the next. In a flow, a piece must arrive
        after all uses of its old value. That is certain if there were none, and if the rank gave
        its value away in one send, after all additions, and the copy has the final sum: a sum that
        includes the value that was sent cannot come earlier.
        """
        readers = [(step, m) for step, m in self.reads[piece.key] if step <= piece.step]
        if batched:
            return all(m.tick != tick for _, m in readers)
        written = [g.step for g in self.writes[piece.key] if g.step < piece.step]
        given_away = len(readers) == 1 and all(step < readers[0][0] for step in written)
        copies = sum(not p.adds for g in self.writes[piece.key] for _, p in g.messages)
        once = copies - (piece.key in self.begun_by_adding) == 1
        return not (readers or written) or (
            given_away and once and bool(self.last_sum[piece.chunk] < piece.step)
        )

    # Awaiting

    def _await(self, message: Message) -> None:
        if not message.awaited:
            assert message.post is not None
            message.awaited = True
            self.out.append(Await(message.post))
            if message.sent:
                self._free(message)

    def _settle(self, message: Message) -> None:
        if not message.awaited:
            self._await(message)
            self._decode(message)
            self._operate(message)

    def _operate(self, message: Message) -> None:
        """Add up and copy the pieces that a message completes, in waves.

        Within a wave no two operations touch the same elements.
        """
        whole: list[Span] = []
        while wave := [x for p in message.pieces for x in self._next(p.key, whole)]:
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
        if not piece.adds:  # a copy, or a helper's first value, to which the others are added
            at = group.done + self.lands[id(message)]
            if at == len(group.messages):
                return None
            needs: list[_Arrival] = list(group.messages[: at + 1])
            return needs, Combine if at else Copy, (own, group.messages[at])
        if group.done == len(group.messages):
            return None
        terms: list[_Arrival] = sorted(
            [*group.messages, own], key=lambda term: self.rank if term[0] is None else term[0].peer
        )
        so_far, part = terms[: group.done + 1], terms[group.done + 1]
        total = own if own in so_far else so_far[0]
        return (
            [term for term in [*so_far, part] if term[0] is not None],
            Combine,
            # Addition commutes bit for bit: once the rank's own value is reached, the sum goes on
            # in its place.
            (own, total) if part[0] is None else (total, part),
        )

    def _span(self, arrival: _Arrival) -> Span:
        message, piece = arrival
        if message is None:
            return Span("work", piece.lo, piece.hi - piece.lo)
        encoder = self.encoder
        offset = message.offset_of(piece) if encoder is None else encoder.offset_of(message, piece)
        return Span("staging", message.start + offset, piece.hi - piece.lo)

    def _free(self, message: Message) -> None:
        if message.slot is not None:
            slots, start, length = message.slot
            slots.give_back(start, length)
            message.slot = None


def find_completing_steps(schedule: Schedule, rank: int) -> dict[int, int]:
    """Return, by chunk number, the step in which `rank` completes the chunk's sum itself.

    There the sum is divided for an average. Chunks whose sum it receives complete, or never has,
    are missing.
    """
    t, members = schedule.transfers, schedule.collective.members
    all_ranks = sum(1 << r for r in members)  # sets of ranks as bits
    holds = {
        (chunk, r): 1 << r if r in members else 0
        for chunk in range(len(schedule.chunks))
        for r in schedule.participants
    }
    completing: dict[int, int] = {}
    columns = (column.tolist() for column in (t.step, t.chunk, t.src, t.dst, t.op == REDUCE))
    for step, group in groupby(sorted(zip(*columns, strict=True)), key=itemgetter(0)):
        # All values of a step are those from before it.
        for chunk, dst, contributions, adds in [
            (chunk, dst, holds[chunk, src], adds) for _, chunk, src, dst, adds in group
        ]:
            before = holds[chunk, dst]
            holds[chunk, dst] = before | contributions if adds else contributions
            is_whole = all_ranks in (before, contributions)
            if dst == rank and adds and not is_whole and holds[chunk, dst] == all_ranks:
                completing[chunk] = step
    return completing


def _group_by_tick(messages: list[Message]) -> dict[int, list[Message]]:
    return defaultdict(
        list, {tick: list(group) for tick, group in groupby(messages, attrgetter("tick"))}
    )
