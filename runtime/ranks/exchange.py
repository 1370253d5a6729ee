"""The exchange of reports after a failure: report, listen, and stop once the culprit is known."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from dataclasses import asdict, replace

from torch._C._distributed_c10d import Store

from .addresses import Addresses
from .blame import Stuck, find_culprit, is_settled
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
    """One rank's part in the exchange among the ranks with the same `key`: it reports `own`.

    The exchange takes at most `seconds`.
    """

    def __init__(
        self, key: str, rank: int, ranks: int, addresses: Addresses, own: Stuck, seconds: float
    ) -> None:
        self._rank, self._ranks, self._own, self._edition = rank, ranks, own, 0
        self._key = key
        self._begun, self._seconds = time.monotonic(), seconds
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

    def wait_for_verdict(self) -> dict[int, Stuck]:
        """Return the ranks' reports, once they show the culprit or time is over."""
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
        waits_in_vain = chain[-1] not in reports
        if waits_in_vain:
            relay.dial(
                self._key, [chain[-1]]
            )  # in a large group it may not be among those dialed at first
        return waits_in_vain and not reports[chain[-2]].timed_out and elapsed > _UNHEARD_S

    def _hear(self) -> dict[int, Stuck]:
        """Return all reports; complete the own one with the fate of its connections, once known."""
        reach = relay.list_reach(self._key)
        ended = tuple(sorted(rank for rank, state in reach.items() if state == "ended"))
        unreached = tuple(sorted(rank for rank, state in reach.items() if state == "trying"))
        is_known = not unreached or time.monotonic() - self._begun > min(
            _REACH_S, self._seconds / 2
        )
        updated = replace(self._own, ended=ended, unreached=unreached if is_known else None)
        if updated != self._own:
            self._own, self._edition = updated, self._edition + 1
            self._report(updated)
        reports = {rank: read_report(report) for rank, report in relay.hear(self._key).items()}
        return {rank: report for rank, report in reports.items() if report is not None}

    def _report(self, own: Stuck) -> None:
        relay.add(self._key, self._rank, self._edition, asdict(own))

    def _follow_store(self, store: Store) -> None:
        try:
            store.set(f"stuck/{self._rank}", json.dumps(asdict(self._own)))
            missing = set(range(self._ranks)) - {self._rank}
            while time.monotonic() < self._begun + self._seconds:
                for rank in sorted(missing):
                    if store.check([f"stuck/{rank}"]):
                        relay.add(self._key, rank, 0, json.loads(store.get(f"stuck/{rank}")))
                        missing.discard(rank)
                time.sleep(POLL_S)
        except RuntimeError as error:
            log.info("rank %d: no reports through the store: %s", self._rank, error)


def read_report(report: Report) -> Stuck | None:
    """Parse another rank's report, None if it is from another version of topoplan."""
    try:
        return Stuck(**report)
    except TypeError as error:
        log.warning(
            "a rank's report of a failure cannot be read (%s); run one version on all", error
        )
        return None


def make_key(name: str, addresses: Addresses) -> str:
    """Return a relay key that is equal on the group's ranks, and new if the group is made again."""
    nonces = " ".join(
        address.nonce for _, address in sorted(addresses.items()) if address is not None
    )
    return f"{name} {hashlib.sha256(nonces.encode()).hexdigest()[:16]}"
