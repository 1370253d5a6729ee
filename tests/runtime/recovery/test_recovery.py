"""Calls that go on after a lost link, by a plan without it, with the right results on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import patience
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch import EmulatedRank, run_ranks
from ranks import recovering

from topoplan.runtime.emulate import Network, emulate, parse_rate, why_not
from topoplan.runtime.emulate.ranks import write_topology
from topoplan.runtime.ranks.faults import Call
from topoplan.runtime.recovery.partial_transport import find_tree
from topoplan.runtime.recovery.replan import find_lost_links, plan_without
from topoplan.synth.planner.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

Plans = Callable[..., str]
REASON = why_not()
COLLECTIVES = ["allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall"]


def test_every_collective_goes_on_after_a_lost_connection(plans: Plans) -> None:
    """All ranks still reach each other, so they connect anew and keep the plan."""
    paths = {name: plans("full:3", name) for name in COLLECTIVES}
    for counts in run_ranks(recovering.all_collectives_go_on, 3, paths):
        assert counts == dict.fromkeys(COLLECTIVES, 1)


def test_calls_of_the_backend_go_on_after_a_lost_connection() -> None:
    """So do those of collectives that are first called afterwards, and those without a plan."""
    for histories in run_ranks(recovering.the_backend_goes_on, 3):
        assert [len(history) for history in histories] == [0, 1, 1, 1]


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


@pytest.mark.skipif(REASON is not None, reason=f"nothing can be emulated here: {REASON}")
def test_a_cut_link_is_left_out_until_the_rest_is_not_connected(
    plans: Plans, tmp_path: Path
) -> None:
    """The first cut costs seconds, the second ends the job by an error that names both links."""
    with emulate(preset("ring:4"), parse_rate("100Mbit")) as network:
        write_topology(network, tmp_path)
        outputs = [tmp_path / f"{rank}.out" for rank in range(4)]
        arguments = [plans("ring:4"), str(tmp_path)]
        ranks = [
            EmulatedRank(network, rank, tmp_path, "ranks.recovering", arguments, output)
            for rank, output in enumerate(outputs)
        ]
        try:
            cut_when(network, "gpu0", "gpu1", tmp_path, calls=3, recoveries=0)
            cut_when(network, "gpu2", "gpu3", tmp_path, calls=6, recoveries=1)
            codes = [rank.wait(patience.seconds(40)) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    printed = [output.read_text() for output in outputs]
    assert codes == [3] * 4, printed
    for text in printed:
        assert "'lost_links': ['gpu0 - gpu1']" in text
        assert "without link gpu0 - gpu1 and link gpu2 - gpu3" in text
        assert "cannot reach rank" in text


def cut_when(
    network: Network, a: str, b: str, folder: Path, *, calls: int, recoveries: int
) -> None:
    """Cut a link once all ranks have made so many calls, and gone on after so many faults."""
    ends = time.monotonic() + patience.seconds(60)
    while True:
        texts = [path.read_text().split() for path in folder.glob("[0-9]")]
        done = [(int(x[0]), int(x[1])) for x in texts if len(x) == 2]
        if len(done) == 4 and all(x >= calls and y >= recoveries for x, y in done):
            break
        assert time.monotonic() < ends, [x.read_text() for x in folder.glob("*.out")]
        time.sleep(0.05)
    network.cut(a, b)


@given(st.integers(2, 9), st.data())
def test_the_tree_uses_no_lost_pair(ranks: int, data: st.DataObject) -> None:
    """Any pairs may be lost but those with one rank, through which all others are connected."""
    hub = data.draw(st.integers(0, ranks - 1))
    pairs = [(a, b) for b in range(ranks) for a in range(b) if hub not in (a, b)]
    lost = [pair for pair in pairs if data.draw(st.booleans())]
    tree = find_tree(ranks, lost)
    assert sorted(tree) == list(range(ranks))
    assert tree.number_of_edges() == ranks - 1
    assert not {tuple(sorted(edge)) for edge in tree.edges} & set(lost)


@pytest.mark.parametrize(("name", "link"), [("dgx1", "gpu0 gpu3"), ("mesh:2x4", "gpu1 gpu2")])
def test_a_lost_link_is_found_and_planned_without(name: str, link: str) -> None:
    """All pairs whose packets crossed the link are lost with it, those that others forward too."""
    topology, (a, b) = preset(name), link.split()
    find_route = Call("", 0, 0.0, topology).find_route
    ranks = range(len(topology.ranks))
    lost = {
        (min(x, y), max(x, y))
        for x in ranks
        for y in ranks
        if {(a, b), (b, a)} & set(pairwise(find_route(x, y) or ()))
    }
    plan = synthesize(collective_on("allreduce", topology), topology, "ring", 20).plan
    assert find_lost_links(topology, lost) == [(a, b)]
    less = plan_without(plan, [(a, b)], frozenset(lost))
    less.verify()
    assert less.topology.capacity_GBps.keys() == topology.capacity_GBps.keys() - {(a, b), (b, a)}
    for schedule in less.schedules:
        assert not {(min(x.src, x.dst), max(x.src, x.dst)) for x in schedule.transfers} & lost
