"""Message programs of ranks on several hosts, split by where their messages go.

A message program is one rank's instructions for a schedule (runtime/program/instructions.py); a
tick is a step of it, in which its messages start together.

Messages between ranks of one host go through memory that these share, in pipes of limited length:
a send ends when its receiver has read as much of it as the pipe does not hold. All others are
posted and awaited as before (over gloo), which a rank does without looking at its pipes. So that no
rank waits for one that waits for it,

- a rank posts the messages to other hosts of a tick before it sends within its host, and
- before it waits for a message of another host, it has received those from its own host of all
  earlier ticks; and while it waits for one of its own host, it reads from all its pipes.

Proof, by induction over ticks: let all ranks get as far as to have sent all messages of ticks
before t. Those of tick t to other hosts depend on these alone, and posting does not wait. One
within a host that does not fit waits for its receiver to read. If that waits within its host, it
reads. If it waits for a message of another host, that is of tick t or an earlier one, which was
sent, since the receiver would have read before waiting for a later one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...program.instructions import Await, Instruction, Pack, Post, Program


@dataclass(frozen=True)
class Outside:
    """A message to or from another host, to be started (if it `begins`) or awaited.

    `post` is the message, and `number` its index among the program's messages.
    """

    post: Post
    number: int
    begins: bool


@dataclass(frozen=True)
class Arrived:
    """Wait until `count` messages from a rank on this host have arrived, the last being `post`."""

    post: Post
    count: int


# What a rank does without looking at other hosts: operations, posts within the host, and waits.
Inside = tuple[Instruction | Arrived, ...]


def split_by_host(program: Program, peers: Collection[int]) -> list[Outside | Inside]:
    """Split a program into messages to or from other hosts, and the work between them, in order.

    `peers` are the ranks on this host. The program must not be batched.
    """
    parts: list[Outside | Inside] = []
    inside: list[Instruction | Arrived] = []
    posts = program.posts
    numbers = {id(post): number for number, post in enumerate(posts)}
    # Posts from peers that were not awaited yet, by the peer; and the number that were.
    pending: dict[int, list[Post]] = {peer: [] for peer in peers}
    arrived = dict.fromkeys(peers, 0)

    def receive(post: Post) -> None:
        if post in pending[post.peer]:
            count = pending[post.peer].index(post) + 1
            del pending[post.peer][:count]
            arrived[post.peer] += count
            inside.append(Arrived(post, arrived[post.peer]))

    def go_outside(post: Post, *, begins: bool) -> None:
        if not begins:
            for waiting in pending.values():
                earlier = [x for x in waiting if x.tick < post.tick]
                if earlier:
                    receive(earlier[-1])
        if inside:
            parts.append(tuple(inside))
            inside.clear()
        parts.append(Outside(post, numbers[id(post)], begins))

    for x in _put_outside_first(program, peers):
        post = posts[x.post] if isinstance(x, Await) else x
        if not isinstance(post, Post):
            inside.append(x)
        elif post.peer not in pending:
            go_outside(post, begins=x is post)
        elif x is not post:
            if post.kind == "receive":  # a send within the host has ended
                receive(post)
        else:
            inside.append(post)
            if post.kind == "receive":
                pending[post.peer].append(post)
    if inside:
        parts.append(tuple(inside))
    return parts


def _put_outside_first(program: Program, peers: Collection[int]) -> Iterator[Instruction]:
    """Yield the instructions, the sends of a tick to other hosts before those within the host.

    The sends of a tick follow each other in a program, with nothing but packing in between.
    """
    packing: list[Instruction] = []
    sends: list[tuple[int, bool, list[Instruction]]] = []

    def flush() -> Iterator[Instruction]:
        for _, _, group in sorted(sends, key=lambda item: item[:2]):
            yield from group
        sends.clear()
        yield from packing
        packing.clear()

    for x in program.instructions:
        if isinstance(x, Post) and x.kind == "send":
            sends.append((x.tick, x.peer in peers, [*packing, x]))
            packing.clear()
        elif isinstance(x, Pack):
            packing.append(x)
        else:
            yield from flush()
            yield x
    yield from flush()
