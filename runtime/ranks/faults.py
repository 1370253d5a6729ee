"""Finding who is to blame when a call cannot go on: deadlines, reports between ranks, and an error that names the culprit.

A rank that fails sees only its own peers: one that stopped, or one that waits for another itself. So each rank that
fails says in the store (which the process group was set up with) for which message it was waiting and how many it had
posted to and from whom, closes its connections so that its peers need not wait for their own deadlines, and follows the
reports: from peer to peer, as long as the peer was behind itself, to the first that says nothing, which is dead or stopped,
or to a message that both ends had posted, whose link is cut.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...topo.errors import ExecutionError, TopoplanError
from ...topo.graph import Topology
from ...topo.routes import Router
from .groups import uses_nccl

_GRACE = 0.25
"""The part of a timeout that is kept for finding the culprit; at most _GRACE_S."""
_GRACE_S = 5.0
_POLL_S = 0.02
_SETTLE_S = 0.5
"""A peer that hung up may not have reported yet: gloo closes connections the moment that a wait times out."""
NOBODY = -1
_SOURCE_LINE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")
_NEVER_SENT = (1 << 31) - 1
"""A tag that no message has."""


@dataclass(frozen=True)
class Stuck:
    """A rank's report of what it was doing when it could not go on.

    It was at the `number`-th message to (`kind` "send") or from ("receive") `peer`, of a step. `timed_out` says whether its
    own deadline had passed, `call` which call it was in, `calls` the number of that call, and `posted` how many messages it
    had posted in it, by kind and peer ("send 3"). In a stock collective (kind "stock") the peer is NOBODY: the backend does
    not say with whom it was stuck.
    """

    kind: str
    peer: int
    number: int
    step: int
    timed_out: bool
    reason: str
    call: str = ""
    calls: int = 0
    posted: Mapping[str, int] = field(default_factory=dict)


def grace_s(timeout: timedelta) -> float:
    """Return the seconds of a call's deadline that are kept for finding the culprit."""
    return min(_GRACE_S, timeout.total_seconds() * _GRACE)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without the source location that gloo puts before it."""
    text = _SOURCE_LINE.sub("", str(error).strip())
    first = text.splitlines()[0] if text else type(error).__name__
    return first.split(". This is typically")[0]


@dataclass(slots=True)
class Call:
    """A call under way: what it is and its number among the calls over its group, alike on all ranks, and until when
    (time.monotonic) it may wait. `topology` has the names of links, for errors.
    """

    what: str
    number: int
    deadline: float
    topology: Topology | None = None

    def between(self, src: int, dst: int) -> str:
        """Return the route from one rank to another, in the topology's names."""
        topology = self.topology
        if topology is None or max(src, dst) >= len(topology.ranks):
            return f"the link from rank {src} to rank {dst}"
        route = Router(topology).route(src, dst) or (topology.ranks[src], topology.ranks[dst])
        return f"link {' -> '.join(route)}"


class Faults:
    """The deadlines of calls over one group, and the search for a culprit. `store` is shared by the group's ranks."""

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, store: Store) -> None:
        self.group, self.store = group, store
        self.rank, self.ranks = group.rank(), group.size()
        self.grace_s = grace_s(timeout)
        self.wait_s = timeout.total_seconds() - self.grace_s
        self.broken: ExecutionError | None = None
        self._numbers = itertools.count(1)
        self._groups = dist.distributed_c10d._world.pg_map  # one and the same for as long as the process lives

    def draw_number(self) -> int:
        """Return the number of a call that is being made: calls are made in one order on all ranks, and some of them are
        carried out later, side by side with others.
        """
        return next(self._numbers)

    def begin(self, what: str, topology: Topology | None = None, number: int | None = None) -> Call:
        """Begin a call, whose `number` was drawn or is the next one. Raises ExecutionError after an earlier failure."""
        number, deadline = self.admit(number)
        return Call(what, number, deadline, topology)

    def admit(self, number: int | None = None) -> tuple[int, float]:
        """Return the number and the deadline (time.monotonic) of a call that begins; raises as `begin`.

        Small calls make a Call of them only where they fail, which takes less time.
        """
        if self.broken is not None:
            raise ExecutionError(
                f"rank {self.rank}: an earlier call failed; destroy the process group and start anew ({self.broken})"
            )
        if self.group not in self._groups:
            raise ExecutionError(f"rank {self.rank}: the process group was destroyed; set one up, and make this anew")
        return number or next(self._numbers), time.monotonic() + self.wait_s

    @contextmanager
    def stock(self, what: str, number: int | None = None) -> Iterator[None]:
        """Guard stock collectives: when one of them fails, that is an ExecutionError on every rank."""
        call = self.begin(what, number=number)
        try:
            yield
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise self.stuck_in_stock(call, error) from error

    def stuck_in_stock(self, call: Call, error: Exception) -> ExecutionError:
        """Return the error to raise where the stock collective of a call failed; see `stuck`."""
        return self.stuck(call, "stock", NOBODY, 0, 0, error, {})

    def stuck(
        self, call: Call, kind: str, peer: int, number: int, step: int, error: Exception, posted: Mapping[str, int]
    ) -> ExecutionError:
        """Report that this rank cannot go on, hear the other ranks, and return the error that names the culprit."""
        timed_out = time.monotonic() >= call.deadline - 0.01
        report = Stuck(kind, peer, number, step, timed_out, first_line(error), call.what, call.number, posted)
        reports = self._exchange_reports(report)
        verdict = f"rank {self.rank}: {explain_blame(self.rank, reports, self.ranks, call.between)}"
        if kind == "stock":
            symptom = f"here the stock collective failed ({call.what}: {report.reason})"
        else:
            src, dst = (self.rank, peer) if kind == "send" else (peer, self.rank)
            doing = "sending to" if kind == "send" else "receiving from"
            why = f"no end within {self.wait_s:.3g} s" if timed_out else reports[self.rank].reason
            symptom = f"here step {step}, {doing} rank {peer} over {call.between(src, dst)}, failed ({why})"
        self.broken = ExecutionError(f"{verdict}; {symptom}")
        return self.broken

    def _exchange_reports(self, report: Stuck) -> dict[int, Stuck]:
        """Return the reports of all ranks, once they tell whose fault it is, or no more come in time."""
        reports = {self.rank: report}
        done = threading.Event()

        def exchange() -> None:
            try:
                self.store.set(f"stuck/{self.rank}", json.dumps(asdict(report)))
                self._hang_up()
                begun = time.monotonic()
                while True:
                    for rank in range(self.ranks):
                        if rank not in reports and self.store.check([f"stuck/{rank}"]):
                            reports[rank] = Stuck(**json.loads(self.store.get(f"stuck/{rank}")))
                    _, link, settled = find_culprit(self.rank, reports)
                    early = link is None and time.monotonic() < begun + _SETTLE_S
                    if (settled and not early) or done.wait(_POLL_S):
                        break
            except (RuntimeError, ValueError, TypeError) as error:
                reports[self.rank] = replace(report, reason=f"{report.reason}; no reports: {first_line(error)}")
            done.set()

        # In a thread of its own: the store may be on a machine that is gone, and gets no more than the time there is.
        threading.Thread(target=exchange, name="topoplan-faults", daemon=True).start()
        done.wait(0.9 * self.grace_s)
        done.set()
        self._hang_up()  # whatever became of the thread: nothing may arrive any more in memory that the caller lets go
        return dict(reports)

    def _hang_up(self) -> None:
        """Close this rank's connections, so that its peers learn of it at once.

        ProcessGroupGloo.abort leaves them open (torch 2.13), but gloo closes all of them when a wait times out.
        """
        if uses_nccl(self.group):
            return
        backend: Any = self.group._get_backend(torch.device("cpu"))
        nothing = torch.empty(1)
        for peer in range(self.ranks):
            if peer != self.rank:
                with suppress(RuntimeError):  # the timeout that is wanted, or a connection that is closed already
                    backend.recv([nothing], peer, _NEVER_SENT).wait(timedelta(milliseconds=1))


def find_culprit(rank: int, reports: Mapping[int, Stuck]) -> tuple[list[int], tuple[int, int] | None, bool]:
    """Follow the reports from `rank` on, each to the peer that it waits for.

    Returns the ranks on the way (the last is to blame, unless a link is), that link as source and destination, and whether
    further reports could not change the answer.
    """
    chain = [rank]
    while chain[-1] in reports:
        report = reports[chain[-1]]
        if report.kind == "stock":
            return chain, None, False
        peer_report = reports.get(report.peer)
        if peer_report is None:
            # A rank that gives up reports before it hangs up: one that hung up and said nothing is gone.
            return [*chain, report.peer], None, not report.timed_out
        link = (chain[-1], report.peer) if report.kind == "send" else (report.peer, chain[-1])
        other = "receive" if report.kind == "send" else "send"
        # Of two ranks in different calls, the one ahead has posted all of the earlier one.
        both = peer_report.calls > report.calls or (
            peer_report.calls == report.calls and peer_report.posted.get(f"{other} {chain[-1]}", 0) > report.number
        )
        if report.timed_out and (both or report.peer in chain):
            return chain, link, True
        if report.peer in chain:
            return chain, link, False
        chain.append(report.peer)
    return chain, None, False


def explain_blame(rank: int, reports: Mapping[int, Stuck], ranks: int, between: Callable[[int, int], str]) -> str:
    """Return in words whose fault it is that `rank` is stuck, given the reports of all ranks."""
    own = reports[rank]
    for other, report in sorted(reports.items()):
        if report.calls == own.calls and report.call != own.call:
            return f"rank {other} is in another call ({report.call}) than this one ({own.call})"
    chain, link, _ = find_culprit(rank, reports)
    if link is not None:
        return f"{between(*link)} carries nothing from rank {link[0]} to rank {link[1]}"
    if chain[-1] in reports:  # in a stock collective
        silent = [str(other) for other in range(ranks) if other not in reports]
        if not silent:
            return "all ranks are stuck: a link is cut or too slow"
        return f"rank {', '.join(silent)} does not answer (dead, stopped or cut off)"
    return f"rank {chain[-1]} does not answer (dead, stopped or cut off)"
