"""Small programs as waves: all messages of a tick at once, and what is to be done with them when
the last has come.

Where messages are small, what a host does for each counts, and waiting for all costs little. Ticks
have one order on all ranks, and what is sent in one depends on earlier ones alone: no rank waits
for a message that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .instructions import Await, Exchange, Post, Program

# In all messages that a rank sends and receives.
_MOST_ELEMENTS = 1 << 14
_MOST_WAVES = 8
# The wave of what needs no message.
_FIRST = -1


@dataclass
class Wave:
    """Numbers of instructions: messages that go together, and local operations, in order, once all
    of these are through.
    """

    posts: list[int] = field(default_factory=list)
    local: list[int] = field(default_factory=list)


def find_waves(program: Program, dependencies: Sequence[Sequence[int]]) -> list[Wave] | None:
    """Return the waves of a program that is not batched, the first without messages; None where it
    is not small, or where an instruction would have to wait for another of its own wave.
    """
    ticks = sorted({post.tick for post in program.posts})
    if len(ticks) > _MOST_WAVES or sum(post.span.length for post in program.posts) > _MOST_ELEMENTS:
        return None
    wave_of_tick = {tick: number for number, tick in enumerate(ticks)}
    waves = [Wave() for _ in range(1 + len(ticks))]
    place: dict[int, int] = {}
    posts = [number for number, x in enumerate(program.instructions) if isinstance(x, Post)]
    for number in posts:
        post = program.instructions[number]
        assert isinstance(post, Post)
        place[number] = wave_of_tick[post.tick]
        waves[1 + place[number]].posts.append(number)
    for number, x in enumerate(program.instructions):
        if not isinstance(x, (Post, Await, Exchange)):
            place[number] = max((place[before] for before in dependencies[number]), default=_FIRST)
            waves[1 + place[number]].local.append(number)
    if any(place[before] >= place[number] for number in posts for before in dependencies[number]):
        return None
    return waves
