"""Decide from the ranks' reports which rank or link is at fault when a call cannot go on.

Pure functions; exchange.py gathers the reports. A report (Stuck) says where its rank was when it
could not go on, and names the peer that it waits for. A rank in a stock collective, which is the
backend's own, knows no peer. Following reports from peer to peer ends at a rank that reported
nothing, or at a message that both ends had posted, whose link is dead. If the backend does not say
which rank it waits for, the pairs of ranks that no longer reach each other show which link is cut.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ...ranks.faults import FindRoute, Route, Stuck, describe_route

# Ranks listed in one message; more would hide the rest of the line.
_MAX_NAMED = 8
# Ranks up to which the routes of all pairs are searched for a cut link: 4,032 take about 0.1 s.
_MAX_ROUTED = 64

# In a larger group each rank tries at least this many others (see reports.py).
_MIN_TRIED = 12


def find_culprit(
    rank: int, reports: Mapping[int, Stuck]
) -> tuple[list[int], tuple[int, int] | None, bool]:
    """Follow the reports from `rank` on, each to the peer that it waits for.

    `reports` are by rank; ranks without a report are missing. Return the ranks visited (the last is
    at fault, unless a link is), the link at fault as (source, destination) or None, and whether the
    answer is final, whatever reports may follow.
    """
    chain = [rank]
    while chain[-1] in reports:
        report = reports[chain[-1]]
        if report.kind == "stock":
            return chain, None, False
        peer_report = reports.get(report.peer)
        if peer_report is None:
            # A rank that gives up reports before it hangs up: one that hung up and reported nothing
            # is gone.
            return [*chain, report.peer], None, not report.timed_out
        link, other = (
            ((chain[-1], report.peer), "receive")
            if report.kind == "send"
            else ((report.peer, chain[-1]), "send")
        )
        # If two ranks are in different calls, the one ahead has posted all of the earlier call.
        both = peer_report.calls > report.calls or (
            peer_report.calls == report.calls
            and peer_report.posted.get(f"{other} {chain[-1]}", 0) > report.number
        )
        if report.peer in chain or (report.timed_out and both):
            return chain, link, report.timed_out
        chain.append(report.peer)
    return chain, None, False


def is_settled(rank: int, reports: Mapping[int, Stuck], ranks: Sequence[int]) -> bool:
    """Return whether `reports` (by rank) already show why `rank` is stuck.

    `ranks` are all ranks of the group.
    """
    complete = len(reports) == len(ranks)
    if complete and all(report.unreached is not None for report in reports.values()):
        return True
    if _find_other_calls(reports, reports[rank].calls):
        return complete
    chain, link, settled = find_culprit(rank, reports)
    if link is not None:
        return settled
    ended = list_ended(reports)
    return bool(ended) if chain[-1] in reports else chain[-1] in ended


def list_ended(reports: Mapping[int, Stuck]) -> list[int]:
    """Return the ranks that ended without a report of their own, according to others' reports."""
    return sorted({rank for report in reports.values() for rank in report.ended} - set(reports))


def explain_blame(
    rank: int, reports: Mapping[int, Stuck], ranks: Sequence[int], find_route: FindRoute
) -> str:
    """Return a sentence that names the rank or link for which `rank` waits, and the evidence.

    `reports` are by rank; `ranks` are all ranks of the group. `find_route` returns the devices
    between two ranks, to name links.
    """
    if len(reports) == len(ranks):
        sources = "all ranks reported"
    elif len(reports) == 1:
        sources = f"no report but that of rank {rank}"
    else:
        sources = f"reports of {name_ranks(sorted(reports))}"
    return f"{_find_verdict(rank, reports, ranks, find_route)} ({sources})"


def _find_verdict(  # noqa: PLR0911 (the first verdict that applies)
    rank: int, reports: Mapping[int, Stuck], ranks: Sequence[int], find_route: FindRoute
) -> str:
    calls = _find_other_calls(reports, reports[rank].calls)
    if calls:
        return _explain_other_calls(calls)
    cables = _find_cut_cables(reports)
    if cables:
        return _explain_cut_cables(cables)
    least = len(ranks) - 1 if len(ranks) <= _MAX_ROUTED else _MIN_TRIED
    if len(ranks) > 2 and len(reports) == 1 and len(reports[rank].unreached or ()) >= least:
        # It has heard of no other, and reached none of those it tried.
        return _explain_cut_off(rank, ranks, find_route)
    chain, link, _ = find_culprit(rank, reports)
    if link is None and reports[rank].kind == "stock":
        # Others may know which message is lost, such as those in the part of the call before.
        known = (find_culprit(other, reports)[1] for other in sorted(reports))
        link = next(filter(None, known), None)
    if link is not None:
        return (
            f"{describe_route(find_route, *link)} carries nothing from rank {link[0]} to rank "
            f"{link[1]}"
        )
    if chain[-1] not in reports:
        return explain_silence([chain[-1]], reports)
    # In a stock collective it is unknown which rank waits for which.
    ended, silent = list_ended(reports), [other for other in ranks if other not in reports]
    if ended:
        return explain_silence(ended, reports)
    cut = explain_cut(reports, ranks, find_route)
    if cut:
        return cut
    if not silent:
        return "all ranks are stuck: a link is cut or too slow, which one is not known"
    if len(silent) == len(ranks) - 1 > 1:
        return (
            "no other rank reports anything: who is to blame is not known, this rank may be cut "
            "off itself"
        )
    return explain_silence(silent, reports)


def _find_cut_cables(reports: Mapping[int, Stuck]) -> list[tuple[str, str]]:
    """Return the ports of cables that carry nothing although the hosts at both ends are alive.

    A host is alive if a rank of it reported, or another cable reaches it.
    """
    states = [state for report in reports.values() for state in report.cables]
    alive = {_host_of(own) for own, _, _ in states}
    alive |= {_host_of(other) for _, other, works in states if works}
    return sorted(
        {
            (min(own, other), max(own, other))
            for own, other, works in states
            if not works and _host_of(other) in alive
        }
    )


def _explain_cut_cables(cables: Sequence[tuple[str, str]]) -> str:
    named = [
        f"{describe_link((_host_of(a), _host_of(b)))} ({a} to {b})" for a, b in cables[:_MAX_NAMED]
    ]
    return f"{', '.join(named)} carr{'ies' if len(cables) == 1 else 'y'} nothing"


def _host_of(port: str) -> str:
    return port.rpartition(":")[0]


def _explain_cut_off(rank: int, ranks: Sequence[int], find_route: FindRoute) -> str:
    """Say that a rank is cut off, and at which link, if all its routes share one."""
    shared = set.intersection(
        *(_list_links(find_route(rank, other)) for other in ranks if other != rank)
    )
    where = (
        f" (all its routes have {' and '.join(map(describe_link, sorted(shared)))})"
        if shared
        else ""
    )
    return f"rank {rank} reaches no other rank: it is cut off{where}"


def _find_other_calls(reports: Mapping[int, Stuck], number: int) -> dict[str, list[int]]:
    """Group the ranks by the call they make under one number, the most common call last."""
    ranks_in: dict[str, list[int]] = defaultdict(list)
    for rank, report in sorted(reports.items()):
        if report.calls == number and not report.is_part:
            ranks_in[report.call].append(rank)
    if len(ranks_in) < 2:
        return {}
    return dict(sorted(ranks_in.items(), key=lambda item: (len(item[1]), -item[1][0])))


def _explain_other_calls(calls: Mapping[str, list[int]]) -> str:
    *few, (usual, most) = calls.items()
    odd = ", ".join(
        f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in another call ({call})"
        for call, ranks in few
    )
    return f"{odd} than {name_ranks(most)} ({usual})"


def explain_silence(silent: Sequence[int], reports: Mapping[int, Stuck]) -> str:
    """Return a sentence that says which ranks, `silent`, do not answer, and why if that is known.

    `reports` are those of the ranks that did report, by rank.
    """
    fails = [
        rank in report.unreached
        for report in reports.values()
        if report.unreached is not None
        for rank in silent
    ]
    if set(silent) <= set(list_ended(reports)):
        why = "process ended"
    elif fails and all(fails):
        why = "host down or cut off"
    elif not fails or any(fails):
        why = "dead, stopped or cut off"
    else:
        why = "stopped or busy: its host accepts connections"
    doubt = (
        ""
        if len(silent) == 1 or why == "process ended"
        else ", which of them is to blame is not known"
    )
    return f"{name_ranks(silent)} {'does' if len(silent) == 1 else 'do'} not answer ({why}){doubt}"


def explain_cut(reports: Mapping[int, Stuck], ranks: Sequence[int], find_route: FindRoute) -> str:
    """Return a sentence that names the cut link, from pairs of ranks that are disconnected.

    `reports` are by rank; `find_route` returns the devices between two ranks. Return "" if all
    pairs reach each other.
    """
    unreached = sorted(
        {
            (min(rank, other), max(rank, other))
            for rank, report in reports.items()
            for other in report.unreached or ()
            if other in reports
        }
    )
    if not unreached:
        return ""
    links = (
        _find_cut_links(set(unreached), reports, find_route) if len(ranks) <= _MAX_ROUTED else []
    )
    if len(links) == 1:
        return f"{describe_link(links[0])} carries nothing"
    a, b = unreached[0]
    more = f", nor {len(unreached) - 1} other pairs" if len(unreached) > 1 else ""
    return (
        f"rank {a} and rank {b} do not reach each other{more}: {describe_route(find_route, a, b)} "
        "is cut"
    )


def _find_cut_links(
    unreached: set[tuple[int, int]], reports: Mapping[int, Stuck], find_route: FindRoute
) -> list[tuple[str, ...]]:
    """Return links on the routes of all unreached pairs and of no pair that reach each other."""
    # Either direction's failure stops a connection, so a pair is both its routes.
    crossed = {
        (min(a, b), max(a, b)): _list_links(find_route(a, b)) | _list_links(find_route(b, a))
        for a, report in reports.items()
        for b in reports
        if a != b and report.unreached is not None
    }
    suspects = set.intersection(*(crossed[pair] for pair in unreached))
    return sorted(suspects.difference(*(crossed[pair] for pair in crossed.keys() - unreached)))


def _list_links(route: Route | None) -> set[tuple[str, ...]]:
    return {tuple(sorted(link)) for link in pairwise(route or ())}


def describe_link(link: Sequence[str]) -> str:
    """Return "link A - B" for two device ids, for a link that fails in an unknown direction."""
    return f"link {' - '.join(link)}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return text such as "rank 1" or "ranks 1, 2, 3", which ends with "and N more" if needed."""
    shown = [str(rank) for rank in ranks[:_MAX_NAMED]]
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown)}{more}"
