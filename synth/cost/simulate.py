"""Predict how long a schedule takes by simulating its messages.

The simulation covers senders, links, receivers, and the cores that ranks share. The affine cost
(affine.py) adds up latencies and bytes, tick by tick. This module plays the messages as the runtime
sends them: one for each tick and pair of ranks, sent as soon as what it forwards has arrived (or,
in batches, once all messages of earlier ticks have). Messages of a pair of ranks go one after the
other, those of several pairs share links equally (flows.py), and the ranks of a host compete for
its cores. Only the first segments of a long pipeline are played; the rest is assumed to continue at
the pace reached by then.

A schedule may cut each chunk into m segments, equal parts that follow each other through its steps.
A tick is the time slot of a step of one segment: segment j does step s at tick s + j (a pipeline),
or, if the schedule is `stepwise`, at tick s m + j, so that steps do not overlap (`Schedule.tick`).
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

import numpy as np

from ...topo.graph import Topology
from ..ir.schedule import Schedule
from ..ir.transfers import REDUCE
from .flows import Flows
from .host_costs import HostCosts

# Schedules with more messages than this (before segmentation) are not simulated: the time to do so
# grows with them; the affine cost is used instead.
MAX_GROUPS = 6000
# Longer pipelines are simulated for this many segments only.
_PLAYED_SEGMENTS = 16
# The pace of the rest is that of the last segments played: by then the pipeline is full.
_PACE_SEGMENTS = 4

# A message's tick, sending and receiving rank, and the times in us after the call began at which it
# was posted by the sender and noticed by the receiver.
MessageTime = tuple[int, int, int, float, float]

# Kinds of events. The first concerns a rank: its call begins. The others concern a message: its
# last bytes have left the links; all of it has reached the receiver's host; the receiver's call has
# noticed it; it is posted; its first bytes have reached the host. Simultaneous events are handled
# in this order.
_CALL_BEGINS, _LEFT, _ARRIVED, _NOTICED, _POSTED, _FIRST_BYTES = range(6)


@dataclass(frozen=True)
class _Group:
    """The transfers from `src` to `dst` in one step, which travel as one message.

    `share`, `added` and `packed` are shares of the buffer: all data sent, the part that the
    receiver adds to its own, and the part that is first packed because it is not contiguous.
    `needs` are the groups that deliver the data that this one sends.
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
class MessageShape:
    """A schedule's messages, to be simulated at any size and in any number of segments.

    A group is all transfers from one rank to another in one step, which travel as one message.
    `ranks` is one more than the highest participant; `us_per_byte` is the time of each link, and
    `busiest_us_per_byte` that of the busiest link's load per byte of buffer.
    """

    ranks: int
    groups: tuple[_Group, ...]
    us_per_byte: tuple[float, ...]  # of each link
    busiest_us_per_byte: float  # of the busiest link, per byte of the buffer


@lru_cache(maxsize=256)
def shape_of(schedule: Schedule, topology: Topology | None) -> MessageShape | None:
    """Return a schedule's messages for simulation; the schedule must be in one segment.

    None if there are too many messages to simulate. Without a topology there are no links: ranks
    share a host and send through its memory.
    """
    transfers, n = schedule.transfers, schedule.rank_limit
    # All transfers between two ranks in a step are one group: the runtime sends them as one
    # message.
    key = (transfers.step * n + transfers.src) * n + transfers.dst
    keys, group_of = np.unique(key, return_inverse=True)
    if len(keys) > MAX_GROUPS:
        return None
    shares = np.array([float(c.share) for c in schedule.chunks])[transfers.chunk]
    total = np.bincount(group_of, shares, len(keys))
    added = np.bincount(group_of, shares * (transfers.op == REDUCE), len(keys))
    pieces = np.bincount(group_of, minlength=len(keys))
    # A group must wait for all groups of earlier steps that wrote a chunk it sends. Groups of the
    # same step do not count, since a step reads the values from when it began.
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
    # A message takes one route, even if a schedule divides its pieces over several: the runtime
    # cannot choose routes. The first one listed wins.
    route_of = dict(zip(group_of[::-1].tolist(), transfers.route[::-1].tolist(), strict=True))
    number: dict[tuple[str, str], int] = {}
    routes: list[tuple[tuple[int, ...], float]] = [((), 0.0)] * len(keys)
    us_per_byte: tuple[float, ...] = ()
    if topology is not None:
        for group, k in enumerate(keys.tolist()):
            src, dst = topology.ranks[k // n % n], topology.ranks[k % n]
            hops = tuple(pairwise((src, *transfers.routes[route_of[group]], dst)))
            links = tuple(number.setdefault(hop, len(number)) for hop in hops)
            routes[group] = links, sum(float(topology.latency_us[hop]) for hop in hops)
        us_per_byte = tuple(float(1 / topology.capacity_GBps[hop]) * 1e-3 for hop in number)
    load = [0.0] * len(us_per_byte)
    for share, (links, _) in zip(total.tolist(), routes, strict=True):
        for link in links:
            load[link] += share * us_per_byte[link]
    return MessageShape(
        ranks=n,
        groups=tuple(
            _Group(
                k // (n * n), k // n % n, k % n, float(total[i]), float(added[i]),
                float(total[i]) if pieces[i] > 1 else 0.0, *routes[i], tuple(sorted(needs[i])),
            )
            for i, k in enumerate(keys.tolist())
        ),
        us_per_byte=us_per_byte,
        busiest_us_per_byte=max(load, default=0.0),
    )  # fmt: skip


def predict_us(
    schedule: Schedule,
    topology: Topology | None,
    host: HostCosts,
    size_bytes: int,
    *,
    batched: bool = False,
) -> float | None:
    """Return the predicted microseconds of a call; None if the schedule has too many messages.

    The call begins on all ranks at once, and ends when the last rank is done. The buffer has
    `size_bytes`. Messages cross the links of `topology`; without one, all ranks share a host and
    send through its memory. `host` has the costs of sending on the hosts. With `batched`, all
    messages of a tick are posted at once and awaited before the next tick, as over NCCL.

    The prediction is never below the time in which the busiest link carries its load, at the
    fraction `host.wire` of its bandwidth. More than MAX_GROUPS messages, counted before chunks are
    cut into segments, are too many.
    """
    shape = shape_of(schedule.uncut, topology)
    if shape is None:
        return None
    m = schedule.segments
    if schedule.stepwise or m <= _PLAYED_SEGMENTS:
        played_us = _simulate_messages(shape, host, size_bytes / m, m, schedule.tick, batched)
    else:
        less, more = (
            _simulate_messages(shape, host, size_bytes / m, played, lambda s, j: s + j, batched)
            for played in (_PLAYED_SEGMENTS - _PACE_SEGMENTS, _PLAYED_SEGMENTS)
        )
        played_us = more + max(0.0, more - less) / _PACE_SEGMENTS * (m - _PLAYED_SEGMENTS)
    # The extrapolation must not promise more than a link can do: beyond its burst, a link needs its
    # full transfer time.
    burst_us = host.burst_bytes * max(shape.us_per_byte, default=0.0)
    return max(shape.busiest_us_per_byte * (size_bytes / host.wire) - burst_us, played_us)


def simulate_messages(
    schedule: Schedule, topology: Topology | None, host: HostCosts, size_bytes: int
) -> list[MessageTime] | None:
    """Return the simulated times of all messages at a size; None if there are too many of them.

    Arguments and limit are those of `predict_us`, without batches. Long pipelines are simulated to
    their end.
    """
    shape, m, times = shape_of(schedule.uncut, topology), schedule.segments, list[MessageTime]()
    if shape is None:
        return None
    _simulate_messages(shape, host, size_bytes / m, m, schedule.tick, False, times)
    return times


@dataclass
class _Message:
    """The data of one tick for one pair of ranks, in bytes.

    `needs` numbers the messages that must arrive before. Sender, receiver and route are those of
    `group`, the first of the groups in the message.
    """

    group: _Group
    tick: int
    bytes: float
    added: float
    packed: float
    needs: set[int]


def _list_messages(
    shape: MessageShape,
    segment_bytes: float,
    segments: int,
    tick_of: Callable[[int, int], int],
    batched: bool,
) -> list[_Message]:
    """Return the messages of all segments, sorted by tick.

    Groups with the same tick and pair of ranks share one message.
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
        group, number = shape.groups[i], number_of.setdefault((tick, src, dst), len(messages))
        if number == len(messages):
            messages.append(_Message(group, tick, 0.0, 0.0, 0.0, set()))
        message = messages[number]
        message.bytes += group.share * segment_bytes
        message.added += group.added * segment_bytes
        message.packed += group.packed * segment_bytes
        carrier[i, j] = number
    for (i, j), number in carrier.items():
        messages[number].needs.update(carrier[need, j] for need in shape.groups[i].needs)
    if batched:
        _await_batches(messages, shape.ranks)
    return messages


def _simulate_messages(
    shape: MessageShape,
    host: HostCosts,
    segment_bytes: float,
    segments: int,
    tick_of: Callable[[int, int], int],
    batched: bool,
    times: list[MessageTime] | None = None,
) -> float:
    """Return when the last rank is done, in us after the call began, by simulating events.

    Append each message's times to `times`.
    """
    messages = _list_messages(shape, segment_bytes, segments, tick_of, batched)
    simulation = _EventSimulation(shape, host, messages)
    end_us = simulation.run_events()
    if times is not None:
        times.extend(simulation.times)
    return end_us


def _await_batches(messages: list[_Message], ranks: int) -> None:
    """Let each message wait for all that its sender receives and sends at earlier ticks.

    Those from the tick of its sends before suffice, which waited for the ones before that.
    """
    for rank in range(ranks):
        earlier: set[int] = set()  # since the rank's last sends, these included
        mine = [n for n, m in enumerate(messages) if rank in (m.group.src, m.group.dst)]
        for _, numbers in groupby(mine, key=lambda n: messages[n].tick):
            now = list(numbers)
            sends = [n for n in now if messages[n].group.src == rank]
            for number in sends:
                messages[number].needs |= earlier
            earlier = {*now} if sends else earlier | {*now}


class _EventSimulation:
    """The events of a call, and what ranks, hosts and links are at.

    Each resource has a time in us from which it is free: the host's cores (a heap, the earliest
    first), the thread in which each rank's call runs, and its transport's thread. Links are shared.
    """

    def __init__(self, shape: MessageShape, host: HostCosts, messages: list[_Message]) -> None:
        self.times: list[MessageTime] = []
        self._host, self._messages = host, messages
        # A rank posts its sends tick by tick, and those of one tick together: one send that waits
        # holds up all later ones.
        ticks: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(shape.ranks)]
        for number, message in enumerate(messages):
            ticks[message.group.src][message.tick].append(number)
        self._sends = [[*of_rank.values()] for of_rank in ticks]
        self._tick = [0] * shape.ranks  # the next of `_sends` for each rank
        # Messages that hold up that tick.
        self._awaited: list[set[int]] = [set() for _ in range(shape.ranks)]
        self._cores = [0.0] * max(1, host.cores)
        self._call_free = [host.call_us] * shape.ranks
        self._transport_free = [0.0] * shape.ranks
        self._flows = Flows([us / host.wire for us in shape.us_per_byte], host.burst_bytes)
        # Messages that are posted and have not left, by sender and receiver.
        self._waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._posted_us = [0.0] * len(messages)
        # When both transports have copied a message, and when its last byte has come, if known.
        self._copied_us: list[float | None] = [None] * len(messages)
        self._through_us: list[float | None] = [None] * len(messages)
        self._noticed = [False] * len(messages)
        self._received = [False] * len(messages)
        # A heap of events: time, kind, rank or message.
        self._events = [(0.0, _CALL_BEGINS, rank) for rank in range(shape.ranks)]

    def run_events(self) -> float:
        """Return when the last rank is done, in us after the call began."""
        handlers = {
            _CALL_BEGINS: self._post_sends,
            _LEFT: self._leave,
            _ARRIVED: self._complete,
            _NOTICED: self._notice,
            _POSTED: self._queue,
            _FIRST_BYTES: self._copy,
        }
        events, flows, end = self._events, self._flows, 0.0
        while events or flows.changed_us is not None:
            if flows.changed_us is not None and (not events or events[0][0] > flows.changed_us):
                for end_us, number in flows.settle():
                    heapq.heappush(events, (end_us, _LEFT, number))
                continue
            now, kind, number = heapq.heappop(events)
            handlers[kind](number, now)
            if kind == _NOTICED:
                end = max(end, now)
        # Messages that no send needed are received at the end.
        for number in range(len(self._messages)):
            end = max(end, self._receive(number, end))
        return max([end, *self._call_free])

    def _work(self, free: list[float], rank: int, ready: float, length: float) -> float:
        """Occupy a thread of a rank and the first free core from `ready` on; return the end."""
        end = max(ready, free[rank], self._cores[0]) + length
        heapq.heapreplace(self._cores, end)
        free[rank] = end
        return end

    def _post_sends(self, rank: int, now: float) -> None:
        """Post the sends of as many ticks as possible; record what the next tick waits for."""
        messages, sends = self._messages, self._sends[rank]
        while self._tick[rank] < len(sends):
            batch = sends[self._tick[rank]]
            needed = set().union(*(messages[number].needs for number in batch))
            self._awaited[rank] = {number for number in needed if not self._noticed[number]}
            if self._awaited[rank]:
                return
            # Data to be forwarded must be received and added up first; other messages can wait
            # until the end.
            for number in sorted(needed):
                if messages[number].group.dst == rank:
                    now = self._receive(number, now)
            for number in batch:
                length_us = self._host.send_us + messages[number].packed * self._host.add_ns * 1e-3
                now = self._work(self._call_free, rank, now, length_us)
                self._posted_us[number] = now
                heapq.heappush(self._events, (now, _POSTED, number))
            self._tick[rank] += 1

    def _receive(self, number: int, now: float) -> float:
        """Receive a message in the receiver's call, once: unpack and add.

        Return the time in us at which that ends.
        """
        if self._received[number]:
            return now
        self._received[number], message = True, self._messages[number]
        added_us = (message.added + message.packed) * self._host.add_ns * 1e-3
        return self._work(self._call_free, message.group.dst, now, self._host.receive_us + added_us)

    def _queue(self, number: int, now: float) -> None:
        """Let a posted message wait for those of its pair of ranks, which has one connection."""
        pair = self._messages[number].group.src, self._messages[number].group.dst
        self._waiting[pair].append(number)
        if len(self._waiting[pair]) == 1:
            self._send_next(pair, now)

    def _send_next(self, pair: tuple[int, int], now: float) -> None:
        """Put the next message of a pair of ranks on its links, if there is one."""
        if not self._waiting[pair]:
            return
        number = self._waiting[pair][0]
        group = self._messages[number].group
        heapq.heappush(self._events, (now + group.latency_us, _FIRST_BYTES, number))
        if group.links:
            self._flows.begin(number, group.links, self._messages[number].bytes, now)
        else:
            heapq.heappush(self._events, (now, _LEFT, number))

    def _copy(self, number: int, now: float) -> None:
        """Both transports copy every byte while the rest is still arriving."""
        group = self._messages[number].group
        length_us = self._messages[number].bytes * self._host.byte_ns * 1e-3
        self._work(self._transport_free, group.src, now, length_us)
        self._copied_us[number] = self._work(self._transport_free, group.dst, now, length_us)
        self._arrive(number)

    def _leave(self, number: int, now: float) -> None:
        """The last byte of a message has left the links, if no other rate was given to it since."""
        group = self._messages[number].group
        if group.links:
            if self._flows.ends_us.get(number) != now:
                return
            self._flows.end(number, now)
        self._through_us[number] = now + group.latency_us
        self._arrive(number)
        self._waiting[group.src, group.dst].popleft()
        self._send_next((group.src, group.dst), now)

    def _arrive(self, number: int) -> None:
        """If transports are slower than the links, a message arrives when they are done with it,
        otherwise with its last byte.
        """
        copied_us, through_us = self._copied_us[number], self._through_us[number]
        if copied_us is not None and through_us is not None:
            heapq.heappush(self._events, (max(copied_us, through_us), _ARRIVED, number))

    def _complete(self, number: int, now: float) -> None:
        """The transport completes the operation, and the thread waiting in the call wakes up."""
        rank = self._messages[number].group.dst
        completed = self._work(self._transport_free, rank, now, self._host.io_us)
        heapq.heappush(self._events, (completed + self._host.wake_us, _NOTICED, number))

    def _notice(self, number: int, now: float) -> None:
        """A rank with sends left posts these first, as the runtime does; one without any receives
        messages in order of arrival.
        """
        self._noticed[number], message = True, self._messages[number]
        src, dst = message.group.src, message.group.dst
        self.times.append((message.tick, src, dst, self._posted_us[number], now))
        if self._tick[dst] == len(self._sends[dst]):
            self._receive(number, now)
        for rank in (dst, src):  # a batch ends when its sends have ended, too
            if self._awaited[rank] == {number}:
                self._post_sends(rank, now)
            else:
                self._awaited[rank].discard(number)
