"""Turn a replayed algorithm of MSCCL into a schedule.

In a schedule a rank holds one value of each chunk, and a transfer replaces that value or adds to
it. A value is the sum of messages that the rank received, and of its own contribution (replay.py).
MSCCL's thread blocks can hold several (in scratch memory) and add them later. So the values of a
chunk that a rank sends or ends with are put into an order in which each follows from the one
before: by messages added to it, or by a message that replaces it. A message is a transfer of the
step in which the value is needed. Each transfer is made in the first step possible.

Channels, protocols and thread blocks have no counterpart: a topology's links decide the time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise, product

from ....topo.errors import InfeasibleError
from ...ir.collective import Chunk
from ...ir.transfers import Op
from .read import Algorithm
from .replay import OWN, Message, Replay

# A transfer of one chunk: (step, source rank, destination rank, operation).
Move = tuple[int, int, int, Op]
Terms = frozenset[int]


@dataclass(frozen=True)
class _Write:
    """The messages that turn one value into the next: one that replaces it, or some to be added."""

    op: Op
    messages: Terms


def lower(
    algorithm: Algorithm, outcome: Replay
) -> tuple[tuple[Chunk, ...], list[tuple[int, int, int, int, Op]]]:
    """Return the chunks and the sends of a schedule, for a file and the outcome of its replay.

    They are what `build_schedule` takes (synth/request.py). A send is (step, source rank,
    destination rank, chunk, operation). Neighbouring chunks that are sent alike become one. Raise
    InfeasibleError if a rank would have to hold two values of a chunk at once.
    """
    needed = _find_needed(outcome)
    rows: dict[int, dict[int, set[Terms]]] = defaultdict(lambda: defaultdict(set))
    for (rank, chunk), values in needed.items():
        rows[chunk][rank] = values
    chunks: list[Chunk] = []
    sends: list[tuple[int, int, int, int, Op]] = []
    each = [_lower_chunk(algorithm, outcome, c, rows[c]) for c in range(len(algorithm.chunks))]
    for (source, target, moves), alike in groupby(
        zip(algorithm.chunks, each, strict=True), lambda x: (x[0].source, x[0].target, x[1])
    ):
        share = sum((chunk.share for chunk, _ in alike), Fraction(0))
        sends += [(step, src, dst, len(chunks), op) for step, src, dst, op in moves]
        chunks.append(Chunk(share, source, target))
    return tuple(chunks), sends


def _find_needed(outcome: Replay) -> dict[tuple[int, int], set[Terms]]:
    """Return, for each rank and chunk, the values that results are made of, there or elsewhere.

    What a file sends without using it is left out.
    """
    needed: dict[tuple[int, int], set[Terms]] = defaultdict(set)
    todo = list(outcome.results.items())
    while todo:
        key, terms = todo.pop()
        if terms in needed[key]:
            continue
        needed[key].add(terms)
        for term in terms - {OWN}:
            message = outcome.messages[term]
            todo.append(((message.src, message.value.chunk), message.value.terms))
    return needed


def _lower_chunk(
    algorithm: Algorithm, outcome: Replay, chunk: int, needed: dict[int, set[Terms]]
) -> tuple[Move, ...]:
    """Return the transfers of one chunk, by step; `needed` has the values at each rank."""
    writes: dict[int, list[_Write]] = {}
    # The number of writes after which a rank holds a value.
    after: dict[tuple[int, Terms], int] = {}
    for rank, values in needed.items():
        writes[rank] = []
        held = frozenset({OWN}) if any(OWN in terms for terms in values) else None
        for terms in _order(values, outcome.results.get((rank, chunk))):
            writes[rank] += _find_writes(held, terms)
            after[rank, terms], held = len(writes[rank]), terms
    messages, every = outcome.messages, [write for listed in writes.values() for write in listed]
    op_of = {message: write.op for write in every for message in write.messages}
    is_lost = OWN in op_of or sum(len(write.messages) for write in every) > len(op_of)
    steps = None if is_lost else _find_steps({m: messages[m] for m in op_of}, writes, after)
    if steps is None:
        raise InfeasibleError(
            f"{algorithm.where}: a GPU holds two values of chunk {chunk} at once, such as a sum "
            "and data that it only passes on; a schedule has one, so it cannot express this file"
        )
    return tuple(sorted((steps[m], messages[m].src, messages[m].dst, op_of[m]) for m in op_of))


def _order(values: Iterable[Terms], result: Terms | None) -> list[Terms]:
    """Return the values of a chunk at a rank in the order in which it holds them.

    Those with its own contribution come first, since that cannot come back, and its result last.
    """
    return sorted(
        values, key=lambda terms: (terms == result, OWN not in terms, min(terms), len(terms))
    )


def _find_writes(held: Terms | None, terms: Terms) -> list[_Write]:
    """Return the writes that turn what a rank holds (None: nothing) into `terms`."""
    # Unless data is added, whichever arrived first is copied. That is OWN if the rank's own
    # contribution is lost: no message can bring it back, and the caller refuses it.
    base = held if held is not None and held <= terms else frozenset({min(terms)})
    parts: list[tuple[Op, Terms]] = [
        ("copy", base if base != held else frozenset()),
        ("reduce", terms - base),
    ]
    return [_Write(op, messages) for op, messages in parts if messages]


def _find_steps(
    messages: Mapping[int, Message],
    writes: Mapping[int, Sequence[_Write]],
    after: Mapping[tuple[int, Terms], int],
) -> dict[int, int] | None:
    """Return the first step possible of each message, None if they contradict each other.

    All transfers of a step read what was there before it. So a message is in a later step than the
    write that made its value, and in no later step than the next write there.
    """
    # (message, another that does not come before it, least number of steps between them)
    gaps: list[tuple[int, int, int]] = []
    for listed in writes.values():
        for first, then in pairwise(listed):
            # Additions to one chunk share a step; a copy is its only write.
            gap = int("copy" in (first.op, then.op))
            gaps += [(a, b, gap) for a, b in product(first.messages, then.messages)]
    for number, message in messages.items():
        listed, count = writes[message.src], after[message.src, message.value.terms]
        gaps += [(a, number, 1) for write in listed[:count][-1:] for a in write.messages]
        gaps += [(number, b, 0) for write in listed[count:][:1] for b in write.messages]
    steps = dict.fromkeys(messages, 0)
    # Two ranks that swap values must do so in one step, so this is no acyclic graph: steps grow
    # until all gaps are kept, or have grown as often as there are messages and never will be.
    for _ in range(len(messages) + 1):
        late = [(b, steps[a] + gap) for a, b, gap in gaps if steps[b] < steps[a] + gap]
        if not late:
            return steps
        for b, step in late:
            steps[b] = max(steps[b], step)
    return None
