"""Who is to blame when a call cannot go on: deadlines, reports between ranks, and an error that names the culprit.

A rank that fails sees only its own peers: one that stopped, or one that waits for another itself. So each rank that
fails says in the store (which the process group was set up with) for whom it was waiting, closes its connections so
that its peers need not wait for their own deadlines, and follows the reports: from peer to peer to the first that
says nothing, which is dead or stopped, or to two that wait for each other, which is a link that is cut.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..topo.errors import ExecutionError
from ..topo.graph import Topology
from ..topo.routes import Router

_GRACE = 0.25
"""Of a timeout, what is kept for finding the culprit; at most _GRACE_S."""
_GRACE_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Stuck:
    """What a rank was doing when it could not go on: which transfer of which step, with whom, and why it failed."""

    kind: str
    peer: int
    step: int
    reason: str

    @classmethod
    def in_stock(cls, error: Exception) -> Stuck:
        """A stock collective does not say with whom it was stuck."""
        return cls("stock", -1, 0, first_line(error))


def first_line(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class Faults:
    """Deadlines and blame of one communicator. `store` is shared by its ranks; None: only the rank's own view is told."""

    def __init__(
        self, group: dist.ProcessGroup, topology: Topology | None, timeout: timedelta, store: dist.Store | None
    ) -> None:
        self.group, self.topology, self.store = group, topology, store
        self.rank = dist.get_rank(group)
        total = timeout.total_seconds()
        self.grace_s = min(_GRACE_S, total * _GRACE)
        self.wait_s = total - self.grace_s
        self.calls = 0
        self.call = ""
        self.broken: ExecutionError | None = None

    def begin(self, call: str) -> float:
        """A call begins: until when (time.monotonic) it may wait. After a failure there is nothing to go on with."""
        if self.broken is not None:
            raise ExecutionError(
                f"rank {self.rank}: an earlier call failed ({self.broken}); destroy the process group and start anew"
            )
        self.calls += 1
        self.call = call
        return time.monotonic() + self.wait_s

    def failure(self, stuck: Stuck) -> ExecutionError:
        """The error for a rank that is stuck: reports it, waits for the others' reports, and names the culprit."""
        reports = self._reports(stuck)
        where = f"rank {self.rank}, step {stuck.step}: {_doing(stuck.kind)} rank {stuck.peer} over {self._link(stuck)}"
        mine = f"{where} failed: {stuck.reason}"
        self.broken = ExecutionError(f"{blame(self.rank, stuck, self.call, reports, self._between)}; {mine}")
        return self.broken

    def _reports(self, stuck: Stuck) -> dict[int, tuple[Stuck, str]]:
        """Everybody's reports, once they tell whose fault it is, or no more come."""
        reports = {self.rank: (stuck, self.call)}
        heard = threading.Event()

        def exchange() -> None:
            # The store may be on a machine that is gone: it gets no more than the time there is.
            try:
                assert self.store is not None
                self.store.set(f"stuck/{self.rank}", json.dumps([asdict(stuck), self.call]))
                self._hang_up()
                ends = time.monotonic() + self.grace_s
                while time.monotonic() < ends and not _is_settled(self.rank, reports):
                    for rank in range(self.group.size()):
                        if rank not in reports and self.store.check([f"stuck/{rank}"]):
                            said, call = json.loads(self.store.get(f"stuck/{rank}"))
                            reports[rank] = Stuck(**said), call
                    time.sleep(_POLL_S)
            except (RuntimeError, ValueError, TypeError):
                pass  # without the store a rank still has its own view to tell
            heard.set()

        if self.store is None:
            self._hang_up()
            return reports
        threading.Thread(target=exchange, name="topoplan-faults", daemon=True).start()
        heard.wait(self.grace_s)
        return dict(reports)

    def _hang_up(self) -> None:
        """Close this rank's connections, so that its peers learn of it at once."""
        if "nccl" not in dist.get_backend(self.group):
            self.group._get_backend(torch.device("cpu")).abort()

    def _link(self, stuck: Stuck) -> str:
        src, dst = (self.rank, stuck.peer) if stuck.kind == "send" else (stuck.peer, self.rank)
        return self._between(src, dst)

    def _between(self, src: int, dst: int) -> str:
        """The way from one rank to another, in the topology's names."""
        if self.topology is None or max(src, dst) >= len(self.topology.ranks):
            return f"the link from rank {src} to rank {dst}"
        route = Router(self.topology).route(src, dst) or (self.topology.ranks[src], self.topology.ranks[dst])
        return f"link {' -> '.join(route)}"


def _doing(kind: str) -> str:
    return "sending to" if kind == "send" else "receiving from"


def _is_settled(rank: int, reports: dict[int, tuple[Stuck, str]]) -> bool:
    """Whether the reports, followed from `rank` on, come round to where they have been."""
    seen = set()
    while rank in reports and rank not in seen:
        seen.add(rank)
        rank = reports[rank][0].peer
    return rank in seen


def blame(
    rank: int,
    stuck: Stuck,
    call: str,
    reports: dict[int, tuple[Stuck, str]],
    between: Callable[[int, int], str],
) -> str:
    """In words, whose fault it is that `rank` is stuck, given everybody's reports."""
    for other, (_, theirs) in sorted(reports.items()):
        if theirs != call:
            return f"rank {other} is in another call ({theirs}) than rank {rank} ({call})"
    chain = [rank]
    while chain[-1] in reports:
        following = reports[chain[-1]][0].peer
        if following in chain:
            last = chain[-1]
            return f"{between(following, last)} carries nothing: ranks {following} and {last} wait for each other"
        chain.append(following)
    return f"rank {chain[-1]} does not answer (dead, stopped or unreachable)"
