"""Find which rank is missing when a group cannot be set up.

No rank has connections yet, so each looks for all others.
"""

import itertools
import os
from collections.abc import Mapping, Sequence

from ...ranks.addresses import Addresses
from ...ranks.faults import Stuck
from ...ranks.store import KEPT_STORE
from .blame import explain_cut, explain_silence, list_ended, name_ranks
from .exchange import ReportExchange

# Numbers failed set-ups, identically on the ranks that survive them: reports of one must not be
# taken for another's.
_failures = itertools.count(1)


def explain_set_up(
    rank: int,
    ranks: Sequence[int],
    own: Stuck,
    seconds: float,
    addresses: Addresses,
    *,
    is_store_gone: bool,
) -> str:
    """Exchange reports after a failed set-up; return a sentence that names the missing ranks.

    Each rank on which the set-up failed calls this. `ranks` are those of the group, `rank` is this
    one, `own` its report of where it was. `addresses` are the ranks' addresses, as far as this rank
    knows them. The exchange takes at most `seconds`. `is_store_gone` says whether the shared store
    does not answer. If no missing rank is found, the sentence says so.
    """
    key = f"{own.call} among {list(ranks)}, failure {next(_failures)}"
    exchange = ReportExchange(key, rank, ranks, addresses, own, seconds)
    reports = exchange.wait_for_verdict()
    return _find_verdict(rank, ranks, reports, addresses, is_store_gone=is_store_gone)


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
            f"{name_ranks(absent)} did not come (not started, ended before, or in another call)"
            f"{doubt}"
        )
    if len(silent) == 1 < len(reports):
        return explain_silence(silent, reports)
    if is_store_gone:
        host = ", which rank 0 hosts," if _is_hosted_by_rank_0() else ""
        return f"the store{host} does not answer: its host is stopped, or this rank is cut off"
    return (
        f"nothing is heard of {name_ranks(silent)}: who of them is to blame is not known"
        if silent
        else "all ranks run, and report a failure: which link or rank is to blame is not known"
    )


def _is_hosted_by_rank_0() -> bool:
    """Return whether rank 0's process, not torchrun's, hosts the default group's store."""
    return os.environ.get(KEPT_STORE) != "True"
