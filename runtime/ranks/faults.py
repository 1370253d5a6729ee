"""End calls that cannot go on: numbers of calls, deadlines, and one error for all that fail.

A rank that fails closes its connections, so that its peers need not wait for their own deadlines.
It sees only its own peers: one that stopped, or one that waits for another itself. Who is to blame
is found by an extra (group `culprits` of extras.py), without which the error says what failed here.
"""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...extras import CULPRITS, Names
from ...topo.derived.lost_links import PairRoutes
from ...topo.errors import ExecutionError, InputError, TopoplanError
from ...topo.graph import Topology
from .addresses import Addresses
from .waits import NEVER_SENT

# The peer of a rank that is stuck in a stock collective.
NOBODY = -1
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

Route = Sequence[str]
# Return the devices from one rank to another, both included; None without a topology.
FindRoute = Callable[[int, int], Route | None]


@dataclass(frozen=True)
class Stuck:
    """A rank's report of where it was when it could not go on. Ranks are numbers in the group.

    `kind` is "send", "receive" or "stock": it was at the call's `number`-th message to or from
    `peer`, or in a stock collective (the backend's own), whose peer is NOBODY, since the backend
    does not report which one it waits for. `step` is the schedule's.

    `timed_out` says whether its own deadline had passed, `reason` is the error's first line. `call`
    describes its call, `calls` is the call's number in the group (`is_part`: of which this is only
    a part), and `posted` counts the messages it had begun in the call, by kind and peer ("send 3").

    `ended` are ranks whose processes have ended without a report, `unreached` those that this rank
    tried for some time to connect to (None: not known yet). `cables` are those of its host: the
    port here, the one at the other end ("host:port"), and whether the cable carries anything.
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
    ended: Sequence[int] = ()
    unreached: Sequence[int] | None = None
    is_part: bool = False
    cables: Sequence[tuple[str, str, bool]] = ()


def grace_s(timeout: timedelta) -> float:
    """Return the seconds at the end of a call's time limit kept for finding who is to blame.

    Raise InputError if `timeout` is no timedelta above 0.
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
    """Return whether `error` means that a backend refused a collective before it sent anything.

    It then does so on all ranks alike. Lost connections and what only one rank may lack (memory, a
    GPU, the store) are no refusals.
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
        """Return the ids of the devices on the route between two ranks, theirs included.

        Ranks are the topology's. None if there is no topology or it lacks one of the ranks.
        """
        topology = self.topology
        if topology is None or max(src, dst) >= len(topology.ranks):
            return None
        self._routes = self._routes or PairRoutes(topology)
        return self._routes.find_route(src, dst)


class CulpritFinder(Protocol):
    """What an extra adds to find who is to blame when a call or a set-up cannot go on."""

    def begin_search(self, faults: "Faults", call: Call, own: Stuck) -> Callable[[], str]:
        """Report where this rank is stuck in `call` (`own`); return a function to find the culprit.

        It returns a text on who is to blame, after the reports of others or at most
        `faults.grace_s` seconds. This rank closes its connections in between, so that peers which
        notice find its report.
        """

    def explain_set_up(
        self,
        rank: int,
        ranks: Sequence[int],
        own: Stuck,
        seconds: float,
        addresses: Addresses,
        *,
        is_store_gone: bool,
    ) -> str:
        """Return a text on who is to blame that a set-up among `ranks` failed on `rank`.

        `own` says where this rank was stuck; the search takes at most `seconds`. `addresses` are
        those that are known here, by rank; `is_store_gone` says whether the store that the ranks
        share does not answer.
        """


def find_finder() -> CulpritFinder | None:
    """Return the installed finder of ranks to blame, None without one."""
    added = Names(CULPRITS)
    return next((added.find(name) for name in added.describe()), None)


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
        """Says, after a call has failed, which ranks are known to make other calls than others."""
        self.set_timeout(timeout)
        self.topology: Topology | None = None
        """Has the names of links, for calls that have no topology of their own."""
        self.broken: ExecutionError | None = None
        self.on_hang_up: list[Callable[[], object]] = []
        """Called when this rank hangs up, so that ranks that wait for it by other means notice."""
        self._blaming = threading.Lock()
        self._finder = find_finder()
        self._numbers = itertools.count(1)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of later calls, from the beginning to the end or the error.

        Its last `grace_s` seconds are for finding the rank at fault, the first `wait_s` for the
        call.
        """
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
        """Return the number and deadline (time.monotonic) of a new call.

        `number` is from `draw_number` (None: the next one). Small calls make a Call of these only
        if they fail, which saves time. Raise ExecutionError if an earlier call failed, or the group
        is closed.
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
        """Guard stock collectives (the backend's own) in the `with` block, as the call `what`.

        A RuntimeError in the block becomes an ExecutionError that names the rank at fault. `number`
        is the call's, as from `draw_number` (None: the next one); `is_part` says that the block is
        only a part of that call. `may_refuse` says that the block is a single collective: if the
        backend refuses it, that error is raised unchanged, and the group works on.
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
        """Return the error to raise after a call's stock collective failed with `error`.

        It names the rank at fault, if that is found.
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
        """Say that this rank cannot go on, and return the error to raise, which names the culprit.

        This rank failed with `error` at the `number`-th message of `kind` "send" or "receive" with
        `peer` (one of `ranks`), in the schedule's `step`; `posted` counts the call's messages
        so far, by kind and peer ("send 3"). Closes this rank's connections, and searches for
        the culprit for at most `grace_s`. If several concurrent calls fail, the first is reported,
        and its error is that of all.
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
                finder = self._finder
                find_verdict = None if finder is None else finder.begin_search(self, call, report)
                self.hang_up()
                verdict = "" if find_verdict is None else f"{find_verdict()}; here "
                self.broken = ExecutionError(
                    f"rank {self.rank}: {verdict}{self._describe_symptom(call, report)}"
                )
            return self.broken

    def _describe_symptom(self, call: Call, report: Stuck) -> str:
        if report.kind == "stock":
            return f"the stock collective failed ({call.what}: {report.reason})"
        src, dst = (self.rank, report.peer) if report.kind == "send" else (report.peer, self.rank)
        doing = "sending to" if report.kind == "send" else "receiving from"
        why = f"no end within {self.wait_s:.3g} s" if report.timed_out else report.reason
        return (
            f"step {report.step}, {doing} rank {report.peer} over "
            f"{describe_route(call.find_route, src, dst)}, failed ({why})"
        )

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls, current and future, fail with `error`, and close the connections."""
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


def describe_route(find_route: FindRoute, src: int, dst: int) -> str:
    """Return "link A -> ... -> B" for the route between two ranks, with the topology's device ids.

    If `find_route` returns None, the text names the ranks instead.
    """
    route = find_route(src, dst)
    return (
        f"the link from rank {src} to rank {dst}" if route is None else f"link {' -> '.join(route)}"
    )
