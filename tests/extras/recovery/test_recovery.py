"""Calls that go on after a lost link, by a plan without it, with the right results on all ranks."""

from __future__ import annotations

import gc
import json
import os
import signal
import weakref
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import patience
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_ranks
from rank_process import Events
from ranks import recovering
from reports import Reports
from thorough import count_examples

from topoplan.runtime.extras.recovery.partial_transport import PartialGloo, find_tree
from topoplan.runtime.ranks.launch import list_ready
from topoplan.synth.extras.spares.planning import add_spares, plan_without
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.plan import Plan
from topoplan.topo.derived.lost_links import PairRoutes
from topoplan.topo.presets import preset

Plans = Callable[..., str]
COLLECTIVES = ["allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall"]


def test_every_collective_goes_on_after_a_lost_connection(plans: Plans) -> None:
    """All ranks still reach each other, so they connect anew and keep the plan.

    Two of three have ended the call.
    """
    paths = {name: plans("full:3", name) for name in COLLECTIVES}
    for counts in run_ranks(recovering.all_collectives_go_on, 3, paths):
        assert counts == dict.fromkeys(COLLECTIVES, 1)


@pytest.mark.long
def test_errors_are_fed_back_once_after_a_lost_connection(plans: Plans) -> None:
    """What a rank rounds off in the call is lost if another rank's result replaces it."""
    for error in run_ranks(recovering.what_was_rounded_off_is_added_once, 3, plans("full:3")):
        assert error < 0.5  # of values to 8 in steps of a 127th of that; 5 if it came twice


@pytest.mark.long
def test_all_ranks_try_the_same_after_a_race_that_ended_on_some(plans: Plans) -> None:
    assert run_ranks(recovering.a_race_ends_on_some_ranks, 3, plans("full:3")) == [[1]] * 3


def test_calls_of_the_backend_go_on_after_a_lost_connection() -> None:
    """So do those of collectives that are first called afterwards, and those without a plan."""
    for histories in run_ranks(recovering.the_backend_goes_on, 3):
        assert [len(history) for history in histories] == [0, 1, 1]


@pytest.mark.long
def test_different_calls_of_the_backend_are_an_error() -> None:
    """All ranks name both calls, and a group that one of them destroys late ends well."""
    for error in run_ranks(recovering.a_mismatch_and_a_late_end, 3):
        assert f"{60_000}" in error
        assert f"{60_001}" in error


@pytest.mark.long
def test_a_benchmark_goes_on_and_lists_the_recovery(plans: Plans) -> None:
    results = run_ranks(recovering.a_benchmark_goes_on, 3, plans("full:3"))
    for rows, recoveries in results:
        assert rows == [[4096, 0], [16384, 0], [65536, 0]]
        (recovery,) = recoveries
        assert recovery == results[0][1][0]
        assert recovery["lost_links"] == []
        assert recovery["at"] > 0
        assert recovery["seconds"] > 0
        assert recovery["resent_bytes"] >= 0


def test_a_rank_that_ended_is_named(plans: Plans) -> None:
    first, _, last = run_ranks(recovering.a_rank_ends, 3, plans("full:3"))
    for error in (first, last):
        assert "rank 1" in error
        assert "ended" in error


def test_what_cannot_go_on_is_refused(plans: Plans) -> None:
    run_ranks(recovering.what_cannot_go_on_is_refused, 3, plans("ring:2"))


@pytest.mark.network("namespaces")
def test_a_cut_link_is_left_out_unless_the_rest_is_not_connected(
    plans: Plans, tmp_path: Path
) -> None:
    """One cut costs topo-run seconds. If another two cut off a rank for which the others wait in a
    recovery, all end by an error that names both links.
    """
    from emulated import EmulatedRank

    from topoplan.runtime.extras.emulate import emulate, parse_rate
    from topoplan.runtime.extras.emulate.ranks import write_topology

    plan = add_spares(Plan.load(plans("ring:4")), 1)
    plan.save(tmp_path / "plan.json")
    with (
        emulate(preset("ring:4"), parse_rate("100Mbit")) as network,
        Reports(tmp_path / "reports") as reports,
    ):
        write_topology(network, tmp_path)
        outputs = [tmp_path / f"{rank}.out" for rank in range(4)]
        arguments = [str(tmp_path / "plan.json"), str(tmp_path), str(reports.path)]
        ranks = [
            EmulatedRank(network, rank, tmp_path, "ranks.recovering", arguments, output)
            for rank, output in enumerate(outputs)
        ]
        try:
            patience.wait_until(
                lambda: len(list_ready(tmp_path)) == 4, "all ranks of topo-run", ranks
            )
            network.cut("gpu0", "gpu1")
            assert reports.read(4, "the end of topo-run", ranks) == ["topo-run"] * 4
            network.mend("gpu0", "gpu1")
            Events(tmp_path / "events").tell("mended")
            assert reports.read(4, "calls of all ranks", ranks) == ["three calls"] * 4
            os.kill(ranks[3].pid, signal.SIGSTOP)
            network.cut("gpu0", "gpu3")
            assert reports.read(3, "ranks that wait for rank 3", ranks) == ["reported"] * 3
            # No event says when the stopped rank's sockets hold all reports. Where they do not, it
            # learns of the others' end at its own call's deadline alone.
            patience.be_late(patience.seconds(5), "for their reports to lie in rank 3's sockets")
            network.cut("gpu2", "gpu3")
            os.kill(ranks[3].pid, signal.SIGCONT)
            codes = patience.wait_for_ends(ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    printed = [output.read_text() for output in outputs]
    assert codes == [3] * 4, printed
    for text in printed:
        assert "without link gpu0 - gpu3 and link gpu2 - gpu3" in text
        assert "cannot reach rank" in text
    (line,) = (line for line in printed[0].splitlines() if line.startswith("{"))
    result = json.loads(line)
    assert [row["wrong"] for row in result["rows"]] == [0]
    (recovery,) = result["recoveries"]
    assert recovery["lost_links"] == ["gpu0 - gpu1"]
    assert recovery["is_spare"]
    assert recovery["bound_GBps"] == pytest.approx(1.0)


@settings(max_examples=count_examples(30))
@given(st.integers(2, 9), st.data())
def test_the_tree_uses_no_lost_pair(ranks: int, data: st.DataObject) -> None:
    """Any pairs may be lost but those with one rank, through which all others are connected."""
    hub = data.draw(st.integers(0, ranks - 1))
    pairs = [(a, b) for b in range(ranks) for a in range(b) if hub not in (a, b)]
    lost = [pair for pair in pairs if data.draw(st.booleans())]
    tree = find_tree(range(ranks), lost)
    assert sorted(tree) == list(range(ranks))
    edges = [(rank, parent) for rank, parent in tree.items() if parent is not None]
    assert len(edges) == ranks - 1
    assert not {(min(edge), max(edge)) for edge in edges} & set(lost)


def test_connections_of_a_recovery_are_not_freed() -> None:
    """In a run whose second link was lost during a recovery, gloo's destructor never returned."""
    gloo = PartialGloo(0, 2, timedelta(seconds=5))
    backend = weakref.ref(gloo.backend)
    del gloo
    gc.collect()
    assert backend() is not None


@settings(max_examples=count_examples(30))
@given(st.integers(2, 7), st.data())
def test_ranks_that_no_pair_connects_are_cut_off(ranks: int, data: st.DataObject) -> None:
    """Those of the first rank's side are reached over any pair that is left within it."""
    sides = [0, *(data.draw(st.integers(0, 1)) for _ in range(ranks - 1))]
    pairs = [(a, b) for b in range(ranks) for a in range(b)]
    lost = [(a, b) for a, b in pairs if sides[a] != sides[b]]
    first = [rank for rank in range(ranks) if not sides[rank]]
    tree = {*pairwise(data.draw(st.permutations(first)))}
    lost += [x for x in pairs if {x, x[::-1]}.isdisjoint(tree) and data.draw(st.booleans())]
    assert sorted(find_tree(range(ranks), lost)) == first


@pytest.mark.parametrize(("name", "link"), [("dgx1", "gpu0 gpu3"), ("mesh:2x4", "gpu1 gpu2")])
def test_a_lost_link_is_found_and_planned_without(name: str, link: str) -> None:
    """All pairs whose packets crossed the link are lost with it, those that others forward too."""
    topology, (a, b) = preset(name), link.split()
    routes = PairRoutes(topology)
    lost = routes.find_unreached([(a, b)])
    ranks = range(len(topology.ranks))
    crossing = [
        (x, y)
        for y in ranks
        for x in range(y)
        if {(a, b), (b, a)} & {*pairwise(routes.find_route(x, y))}
        or {(a, b), (b, a)} & {*pairwise(routes.find_route(y, x))}
    ]
    assert lost == sorted(crossing)
    assert routes.find_lost_links(lost) == [(a, b)]
    collective = collective_on("allreduce", topology)
    less = plan_without(collective, topology, [(a, b)], frozenset(lost), 1, reproducible=False)
    less.verify()
    assert less.topology.capacity_GBps.keys() == topology.capacity_GBps.keys() - {(a, b), (b, a)}
    for schedule in less.schedules:
        pairs = {(min(x.src, x.dst), max(x.src, x.dst)) for x in schedule.transfers}
        assert pairs.isdisjoint(lost)
