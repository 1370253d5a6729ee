"""Carry out the calls of a communicator so that a lost link costs seconds, and not the job.

How a call goes on: each call runs on private buffers, in a thread that can be left behind in a wait
of gloo's. The user's tensors are written once the call has ended, so a failed call has not changed
them, and can be made again. When a connection is lost (connections.py), all ranks leave their call,
agree on what is lost (agreement.py), connect anew where they still can (partial_transport.py), take
a plan without the lost links (replan.py), and finish the call by it.

One rank may have ended the call that another one has to make again. It cannot be further: a call
ends for a rank when all ranks have begun it, so none begins the next before all have ended the one
before. Therefore each rank keeps what its last call needs to be made again: the input, or, of an
allreduce, the result, since all ranks must get the same bits.
"""

import ctypes
import json
import logging
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from functools import cache, partial
from typing import Any
from weakref import finalize

import torch

from ...synth.ir.schedule import Schedule
from ...synth.plan import Plan
from ...topo.errors import ExecutionError, InfeasibleError, TopoplanError
from ..compiled import Buffers, make_bindings
from ..engine import Engine
from ..program.layout import IN_PLACE
from ..program.one_sided.flat import POINT_TO_POINT
from ..ranks.addresses import find_ended
from ..ranks.blame import describe_link, explain_silence
from ..ranks.launch import GUARDED
from .agreement import Decision, RankLostError, RankStatus, Recovery, SplitError, SupersededError
from .connections import ConnectionWatch, find_listening_ports
from .partial_transport import PartialGloo, PartialTransport
from .replan import find_lost_links, list_unreached, plan_without

log = logging.getLogger("topoplan")

# Collectives that a rank ends only when all ranks have begun them; after others the ranks meet.
_MEETING = ("allreduce", "allgather", "reduce-scatter", "alltoall")
# Time for a call to end by itself after a connection was lost: another rank may just have closed
# it, since it has ended the call.
_SETTLE_S = 0.3
# Time for what an ended process has sent to arrive.
_DRAIN_S = 5.0
# Segments without a race: of several packets, and not so many that hosts are busy with them.
_SEGMENT_BYTES, _MAX_SEGMENTS = 64 << 10, 64
# Shapes of calls whose buffers are kept for the next call of that shape.
_MAX_SHAPES = 128
# Recoveries in a row, for one call, after which the error is raised.
_MAX_RECOVERIES = 8

MakeEngine = Callable[..., Engine]


class _LostError(Exception):
    """A connection was lost."""


# The shape of a call: numbers of elements, dtype, reduction, and whether there is error feedback.
_Shape = tuple[Any, ...]


@dataclass(eq=False)
class _Private:
    """Buffers of one call that are not the user's, to be used again by later calls of a `shape`.

    `kept` is a copy of the input that the call does not write to, where one is needed.
    """

    shape: _Shape
    buffers: Buffers
    kept: torch.Tensor | None


@dataclass(eq=False)
class _Exchange:
    """A call that gives all ranks the values of all, by rank, once it has ended."""

    value: object
    values: list[Any] = field(default_factory=list)


class Guard:
    """Carries out the calls of one communicator, and goes on after a link is lost.

    `engine` is the communicator's own, over a transport of its own on gloo; `make_engine` makes
    another for another plan and transport. All calls must be made through `run` and `exchange`, in
    one order on all ranks. `opened_since` are the sockets that were open before the transport was
    made.
    """

    def __init__(
        self, engine: Engine, make_engine: MakeEngine, opened_since: Collection[str]
    ) -> None:
        self.engine, self._make_engine = engine, make_engine
        engine.is_stock_excluded = True
        self._first = engine
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._worker = self._make_worker()
        self._ended = self._recoveries = self._sent_before = 0
        self._current: _Private | _Exchange | None = None
        self._last: _Private | _Exchange | None = None
        self._made = time.monotonic()
        self._free: dict[_Shape, list[_Private]] = defaultdict(list)
        self._name = engine.plan.collective.name
        self._error: ExecutionError | None = None
        self.history: list[dict[str, Any]] = []
        """The recoveries so far, as rows of a table."""
        transport = engine.transport
        addresses = transport.faults.addresses
        nonces = " ".join(x.nonce for _, x in sorted(addresses.items()) if x is not None)
        self._key = f"{transport.group.group_name} {nonces}"
        ports = transport.exchange(find_listening_ports(opened_since))
        self._watch = self._make_watch()
        self._watch.follow(opened_since, set().union(*ports))
        transport.faults.on_hang_up.append(self._watch.abort)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent through schedules so far."""
        return self._sent_before + self.engine.sent_bytes

    def _make_watch(self) -> ConnectionWatch:
        watch = ConnectionWatch(partial(self._events.put, None))
        finalize(self, watch.stop)
        return watch

    def _make_worker(self) -> "_Worker":
        worker = _Worker(self._events)
        finalize(self, worker.stop)
        return worker

    # Calls

    def run(self, users: Buffers) -> None:
        """Carry out the collective on the user's buffers, by another plan if a link is lost.

        Raise ExecutionError if that is not possible.
        """
        private = self._end_call(users)
        assert isinstance(private, _Private)
        if users.target.numel():
            users.target.copy_(private.buffers.target)
        if users.residual is not None and private.buffers.residual is not None:
            users.residual.copy_(private.buffers.residual)

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank, by other routes if a link is lost.

        Raise ExecutionError if that is not possible.
        """
        ended = self._end_call(_Exchange(value))
        assert isinstance(ended, _Exchange)
        return ended.values

    def _end_call(self, users: Buffers | _Exchange) -> _Private | _Exchange:
        """Carry out a call, by another plan if a link is lost, and return what it worked on."""
        if self._error is not None:
            raise self._error
        self._carry_out(users)
        private = self._current
        assert private is not None
        if isinstance(self._last, _Private):
            if len(self._free) > _MAX_SHAPES:
                self._free.clear()
            self._free[self._last.shape].append(self._last)
        self._last, self._current = private, None
        self._ended += 1
        self._count_resent()
        return private

    def _count_resent(self) -> None:
        """Complete the last row of the history; the engine was new at that recovery."""
        if self.history:
            self.history[-1].setdefault("resent_bytes", self.engine.sent_bytes)

    def _carry_out(self, users: Buffers | _Exchange | None) -> None:
        """Carry out a call, again and again if connections are lost; None waits for all ranks."""
        for _ in range(_MAX_RECOVERIES):
            try:
                if users is not None:
                    self._current = self._prepare(users)
                self._try(self._meet if users is None else self._make_call)
                return
            except ExecutionError as error:  # such as a deadline: the others must not wait for it
                self._refuse(str(error).removeprefix(f"rank {self._rank}: "))
                raise
            except _LostError:
                self._current = None  # the thread that was left behind may use its buffers
                if self._recover(users):
                    return
        raise self._give_up(f"connections were lost {_MAX_RECOVERIES} times")

    def _make_call(self) -> None:
        call, transport = self._current, self.engine.transport
        assert call is not None
        if isinstance(call, _Exchange):
            with transport.faults.stock("an exchange of values"):
                call.values = transport.exchange(call.value)
            return
        self.engine.carry_out(call.buffers)
        if self._name not in _MEETING:
            self._meet()

    def _meet(self) -> None:
        transport = self.engine.transport
        with transport.faults.stock("the end of a call"):
            transport.meet()

    def _try(self, function: Callable[[], object]) -> None:
        """Run a function in the other thread; raise _LostError if a connection is lost meanwhile.

        The thread is then left behind: it may be in a wait that only a deadline ends.
        """
        if self._watch.is_lost:
            raise _LostError
        number = self._worker.begin(function)
        try:
            error = self._wait_for(number)
        except BaseException as interruption:  # Ctrl-C: the other ranks would wait for this one
            self._renew_worker()
            self._give_up(f"it was interrupted ({interruption!r})")
            raise
        if error is None:
            return
        if isinstance(error, RankLostError):
            self._renew_worker()
        elif isinstance(error, _LostError) or (
            isinstance(error, RuntimeError) and self._is_lost_soon()
        ):
            self._renew_worker()
            raise _LostError from error
        raise error

    def _wait_for(self, number: int) -> BaseException | None:
        """Return the error of a function in the other thread, None if it ends well.

        Return a _LostError if a connection is lost and the function does not end soon, and a
        RankLostError if processes have ended and what they have sent does not end it either.
        """
        ends: float | None = None
        while True:
            watch = self._watch
            if ends is None and (watch.is_lost or watch.is_closed):
                ends = time.monotonic() + (_SETTLE_S if watch.is_lost else _DRAIN_S)
            try:
                event = self._events.get(
                    timeout=None if ends is None else max(0.0, ends - time.monotonic())
                )
            except queue.Empty:
                if watch.is_lost:
                    return _LostError()
                ended = find_ended(self._first.transport.faults.addresses)
                if ended:
                    return RankLostError(f"rank {self._rank}: {explain_silence(ended, {})}")
                ends = time.monotonic() + _DRAIN_S  # the processes live: the deadline decides
                continue
            if event is None:
                ends = None
            elif event[:2] == (self._worker, number):
                error: BaseException | None = event[2]
                return error

    def _renew_worker(self) -> None:
        _end_past_waits()
        self._worker.stop()
        self._worker = self._make_worker()

    def _is_lost_soon(self) -> bool:
        """Return whether a connection is lost, now or within a moment."""
        ends = time.monotonic() + _SETTLE_S
        while not self._watch.is_lost and time.monotonic() < ends:
            time.sleep(0.01)
        return self._watch.is_lost

    def close(self) -> None:
        """Wait until all ranks have ended their last call, and need this rank no more."""
        if self._error is None:
            try:
                self._carry_out(None)
            except RuntimeError as error:  # nothing is left to do for the others
                log.debug("rank %d: at the end: %s", self._rank, error)
        self._watch.stop()
        self._worker.stop()

    # Private buffers

    def _prepare(self, users: Buffers | _Exchange) -> _Private | _Exchange:
        """Return private buffers with the input of a call."""
        if isinstance(users, _Exchange):
            return _Exchange(users.value)
        shape = (
            users.numel,
            users.source.numel(),
            users.target.numel(),
            users.target.dtype,
            users.op,
            users.residual is None,
        )
        free = self._free[shape]
        private = free.pop() if free else self._make_private(users, shape)
        if private.buffers.source.numel():
            private.buffers.source.copy_(users.source)
        if private.kept is not None:
            private.kept.copy_(users.source)
        if users.residual is not None and private.buffers.residual is not None:
            private.buffers.residual.copy_(users.residual)
        return private

    def _make_private(self, users: Buffers, shape: _Shape) -> _Private:
        target = torch.empty_like(users.target)
        source = target if self._name in IN_PLACE else torch.empty_like(users.source)
        residual = None if users.residual is None else torch.empty_like(users.residual)
        buffers = Buffers(users.numel, source, target, users.op, residual, make_bindings(target))
        kept = torch.empty_like(source) if self._name == "reduce" else None
        return _Private(shape, buffers, kept)

    # Recovery

    def _recover(self, users: Buffers | _Exchange | None) -> bool:
        """Agree with all ranks how to go on, and do so; return whether that also ended the call.

        Raise ExecutionError if it is not possible.
        """
        began = time.monotonic()
        deadline = began + self._first.transport.timeout_s
        for _ in range(_MAX_RECOVERIES):
            self._watch.abort()
            self._recoveries += 1
            try:
                return self._recover_once(users, deadline, began)
            except SupersededError as other:
                self._recoveries = other.number - 1
                why: Exception = other
            except (RankLostError, InfeasibleError) as error:
                raise self._give_up(str(error)) from error
            except SplitError as error:
                lost = list_unreached(error.parts)
                links = find_lost_links(self._first.plan.topology, lost)
                raise self._give_up(f"without {list_links(links)}, {error}") from error
            except (RuntimeError, _LostError) as error:
                why = error
                if time.monotonic() > deadline:
                    raise self._give_up(str(error)) from error
                log.info("rank %d: recovery %d failed: %r", self._rank, self._recoveries, error)
        raise self._give_up(f"{_MAX_RECOVERIES} recoveries failed ({why!r})") from why

    @property
    def _rank(self) -> int:
        return self._first.rank

    def _recover_once(
        self, users: Buffers | _Exchange | None, deadline: float, began: float
    ) -> bool:
        first, number = self._first, self._recoveries
        transport, plan = first.transport, first.plan
        recovery = Recovery(self._key, number, self._rank, transport.faults.addresses, deadline)
        unreached = recovery.find_unreached()
        gloo = PartialGloo(self._rank, first.size, timedelta(seconds=transport.faults.wait_s))
        recovery.report(RankStatus(self._ended, gloo.address, gloo.list_ports(), unreached))
        parts = recovery.wait_for_parts()
        lost = list_unreached(dict(enumerate(parts)))
        new_plan: Plan | None = None
        if self._rank == 0:
            links = find_lost_links(plan.topology, lost)
            try:
                new_plan, refusal = plan_without(plan, links, frozenset(lost)), ""
            except TopoplanError as error:
                refusal = str(error)
            recovery.decide(Decision(lost, links, refusal))
        decision = recovery.wait_for_decision()
        if decision.refusal:
            without = list_links(decision.links)
            raise InfeasibleError(f"without {without} there is no plan: {decision.refusal}")
        self._connect(gloo, parts, decision)
        engine = self._take_plan(gloo, decision, number, new_plan)
        self._count_resent()
        self._sent_before += self.engine.sent_bytes
        self.engine = engine
        first_ended = min(part.ended for part in parts)
        is_over = False
        if any(part.ended > first_ended for part in parts):
            is_over = self._finish_for_others(engine, users, parts, first_ended)
        self._note(decision, number, began, engine)
        return is_over

    def _connect(self, gloo: PartialGloo, parts: list[RankStatus], decision: Decision) -> None:
        """Connect to all ranks that this one still reaches, and watch these connections."""
        lost = set(decision.unreached)
        me = self._rank
        peers = [
            rank
            for rank in range(gloo.size)
            if rank != me and (min(rank, me), max(rank, me)) not in lost
        ]
        self._watch = self._make_watch()
        addresses = [dict(part.address) for part in parts]
        ports = set().union(*(part.ports for part in parts))
        self._try(partial(gloo.connect, addresses, peers, self._watch, ports))

    def _take_plan(
        self, gloo: PartialGloo, decision: Decision, number: int, plan: Plan | None
    ) -> Engine:
        """Return an engine for the new plan, which rank 0 has, over the new connections."""
        made: list[Engine] = []

        def make() -> None:
            transport = PartialTransport(
                self._first.transport,
                gloo,
                decision.unreached,
                self._watch,
                f"{self._key} {number}",
            )
            new: Plan = transport.exchange(plan)[0]
            new.verify()
            engine = self._make_engine(new, transport, executor=POINT_TO_POINT)
            engine.is_stock_excluded = engine.times_calls = True
            engine.chooser.list_candidates = partial(self._list_candidates, engine)
            made.append(engine)

        self._try(make)
        return made[0]

    def _list_candidates(self, engine: Engine, size_bytes: int) -> list[Schedule]:
        """Return the schedules to try on a job's own calls, the most promising first.

        There is no time for predictions and races: these are the plan's own in two segmentations,
        and what won before the fault, made for what is left.
        """
        plan, before = engine.plan, self._first.chooser.known(size_bytes)
        own = plan.entry_for(int(size_bytes * self._find_slowness(plan))).schedule
        segments = min(max(1, size_bytes // _SEGMENT_BYTES), _MAX_SEGMENTS)
        wanted = [(own, segments), (own, max(1, segments // 4))]
        if before is not None:
            won = before.own
            alike = [x.schedule for x in plan.entries if x.schedule.strategy == won.strategy]
            wanted = [(schedule, won.segments) for schedule in alike[-1:]] + wanted
        nearest = (
            min(
                (x for x in engine.chooser.variants if x.uncut == schedule.uncut),
                key=lambda x: abs(math.log(x.segments / count)),
            )
            for schedule, count in wanted
        )
        return list(dict.fromkeys(nearest))

    def _find_slowness(self, plan: Plan) -> Fraction:
        """Return how many times slower the machine's links are than those of the plan.

        Buffers are planned for as if they were as many times larger. 1 unless the machine has other
        rates than the plan, as an emulated one has.
        """
        machine = self._first.machine.topology
        there = {} if machine is None else machine.capacity_GBps
        rates = plan.topology.capacity_GBps.items()
        return min(
            (rate / there[link] for link, rate in rates if link in there), default=Fraction(1)
        )

    def _finish_for_others(
        self,
        engine: Engine,
        users: Buffers | _Exchange | None,
        parts: list[RankStatus],
        first_ended: int,
    ) -> bool:
        """Make a call again that some ranks have ended and others have not.

        Return whether this rank had not ended it.
        """
        has_ended = self._ended > first_ended
        if has_ended:
            mine = self._last
        else:
            assert users is not None  # who closes its communicator has ended all calls
            mine = self._current = self._prepare(users)
        assert mine is not None
        server = next(rank for rank, part in enumerate(parts) if part.ended > first_ended)
        if isinstance(mine, _Exchange):
            self._try(partial(_pass_values_on, engine, server, mine))
            return not has_ended
        buffers = mine.buffers
        if self._name == "allreduce":
            # Another order of additions would give other bits than those that some ranks have.
            self._try(partial(_pass_on, engine, server, buffers.target))
        else:
            if has_ended:
                source = (buffers.source if mine.kept is None else mine.kept).clone()
                target = source if self._name in IN_PLACE else torch.empty_like(buffers.target)
                buffers = Buffers(buffers.numel, source, target, buffers.op)
            self._try(partial(engine.carry_out, buffers))
        return not has_ended

    def _note(self, decision: Decision, number: int, began: float, engine: Engine) -> None:
        seconds = time.monotonic() - began
        links = [" - ".join(link) for link in decision.links]
        row = {
            "recovery": number,
            "at": round(began - self._made, 3),
            "call": self._ended + 1,
            "lost_links": links,
            "seconds": round(seconds, 3),
            "bound_GBps": float(engine.plan.bound_one_way.algbw_GBps),
        }
        self.history.append(row)
        if self._rank == 0:
            log.warning("went on after a fault: %s", json.dumps(row))

    def _give_up(self, why: str) -> ExecutionError:
        self._error = ExecutionError(
            f"rank {self._rank}: a connection was lost in call {self._ended + 1}, and it is not "
            f"possible to go on: {why}"
        )
        self._refuse(why)
        self._first.transport.faults.broken = self._error
        return self._error

    def _refuse(self, why: str) -> None:
        """Let the others know that this rank takes no part in this recovery, or the next one."""
        addresses = self._first.transport.faults.addresses
        for number in (self._recoveries, self._recoveries + 1):
            Recovery(self._key, number, self._rank, addresses, 0.0).refuse(why)
        self._watch.abort()


def list_links(links: Sequence[tuple[str, str]]) -> str:
    """Return "link A - B and link C - D" for links by their devices' ids."""
    return " and ".join(map(describe_link, links)) or "a link that the topology does not have"


def _pass_on(engine: Engine, server: int, tensor: torch.Tensor) -> None:
    """Give all ranks the bits of the `server`'s tensor."""
    if not tensor.numel():
        return
    data = tensor.view(torch.uint8)
    mine = data.clone() if engine.rank == server else torch.zeros_like(data)
    if engine.codec is None:  # the plan carries it fastest: a sum of bytes that others have as 0
        engine.carry_out(Buffers(mine.numel(), mine, mine))
    else:
        texts = engine.transport.exchange(mine.numpy().tobytes() if engine.rank == server else b"")
        mine = torch.frombuffer(bytearray(texts[server]), dtype=torch.uint8)
    data.copy_(mine)


def _pass_values_on(engine: Engine, server: int, call: _Exchange) -> None:
    """End an exchange that the `server` has ended."""
    values = call.values if engine.rank == server else None
    call.values = engine.transport.exchange(values)[server]


@cache
def _end_past_waits() -> None:
    """Have this process end without C++'s destructors, which abort it if threads wait in gloo.

    Python's own part of the exit is over by then; the exit code stays.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # glibc has it: its handlers get the exit code
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


class _Worker:
    """A thread that runs functions, and puts (itself, number, error or None) into a queue.

    A thread that does not come back is left behind: it ends when its function does.
    """

    def __init__(self, events: "queue.SimpleQueue[Any]") -> None:
        self._events, self._count = events, 0
        self._functions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=GUARDED, daemon=True).start()

    def begin(self, function: Callable[[], object]) -> int:
        """Run a function in the thread; return its number. Does not wait."""
        self._count += 1
        self._functions.put(function)
        return self._count

    def stop(self) -> None:
        """End the thread, once it has run what it was given."""
        self._functions.put(None)

    def _serve(self) -> None:
        count = 0
        while (function := self._functions.get()) is not None:
            count, error = count + 1, None
            try:
                function()
            except BaseException as raised:
                error = raised
            del function
            self._events.put((self, count, error))
