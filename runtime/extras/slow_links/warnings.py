"""Warn of a link that has become slow: it fails no call, but all ranks wait for it.

A call that takes several times as long as the fastest of its kind is suspicious. If that happens a
few times in a row, the messages of the next calls are stamped with times, and ranks compare in the
background when one was sent with how long its receiver was blocked on it. So no link is blamed for
a rank that is late itself, or waits for another.
"""

import atexit
import json
import logging
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

from torch._C._distributed_c10d import Store

from ....topo.graph import Topology
from ...program.contract import ObservedCalls, Observer
from ...program.instructions import Post
from ...ranks.faults import Call, describe_route
from ...ranks.transport import Transport

log = logging.getLogger("topoplan")

# Calls that send less are not timed: timing would take a measurable part of their duration.
_MIN_WATCHED_BYTES = 1 << 16
# A call is suspicious from this multiple of its fastest time on: twice is common on busy hosts.
_SLOW = 3.0
# It must also take this much longer: on a host with ten times as many running processes as cores,
# ranks were blocked for 20 ms on messages that were sent long before.
_MIN_EXTRA_S = 0.025
# Suspicious calls in a row before messages are stamped: a single one is mostly the host's fault.
_IN_A_ROW = 3
# Calls that are stamped: ranks may become suspicious one or two calls apart, and compare those that
# they share.
_STAMPED = 3
# A link is slow if its receiver was blocked on it for this many times the usual duration of the
# whole call.
_BLAMED = 2.0
# It must also be blocked for this many times as long as the median rank is on its worst link: on a
# host with too many processes all ranks are blocked on messages that were sent long before.
_STANDS_OUT = 3.0
# Ranks whose worst links are read for that median.
_MAX_ASKED = 64
# After a comparison nothing is stamped for this long, so there are no warnings either.
_PAUSE_S = 60.0
# Time for the other ranks' stamps to come, and the polling interval: nothing waits for the result.
_COMPARE_S, _POLL_S = 5.0, 0.1
# Time for a comparison to end at the interpreter's end: it may wait for a store that is far away.
_END_S = 1.0

# Threads that compare records, and whether they must end; see `_end_comparisons`.
_comparing: WeakSet[threading.Thread] = WeakSet()
_is_ending = threading.Event()


@atexit.register
def _end_comparisons() -> None:
    """Wait, before the interpreter ends, until no thread is in a call of the store.

    If a thread returns from C++ when the interpreter is finalizing, Python ends the thread, and C++
    aborts the process ("terminate called without an active exception").
    """
    _is_ending.set()
    for thread in list(_comparing):
        thread.join(_END_S)


@dataclass(eq=False)
class CallListener:
    """Listens to the calls of one kind, `calls`, to find slow ones.

    `best_s` is the duration of the fastest call so far in seconds, `slow` the number of slow calls
    since the last call that was not slow. `links` compares the ranks' times.
    """

    links: "SlowLinks"
    calls: ObservedCalls
    best_s: float = float("inf")
    slow: int = 0

    def begin(self) -> "Record | None":
        """Note the start of a call; return what times its messages, None for most calls."""
        return self.links.begin(self)

    def end(self, number: int | None) -> None:
        """Note the end of a call that succeeded, number `number` of the group (None: unknown)."""
        self.links.end(self, number)


@dataclass
class Record:
    """One call's times on this rank, in seconds of time.time.

    `sent` has when messages were sent, by "PEER NUMBER" ("3 0": message 0 to rank 3); `blocked`
    from when to when this rank waited for one, by (peer, number). The hosts' clocks must agree to
    well within the time that a slow call takes.
    """

    sent: dict[str, float] = field(default_factory=dict)
    blocked: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    _waits_since: float = field(default_factory=time.time)

    def before_wait(self) -> None:
        """Note that the player begins to wait for a message."""
        self._waits_since = time.time()

    def __call__(self, post: Post) -> None:
        """Note a message that is about to be sent, or has arrived; see Stamp."""
        now = time.time()
        if post.kind == "send":
            self.sent[f"{post.peer} {post.number}"] = now
        else:
            self.blocked[post.peer, post.number] = self._waits_since, now
        self._waits_since = now

    def sum_blocked_s(self, rank: int, peer: int, sent: Mapping[str, float]) -> float:
        """Return the seconds in which `rank` waited for messages that `peer` had sent already.

        `sent` is that of the peer's record of the same call.
        """
        return sum(
            max(0.0, until - max(since, sent[f"{rank} {number}"]))
            for (src, number), (since, until) in self.blocked.items()
            if src == peer and f"{rank} {number}" in sent
        )


def list_watches(transport: Transport, topology: Topology | None) -> list[Observer]:
    """Return the observers that watch a transport's links.

    `topology` has the links' names, None if they are unknown. The list is empty on GPUs, since the
    host does not wait for calls there, and cannot time them.
    """
    if transport.device.type != "cpu" or transport.links.is_batched:
        return []
    describe = partial(describe_route, Call("", 0, 0.0, topology).find_route)
    return [
        SlowLinks(
            transport.control.label, transport.control.labels, transport.faults.store, describe
        )
    ]


class SlowLinks:
    """Observes the calls of one group and logs slow links; the group's `ranks` share `store`.

    `describe` names the link from one rank to another.
    """

    def __init__(
        self, rank: int, ranks: Sequence[int], store: Store, describe: Callable[[int, int], str]
    ) -> None:
        self._rank, self._ranks, self._store, self._describe = rank, ranks, store, describe
        self._records: dict[int, Record] = {}
        self._pause_until = 0.0
        # What next calls are stamped, and until when: they may be made no more.
        self._stamps: CallListener | None = None
        self._stamps_until = 0.0
        self._begun = 0.0
        self._record: Record | None = None

    def listen(self, calls: ObservedCalls) -> CallListener | None:
        """Return what observes calls of one kind; None if they cross no link or are small."""
        if calls.crosses_links and calls.sent_bytes >= _MIN_WATCHED_BYTES:
            return CallListener(self, calls)
        return None

    def begin_anew(self, size_bytes: int) -> None:
        """Do nothing: the end of a race between schedules changes no link."""

    def begin(self, kind: CallListener) -> Record | None:
        """Note the start of a call that `kind` listens to; return what times its messages, or None.

        Most calls are not timed.
        """
        self._begun = time.monotonic()
        self._record = Record() if self._stamps is kind else None
        return self._record

    def end(self, kind: CallListener, number: int | None) -> None:
        """Note the end of a call that `kind` listens to.

        `number` is the call's number in the group (None: unknown). Compare the ranks' records once
        enough calls were timed.
        """
        seconds, record = time.monotonic() - self._begun, self._record
        if record is not None and number is not None:
            self._records[number] = record
            if len(self._records) == _STAMPED:
                records, self._records, self._stamps = self._records, {}, None
                self._pause_until = time.monotonic() + _PAUSE_S
                # In the background: the records are compared with those of other ranks.
                thread = threading.Thread(
                    target=self._warn,
                    args=(kind.calls.call, kind.best_s, seconds, records),
                    name="topoplan-slow",
                    daemon=True,
                )
                _comparing.add(thread)
                thread.start()
        elif seconds > _SLOW * kind.best_s and seconds > kind.best_s + _MIN_EXTRA_S:
            kind.slow += 1
            if (
                kind.slow >= _IN_A_ROW
                and (self._stamps is None or time.monotonic() > self._stamps_until)
                and time.monotonic() > self._pause_until
            ):
                self._stamps, self._records = kind, {}
                self._stamps_until = time.monotonic() + _PAUSE_S
        else:
            kind.slow = 0
            kind.best_s = min(kind.best_s, seconds)

    def _warn(
        self, what: str, best_s: float, seconds: float, records: Mapping[int, Record]
    ) -> None:
        """Warn of links on which this rank was blocked for long, by its and the others' records."""
        try:
            self._store.set(
                f"sent/{self._rank}",
                json.dumps({number: record.sent for number, record in records.items()}),
            )
            blocked = self._find_blocked(records)
            worst_s = max((blocked_s for _, blocked_s in blocked), default=0.0)
            self._store.set(f"blocked/{self._rank}", json.dumps([list(records), worst_s]))
            usual_s = self._find_median_worst_s(records) if worst_s > _BLAMED * best_s else 0.0
        except RuntimeError as error:  # the store is gone: the job ends, or has worse to report
            log.info("rank %d: slow calls, but no other rank's stamps: %s", self._rank, error)
            return
        for peer, blocked_s in blocked:
            if blocked_s > max(_BLAMED * best_s, best_s + _MIN_EXTRA_S, _STANDS_OUT * usual_s):
                log.warning(
                    "rank %d: %s is slow: a call (%s) takes %.0f ms where the fastest took %.0f, "
                    "and %.0f ms of it this rank was blocked on messages that rank %d had sent",
                    self._rank,
                    self._describe(peer, self._rank),
                    what,
                    seconds * 1e3,
                    best_s * 1e3,
                    blocked_s * 1e3,
                    peer,
                )

    def _find_median_worst_s(self, records: Mapping[int, Record]) -> float:
        """Return the median over the other ranks of how long each was blocked on its worst link."""

        def read(_: int, post: tuple[list[int], float]) -> float | None:
            numbers, worst_s = post
            return worst_s if set(numbers) & set(records) else None

        others = [rank for rank in self._ranks[:_MAX_ASKED] if rank != self._rank]
        return statistics.median(self._await_posts("blocked", others, read).values() or [0.0])

    def _find_blocked(self, records: Mapping[int, Record]) -> list[tuple[int, float]]:
        """Return the peers on which calls were blocked, and for how many seconds on average.

        Only calls that both ranks stamped count.
        """

        def read(peer: int, sent: dict[str, dict[str, float]]) -> float | None:
            totals = [
                record.sum_blocked_s(self._rank, peer, sent[str(number)])
                for number, record in records.items()
                if str(number) in sent
            ]
            return sum(totals) / len(totals) if totals else None

        peers = sorted({peer for record in records.values() for peer, _ in record.blocked})
        return list(self._await_posts("sent", peers, read).items())

    def _await_posts(
        self, key: str, ranks: Sequence[int], read: Callable[[int, Any], float | None]
    ) -> dict[int, float]:
        """Return, by rank, the value that `read` takes from each rank's post under a key.

        `read` returns None for a post of an earlier comparison. Ranks that do not post in time are
        left out.
        """
        values: dict[int, float] = {}
        ends = time.monotonic() + _COMPARE_S
        while len(values) < len(ranks) and time.monotonic() < ends and not _is_ending.is_set():
            for rank in ranks:
                name = f"{key}/{rank}"
                if rank not in values and self._store.check([name]):
                    value = read(rank, json.loads(self._store.get(name)))
                    if value is not None:
                        values[rank] = value
            _is_ending.wait(_POLL_S)
        return values
