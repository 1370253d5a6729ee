"""Serve a group's calls on a helper: a rank outside the group that forwards bytes for it."""

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

import torch

from ....synth.plan import Plan
from ...candidates import Candidate
from ...codec import Codec
from ...compiled import Buffers
from ...observers import observe_links
from ...ranks.faults import Call
from ...ranks.transport import Transport
from ...runners.programs import Messages
from .announcer import has_left, say_left
from .headers import Header, HeaderChannel, HeaderKind

log = logging.getLogger("topoplan")
# Between looks at the serving thread, so that Ctrl-C is heard: shorter than people notice.
_POLL_S = 0.1
# For the thread to see that the connections are closed.
_END_S = 5.0


class Service:
    """Serves calls on this rank, a helper, over `transport` for the group of `members`.

    `take_plan(number)` returns the plan to which the members gave a number, and the codec that
    compresses its messages (None: none). The members publish a plan before its first call.
    """

    def __init__(
        self,
        transport: Transport,
        members: Sequence[int],
        take_plan: Callable[[int], tuple[Plan, Codec | None]],
    ) -> None:
        self.transport, self._leader, self._take_plan = transport, members[0], take_plan
        self._channel = HeaderChannel(transport)
        with suppress(RuntimeError):  # which the first header raises
            self._channel.listen(self._leader)
        self._senders: dict[int, tuple[Plan, Messages]] = {}
        self._candidates: dict[tuple[int, int, int, bool], Candidate] = {}
        self._error: Exception | None = None
        self._served = 0
        self._is_over = self._is_leaving = False
        self._thread: threading.Thread | None = None
        atexit.register(_finish, weakref.ref(self))

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent for the members so far."""
        return sum(sender.sent_bytes for _, sender in self._senders.values())

    def serve(self, calls: int | None = None) -> int:
        """Serve the members' calls until they close their group, or `calls` calls are served.

        Return the number of calls served. Raise ExecutionError if a call fails, or a member ends
        without closing its group.
        """
        before = self._served
        self.start(calls)
        self._join()
        if self._error is not None:
            raise self._error
        return self._served - before

    def start(self, calls: int | None = None) -> None:
        """Begin to serve in a thread, at most `calls` calls (None: until the members are done)."""
        if self._is_over:
            return
        # In a thread, since waiting for a header over gloo cannot be interrupted.
        self._thread = threading.Thread(
            target=self._work, args=(calls,), name="topoplan-helper", daemon=True
        )
        self._thread.start()

    def leave(self) -> None:
        """Stop serving, even in the middle of a call: the members' calls then fail."""
        self._is_leaving = True
        if not self._is_over:
            say_left(self.transport.faults)
            self.transport.faults.hang_up()
        if self._thread is not None:
            self._thread.join(_END_S)
        self._is_over = True

    def _join(self) -> None:
        assert self._thread is not None or self._is_over
        try:
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(_POLL_S)
        except KeyboardInterrupt:
            self.leave()
            raise

    def finish(self) -> None:
        """Wait for the thread of `start` to end, that is, until the members are done."""
        if self._thread is not None and not self._is_over:
            self._join()

    def _work(self, calls: int | None) -> None:
        ends_at = None if calls is None else self._served + calls
        try:
            while not self._is_over and self._served != ends_at:
                self._serve_next()
        except Exception as error:  # raised by `serve`
            self._is_over = True
            faults = self.transport.faults
            if faults.broken is None:
                faults.hang_up()  # the members must not wait for this rank
            if not self._is_leaving:
                self._error = error
                log.warning("rank %d, helping: %s", self.transport.control.label, error)

    def _serve_next(self) -> None:
        try:
            header = self._channel.receive(self._leader)
        except RuntimeError as error:
            faults = self.transport.faults
            # A header that says goodbye is lost if this rank is not there to take it in time.
            if self._is_leaving or has_left(faults, self._leader):
                self._is_over = True
                return
            call = Call("waiting for the members' calls", 0, inf, faults.topology)
            raise faults.stuck(call, "receive", self._leader, 0, 0, error, {}) from error
        if header.kind == HeaderKind.LEAVE:
            self._is_over = True
        elif header.kind == HeaderKind.COUNT:
            self._channel.reply(self.sent_bytes, self._leader)
        else:
            self._run(header)
            self._served += 1

    def _run(self, header: Header) -> None:
        if header.plan not in self._senders:
            plan, codec = self._take_plan(header.plan)
            self.transport.faults.topology = plan.topology
            sender = Messages(self.transport, plan.topology, codec)
            observe_links(sender, self.transport, plan.topology)
            self._senders[header.plan] = plan, sender
        plan, sender = self._senders[header.plan]
        key = header.plan, header.schedule, header.segments, header.stepwise
        candidate = self._candidates.get(key)
        if candidate is None:
            schedule = replace(
                plan.schedules[header.schedule], segments=header.segments, stepwise=header.stepwise
            )
            # Cached, since comparing schedules takes longer than knowing one.
            candidate = self._candidates[key] = Candidate(schedule)
        empty = torch.empty(0, dtype=header.dtype, device=self.transport.device)
        sender.run(candidate, Buffers(header.numel, empty, empty, header.op), header.number)


def _finish(service: weakref.ref[Service]) -> None:
    """Serve until the members are done before this process ends, if a thread does."""
    alive = service()
    if alive is not None:
        alive.finish()
