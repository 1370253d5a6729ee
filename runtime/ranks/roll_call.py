"""Find which rank is missing when a group cannot be set up.

No rank has its connections yet, so each looks for all others.
"""

import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...topo.errors import ExecutionError
from .addresses import Addresses, find_known_addresses, list_cached_addresses
from .blame import NOBODY, Stuck, explain_cut, explain_silence, list_ended, list_ranks
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
    addresses, is_store_gone = (known, False) if known is not None else _look_up_addresses(ranks)
    return explain_failure(
        dist.get_rank(), ranks, what, error, timeout, addresses, is_store_gone=is_store_gone
    )


def explain_failure(
    own: int,
    ranks: Sequence[int],
    what: str,
    error: Exception,
    timeout: timedelta,
    addresses: Addresses,
    *,
    is_store_gone: bool,
) -> ExecutionError:
    """Do what `explain_set_up` does, where there need not be a default group.

    `own` is this rank; `addresses` are those that are known here, by rank.
    """
    key = f"{what} among {list(ranks)}, failure {next(_failures)}"
    report = Stuck("stock", NOBODY, 0, 0, timed_out=False, reason=first_line(error), call=what)
    seconds = 0.9 * grace_s(timeout)
    exchange = ReportExchange(key, own, ranks, addresses, report, seconds)
    verdict = _find_verdict(
        own, ranks, exchange.wait_for_verdict(), addresses, is_store_gone=is_store_gone
    )
    return ExecutionError(f"rank {own}: {verdict}; here {what} failed ({first_line(error)})")


def _find_verdict(
    own: int,
    ranks: Sequence[int],
    reports: Mapping[int, Stuck],
    addresses: Addresses,
    *,
    is_store_gone: bool,
) -> str:
    ended, silent = list_ended(reports), [rank for rank in ranks if rank not in reports]
    if ended:
        return explain_silence(ended, reports)
    if len(ranks) > 2 and set(reports[own].unreached or ()) == set(ranks) - {own}:
        return f"rank {own} reaches no other rank: it is cut off"
    cut = explain_cut(reports, ranks, lambda *_: None)
    if cut:
        return cut
    absent = [rank for rank in silent if rank not in addresses]
    if absent and not is_store_gone:
        doubt = "; which of them is to blame is not known" if len(absent) > 1 else ""
        return (
            f"{list_ranks(absent)} did not come (not started, ended before, or in another call)"
            f"{doubt}"
        )
    if len(silent) == 1 < len(reports):
        return explain_silence(silent, reports)
    if is_store_gone:
        host = ", which rank 0 hosts," if _is_hosted_by_rank_0() else ""
        return f"the store{host} does not answer: its host is stopped, or this rank is cut off"
    return (
        f"nothing is heard of {list_ranks(silent)}: who of them is to blame is not known"
        if silent
        else "all ranks run, and report a failure: which link or rank is to blame is not known"
    )


def is_answering(store: Store) -> bool:
    """Return whether a store answers, which takes it milliseconds; it may be gone."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(store.check(["topoplan"]) is not None)

    asking = threading.Thread(target=ask, name="topoplan-store", daemon=True)
    asking.start()
    asking.join(_STORE_S)
    return bool(answers)


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
    return os.environ.get(KEPT_STORE) != "True"
