"""Exchange reports of a failure among the ranks, until they show who is to blame.

Each failing rank reports which message it was waiting for and how many it had posted per peer, and
judges by the reports of all (blame.py). Reports travel from rank to rank by every route that still
works, by the relay, this process's thread that passes them on (reports.py), and through the store,
which may be behind the cut link itself.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from torch._C._distributed_c10d import Store

from ...ranks.addresses import Addresses
from ...ranks.cabled import LaunchCabling, find_cabling
from ...ranks.faults import Stuck
from .blame import find_culprit, is_settled
from .reports import POLL_S, Report, relay

log = logging.getLogger("topoplan")

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


class ReportExchange:
    """One rank's part in exchanging reports of a failure; making it posts this rank's report `own`.

    `key` names the failure, by the same text on all ranks of the group. `ranks` are the ranks of
    the group and `rank` is this one, as numbered in the launch. `addresses` are those at which the
    ranks receive reports. The exchange takes at most `seconds`.
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
        """Test the cables between this host and others, if there are any; report dead ones.

        Relays accept connections even to ranks that they do not reach, so the reports' own
        connections cannot show it.
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
        """Wait until the reports show what is at fault, or time is over; return them by rank.

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
