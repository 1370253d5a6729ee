"""Find which rank is missing when a group cannot be set up.

No rank has its connections yet, so each looks for all others.
"""

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from ...topo.errors import ExecutionError
from .addresses import Addresses, find_known_addresses, list_cached_addresses
from .blame import NOBODY, Stuck, explain_silence, list_ended, list_ranks
from .faults import ReportExchange, first_line, grace_s
from .store import KEPT_STORE

log = logging.getLogger("topoplan")

# Patience with a store that may be gone; one that is there answers within milliseconds.
_STORE_S = 1.0
# Numbers failed set-ups, identically on the ranks that survive them: reports of one must not be
# taken for another's.
_failures = itertools.count(1)


def explain_set_up(
    ranks: Sequence[int],
    what: str,
    error: Exception,
    timeout: timedelta,
    known: Addresses | None = None,
) -> ExecutionError:
    """Return the error to raise after a failed set-up, which names the rank at fault if it can.

    `what` describes the set-up ("finding a plan for allreduce") among the global `ranks`, and
    `error` is how it failed here. Each rank on which it failed calls this: they exchange reports
    for up to a quarter of `timeout`, at most 5 s. The error names ranks that ended or never came;
    if none are found, it says that the culprit is not known. `known` are the addresses that the
    ranks have published (None: look them up in the default group's store).
    """
    own, symptom = dist.get_rank(), f"here {what} failed ({first_line(error)})"
    addresses, is_store_gone = (known, False) if known is not None else _look_up_addresses(ranks)
    if is_store_gone and own != 0 and _is_hosted_by_rank_0():
        verdict = "rank 0 does not answer: the store, which it hosts, has gone"
    else:
        verdict = _call_roll(
            ranks, what, addresses, is_store_gone, first_line(error), 0.9 * grace_s(timeout)
        )
    return ExecutionError(f"rank {own}: {verdict}; {symptom}")


def _call_roll(
    ranks: Sequence[int],
    what: str,
    addresses: Addresses,
    is_store_gone: bool,
    reason: str,
    seconds: float,
) -> str:
    report = Stuck("stock", NOBODY, 0, 0, timed_out=False, reason=reason, call=what)
    reports = ReportExchange(
        f"{what} among {ranks}, failure {next(_failures)}",
        dist.get_rank(),
        ranks,
        addresses,
        report,
        seconds,
    ).wait_for_verdict()
    ended, silent = list_ended(reports), [rank for rank in ranks if rank not in reports]
    if ended:
        return explain_silence(ended, reports)
    absent = [rank for rank in silent if rank not in addresses]
    if absent and not is_store_gone:
        return f"{list_ranks(absent)} did not come (not started, ended before, or in another call)"
    if not silent:
        return "all ranks run, and report a failure: which link or rank is to blame is not known"
    if len(silent) == 1 < len(reports):
        return explain_silence(silent, reports)
    return f"nothing is heard of {list_ranks(silent)}: who of them is to blame is not known"


def _look_up_addresses(ranks: Sequence[int]) -> tuple[Addresses, bool]:
    """Return the known addresses, and whether the store is gone."""
    answers: list[Addresses] = []

    def look_up() -> None:
        try:
            answers.append(find_known_addresses(ranks))
        except RuntimeError as error:
            log.info("rank %d: the store: %s", dist.get_rank(), error)

    looking = threading.Thread(target=look_up, name="topoplan-roll-call", daemon=True)
    looking.start()
    looking.join(_STORE_S)
    return (answers[0], False) if answers else (list_cached_addresses(ranks), True)


def _is_hosted_by_rank_0() -> bool:
    """Return whether rank 0's process, not torchrun's, hosts the default group's store."""
    store = dist.distributed_c10d._get_default_store()
    original = getattr(store, "_underlying_non_prefix_store", store)
    return isinstance(original, TCPStore) and os.environ.get(KEPT_STORE) != "True"
