"""Replay an algorithm of MSCCL on symbols: which messages make up each value that is sent or kept.

A value is data of one chunk: the sum of `terms`, which are the GPU's own contribution (OWN) and
messages that the GPU received, by number. Messages between two GPUs on one channel arrive in the
order in which they were sent, as in the interpreters. A file without errors ends with the same
values whichever thread blocks are faster, so it is replayed twice: each block running for as long
as it can, and all taking turns by steps, in the opposite order. If the results differ, a dependency
is missing.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from ....topo.errors import InputError, VerificationError
from .read import ADD, INPUT, OUTPUT, RECEIVE, SCRATCH, SEND, STORE, Algorithm, Block, BlockStep

# The term that stands for a GPU's own contribution; messages count from 0.
OWN = -1
# A buffer of a GPU and the number of a chunk in it.
MemoryCell = tuple[int, str, int]


@dataclass(frozen=True)
class Value:
    """A value of one chunk: the sum of `terms`.

    Each term is OWN, the GPU's own contribution, or the number of a message that it received.
    """

    chunk: int
    terms: frozenset[int]


@dataclass(frozen=True)
class Message:
    """One chunk sent from GPU `src` to GPU `dst`, with its value when it was sent.

    A step that sends several chunks makes one of these for each.
    """

    src: int
    dst: int
    value: Value


@dataclass
class Replay:
    """The outcome of a replay: all messages in order, and each rank's final values.

    results[rank, chunk] are the terms of the value that a rank ends with, for each chunk it needs.
    """

    messages: list[Message] = field(default_factory=list)
    results: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)


def replay(algorithm: Algorithm) -> Replay:
    """Replay a file and check that every rank ends with its result in place.

    Raise InputError if a block waits forever or two sides of a channel disagree, VerificationError
    if the values are wrong, or depend on the order in which the blocks run.
    """
    first, second = (_Interpreter(algorithm, order).run() for order in (1, -1))
    table: dict[object, int] = {}
    ours, theirs = (_number_values(outcome, table) for outcome in (first, second))
    for key, value in ours.items():
        if value != theirs[key]:
            raise VerificationError(
                f"{algorithm.where}: what GPU {key[0]} ends with of chunk {key[1]} depends on "
                "which thread block is faster; a dependency (depid, deps) is missing"
            )
    return first


def _number_values(outcome: Replay, table: dict[object, int]) -> dict[tuple[int, int], int]:
    """Return a number for each result; by `table`, equal numbers stand for the same data.

    Messages of the same data from the same GPU are equal, whenever they were sent.
    """
    numbers: list[int] = []

    def number(rank: int, chunk: int, terms: frozenset[int]) -> int:
        parts = frozenset(term if term == OWN else numbers[term] for term in terms)
        return table.setdefault((rank, chunk, parts), len(table))

    for message in outcome.messages:
        numbers.append(number(message.src, message.value.chunk, message.value.terms))
    return {key: number(*key, terms) for key, terms in outcome.results.items()}


class _Interpreter:
    """The state of a replay: memory, messages not received yet, and how far each block is.

    `order` is 1 to run the blocks in the order of the file, -1 to take turns in the opposite one.
    """

    def __init__(self, algorithm: Algorithm, order: int) -> None:
        self._algorithm, self._collective = algorithm, algorithm.collective
        self._eager = order > 0
        self._blocks = {(b.gpu, b.number): b for b in algorithm.blocks[::order]}
        self._done = dict.fromkeys(self._blocks, 0)
        self._memory: dict[MemoryCell, Value] = {}
        self._sent: dict[tuple[int, int, int], deque[list[int]]] = defaultdict(deque)
        self._out = Replay()
        chunk = algorithm.chunks[0]
        # If one of the buffers has a part for each rank and the other is a part, it is the rank's.
        self._small = INPUT if chunk.target is None else OUTPUT
        one_has_parts = (chunk.source is None) != (chunk.target is None)
        self._shift = algorithm.block_chunks if one_has_parts else 0
        self._check_channels()
        for number, chunk in enumerate(algorithm.chunks):
            for rank in self._collective.holders(chunk):
                place = self._place(rank, INPUT, self._offset(number, chunk.target))
                self._memory[place] = Value(number, frozenset({OWN}))

    def _check_channels(self) -> None:
        """Refuse two blocks with one number, or on one side of a channel between two GPUs."""
        taken: set[tuple[object, ...]] = set()
        for block in self._algorithm.blocks:
            ends = [("sends to", block.sends_to), ("receives from", block.receives_from)]
            keys: list[tuple[object, ...]] = [
                (block.gpu, what, peer, block.channel) for what, peer in ends if peer >= 0
            ]
            for key in [*keys, (block.gpu, block.number)]:
                if key in taken:
                    raise block.element.make_error(
                        f"id={block.number} of GPU {block.gpu}: another thread block has that id, "
                        f"or that peer on channel {block.channel}"
                    )
                taken.add(key)

    def _offset(self, number: int, part: int | None) -> int:
        """Return where a chunk lies in a buffer that has parts for ranks, `part` being its own."""
        each = self._algorithm.block_chunks
        return (part or 0) * each + number % each

    def _place(self, rank: int, buffer: str, offset: int) -> MemoryCell:
        """Return where a chunk is; in place, input and output are one memory."""
        if not self._algorithm.in_place or buffer == SCRATCH:
            return rank, buffer, offset
        return rank, OUTPUT, offset + (rank * self._shift if buffer == self._small else 0)

    def run(self) -> Replay:
        """Run all blocks to their ends and return the messages and the results."""
        busy = True
        while busy:
            busy = False
            for block in self._blocks.values():
                while self._advance(block):
                    busy = True
                    if not self._eager:
                        break
        for key, block in self._blocks.items():
            if self._done[key] < len(block.steps):
                step = block.steps[self._done[key]]
                raise step.element.make_error(
                    f"of GPU {block.gpu}, thread block {block.number} waits forever: nothing "
                    "arrives, or the step that it depends on never ends"
                )
        for (src, dst, channel), left in self._sent.items():
            if left:
                raise InputError(
                    f"{self._algorithm.where}: GPU {dst} does not receive {len(left)} of the "
                    f"messages that GPU {src} sends on channel {channel}"
                )
        self._collect()
        return self._out

    def _collect(self) -> None:
        """Record what each rank ends with of each chunk; raise VerificationError if it is wrong."""
        for number, chunk in enumerate(self._algorithm.chunks):
            for rank in self._collective.receivers(chunk):
                offset = self._offset(number, chunk.source)
                value = self._memory.get(self._place(rank, OUTPUT, offset))
                if value is None or value.chunk != number:
                    what = "nothing" if value is None else f"data of chunk {value.chunk}"
                    raise VerificationError(
                        f"{self._algorithm.where}: GPU {rank} ends with {what} in its output at "
                        f"{offset}; expected chunk {number}"
                    )
                self._out.results[rank, number] = value.terms

    def _advance(self, block: Block) -> bool:
        """Do the next step of a block if it can be done; return whether it was."""
        key = block.gpu, block.number
        at = self._done[key]
        if at == len(block.steps):
            return False
        step = block.steps[at]
        if step.waits_for is not None:
            other, number = step.waits_for
            if (block.gpu, other) not in self._done:
                raise step.element.make_error(f"waits for thread block {other}, which is not there")
            if self._done[block.gpu, other] <= number:
                return False
        arrived: list[int] = []
        if RECEIVE in step.actions:
            queue = self._sent[block.receives_from, block.gpu, block.channel]
            if not queue:
                return False
            arrived = queue.popleft()
            if len(arrived) != step.count:
                raise step.element.make_error(
                    f"receives {step.count} chunks, and GPU {block.receives_from} sends "
                    f"{len(arrived)}"
                )
        self._perform(block, step, arrived)
        self._done[key] += 1
        return True

    def _perform(self, block: Block, step: BlockStep, arrived: list[int]) -> None:
        """Do one step; `arrived` are the messages that it receives, if it does."""
        sent = []
        for i in range(step.count):
            parts = []
            if arrived:
                parts.append(
                    Value(self._out.messages[arrived[i]].value.chunk, frozenset({arrived[i]}))
                )
            else:
                parts.append(self._read(block, step, step.source, i))
            if ADD in step.actions:
                parts.append(self._read(block, step, step.source if arrived else step.target, i))
            value = _add(step, *parts)
            if STORE in step.actions:
                buffer, offset = step.target
                self._memory[self._place(block.gpu, buffer, offset + i)] = value
            if SEND in step.actions:
                sent.append(len(self._out.messages))
                self._out.messages.append(Message(block.gpu, block.sends_to, value))
        if sent:
            self._sent[block.gpu, block.sends_to, block.channel].append(sent)

    def _read(self, block: Block, step: BlockStep, place: tuple[str, int], i: int) -> Value:
        buffer, offset = place
        value = self._memory.get(self._place(block.gpu, buffer, offset + i))
        if value is None:
            raise VerificationError(
                f"{step.element.where}, line {step.element.line}: GPU {block.gpu} reads chunk "
                f"{offset + i} of its buffer {buffer!r}, where nothing is yet"
            )
        return value


def _add(step: BlockStep, first: Value, second: Value | None = None) -> Value:
    if second is None:
        return first
    if first.chunk != second.chunk or first.terms & second.terms:
        twice = first.chunk == second.chunk
        raise VerificationError(
            f"{step.element.where}, line {step.element.line}: adds "
            + ("the same data twice" if twice else f"chunks {first.chunk} and {second.chunk}")
        )
    return Value(first.chunk, first.terms | second.terms)
