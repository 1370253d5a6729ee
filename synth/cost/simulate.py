"""How long a schedule takes when it flows: every message through sender, links and receiver, on cores that are shared.

The affine cost (cost.py) counts latencies and bytes, tick by tick. This plays the messages as the runtime sends them: one a
tick and pair of ranks, each going as soon as its own pieces are there (or, in rounds, when all of the tick before are),
links serving in turn, ranks of a host competing for its cores. A long pipeline is played for its first segments and then
goes on at the pace that it has by then.
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

MOST_GROUPS = 6000
"""Schedules with more different messages than this are not played; their cost is the affine one."""
_PLAYED = 16
_PACE = 4

_BEGIN, _ARRIVED, _KNOWN, _FIRST_BYTES = range(4)
"""Events, of a rank (the first) or a message: the call begins; all of a message is at its receiver; the receiver's call
knows of it; its first bytes are at the receiver. At one moment they come in this order.
"""


@dataclass(frozen=True)
class _Group:
    """What goes from `src` to `dst` in one step: shares of the buffer, and which groups bring what it is made of."""

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
    """A schedule's groups, ready to be played at any size and cut; see `shape_of`."""

    ranks: int
    groups: tuple[_Group, ...]
    us_per_byte: tuple[float, ...]

    @cached_property
    def busiest_us_per_byte(self) -> float:
        """What the busiest link needs for each byte of the buffer."""
        load = [0.0] * len(self.us_per_byte)
        for group in self.groups:
            for link in group.links:
                load[link] += group.share * self.us_per_byte[link]
        return max(load, default=0.0)


@lru_cache(maxsize=256)
def shape_of(schedule: Schedule, topology: Topology | None) -> Shape | None:
    """The messages of a schedule (cut into one segment) on a topology; None: there are no links but the host's memory.

    None where there are too many messages to play.
    """
    t = schedule.transfers
    n = schedule.collective.ranks
    shares = np.array([float(c.share) for c in schedule.chunks])
    key = (t.step * n + t.src) * n + t.dst
    keys, group_of = np.unique(key, return_inverse=True)
    if len(keys) > MOST_GROUPS:
        return None
    total = np.bincount(group_of, shares[t.chunk], len(keys))
    added = np.bincount(group_of, shares[t.chunk] * (t.op == REDUCE), len(keys))
    pieces = np.bincount(group_of, minlength=len(keys))
    needs: list[set[int]] = [set() for _ in keys]
    brought: dict[tuple[int, int], list[int]] = defaultdict(list)
    order = np.argsort(t.step, kind="stable")
    rows = list(zip(t.step[order].tolist(), t.src[order].tolist(), t.dst[order].tolist(), t.chunk[order].tolist(),
                    group_of[order].tolist(), strict=True))  # fmt: skip
    of_group = keys // (n * n)
    for step, src, dst, chunk, group in rows:
        needs[group].update(g for g in brought[src, chunk] if of_group[g] < step)
        brought[dst, chunk].append(group)
    number: dict[tuple[str, str], int] = {}
    us_per_byte: list[float] = []
    ways: dict[int, tuple[tuple[int, ...], float]] = {}
    first_route = {int(g): int(r) for g, r in zip(reversed(group_of.tolist()), reversed(t.route.tolist()), strict=True)}
    for group, k in enumerate(keys.tolist()):
        links: list[int] = []
        latency = 0.0
        if topology is not None:
            src, dst = k // n % n, k % n
            path = (topology.ranks[src], *t.routes[first_route[group]], topology.ranks[dst])
            for link in pairwise(path):
                if link not in number:
                    number[link] = len(us_per_byte)
                    us_per_byte.append(float(1 / topology.capacity_GBps[link]) * 1e-3)
                links.append(number[link])
                latency += float(topology.latency_us[link])
        ways[group] = tuple(links), latency
    return Shape(
        ranks=n,
        groups=tuple(
            _Group(
                k // (n * n), k // n % n, k % n, float(total[i]), float(added[i]),
                float(total[i]) if pieces[i] > 1 else 0.0, *ways[i], tuple(sorted(needs[i])),
            )
            for i, k in enumerate(keys.tolist())
        ),
        us_per_byte=tuple(us_per_byte),
    )  # fmt: skip


def predict_us(
    schedule: Schedule, topology: Topology | None, host: HostCosts, size_bytes: int, *, rounds: bool = False
) -> float | None:
    """Microseconds that a schedule takes at a size; None where it is too large to be played."""
    shape = shape_of(schedule.uncut, topology)
    if shape is None:
        return None
    # Beyond what it may send at once, a link needs its time, however the play went on.
    least = shape.busiest_us_per_byte * (size_bytes / host.wire) - host.burst_bytes * max(
        shape.us_per_byte, default=0.0
    )
    return max(least, _played_us(shape, schedule, host, size_bytes, rounds))


def _played_us(shape: Shape, schedule: Schedule, host: HostCosts, size_bytes: int, rounds: bool) -> float:
    m = schedule.segments
    if schedule.stepwise or m <= _PLAYED:
        return _play(shape, host, size_bytes / m, m, schedule.tick, rounds)
    less, more = (_play(shape, host, size_bytes / m, k, lambda s, j: s + j, rounds) for k in (_PLAYED - _PACE, _PLAYED))
    return more + max(0.0, more - less) / _PACE * (m - _PLAYED)


@dataclass
class _Message:
    src: int
    dst: int
    tick: int
    bytes: float
    added: float
    packed: float
    links: tuple[int, ...]
    latency_us: float
    needs: set[int]


def _messages(shape: Shape, segment_bytes: float, segments: int, tick_of: Callable[[int, int], int]) -> list[_Message]:
    """One a tick and pair, by tick."""
    found: dict[tuple[int, int, int], int] = {}
    out: list[_Message] = []
    of: dict[tuple[int, int], int] = {}
    keyed = sorted(
        (tick_of(g.step, j), g.src, g.dst, i, j) for i, g in enumerate(shape.groups) for j in range(segments)
    )
    for tick, src, dst, i, j in keyed:
        group = shape.groups[i]
        number = found.get((tick, src, dst))
        if number is None:
            number = found[tick, src, dst] = len(out)
            out.append(_Message(src, dst, tick, 0.0, 0.0, 0.0, group.links, group.latency_us, set()))
        message = out[number]
        message.bytes += group.share * segment_bytes
        message.added += group.added * segment_bytes
        message.packed += group.packed * segment_bytes
        of[i, j] = number
    for (i, j), number in of.items():
        out[number].needs.update(of[need, j] for need in shape.groups[i].needs)
    return out


def _play(
    shape: Shape, host: HostCosts, segment_bytes: float, segments: int, tick_of: Callable[[int, int], int], rounds: bool
) -> float:
    """When all is done, in us."""
    messages = _messages(shape, segment_bytes, segments, tick_of)
    if rounds:
        _in_rounds(messages)
    sends: list[list[list[int]]] = [[] for _ in range(shape.ranks)]
    last = [-1] * shape.ranks
    for number, message in enumerate(messages):
        if message.tick != last[message.src]:
            sends[message.src].append([])
            last[message.src] = message.tick
        sends[message.src][-1].append(number)
    cores = [0.0] * max(1, host.cores)
    own_free = [host.call_us] * shape.ranks
    io_free = [0.0] * shape.ranks
    link_free = [-1e18] * len(shape.us_per_byte)
    at = [0] * shape.ranks
    missing: list[set[int]] = [set() for _ in range(shape.ranks)]
    came = [False] * len(messages)
    taken = [False] * len(messages)
    arrival = [0.0] * len(messages)
    end = 0.0
    events = [(0.0, _BEGIN, rank) for rank in range(shape.ranks)]  # when, what, of which rank or message: a heap
    byte_us, add_us = host.byte_ns * 1e-3, host.add_ns * 1e-3

    def work(free: list[float], rank: int, ready: float, length: float) -> float:
        start = max(ready, free[rank], cores[0])
        heapq.heapreplace(cores, start + length)
        free[rank] = start + length
        return start + length

    def go_on(rank: int, now: float) -> None:
        while at[rank] < len(sends[rank]):
            batch = sends[rank][at[rank]]
            needed = set().union(*(messages[number].needs for number in batch))
            missing[rank] = {number for number in needed if not came[number]}
            if missing[rank]:
                return
            for number in sorted(needed):
                now = take(number, now)
            for number in batch:
                message = messages[number]
                now = work(own_free, rank, now, host.send_us + message.packed * add_us)
                begun, through = now, now
                for link in message.links:
                    need = message.bytes * shape.us_per_byte[link] / host.wire
                    free = max(link_free[link], now - host.burst_bytes * shape.us_per_byte[link])
                    link_free[link] = free + need
                    begun, through = max(begun, free), max(through, link_free[link])
                arrival[number] = through + message.latency_us
                heapq.heappush(events, (begun + message.latency_us, _FIRST_BYTES, number))
            at[rank] += 1

    def take(number: int, now: float) -> float:
        if taken[number]:
            return now
        taken[number] = True
        message = messages[number]
        return work(own_free, message.dst, now, host.receive_us + (message.added + message.packed) * add_us)

    while events:
        now, kind, number = heapq.heappop(events)
        if kind == _BEGIN:
            go_on(number, now)
        elif kind == _FIRST_BYTES:  # the first bytes: what they cost is spent while the rest is coming
            message = messages[number]
            work(io_free, message.src, now, message.bytes * byte_us)
            read = work(io_free, message.dst, now, message.bytes * byte_us)
            heapq.heappush(events, (max(read, arrival[number]), _ARRIVED, number))
        elif kind == _ARRIVED:
            read = work(io_free, messages[number].dst, now, host.io_us)
            heapq.heappush(events, (read + host.wake_us, _KNOWN, number))
        else:
            came[number] = True
            rank = messages[number].dst
            if at[rank] < len(sends[rank]):
                if number in missing[rank]:
                    missing[rank].discard(number)
                    if not missing[rank]:
                        go_on(rank, now)
            else:
                now = take(number, now)
            end = max(end, now)
    for number in range(len(messages)):
        end = max(end, take(number, end))
    return max([end, *own_free])


def _in_rounds(messages: list[_Message]) -> None:
    """Each message waits for all of the ticks before that concern its sender."""
    into: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, message in enumerate(messages):
        into[message.dst].append((message.tick, number))
    for message in messages:
        message.needs.update(number for tick, number in into[message.src] if tick < message.tick)
