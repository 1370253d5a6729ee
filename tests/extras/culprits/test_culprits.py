"""When a call cannot go on: who is named, by whom, and what can be done next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import fault_table
import patience
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch import run_ranks
from ranks import faults

from topoplan.runtime.extras.culprits.blame import (
    explain_blame,
    find_culprit,
    is_settled,
    list_ended,
)
from topoplan.runtime.ranks.faults import Call, Stuck
from topoplan.topo.presets import preset

if TYPE_CHECKING:
    from emulated import EmulatedRank

    from topoplan.runtime.extras.emulate import Network

Plans = Callable[..., str]


def waits(
    peer: int, number: int = 0, *, timed_out: bool = True, calls: int = 1, **posted: int
) -> Stuck:
    """Waiting for a message from `peer`; posted: send_3=2 is two messages sent to rank 3."""
    counts = {key.replace("_", " "): n for key, n in posted.items()}
    return Stuck("receive", peer, number, 0, timed_out, "reason", "call", calls, counts)


def no_names(src: int, dst: int) -> None:
    """A route that no topology names."""


def test_a_rank_that_says_nothing_is_to_blame_from_wherever_one_looks() -> None:
    reports = {0: waits(1), 1: waits(2), 2: waits(3)}
    for rank in reports:
        assert find_culprit(rank, reports)[0][-1] == 3
        assert explain_blame(rank, reports, range(4), no_names) == (
            "rank 3 does not answer (dead, stopped or cut off) (reports of ranks 0, 1, 2)"
        )


def test_a_message_that_both_ends_posted_blames_the_link() -> None:
    """Rank 2 sent its message to rank 1 and waits for rank 0, which waits for rank 1: only 2 => 1
    is at fault.
    """
    reports = {
        0: waits(1, receive_1=1),
        1: waits(2, receive_2=1),
        2: waits(0, send_1=1, receive_0=1),
    }
    for rank in reports:
        assert find_culprit(rank, reports)[1:] == ((2, 1), True)
    assert explain_blame(0, reports, range(3), no_names) == (
        "the link from rank 2 to rank 1 carries nothing from rank 2 to rank 1 (all ranks reported)"
    )


def test_a_rank_in_a_later_call_has_posted_all_of_an_earlier_one() -> None:
    reports = {0: waits(1, calls=1), 1: waits(0, calls=2)}
    assert find_culprit(0, reports)[1] == (1, 0)
    assert find_culprit(1, reports)[1] == (1, 0)


def test_a_peer_that_hung_up_without_a_word_is_gone() -> None:
    chain, link, settled = find_culprit(0, {0: waits(1, timed_out=False)})
    assert (chain, link, settled) == ([0, 1], None, True)
    assert not find_culprit(0, {0: waits(1, timed_out=True)})[2]


def test_a_rank_in_another_part_of_the_call_is_not_to_blame() -> None:
    """Ranks 0 and 1 wait for each other; rank 2 has what it needs, and waits for the times."""
    times = Stuck("stock", -1, 0, 0, True, "reason", "the times of a trial", 1, is_part=True)
    reports = {0: waits(1, send_1=1), 1: waits(0, send_0=1), 2: times}
    for rank in range(3):
        said = explain_blame(rank, reports, range(3), no_names)
        assert "carries nothing" in said
        assert "another call" not in said


def on_cables(rank: int, *states: tuple[str, str, bool]) -> Stuck:
    return Stuck("stock", -1, 0, 0, True, f"reason {rank}", "8 elements", 1, cables=states)


def test_a_cable_that_carries_nothing_is_named_whoever_reports() -> None:
    """A stock collective does not say which rank waits for which; the cables are tried."""
    reports = {
        0: on_cables(0, ("h0:a", "h1:a", False), ("h0:b", "h2:b", True)),
        1: on_cables(1, ("h1:a", "h0:a", False), ("h1:b", "h2:a", True)),
    }
    for rank in reports:
        said = explain_blame(rank, reports, range(3), no_names)
        assert said.startswith("link h0 - h1 (h0:a to h1:a) carries nothing")


def test_a_host_that_no_cable_reaches_is_silent_and_no_cable_is_to_blame() -> None:
    reports = {
        0: on_cables(0, ("h0:a", "h1:a", True), ("h0:b", "h2:b", False)),
        1: on_cables(1, ("h1:a", "h0:a", True), ("h1:b", "h2:a", False)),
    }
    assert "rank 2 does not answer" in explain_blame(0, reports, range(3), no_names)


def test_ranks_in_different_calls_are_told_so() -> None:
    other = Stuck("receive", 0, 0, 0, True, "reason", "8 elements", 1)
    reports = {0: waits(1), 1: other, 2: waits(1)}
    for rank in reports:
        said = explain_blame(rank, reports, range(3), no_names)
        assert (
            said
            == "rank 1 is in another call (8 elements) than ranks 0, 2 (call) (all ranks reported)"
        )


def test_a_stock_collective_blames_who_is_silent() -> None:
    stuck = Stuck("stock", -1, 0, 0, True, "reason")
    assert "rank 2 does not answer" in explain_blame(0, {0: stuck, 1: stuck}, range(3), no_names)
    assert "all ranks are stuck" in explain_blame(0, {0: stuck, 1: stuck}, range(2), no_names)


def test_who_waits_for_a_rank_that_is_in_a_stock_collective_blames_who_is_silent() -> None:
    """Rank 1 has reported: not it, but rank 2, of which nothing is heard, is at fault."""
    waits = Stuck("receive", 1, 0, 0, timed_out=True, reason="reason", calls=1)
    stock = Stuck("stock", -1, 0, 0, timed_out=True, reason="reason", calls=1)
    blamed = explain_blame(0, {0: waits, 1: stock}, range(3), lambda a, b: None)
    assert blamed == "rank 2 does not answer (dead, stopped or cut off) (reports of ranks 0, 1)"


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), st.integers(1, 2)),
    )
)
def test_any_set_of_reports_ends_in_a_verdict(drawn: dict[int, tuple[int, int, bool, int]]) -> None:
    reports = {
        rank: waits(
            (rank + 1 + peer) % 6 if (rank + 1 + peer) % 6 != rank else (rank + 1) % 6,
            n,
            timed_out=late,
            calls=c,
        )
        for rank, (peer, n, late, c) in drawn.items()
    }
    for rank in reports:
        assert explain_blame(rank, reports, range(6), no_names)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's limits for a quiet machine, stretched."""
    monkeypatch.setattr(fault_table, "START_S", patience.seconds(fault_table.START_S))
    monkeypatch.setattr(fault_table, "SLACK_S", patience.seconds(4 * fault_table.SLACK_S))


@pytest.mark.network("namespaces")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "fault", [fault_table.Fault("kill", 2), fault_table.Fault("stop", 1)], ids=str
)
def test_survivors_name_the_culprit_in_time(plans: Plans, fault: fault_table.Fault) -> None:
    """On an emulated machine, in the middle of adding up; benchmarks/fault_table.py does this to
    every rank and link.
    """

    from emulated import EmulatedRank

    def start(
        network: Network, rank: int, folder: Path, arguments: list[str], output: Path
    ) -> EmulatedRank:
        return EmulatedRank(network, rank, folder, "fault_table", arguments, output)

    outcome = fault_table.run("mesh:2x2", plans("mesh:2x2"), fault, 0.3, patience.seconds(6), start)
    assert outcome.hung == 0, outcome
    assert outcome.wrong == 0, outcome
    assert outcome.named == outcome.survivors, outcome


def test_a_rank_that_ends_in_a_long_call_is_noticed_before_the_deadline(plans: Plans) -> None:
    for error in run_ranks(faults.dies_in_a_long_call, 3, plans("full:3"))[:2]:
        assert "rank 2 does not answer (process ended)" in str(error)
        assert "no end within" not in str(error)


def test_calls_that_do_not_match_are_told_apart_and_never_add_up(plans: Plans) -> None:
    errors = run_ranks(faults.different_lengths, 3, plans("full:3"))
    for error in errors:
        assert "rank 0 is in another call" in error
        assert "1000 elements" in error
        assert "2000 elements" in error


@pytest.mark.long
def test_different_reductions_never_mix(plans: Plans) -> None:
    for error in run_ranks(faults.different_reductions, 4, plans("mesh:2x2")):
        assert "(MAX) of 1000 elements" in error
        assert "(SUM) of 1000 elements" in error


@pytest.mark.long
def test_a_communicator_that_not_everybody_makes_is_an_error(plans: Plans) -> None:
    errors = run_ranks(faults.not_everybody_sets_up, 4, plans("mesh:2x2"))
    for error in errors[:3]:
        assert "rank 3 did not come" in str(error)
        assert "setting up a group for the plan failed" in str(error)


@pytest.mark.long
def test_a_rank_that_stops_in_a_set_up_is_named_within_the_timeout(plans: Plans) -> None:
    """gloo itself tries five times to connect, each time for as long."""
    for error in run_ranks(faults.stops_in_a_set_up, 3, plans("full:3"))[:2]:
        assert "rank 2 does not answer (stopped or busy" in str(error)


def test_a_store_that_does_not_answer_blames_no_rank() -> None:
    (error,) = run_ranks(faults.waits_for_a_store, 1)
    assert "rank 1: the store, which rank 0 hosts, does not answer" in error
    assert "setting up failed (it did not end within 0.075 s)" in error


def stock(ended: Sequence[int] = (), unreached: Sequence[int] | None = ()) -> Stuck:
    """Stuck in a stock collective, after trying to connect to all others."""
    return Stuck("stock", -1, 0, 0, True, "reason", ended=ended, unreached=unreached)


def route_in(name: str) -> Callable[[int, int], Sequence[str] | None]:
    return Call("", 0, 0.0, preset(name)).find_route


def test_the_pairs_that_do_not_reach_each_other_show_which_link_is_cut() -> None:
    """Ranks 0 and 2 of the ring reach each other by way of rank 1, or of rank 3."""
    route = route_in("ring:4")
    cut = {frozenset(("gpu0", "gpu1"))}

    def list_unreached(rank: int) -> list[int]:
        routes = {
            other: (route(rank, other), route(other, rank)) for other in range(4) if other != rank
        }
        return [
            other
            for other, both in routes.items()
            if any(frozenset(link) in cut for path in both for link in pairwise(path or ()))
        ]

    reports = {rank: stock(unreached=list_unreached(rank)) for rank in range(4)}
    assert 1 in (reports[0].unreached or ())
    for rank in reports:
        said = explain_blame(rank, reports, range(4), route)
        assert said == "link gpu0 - gpu1 carries nothing (all ranks reported)"


def test_a_pair_that_does_not_connect_is_named_where_no_topology_is_known() -> None:
    reports = {0: stock(unreached=[2]), 1: stock(), 2: stock(unreached=[0])}
    said = explain_blame(1, reports, range(3), no_names)
    assert said.startswith(
        "rank 0 and rank 2 do not reach each other: the link from rank 0 to rank 2 is cut"
    )


def test_a_refused_connection_blames_the_rank_whose_process_has_ended() -> None:
    """Rank 3 is silent too, but lives: it may not have noticed yet."""
    reports = {0: stock(ended=[2]), 1: stock()}
    assert is_settled(0, reports, range(4))
    for rank in reports:
        said = explain_blame(rank, reports, range(4), no_names)
        assert said == "rank 2 does not answer (process ended) (reports of ranks 0, 1)"


def test_nobody_is_blamed_where_it_cannot_be_known() -> None:
    alone = {0: stock(unreached=[1])}
    assert "who is to blame is not known" in explain_blame(0, alone, range(4), no_names)
    two_silent = {0: stock(), 1: stock()}
    assert "which of them is to blame is not known" in explain_blame(
        0, two_silent, range(4), no_names
    )


def test_a_rank_that_reaches_nobody_blames_nobody_else() -> None:
    alone = {2: replace(waits(3), unreached=[0, 1, 3])}
    said = explain_blame(2, alone, range(4), route_in("switch:4"))
    assert said.startswith(
        "rank 2 reaches no other rank: it is cut off (all its routes have link gpu2 - "
    )


def test_a_rank_that_was_heard_of_has_not_ended() -> None:
    """It has reported, and left, before another rank looked."""
    assert list_ended({0: stock(ended=[1]), 1: stock()}) == []


@pytest.mark.network("namespaces")
@pytest.mark.usefixtures("patient")
def test_a_cut_link_is_named_though_the_store_is_behind_it(plans: Plans) -> None:
    """Rank 0 hosts the store; rank 1 reaches it over the cut link alone."""

    from emulated import EmulatedRank

    def start(
        network: Network, rank: int, folder: Path, arguments: list[str], output: Path
    ) -> EmulatedRank:
        return EmulatedRank(network, rank, folder, "fault_table", arguments, output)

    cut = fault_table.Fault("cut", 0, 1)
    outcome = fault_table.run(
        "ring:4", plans("ring:4"), cut, 0.1, patience.seconds(3), start, "wires"
    )
    assert outcome.hung == outcome.wrong == 0, outcome
    assert outcome.named == outcome.survivors == 4, outcome
