"""Run the calls of a group so that a lost link costs seconds, not the job.

Each call runs on private buffers, in a thread that can be abandoned while it waits in gloo. The
user's tensors are written once the call has ended, so a failed call has not changed them, and can
be repeated. When a connection is lost (connections.py), all ranks abandon their call, agree on what
is lost (agreement.py), connect anew where they still can (partial_transport.py), take a plan
without the lost links (replan.py), and finish the call by it.

One rank may have ended the call that another one has to repeat. It cannot be further: a call ends
for a rank when all ranks have begun it, so none begins the next before all have ended the one
before. Therefore each rank keeps what its last call needs to be repeated: the input, or, of an
allreduce, the result, since all ranks must get the same bits.

An attempt is one try of a call, on such buffers. A recovery is what the ranks do after a loss until
they can send again; those of a group are numbered, and if one fails, the next follows.
"""

import json
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

import torch
import torch.distributed as dist

from ....synth.fault_text import FAULT, LOST, RESUMED
from ....topo.derived.lost_links import Pair, PairRoutes
from ....topo.errors import ExecutionError, InfeasibleError
from ....topo.graph import Topology
from ...dispatcher import CallPath
from ...event_log import log_event
from ...layers import Layer, MakePath
from ...ranks.addresses import find_ended
from ...ranks.set_up import end_past_waits
from ...ranks.transport import Transport
from ..culprits.blame import describe_link, explain_silence, name_ranks
from ..sockets import find_listening_ports
from .agreement import (
    Decision,
    RankLostError,
    RankStatus,
    Recovery,
    SplitError,
    SupersededError,
    list_pairs,
)
from .connections import ConnectionWatch
from .partial_transport import PartialGloo, PartialTransport, find_tree
from .worker import Worker

if TYPE_CHECKING:
    from .guarded import Guarded

log = logging.getLogger("topoplan")

# Time for a call to end by itself after a connection was lost: another rank may just have closed
# it, since it has ended the call.
_SETTLE_S = 0.3
# Time for what an ended process has sent to arrive.
_DRAIN_S = 5.0
# Connecting anew takes a fraction of a second; gloo would wait much longer for a rank that a link
# lost meanwhile has put out of reach.
_CONNECT_S = 6.0
# A rank that waits in a recovery checks this often whether others have begun the next one, and for
# this long afterwards: another rank may fail where this one did not.
_CHECK_S, _CHECK_ON_S = 0.05, 10.0
# Recoveries in a row, for one call, after which the error is raised.
_MAX_RECOVERIES = 8


class _LostError(Exception):
    """A connection was lost."""


class Attempt(ABC):
    """A call in progress on private memory, so that it can be repeated after a fault.

    `planned` is what runs the calls of the call's plan, None if there is no plan yet. It stands for
    the same plan on all ranks.
    """

    planned: "Guarded | None"

    @abstractmethod
    def make(self, transport: Transport) -> None:
        """Run the call over `transport`; it ends on a rank only when all ranks have begun it."""

    @abstractmethod
    def pass_on(self, transport: Transport, server: int, *, has_ended: bool) -> None:
        """Complete the call with data of rank `server`, which has ended it. Collective.

        Ranks are numbers in the group. `has_ended` says that this rank has ended the call, too: it
        only passes data on, and its result stays.
        """

    @abstractmethod
    def free(self) -> None:
        """Release the private memory; called when all ranks have ended the call."""


class _Exchange(Attempt):
    """A call that gives all ranks the `values` of all, by number, once it has ended."""

    def __init__(self, value: object, planned: "Guarded | None") -> None:
        self._value, self.values, self.planned = value, list[Any](), planned

    def make(self, transport: Transport) -> None:
        with transport.faults.stock("an exchange of values"):
            self.values = transport.control.exchange(self._value)

    def pass_on(self, transport: Transport, server: int, *, has_ended: bool) -> None:
        self.values = transport.control.exchange(self.values if has_ended else None)[server]

    def free(self) -> None:
        pass


Prepare = Callable[[], Attempt]


class Guard(Layer):
    """Runs the calls of one group, and recovers when a link is lost.

    `transport` is the calls' own, on gloo; `opened_since` are the names of the sockets that were
    open before it was made. All calls must go through `run_call` and `exchange`, in the same order
    on all ranks. Construction is collective.
    """

    def __init__(self, transport: Transport, opened_since: Collection[str]) -> None:
        super().__init__(transport)
        self.decision = Decision()
        """What is lost, as all ranks have agreed."""
        self.planned: list[Guarded] = []
        """For each plan whose calls the guard runs, what runs them."""
        self.topology: Topology | None = None
        """The topology of the plans, which has the names of links; None before the first plan."""
        self.error: ExecutionError | None = None
        """The error that every further call raises; None while calls go on."""
        self._in_use = threading.RLock()  # for as long as a call or a recovery lasts
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._worker = self._make_worker()
        self._ended = self._recoveries = self._sent_before = 0
        self._recovery: Recovery | None = None
        self._checks_until = 0.0
        self._current: Attempt | None = None
        self._last: Attempt | None = None
        self._interrupted: Guarded | None = None
        self._made = time.monotonic()
        self._closes_by: float | None = None
        addresses = transport.faults.addresses
        nonces = " ".join(x.nonce for _, x in sorted(addresses.items()) if x is not None)
        self._key = f"{transport.group.group_name} {nonces}"
        # With TORCH_GLOO_LAZY_INIT ranks connect at their first message; all are to be watched.
        size = transport.size
        dist.all_to_all_single(torch.empty(size), torch.empty(size), group=transport.group)
        ports = transport.control.exchange(find_listening_ports(opened_since))
        self._watch = self._make_watch()
        self._watch.follow(opened_since, set().union(*ports))
        transport.faults.on_hang_up.append(self._watch.abort)

    def wrap(self, path: CallPath, make_path: MakePath) -> "Guarded":
        """Return the guarded form of `path`, which runs the calls of one plan.

        `make_path` makes another such path, for the new plan and transport after a fault.
        """
        from .guarded import Guarded

        return Guarded(self, path, make_path)

    def explain_stock(self) -> str | None:
        """Return why the backend's plain group no longer works; None if it does."""
        if not self.decision.unreached:
            return None
        return f"cannot do without {self.name_lost()}; collectives that plans carry out go on"

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank has sent by schedules so far."""
        return sum(one.sent_bytes for one in self.planned)

    def _make_watch(self) -> ConnectionWatch:
        watch = ConnectionWatch(partial(_notice, ref(self), self._events))
        finalize(self, watch.stop)
        return watch

    def _make_worker(self) -> Worker:
        worker = Worker(self._events)
        finalize(self, worker.stop)
        return worker

    # Calls

    def exchange(self, value: object) -> list[Any]:
        """Return all ranks' values in rank order, over other routes if a link is lost. Collective.

        Raise ExecutionError if recovery is impossible.
        """
        planned = next(iter(self.planned), None)
        ended = self.run_call(partial(_Exchange, value, planned))
        assert isinstance(ended, _Exchange)
        return ended.values

    def run_call(self, prepare: Prepare) -> Attempt:
        """Run a call, by another plan if a link is lost; return the attempt that ended.

        `prepare` makes the attempt. Raise ExecutionError if recovery is impossible.
        """
        with self._in_use:
            if self.error is not None:
                raise self.error
            self._run_attempts(prepare)
            ended = self._current
            assert ended is not None
            if self._last is not None:
                self._last.free()
            self._last, self._current = ended, None
            self._ended += 1
            self._count_resent()
            return ended

    def _count_resent(self) -> None:
        """Complete the last row of the history."""
        if self.history and "resent_bytes" not in self.history[-1]:
            self.history[-1]["resent_bytes"] = self.sent_bytes - self._sent_before
            self._log_event(RESUMED, self.history[-1])

    def _run_attempts(self, prepare: Prepare | None) -> None:
        """Run a call, again and again if connections are lost; None waits for all ranks."""
        for _ in range(_MAX_RECOVERIES):
            try:
                if prepare is None:
                    self._try(lambda: wait_for_ranks(self.transport))
                else:
                    self._current = prepare()
                    self._try(partial(self._current.make, self.transport))
                return
            except ExecutionError as error:  # such as a deadline: the others must not wait for it
                self._end(error, str(error).removeprefix(f"rank {self._rank}: "))
                raise
            except (_LostError, SupersededError):
                if self._recover(prepare):
                    return
        raise self._give_up(f"connections were lost {_MAX_RECOVERIES} times")

    def _try(self, function: Callable[[], object], seconds: float | None = None) -> None:
        """Run a function in the other thread; raise _LostError if a connection is lost meanwhile.

        Raise it, too, if the function takes longer than `seconds`, and SupersededError if others
        have begun the next recovery, in one and soon after it. The thread is then left behind: it
        may be in a wait that only a deadline ends.
        """
        if self._watch.is_lost:
            raise _LostError
        number = self._worker.begin(function)
        try:
            error = self._wait_for(number, seconds)
        except BaseException as interruption:  # Ctrl-C: the other ranks would wait for this one
            self._renew_worker()
            self._give_up(f"it was interrupted ({interruption!r})")
            raise
        if error is None:
            return
        if error is self.error or isinstance(error, (RankLostError, SupersededError)):
            self._renew_worker()
        elif isinstance(error, _LostError) or (
            isinstance(error, RuntimeError) and self._is_lost_soon()
        ):
            self._renew_worker()
            raise _LostError from error
        raise error

    def _wait_for(self, number: int, seconds: float | None) -> BaseException | None:
        """Return the error of a function in the other thread, None if it ends well.

        Return a _LostError if a connection is lost and the function does not end soon, or if it
        does not within `seconds`; a RankLostError if processes have ended and what they have sent
        does not end it either; a SupersededError; and the guard's own error once it has one.
        """
        ends, gives_up = self._closes_by, None if seconds is None else time.monotonic() + seconds
        while True:
            watch = self._watch
            if ends is None and (watch.is_lost or watch.is_closed):
                ends = time.monotonic() + (_SETTLE_S if watch.is_lost else _DRAIN_S)
            wait_s = None if ends is None else max(0.0, ends - time.monotonic())
            if self._recovery is not None and time.monotonic() > self._checks_until:
                self._recovery = None
            if self._recovery is not None:
                wait_s = _CHECK_S if wait_s is None else min(wait_s, _CHECK_S)
            try:
                event = self._events.get(timeout=wait_s)
            except queue.Empty:
                if self._recovery is not None:
                    try:
                        self._recovery.check_current()
                    except SupersededError as other:
                        return other
                    if gives_up is not None and time.monotonic() > gives_up:
                        return _LostError()
                    if ends is None or time.monotonic() < ends:
                        continue
                if watch.is_lost:
                    return _LostError()
                ended = find_ended(self.first.faults.addresses)
                if ended or self._closes_by is not None:
                    return RankLostError(f"rank {self._rank}: {explain_silence(ended, {})}")
                ends = time.monotonic() + _DRAIN_S  # the processes live: the deadline decides
                continue
            if self.error is not None:
                return self.error
            if event is None:
                ends = self._closes_by
            elif event[:2] == (self._worker, number):
                error: BaseException | None = event[2]
                return error

    def _renew_worker(self) -> None:
        end_past_waits()
        self._worker.stop()
        self._worker = self._make_worker()

    def _is_lost_soon(self) -> bool:
        """Return whether a connection is lost, now or within a moment."""
        ends = time.monotonic() + _SETTLE_S
        while not self._watch.is_lost and time.monotonic() < ends:
            time.sleep(0.01)
        return self._watch.is_lost

    def close(self, seconds: float | None = None) -> None:
        """Wait until all ranks have ended their last call and need nothing from this one.

        Wait at most `seconds` (None: until the deadline of calls).
        """
        self.on_give_up.clear()
        if seconds is not None:
            self._closes_by = time.monotonic() + seconds
            self._events.put(None)  # of which a call in progress takes note
            if self._recovery is not None:
                self._recovery.deadline = self._closes_by
        with self._in_use:
            if self.error is None:
                try:
                    self._run_attempts(None)
                except RuntimeError as error:  # nothing is left to do for the others
                    log.debug("rank %d: at the end: %s", self._rank, error)
            self.error = self.error or ExecutionError(f"rank {self._rank}: the group is closed")
        self._watch.stop()
        self._worker.stop()
        for transport in (self.first, self.transport):
            transport.close()

    def break_off(self, error: ExecutionError) -> None:
        """Make the current call and all later ones fail with `error`; other ranks' fail, too."""
        if self.error is None:
            self.error = error
            self._events.put(None)
            self._refuse(str(error).removeprefix(f"rank {self._rank}: "))

    def name_lost(self) -> str:
        """Return the names of the lost links, as in "link A - B and link C - D"."""
        return list_links(self.decision.links)

    # Recovery

    def _recover(self, prepare: Prepare | None) -> bool:
        """Agree with all ranks how to go on, and do so; return whether that also ended the call.

        Raise ExecutionError if it is not possible.
        """
        interrupted, began = self._current or self._last, time.monotonic()
        self._interrupted = None if interrupted is None else interrupted.planned
        row = {"kind": LOST, "at": round(began - self._made, 3), "call": self._ended + 1}
        self._log_event(FAULT, row)
        self._current = None  # the thread that was left behind may use its buffers
        for _ in range(_MAX_RECOVERIES):
            deadline = self._closes_by or began + self.first.control.timeout_s
            self._watch.abort()
            self._recoveries += 1
            try:
                return self._recover_once(prepare, deadline, began)
            except SupersededError as other:
                self._recoveries = other.args[0] - 1
                why: Exception = other
            except (RankLostError, InfeasibleError) as error:
                raise self._give_up(str(error)) from error
            except SplitError as error:
                lost = list_pairs({rank: x.unreached for rank, x in error.parts.items()})
                links = self._decide(lost).links
                # A rank that is alone does not know which of the others reach each other.
                without = f"without {list_links(links)}, " if links else ""
                raise self._give_up(f"{without}{error}") from error
            except (RuntimeError, _LostError) as error:
                why = error
                if self.error is not None or time.monotonic() > deadline:
                    raise self.error or self._give_up(str(error)) from error
                log.info("rank %d: recovery %d failed: %r", self._rank, self._recoveries, error)
            finally:
                self._checks_until = time.monotonic() + _CHECK_ON_S
        raise self._give_up(f"{_MAX_RECOVERIES} recoveries failed ({why!r})") from why

    @property
    def _rank(self) -> int:
        return self.first.control.label

    def _decide(self, unreached: Sequence[Pair]) -> Decision:
        ranks = self.first.control.labels
        routes = None if self.topology is None else PairRoutes(self.topology, ranks)
        return Decision(unreached, routes.find_lost_links(unreached) if routes else ())

    def _foresee(self, recovery: Recovery, planned: "Guarded") -> None:
        """Begin to plan before it is certain what is lost."""
        if suspects := recovery.wait_for_suspects():
            planned.foresee(self._decide(suspects))

    def _recover_once(self, prepare: Prepare | None, deadline: float, began: float) -> bool:
        first, number = self.first, self._recoveries
        recovery = Recovery(self._key, number, self._rank, first.faults.addresses, deadline)
        self._recovery, self._checks_until = recovery, deadline
        if first.rank == 0 and self._interrupted is not None:
            threading.Thread(
                target=self._foresee,
                args=(recovery, self._interrupted),
                name="topoplan-suspects",
                daemon=True,
            ).start()
        unreached = recovery.find_unreached()
        gloo = PartialGloo(first.rank, first.size, timedelta(seconds=first.faults.wait_s))
        recovery.report(RankStatus(self._ended, gloo.address, gloo.ports, unreached))
        parts = recovery.wait_for_parts()
        by_rank = dict(zip(first.control.labels, parts, strict=True))
        lost = list_pairs({rank: x.unreached for rank, x in by_rank.items()})
        if cut_off := sorted({*by_rank} - {*find_tree(first.control.labels, lost)}):
            # Their reports have come through others: some ranks were too busy to answer in time.
            raise _LostError(
                f"{name_ranks(cut_off)} did not answer rank {first.control.labels[0]} in time"
            )
        if first.rank == 0:
            recovery.decide(self._decide(lost))
        decision = recovery.wait_for_decision()
        transport = self._connect(gloo, parts, decision)
        self._count_resent()
        self.decision, self.transport = decision, transport
        self._sent_before = self.sent_bytes
        first_ended = min(part.ended for part in parts)
        servers = [rank for rank, part in enumerate(parts) if part.ended > first_ended]
        has_ended = self._ended > first_ended
        # If none has, all have ended the same call; what they do next, if anything, may differ.
        attempt = prepare() if servers and not has_ended and prepare is not None else self._last
        planned = next(iter(self.planned), None) if attempt is None else attempt.planned
        if planned is not None:
            self._try(partial(planned.renew, transport))
        seconds = time.monotonic() - began
        if servers:
            assert attempt is not None  # who closes its group has ended all calls
            self._try(partial(attempt.pass_on, transport, servers[0], has_ended=has_ended))
            if not has_ended:
                self._current = attempt
        self._note(number, began, seconds, planned)
        return bool(servers) and not has_ended

    def _connect(
        self, gloo: PartialGloo, parts: list[RankStatus], decision: Decision
    ) -> PartialTransport:
        """Return a transport over new connections, which are watched, to all that are in reach."""
        first, lost, me = self.first, set(decision.unreached), self._rank
        numbers = {label: number for number, label in enumerate(first.control.labels)}
        peers = [
            number
            for rank, number in numbers.items()
            if rank != me and (min(rank, me), max(rank, me)) not in lost
        ]
        self._watch = self._make_watch()
        addresses = [dict(part.address) for part in parts]
        try:
            self._try(partial(gloo.connect, addresses, peers), _CONNECT_S)
        finally:  # after a failure the next recovery aborts them, so that the others notice
            ports = set().union(*(part.ports for part in parts))
            self._watch.follow(gloo.opened_since, ports)
        pairs = [(numbers[a], numbers[b]) for a, b in lost]
        return PartialTransport(first, gloo, pairs, self._watch, f"{self._key} {self._recoveries}")

    def _note(self, number: int, began: float, seconds: float, planned: "Guarded | None") -> None:
        """Add a row to the history; `seconds` passed until the ranks sent again."""
        plan = None if planned is None else planned.base.plan
        row = {
            "kind": LOST,
            "recovery": number,
            "at": round(began - self._made, 3),
            "call": self._ended + 1,
            "lost_links": [" - ".join(link) for link in self.decision.links],
            "seconds": round(seconds, 3),
            "bound_GBps": None if plan is None else float(plan.bound_one_way.algbw_GBps),
            "is_spare": planned is not None and planned.uses_spare,
        }
        self.history.append(row)
        if self.first.rank == 0:
            log.warning("went on after a fault: %s", json.dumps(row))

    def _log_event(self, event: str, row: dict[str, Any]) -> None:
        """Append an event to the run's file of them, for the whole group on its first rank."""
        if self.first.rank == 0:
            planned = self._interrupted or next(iter(self.planned), None)
            plan_hash = None if planned is None else planned.plan.hash
            log_event(event, row, self.first.group.group_name, plan_hash)

    def _give_up(self, why: str) -> ExecutionError:
        return self._end(
            ExecutionError(
                f"rank {self._rank}: a connection was lost in call {self._ended + 1}, and it is "
                f"not possible to go on: {why}"
            ),
            why,
        )

    def _end(self, error: ExecutionError, why: str) -> ExecutionError:
        """Make all calls fail with `error`, and return it; say `why` to the other ranks."""
        self.error = self.first.faults.broken = error
        self._refuse(why)
        for tell in self.on_give_up:
            tell(error)
        return error

    def _refuse(self, why: str) -> None:
        """Let the others know that this rank takes no part in this recovery, or the next one."""
        addresses = self.first.faults.addresses
        for number in (self._recoveries, self._recoveries + 1):
            Recovery(self._key, number, self._rank, addresses, 0.0).refuse(why)
        self._watch.abort()


def _notice(guard: "ref[Guard]", events: "queue.SimpleQueue[None]") -> None:
    """Wake the call in progress, as its connections have changed.

    Without one, a rank takes part in the recovery at once, and not by its next call: it may wait
    for the others in another group, and these for what it has of the last call here.
    """
    events.put(None)
    if (one := guard()) is not None and one._watch.is_lost:
        with one._in_use, suppress(RuntimeError):  # which the next call raises
            if one._watch.is_lost and one.error is None:
                one._recover(None)
                one._count_resent()


def wait_for_ranks(transport: Transport) -> None:
    """Wait for all ranks; what ends a call. Raise ExecutionError if one does not come."""
    with transport.faults.stock("the end of a call"):
        transport.meet()


def list_links(links: Sequence[tuple[str, str]]) -> str:
    """Return "link A - B and link C - D" for links by their devices' ids."""
    return " and ".join(map(describe_link, links)) or "a link that the topology does not have"
