"""Find the culprit when a call cannot go on: deadlines, reports between ranks, a clear error.

A rank that fails sees only its own peers: one that stopped, or one that waits for another itself.
So each failing rank reports which message it was waiting for and how many it had posted per peer,
closes its connections so that its peers need not wait for their own deadlines, and judges by the
reports of all (blame.py). Reports travel from rank to rank by every route that still works
(reports.py), and through the store, which may be behind the cut link itself.
"""

import hashlib
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...topo.derived.lost_links import PairRoutes
from ...topo.errors import ExecutionError, InputError, TopoplanError
from ...topo.graph import Topology
from .addresses import Addresses
from .blame import (
    NOBODY,
    Route,
    Stuck,
    describe_route,
    explain_blame,
    find_culprit,
    is_settled,
)
from .cabled import LaunchCabling, find_cabling
from .half_messages import NEVER_SENT
from .reports import POLL_S, Report, relay

log = logging.getLogger("topoplan")

# Fraction of a timeout reserved for finding the culprit, up to _GRACE_S.
_GRACE = 0.25
_GRACE_S = 5.0
_SOURCE_LINE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")
# What gloo says of a connection: "[.../pair.cc:553] Connection closed by peer", or without a place
# in C++ "Application timeout caused pair closure". A refusal has neither: "Cannot use ReduceOp.BAND
# with non-integral dtype", "Invalid scalar type".
_OF_CONNECTION = re.compile(
    rf"{_SOURCE_LINE.pattern}|pair closure|timed out|\bconnect", re.IGNORECASE
)
# Time for a peer that closed its connections to report: gloo closes them the moment a wait times
# out.
_SETTLE_S = 0.5
# After this time a peer that closed its connections before its deadline, and whose report has not
# come by any route, is blamed.
_UNHEARD_S = 1.5
# A connection not made within this time counts as impossible: a lost SYN is sent again after 1 s.
_REACH_S = 1.0
# Time for the relay to pass on the reports behind the verdict before this process may end: a few
# polls.
_FLUSH_S = 0.3


def grace_s(timeout: timedelta) -> float:
    """Return the seconds of a call's deadline that are reserved for finding the culprit.

    Raise InputError if `timeout` is no time.
    """
    if not isinstance(timeout, timedelta) or timeout <= timedelta():
        raise InputError(
            f"timeout {timeout!r:.40}: expected a timedelta above 0, such as timedelta(minutes=5)"
        )
    return min(_GRACE_S, timeout.total_seconds() * _GRACE)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without gloo's source location."""
    text = _SOURCE_LINE.sub("", str(error).strip())
    return text.splitlines()[0].split(". This is typically")[0] if text else type(error).__name__


def is_refusal(error: Exception) -> bool:
    """Return whether a backend refused a collective: on all ranks alike, before it sent anything.

    Lost connections and what only one rank may lack (memory, a GPU, the store) are no refusals.
    """
    # Those have classes of their own (DistNetworkError, OutOfMemoryError), or a place in C++.
    return type(error) in (RuntimeError, NotImplementedError) and not _OF_CONNECTION.search(
        str(error).partition("\n")[0]
    )


@dataclass(slots=True)
class Call:
    """A call in progress, as errors name it.

    `what` describes it ("allreduce (SUM) of 8 elements of float32"), `number` counts the group's
    calls and is the same on all ranks, `deadline` is on time.monotonic's clock. `topology` has the
    names of links, for errors. `is_part` says that it is only a part of the call with this number,
    such as an agreement before it: other ranks may be in another part.
    """

    what: str
    number: int
    deadline: float
    topology: Topology | None = None
    is_part: bool = False
    _routes: PairRoutes | None = None

    def find_route(self, src: int, dst: int) -> Route | None:
        """Return the ids of the devices between two ranks, theirs included.

        Ranks are the topology's. None if there is no topology or it lacks one of the ranks.
        """
        topology = self.topology
        if topology is None or max(src, dst) >= len(topology.ranks):
            return None
        self._routes = self._routes or PairRoutes(topology)
        return self._routes.find_route(src, dst)


class Faults:
    """The deadlines and numbers of calls over `group`, and the search for the rank at fault.

    `store` is shared by the group's ranks; `is_open` returns whether the group still works.
    `addresses` are those at which the ranks receive reports, by number in the group. `labels` are
    the ranks' numbers in errors and in calls (default: those in the group). After the first failure
    its error is `broken`, and all later calls raise ExecutionError.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        timeout: timedelta,
        store: Store,
        addresses: Addresses,
        is_open: Callable[[], bool] = lambda: True,
        labels: Sequence[int] | None = None,
    ) -> None:
        self.group, self.store, self.is_open = group, store, is_open
        self.ranks = range(group.size()) if labels is None else labels
        self.rank = self.ranks[group.rank()]
        self.addresses = {self.ranks[number]: address for number, address in addresses.items()}
        self.find_mismatch: Callable[[], ExecutionError | None] = lambda: None
        """Says, after a call has failed, which ranks are known to make other calls than the
        rest.
        """
        self.set_timeout(timeout)
        self.topology: Topology | None = None
        """Has the names of links, for calls that have no topology of their own."""
        self.broken: ExecutionError | None = None
        self.on_hang_up: list[Callable[[], object]] = []
        """Called when this rank hangs up, so that ranks that wait for it by other means notice."""
        self._blaming = threading.Lock()
        self._numbers = itertools.count(1)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time from the beginning of a later call to its end or its error."""
        self.grace_s = grace_s(timeout)
        self.wait_s = timeout.total_seconds() - self.grace_s

    def draw_number(self) -> int:
        """Return the number of a new call, to be passed to `begin` or `admit` later.

        All ranks draw numbers in one order, so that a call has the same number on each; it may run
        later, concurrently with others.
        """
        return next(self._numbers)

    def begin(self, what: str, topology: Topology | None = None, number: int | None = None) -> Call:
        """Begin a call: give it a deadline, and its `number` from `draw_number` (None: the next).

        `what` describes it in errors; `topology` replaces the group's there. Raise ExecutionError
        if an earlier call failed, or the group is closed.
        """
        number, deadline = self.admit(number)
        return Call(what, number, deadline, topology or self.topology)

    def admit(self, number: int | None = None) -> tuple[int, float]:
        """Return the number and deadline (time.monotonic) of a new call; raises like `begin`.

        Small calls make a Call of these only if they fail, which saves time.
        """
        if self.broken is not None:
            raise ExecutionError(
                f"rank {self.rank}: an earlier call failed; destroy the process group and start "
                f"anew ({self.broken})"
            )
        if not self.is_open():
            raise ExecutionError(
                f"rank {self.rank}: the process group was destroyed; set one up, and make this anew"
            )
        return number or next(self._numbers), time.monotonic() + self.wait_s

    @contextmanager
    def stock(
        self,
        what: str,
        number: int | None = None,
        *,
        is_part: bool = False,
        may_refuse: bool = False,
    ) -> Iterator[None]:
        """Guard stock collectives in the `with` block, as the call that `what` describes.

        A RuntimeError in the block becomes an ExecutionError that names the rank at fault (see
        `stuck`). `number` is as in `begin`; `is_part` says that the block is only a part of the
        call that has it. `may_refuse` says that the block is a single collective: if the backend
        refuses it, that error is raised unchanged, and the group works on.
        """
        call = self.begin(what, number=number)
        call.is_part = is_part and number is not None
        try:
            yield
        except TopoplanError:
            raise
        except RuntimeError as error:
            if may_refuse and is_refusal(error):
                raise
            raise self.stuck_in_stock(call, error) from error

    def stuck_in_stock(self, call: Call, error: Exception) -> ExecutionError:
        """Return the error to raise after a call's stock collective failed; see `stuck`.

        `error` is what the backend raised.
        """
        return self.stuck(call, "stock", NOBODY, 0, 0, error, {})

    def stuck(
        self,
        call: Call,
        kind: str,
        peer: int,
        number: int,
        step: int,
        error: Exception,
        posted: Mapping[str, int],
    ) -> ExecutionError:
        """Report that this rank cannot go on, hear the others, and return the error to raise.

        This rank failed with `error` at the `number`-th message of `kind` "send" or "receive" with
        `peer` (one of `ranks`), in the schedule's `step`; `posted` counts the call's messages
        so far, by kind and peer ("send 3"). Closes this rank's connections, and waits for reports
        for at most `grace_s`. If several concurrent calls fail, the first is reported, and its
        error is that of all.
        """
        with self._blaming:
            if self.broken is None:
                self.broken = self.find_mismatch()
            if self.broken is None:
                report = Stuck(
                    kind,
                    peer,
                    number,
                    step,
                    timed_out=time.monotonic() >= call.deadline - 0.01,
                    reason=first_line(error),
                    call=call.what,
                    calls=call.number,
                    is_part=call.is_part,
                    posted=posted,
                )
                reports = self._exchange_reports(report)
                verdict = explain_blame(self.rank, reports, self.ranks, call.find_route)
                self.broken = ExecutionError(
                    f"rank {self.rank}: {verdict}; {self._describe_symptom(call, report)}"
                )
            return self.broken

    def _describe_symptom(self, call: Call, report: Stuck) -> str:
        if report.kind == "stock":
            return f"here the stock collective failed ({call.what}: {report.reason})"
        src, dst = (self.rank, report.peer) if report.kind == "send" else (report.peer, self.rank)
        doing = "sending to" if report.kind == "send" else "receiving from"
        why = f"no end within {self.wait_s:.3g} s" if report.timed_out else report.reason
        return (
            f"here step {report.step}, {doing} rank {report.peer} over "
            f"{describe_route(call.find_route, src, dst)}, failed ({why})"
        )

    def _exchange_reports(self, report: Stuck) -> dict[int, Stuck]:
        """Return the ranks' reports, once they show the culprit or no more come in time."""
        # Equal on the group's ranks, and new if the group is made again.
        nonces = " ".join(x.nonce for _, x in sorted(self.addresses.items()) if x is not None)
        key = f"{self.group.group_name} {hashlib.sha256(nonces.encode()).hexdigest()[:16]}"
        exchange = ReportExchange(
            key, self.rank, self.ranks, self.addresses, report, 0.9 * self.grace_s
        )
        exchange.use_store(self.store)
        exchange.try_cables()
        self.hang_up()
        return exchange.wait_for_verdict()

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls, current and future, fail with `error`, whose cause is known already."""
        self.broken = error
        self.hang_up()

    def hang_up(self) -> None:
        """Close this rank's connections, so that its peers notice at once.

        ProcessGroupGloo.abort leaves them open (torch 2.13), but gloo closes all of them when a
        wait times out.
        """
        for notify in self.on_hang_up:
            notify()
        if torch.device("cpu") not in self.group._device_types:
            return
        backend: Any = self.group._get_backend(torch.device("cpu"))
        for peer in range(self.group.size()):
            if peer != self.group.rank():
                # The timeout that is wanted, or a connection that is closed already.
                with suppress(RuntimeError):
                    backend.recv([torch.empty(1)], peer, NEVER_SENT).wait(timedelta(milliseconds=1))


class ReportExchange:
    """One rank's part in exchanging reports of a failure; it begins at once and reports `own`.

    The `ranks` with the same `key` take part; `rank` is this one. The exchange takes at most
    `seconds`.
    """

    def __init__(
        self,
        key: str,
        rank: int,
        ranks: Sequence[int],
        addresses: Addresses,
        own: Stuck,
        seconds: float,
    ) -> None:
        self._key, self._rank, self._ranks = key, rank, ranks
        self._own, self._edition = own, 0
        self._begun, self._seconds = time.monotonic(), seconds
        self._tries_cables, self._cables = False, list[tuple[str, str, bool]]()
        relay.join(self._key, rank, addresses, seconds)
        self._report(own)

    def use_store(self, store: Store) -> None:
        """Also report and listen through a store, for as long as the exchange lasts.

        This runs in its own thread, since the store may be on a machine that is gone, or behind the
        cut link.
        """
        threading.Thread(
            target=self._follow_store, args=(store,), name="topoplan-faults", daemon=True
        ).start()

    def try_cables(self) -> None:
        """Report which cables of this host carry nothing, if cables join the launch's hosts.

        The relays between hosts accept connections to ranks that they do not reach, so that the
        reports' own connections do not show it.
        """
        cabling = find_cabling()
        if cabling is not None:
            self._tries_cables = True
            threading.Thread(
                target=self._try_cables, args=(cabling,), name="topoplan-cables", daemon=True
            ).start()

    def _try_cables(self, cabling: LaunchCabling) -> None:
        try:
            self._cables = cabling.try_cables(min(_REACH_S, self._seconds / 2))
        finally:  # the verdict waits for it
            self._tries_cables = False

    def wait_for_verdict(self) -> dict[int, Stuck]:
        """Return the reports by rank, once they show the culprit or time is over.

        Ranks that did not report, or whose report cannot be read, are missing.
        """
        while True:
            reports = self._hear()
            elapsed = time.monotonic() - self._begun
            if elapsed >= self._seconds or self._is_over(reports, elapsed):
                break
            time.sleep(POLL_S)
        ends = time.monotonic() + _FLUSH_S
        while relay.is_behind(self._key) and time.monotonic() < ends:
            time.sleep(POLL_S)
        return reports

    def _is_over(self, reports: dict[int, Stuck], elapsed: float) -> bool:
        chain, link, _ = find_culprit(self._rank, reports)
        if link is None and elapsed < min(_SETTLE_S, self._seconds):
            return False
        if is_settled(self._rank, reports, self._ranks):
            return True
        if chain[-1] in reports:
            return False
        # In a large group it may not be among those dialed at first.
        relay.dial(self._key, [chain[-1]])
        return not reports[chain[-2]].timed_out and elapsed > _UNHEARD_S

    def _hear(self) -> dict[int, Stuck]:
        """Return all reports; complete the own one with the fate of its connections, once known."""
        reach = relay.list_reach(self._key)
        ended = tuple(sorted(rank for rank, state in reach.items() if state == "ended"))
        unreached = tuple(sorted(rank for rank, x in reach.items() if x in ("trying", "failed")))
        is_known = not self._tries_cables and (
            not unreached or time.monotonic() - self._begun > min(_REACH_S, self._seconds / 2)
        )
        updated = replace(
            self._own,
            ended=ended,
            unreached=unreached if is_known else None,
            cables=self._cables,
        )
        if updated != self._own:
            self._own, self._edition = updated, self._edition + 1
            self._report(updated)
        reports = {rank: _read_report(report) for rank, report in relay.hear(self._key).items()}
        return {rank: report for rank, report in reports.items() if report is not None}

    def _report(self, own: Stuck) -> None:
        relay.add(self._key, self._rank, self._edition, asdict(own))

    def _follow_store(self, store: Store) -> None:
        try:
            store.set(f"stuck/{self._rank}", json.dumps(asdict(self._own)))
            missing = set(self._ranks) - {self._rank}
            while time.monotonic() < self._begun + self._seconds:
                for rank in sorted(missing):
                    if store.check([f"stuck/{rank}"]):
                        relay.add(self._key, rank, 0, json.loads(store.get(f"stuck/{rank}")))
                        missing.discard(rank)
                time.sleep(POLL_S)
        except RuntimeError as error:
            log.info("rank %d: no reports through the store: %s", self._rank, error)


def _read_report(report: Report) -> Stuck | None:
    """Parse another rank's report, None if it is from another version of topoplan."""
    try:
        return Stuck(**report)
    except TypeError as error:
        log.warning(
            "a rank's report of a failure cannot be read (%s); run one version on all", error
        )
        return None
