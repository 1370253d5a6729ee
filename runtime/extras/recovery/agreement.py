"""Agree with all ranks on which links are lost and how to go on, by every route that still works.

Reports travel from rank to rank, so that they also reach ranks that have no route to rank 0, which
decides, or to the store. The relay is the thread of each process that connects to the other ranks
and passes on all reports that it has or gets (culprits/reports.py); it ends some seconds after the
last one is wanted.

Each recovery has a number. A rank for which one fails begins the next, and the others follow it
there. In a recovery each rank reports its status, its part; then rank 0 adds its decision.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ....topo.derived.lost_links import Pair
from ....topo.errors import ExecutionError
from ...ranks.addresses import Addresses
from ..culprits.blame import name_ranks
from ..culprits.reports import POLL_S, relay

# A rank that has not answered within this time is taken to be out of reach: a lost SYN is sent
# again after 1 s.
_REACH_S = 1.2
# A rank that has not answered within this time probably is out of reach: rank 0 begins to plan.
_SUSPECTED_S = 0.3
# No later report of a rank counts.
_LAST_EDITION = 1 << 20
# Time for the reports of ranks that may have noticed the fault later.
_SPLIT_S = 3.0
# Time for a report to go out before this process may end.
_FLUSH_S = 0.3


class SupersededError(Exception):
    """Other ranks have begun a later recovery; the argument is its number."""


class RankLostError(ExecutionError):
    """The processes of some ranks have ended, or refuse to recover."""


@dataclass(frozen=True)
class RankStatus:
    """What a rank tells the others in a recovery.

    `ended` is the number of the last call that the rank has completed. For the calls to come the
    rank listens anew: `address` has what gloo on other ranks needs to connect to it, by gloo's own
    keys, `ports` the TCP ports at which it listens. `unreached` are the ranks that it cannot reach.
    """

    ended: int
    address: Mapping[str, str]
    ports: Sequence[int]
    unreached: Sequence[int]


class SplitError(ExecutionError):
    """Some ranks, `missing`, cannot reach the others any more; `parts` are those that reported.

    `parts` has their statuses by rank.
    """

    def __init__(self, missing: Sequence[int], parts: Mapping[int, RankStatus]) -> None:
        super().__init__(
            f"{name_ranks(sorted(parts))} cannot reach {name_ranks(missing)} any more, directly or "
            "through others"
        )
        self.parts = parts


@dataclass(frozen=True)
class Decision:
    """Rank 0's decision in a recovery.

    `unreached` are the pairs of ranks (lower first) that are no longer connected; `links` the lost
    links as pairs of device ids. `refusal` says why recovery is impossible, "" if it is possible.
    """

    unreached: Sequence[tuple[int, int]] = ()
    links: Sequence[tuple[str, str]] = ()
    refusal: str = ""


def list_pairs(unreached: Mapping[int, Sequence[int]]) -> list[Pair]:
    """Return the pairs of ranks, the lower first, of which one does not reach the other.

    `unreached` are the ranks that each rank does not reach.
    """
    return sorted(
        {(min(rank, x), max(rank, x)) for rank, others in unreached.items() for x in others}
    )


@dataclass
class Recovery:
    """One rank's part in recovery number `number` of the group that `name` identifies.

    `rank` is this rank, by its number in plans, as everywhere here. `addresses` are those at which
    the ranks receive reports, by rank. Making it has the relay begin to connect to all of them.
    Waiting for other ranks' statuses and for the decision ends at `deadline` (time.monotonic).
    """

    name: str
    number: int
    rank: int
    addresses: Addresses
    deadline: float
    _edition: int = field(default=0)
    _unreached: Sequence[int] = field(default=())
    _out_of_reach_since: float | None = field(default=None)

    def __post_init__(self) -> None:
        self._key = self._key_of(self.number)
        relay.join(self._key, self.rank, self.addresses, _REACH_S)
        relay.dial(self._key, [rank for rank in self.addresses if rank != self.rank])

    @property
    def _decider(self) -> int:
        return min(self.addresses)  # the group's rank 0, by its number in plans

    def _key_of(self, number: int) -> str:
        return f"{self.name} recovery {number}"

    def refuse(self, why: str) -> None:
        """Tell the others that this rank will not recover, and `why`, so that they do not wait.

        No later report of this rank counts. Waits at most 0.3 s for the relay to pass it on.
        """
        relay.add(self._key, self.rank, _LAST_EDITION, {"refusal": why})
        ends = time.monotonic() + _FLUSH_S
        while time.monotonic() < ends and (
            "trying" in relay.list_reach(self._key).values() or relay.is_behind(self._key)
        ):
            time.sleep(POLL_S)

    def find_unreached(self) -> list[int]:
        """Try for at most 1.2 s to connect to all ranks; return those without a connection.

        If that takes longer than 0.3 s, first report those so far, for `wait_for_suspects`. Raise
        RankLostError if the process of a rank has ended.
        """
        began = time.monotonic()
        while True:
            reach = self._check_reach(())
            unreached = sorted(rank for rank, state in reach.items() if state != "reached")
            elapsed = time.monotonic() - began
            if "trying" not in reach.values() or elapsed > _REACH_S:
                self._unreached = unreached
                return unreached
            if elapsed > _SUSPECTED_S and not self._edition:
                self._add({"suspects": unreached})
            time.sleep(POLL_S)

    def wait_for_suspects(self) -> list[Pair]:
        """Return the pairs of ranks that, by the first reports, do not reach each other.

        They allow to begin to plan before the decision. Return an empty list if some rank's report
        does not come within 1.2 s.
        """
        ends = time.monotonic() + _REACH_S
        while time.monotonic() < ends:
            heard = relay.hear(self._key)
            suspects = {
                rank: report["part"]["unreached"] if "part" in report else report["suspects"]
                for rank, report in heard.items()
                if "part" in report or "suspects" in report
            }
            if len(suspects) == len(self.addresses):
                return list_pairs(suspects)
            time.sleep(POLL_S)
        return []

    def report(self, part: RankStatus) -> None:
        """Send `part`, this rank's status, to all others."""
        self._add({"part": asdict(part)})
        self._part = part

    def decide(self, decision: Decision) -> None:
        """Send rank 0's decision to all others; rank 0 calls this after `report`."""
        self._add({"part": asdict(self._part), "decision": asdict(decision)})

    def _add(self, report: Mapping[str, Any]) -> None:
        relay.add(self._key, self.rank, self._edition, report)
        self._edition += 1

    def wait_for_parts(self) -> list[RankStatus]:
        """Wait for the statuses of all ranks, and return them by rank.

        Raise SupersededError if a later recovery has begun, RankLostError if a rank has ended,
        SplitError if some are cut off, or ExecutionError at the deadline.
        """
        began = time.monotonic()
        while True:
            heard = relay.hear(self._key)
            parts = {rank: RankStatus(**x["part"]) for rank, x in heard.items() if "part" in x}
            missing = set(self.addresses) - set(parts)
            if not missing:
                return [parts[rank] for rank in sorted(parts)]
            is_split = all(missing <= set(part.unreached) for part in parts.values())
            if is_split and time.monotonic() - began > _SPLIT_S:
                raise SplitError(sorted(missing), parts)
            self._pause(sorted(missing))

    def wait_for_decision(self) -> Decision:
        """Wait for rank 0's decision and return it.

        Raise SupersededError if a later recovery has begun, RankLostError if a rank has ended, or
        ExecutionError at the deadline.
        """
        while True:
            decision = relay.hear(self._key).get(self._decider, {}).get("decision")
            if decision is not None:
                return Decision(
                    [(int(a), int(b)) for a, b in decision["unreached"]],
                    [(str(a), str(b)) for a, b in decision["links"]],
                    str(decision["refusal"]),
                )
            self._pause([self._decider])

    def check_current(self) -> None:
        """Raise SupersededError if other ranks have begun the next recovery.

        Otherwise have the relay go on for at least 1.2 s more, so that this rank still hears of it,
        and passes reports on.
        """
        if relay.hear(self._key_of(self.number + 1)):
            raise SupersededError(self.number + 1)
        relay.extend_relaying(_REACH_S)

    def _pause(self, missing: Sequence[int]) -> None:
        for rank, report in relay.hear(self._key).items():
            if "refusal" in report:
                raise RankLostError(f"rank {rank} does not go on: {report['refusal']}")
        self.check_current()
        self._check_routes(self._check_reach(missing), missing)
        if time.monotonic() > self.deadline:
            raise ExecutionError(
                f"{name_ranks(missing)} did not take part in the recovery until the call's deadline"
            )
        time.sleep(POLL_S)

    def _check_reach(self, missing: Sequence[int]) -> Mapping[int, str]:
        """Return the fate of the connection to each rank.

        Raise RankLostError if processes have ended, and ExecutionError if a rank that is `missing`
        was in reach before, and is not any more: its report may never come.
        """
        reach = relay.list_reach(self._key)
        lost = [x for x in missing if reach.get(x) == "failed" and x not in self._unreached]
        if lost:
            raise ExecutionError(f"{name_ranks(lost)} went out of reach meanwhile")
        ended = sorted(rank for rank, state in reach.items() if state == "ended")
        if ended:
            verb = "has" if len(ended) == 1 else "have"
            raise RankLostError(f"{name_ranks(ended)} {verb} ended")
        return reach

    def _check_routes(self, reach: Mapping[int, str], missing: Sequence[int]) -> None:
        """Raise ExecutionError if a rank has been out of reach for some time that was not before.

        The report of a rank that is `missing` may have been to come through it, and never come.
        """
        lost = sorted(
            x for x, state in reach.items() if state == "failed" and x not in self._unreached
        )
        if not lost:
            self._out_of_reach_since = None
            return
        now = time.monotonic()
        self._out_of_reach_since = self._out_of_reach_since or now
        if now - self._out_of_reach_since > _SPLIT_S:
            raise ExecutionError(
                f"{name_ranks(lost)} went out of reach meanwhile, and nothing is heard of "
                f"{name_ranks(missing)}"
            )
