"""The entry of this extra: what the core calls when a call has failed (CulpritFinder)."""

import hashlib
from collections.abc import Callable

from ...ranks.faults import Call, Faults, Stuck
from .blame import explain_blame
from .exchange import ReportExchange
from .roll_call import explain_set_up

__all__ = ["begin_search", "explain_set_up"]


def begin_search(faults: Faults, call: Call, own: Stuck) -> Callable[[], str]:
    """Report `own`, where this rank is stuck in `call`; return a function that names the culprit.

    Threads then pass reports on between the ranks and through the store, and test the cables
    between hosts, if there are any. The function waits for the other ranks' reports, at most
    `faults.grace_s` seconds. In between the caller closes this rank's connections, so that its
    peers fail too and report.
    """
    # Equal on the group's ranks, and new if the group is made again.
    nonces = " ".join(x.nonce for _, x in sorted(faults.addresses.items()) if x is not None)
    key = f"{faults.group.group_name} {hashlib.sha256(nonces.encode()).hexdigest()[:16]}"
    exchange = ReportExchange(
        key, faults.rank, faults.ranks, faults.addresses, own, 0.9 * faults.grace_s
    )
    exchange.use_store(faults.store)
    exchange.try_cables()

    def find_verdict() -> str:
        reports = exchange.wait_for_verdict()
        return explain_blame(faults.rank, reports, faults.ranks, call.find_route)

    return find_verdict
