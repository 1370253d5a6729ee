"""Predict how long a schedule takes by playing its messages: sender, links, receiver, and cores
that ranks share.

The affine cost (affine.py) adds up latencies and bytes, tick by tick. This plays the messages as
the runtime sends them: one for each tick and pair of ranks, which goes as soon as its own pieces
have arrived (or, in batches, when all messages of earlier ticks have). Links serve one message
after the other, and the ranks of a host compete for its cores. Of a long pipeline only the first
segments are played; the rest is assumed to go on at the pace reached by then.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from ...topo.graph import Topology
from ..ir.schedule import Schedule
from ..ir.transfers import REDUCE
from .host_costs import HostCosts

# Schedules with more messages than this (before they are cut into segments) are not played; the
# affine cost stands in.
MOST_GROUPS = 6000
# Longer pipelines are played for this many segments only.
_PLAYED_SEGMENTS = 16
# Segments, the last ones played, from which the pace of the rest is taken.
_PACE_SEGMENTS = 4

# A message's tick, sender and receiver, and the microseconds after which it was posted and noticed.
MessageTime = tuple[int, int, int, float, float]

# Kinds of events. The first concerns a rank: its call begins. The others concern a message: all of
# it has reached the receiver's host; the receiver's call has noticed; its first bytes have reached
# the host. Simultaneous events are handled in this order.
_CALL_BEGINS, _ARRIVED, _NOTICED, _FIRST_BYTES = range(4)


@dataclass(frozen=True)
class _Group:
    """The transfers from `src` to `dst` in one step, which travel as one message.

    `share`, `added` and `packed` are shares of the buffer: all that is sent, what the receiver adds
    to its own, and what is copied into one piece first because it does not lie side by side.
    `needs` are the groups that bring what this one sends.
    """

    step: int
    src: int
    dst: int
    share: float
    added: float
    packed: float
    links: tuple[int, ...]
    latency_us: float
    needs: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A schedule's groups of transfers, to be played at any size and in any number of segments; see
    `shape_of`.
    """

    ranks: int
    groups: tuple[_Group, ...]
    us_per_byte: tuple[float, ...]

    @cached_property
    def busiest_us_per_byte(self) -> float:
        """Microseconds that the busiest link needs for each byte of the buffer."""
        load = [0.0] * len(self.us_per_byte)
        for group in self.groups:
            for link in group.links:
                load[link] += group.share * self.us_per_byte[link]
        return max(load, default=0.0)


@lru_cache(maxsize=256)
def shape_of(schedule: Schedule, topology: Topology | None) -> Shape | None:
    """Return the groups of a schedule in one segment on a topology, or None where there are too
    many of them to play.

    Without a topology there are no links: ranks share a host and send through its memory.
    """
    transfers = schedule.transfers
    n = schedule.collective.ranks
    shares = np.array([float(c.share) for c in schedule.chunks])
    # All transfers between two ranks in a step are one group: the runtime sends them as one
    # message.
    key = (transfers.step * n + transfers.src) * n + transfers.dst
    keys, group_of = np.unique(key, return_inverse=True)
    if len(keys) > MOST_GROUPS:
        return None
    total = np.bincount(group_of, shares[transfers.chunk], len(keys))
    added = np.bincount(group_of, shares[transfers.chunk] * (transfers.op == REDUCE), len(keys))
    pieces = np.bincount(group_of, minlength=len(keys))
    # A group must wait for all groups of earlier steps that wrote a chunk it sends; the steps of a
    # schedule read what was there when they began, so groups of the same step do not count.
    needs: list[set[int]] = [set() for _ in keys]
    writers: dict[tuple[int, int], list[int]] = defaultdict(list)
    order = np.argsort(transfers.step, kind="stable")
    columns = (transfers.step, transfers.src, transfers.dst, transfers.chunk, group_of)
    step_of = keys // (n * n)
    for step, src, dst, chunk, group in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        needs[group].update(g for g in writers[src, chunk] if step_of[g] < step)
        writers[dst, chunk].append(group)
    # A message goes one way, even where a schedule divides its pieces over several: the runtime
    # cannot choose routes.
    first_route = {
        int(g): int(r)
        for g, r in zip(
            reversed(group_of.tolist()), reversed(transfers.route.tolist()), strict=True
        )
    }
    number: dict[tuple[str, str], int] = {}
    us_per_byte: list[float] = []
    routes: list[tuple[tuple[int, ...], float]] = []
    for group, k in enumerate(keys.tolist()):
        links: list[int] = []
        latency = 0.0
        if topology is not None:
            src, dst = k // n % n, k % n
            path = (topology.ranks[src], *transfers.routes[first_route[group]], topology.ranks[dst])
            for link in pairwise(path):
                if link not in number:
                    number[link] = len(us_per_byte)
                    us_per_byte.append(float(1 / topology.capacity_GBps[link]) * 1e-3)
                links.append(number[link])
                latency += float(topology.latency_us[link])
        routes.append((tuple(links), latency))
    return Shape(
        ranks=n,
        groups=tuple(
            _Group(
                k // (n * n), k // n % n, k % n, float(total[i]), float(added[i]),
                float(total[i]) if pieces[i] > 1 else 0.0, *routes[i], tuple(sorted(needs[i])),
            )
            for i, k in enumerate(keys.tolist())
        ),
        us_per_byte=tuple(us_per_byte),
    )  # fmt: skip


def predict_us(
    schedule: Schedule,
    topology: Topology | None,
    host: HostCosts,
    size_bytes: int,
    *,
    batched: bool = False,
) -> float | None:
    """Return the microseconds that a schedule takes at a size, or None where it has too many
    messages to play.

    `batched`: all messages of a tick are posted at once and awaited before the next tick, as over
    NCCL.
    """
    shape = shape_of(schedule.uncut, topology)
    if shape is None:
        return None
    # The extrapolation of a long pipeline must not promise what no link can do: beyond its burst, a
    # link needs its time.
    burst_us = host.burst_bytes * max(shape.us_per_byte, default=0.0)
    least_us = shape.busiest_us_per_byte * (size_bytes / host.wire) - burst_us
    return max(least_us, _played_us(shape, schedule, host, size_bytes, batched))


def _played_us(
    shape: Shape, schedule: Schedule, host: HostCosts, size_bytes: int, batched: bool
) -> float:
    """Return the microseconds of all segments; the last ones of a long pipeline are
    extrapolated.
    """
    m = schedule.segments
    if schedule.stepwise or m <= _PLAYED_SEGMENTS:
        return _play(shape, host, size_bytes / m, m, schedule.tick, batched)
    less, more = (
        _play(shape, host, size_bytes / m, played, lambda s, j: s + j, batched)
        for played in (_PLAYED_SEGMENTS - _PACE_SEGMENTS, _PLAYED_SEGMENTS)
    )
    return more + max(0.0, more - less) / _PACE_SEGMENTS * (m - _PLAYED_SEGMENTS)


def play_messages(
    schedule: Schedule, topology: Topology | None, host: HostCosts, size_bytes: int
) -> list[MessageTime] | None:
    """Return the times of all messages, long pipelines played to their end; None where there are
    too many to play.
    """
    shape = shape_of(schedule.uncut, topology)
    if shape is None:
        return None
    seen: list[MessageTime] = []
    _play(
        shape, host, size_bytes / schedule.segments, schedule.segments, schedule.tick, False, seen
    )
    return seen


@dataclass
class _Message:
    """What goes from `src` to `dst` at one tick, in bytes; `needs` are numbers of the messages that
    it must wait for.
    """

    src: int
    dst: int
    tick: int
    bytes: float
    added: float
    packed: float
    links: tuple[int, ...]
    latency_us: float
    needs: set[int]


def _messages(
    shape: Shape, segment_bytes: float, segments: int, tick_of: Callable[[int, int], int]
) -> list[_Message]:
    """Return the messages of all segments, sorted by tick; segments that meet at a tick and pair of
    ranks share one.
    """
    number_of: dict[tuple[int, int, int], int] = {}
    messages: list[_Message] = []
    carrier: dict[tuple[int, int], int] = {}  # (group, segment): the message that carries it
    keyed = sorted(
        (tick_of(g.step, j), g.src, g.dst, i, j)
        for i, g in enumerate(shape.groups)
        for j in range(segments)
    )
    for tick, src, dst, i, j in keyed:
        group = shape.groups[i]
        number = number_of.get((tick, src, dst))
        if number is None:
            number = number_of[tick, src, dst] = len(messages)
            messages.append(
                _Message(src, dst, tick, 0.0, 0.0, 0.0, group.links, group.latency_us, set())
            )
        message = messages[number]
        message.bytes += group.share * segment_bytes
        message.added += group.added * segment_bytes
        message.packed += group.packed * segment_bytes
        carrier[i, j] = number
    for (i, j), number in carrier.items():
        messages[number].needs.update(carrier[need, j] for need in shape.groups[i].needs)
    return messages


def _play(
    shape: Shape,
    host: HostCosts,
    segment_bytes: float,
    segments: int,
    tick_of: Callable[[int, int], int],
    batched: bool,
    seen: list[MessageTime] | None = None,
) -> float:
    """Return when the last rank is done, in us after the call began, by a simulation of events; add
    each message's times to `seen`.
    """
    messages = _messages(shape, segment_bytes, segments, tick_of)
    if batched:
        _wait_for_earlier_ticks(messages)
    # A rank posts its sends tick by tick, and those of one tick together: one that waits holds up
    # all after it.
    sends: list[list[list[int]]] = [[] for _ in range(shape.ranks)]
    last_tick = [-1] * shape.ranks
    for number, message in enumerate(messages):
        if message.tick != last_tick[message.src]:
            sends[message.src].append([])
            last_tick[message.src] = message.tick
        sends[message.src][-1].append(number)
    # Whatever takes time is a resource that is free from a moment on: cores of the host (a heap,
    # the earliest first), the thread in which each rank's call runs, its transport's thread, and
    # links (idle for long enough for any burst).
    cores = [0.0] * max(1, host.cores)
    call_free = [host.call_us] * shape.ranks
    transport_free = [0.0] * shape.ranks
    link_free = [-1e18] * len(shape.us_per_byte)
    tick = [0] * shape.ranks  # the next of `sends` for each rank
    awaited: list[set[int]] = [set() for _ in range(shape.ranks)]  # messages that hold up that tick
    noticed = [False] * len(messages)
    received = [False] * len(messages)
    arrival = [0.0] * len(messages)
    posted = [0.0] * len(messages)
    end = 0.0
    events = [
        (0.0, _CALL_BEGINS, rank) for rank in range(shape.ranks)
    ]  # a heap: when, kind, rank or message
    byte_us, add_us = host.byte_ns * 1e-3, host.add_ns * 1e-3

    def work(free: list[float], rank: int, ready: float, length: float) -> float:
        """Occupy a thread of a rank, and whichever core is free first, from `ready` at the
        earliest; return the end.
        """
        start = max(ready, free[rank], cores[0])
        heapq.heapreplace(cores, start + length)
        free[rank] = start + length
        return start + length

    def post_sends(rank: int, now: float) -> None:
        """Post the sends of as many ticks as can go now; note what the next one waits for."""
        while tick[rank] < len(sends[rank]):
            batch = sends[rank][tick[rank]]
            needed = set().union(*(messages[number].needs for number in batch))
            awaited[rank] = {number for number in needed if not noticed[number]}
            if awaited[rank]:
                return
            # What is sent on has to be taken in and added up first; anything else that arrived can
            # wait until the end.
            for number in sorted(needed):
                now = receive(number, now)
            for number in batch:
                message = messages[number]
                now = work(call_free, rank, now, host.send_us + message.packed * add_us)
                # Bytes stream through all links of the route at once: the slowest or busiest
                # decides when the last is through, and a link that was idle lets a burst pass
                # without taking time for it.
                posted[number] = first_us = last_us = now
                for link in message.links:
                    need = message.bytes * shape.us_per_byte[link] / host.wire
                    free = max(link_free[link], now - host.burst_bytes * shape.us_per_byte[link])
                    link_free[link] = free + need
                    first_us, last_us = max(first_us, free), max(last_us, link_free[link])
                arrival[number] = last_us + message.latency_us
                heapq.heappush(events, (first_us + message.latency_us, _FIRST_BYTES, number))
            tick[rank] += 1

    def receive(number: int, now: float) -> float:
        """Let the receiver's call take a message in, once: unpack and add. Return when that is
        done.
        """
        if received[number]:
            return now
        received[number] = True
        message = messages[number]
        return work(
            call_free, message.dst, now, host.receive_us + (message.added + message.packed) * add_us
        )

    while events:
        now, kind, number = heapq.heappop(events)
        if kind == _CALL_BEGINS:
            post_sends(number, now)
        elif kind == _FIRST_BYTES:
            # Both transports copy every byte, while the rest is still coming: where they are slower
            # than the link, the message arrives when they are through, else when its last byte
            # does.
            message = messages[number]
            work(transport_free, message.src, now, message.bytes * byte_us)
            read = work(transport_free, message.dst, now, message.bytes * byte_us)
            heapq.heappush(events, (max(read, arrival[number]), _ARRIVED, number))
        elif kind == _ARRIVED:
            # The transport completes the operation, and the thread that waits in the call has to
            # wake up.
            read = work(transport_free, messages[number].dst, now, host.io_us)
            heapq.heappush(events, (read + host.wake_us, _NOTICED, number))
        else:
            # A rank with sends left first gets these out, as the runtime does; one without takes
            # messages in as they come.
            noticed[number] = True
            rank = messages[number].dst
            if seen is not None:
                seen.append(
                    (messages[number].tick, messages[number].src, rank, posted[number], now)
                )
            if tick[rank] < len(sends[rank]):
                if number in awaited[rank]:
                    awaited[rank].discard(number)
                    if not awaited[rank]:
                        post_sends(rank, now)
            else:
                now = receive(number, now)
            end = max(end, now)
    # What no send needed was left for the end.
    for number in range(len(messages)):
        end = max(end, receive(number, end))
    return max([end, *call_free])


def _wait_for_earlier_ticks(messages: list[_Message]) -> None:
    """Let each message wait for all that its sender receives at earlier ticks, as batches do."""
    into: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, message in enumerate(messages):
        into[message.dst].append((message.tick, number))
    for message in messages:
        message.needs.update(number for tick, number in into[message.src] if tick < message.tick)
