"""Exact synthesis: SCCL's table, the front and the proofs of its ends, checked apart from the code
that found them.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from topoplan.synth.cost.affine import rounds
from topoplan.synth.extras.exact.models import SyncInstance, fabric_of, solve_copying
from topoplan.synth.extras.exact.ratio_bound import prove_least_ratio
from topoplan.synth.extras.exact.search import decide, pareto
from topoplan.synth.ir.collective import Collective
from topoplan.synth.ir.schedule import reverse
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.verify import verify
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

DGX1 = preset("dgx1")


def soon() -> Effort:
    return Effort(120, 120)


def test_the_front_of_allgather_on_dgx1() -> None:
    """SCCL, table 4: (2,2,3) and (6,3,7) are the front; (1,2,2) is feasible; what lies between is
    impossible.
    """
    front = pareto(Collective("allgather", 8), Router(DGX1))
    rows = {(r.chunks, r.steps, r.rounds): r for r in front.rows}
    assert [(r.chunks, r.steps, r.rounds) for r in front.front] == [(2, 2, 3), (6, 3, 7)]
    assert front.least_ratio == Fraction(7, 6)
    assert front.complete
    assert rows[2, 2, 3].latency_optimal
    assert rows[6, 3, 7].bandwidth_optimal
    assert rows[1, 2, 2].status == "feasible"
    assert rows[1, 2, 2].dominated
    for impossible in ((3, 2, 4), (5, 2, 7), (7, 2, 10)):
        assert rows[impossible].status == "infeasible"
    for row in front.rows:
        if row.schedule is not None:
            verify(row.schedule, DGX1)
            assert row.schedule.steps == row.steps
            assert rounds(row.schedule, Router(DGX1)) == row.rounds
            assert len(row.schedule.chunks) == 8 * row.chunks


@pytest.mark.parametrize("triple", [(3, 2, 4), (7, 2, 10), (6, 2, 7)])
def test_the_solver_agrees_that_the_rows_below_the_front_are_infeasible(
    triple: tuple[int, int, int],
) -> None:
    assert (
        solve_copying(
            fabric_of(Router(DGX1)), SyncInstance(Collective("allgather", 8), *triple), soon()
        )
        is None
    )


@pytest.mark.long
def test_allreduce_composed_and_direct_on_dgx1() -> None:
    """With work for these rows, and not for those after them, which would stay unknown in four
    times as much.
    """
    front = pareto(Collective("allreduce", 8), Router(DGX1), Effort(600, 600).grant(4))
    composed = {(r.chunks, r.steps, r.rounds): r for r in front.rows if r.form == "composed"}
    direct = {(r.chunks, r.steps, r.rounds): r for r in front.rows if r.form == "direct"}
    assert composed[16, 4, 6] in front.front
    assert composed[48, 6, 14].bandwidth_optimal
    assert front.least_ratio == Fraction(7, 24)
    assert composed[8, 4, 4].status == "feasible"
    assert composed[8, 4, 4].dominated
    assert direct[1, 2, 2].status == "feasible"
    assert min(r.steps for r in front.front) == 2
    assert min(r.steps for r in composed.values()) == 4
    for row in front.rows:
        if row.schedule is not None:
            verify(row.schedule, DGX1)


def test_z52_has_a_front_of_one_row() -> None:
    front = pareto(Collective("allgather", 8), Router(preset("z52")))
    assert [(r.chunks, r.steps, r.rounds) for r in front.front] == [(2, 4, 7)]
    assert (1, 4, 4) in {
        (r.chunks, r.steps, r.rounds) for r in front.rows if r.status == "feasible"
    }
    assert front.complete


@pytest.mark.parametrize(
    ("machine", "name", "slack", "ends"),
    [
        ("ring:6", "allgather", 0, [(1, 3, 3), (2, 5, 5)]),
        ("dgx1", "alltoall", 5, [(1, 2, 3), (3, 3, 8)]),
    ],
)
def test_fronts_of_k_synchronous_schedules(
    machine: str, name: str, slack: int, ends: list[tuple[int, int, int]]
) -> None:
    """SCCL's k: with R <= S + k the bandwidth-optimal row needs more steps."""
    topology = preset(machine)
    front = pareto(
        Collective(name, len(topology.ranks)), Router(topology), Effort(600), slack=slack
    )
    found = [(r.chunks, r.steps, r.rounds) for r in front.front]
    assert [found[0], found[-1]] == ends
    assert all(r.rounds <= r.steps + slack for r in front.rows)
    assert front.front[-1].bandwidth_optimal


@pytest.mark.parametrize(
    ("name", "triple", "feasible"),
    [
        ("allgather", (1, 2, 2), True),
        # the end of SCCL's front for k = 0
        pytest.param("allgather", (6, 7, 7), True, marks=pytest.mark.long),
        ("broadcast", (6, 3, 3), True),
        pytest.param("broadcast", (12, 4, 4), True, marks=pytest.mark.long),
        pytest.param("broadcast", (18, 5, 5), True, marks=pytest.mark.long),
        ("broadcast", (8, 3, 3), False),
        ("reduce", (6, 3, 3), True),
        ("gather", (6, 3, 7), True),
        ("scatter", (6, 3, 7), True),
        ("reduce-scatter", (6, 3, 7), True),
        ("reduce-scatter", (6, 2, 7), False),
        ("alltoall", (1, 2, 2), False),
        ("alltoall", (3, 2, 8), True),
    ],
)
def test_rows_of_the_other_collectives(
    name: str, triple: tuple[int, int, int], feasible: bool
) -> None:
    root = 0 if name in ("broadcast", "reduce", "gather", "scatter") else None
    (row,) = decide(Collective(name, 8, root), Router(DGX1), [triple], soon()).rows
    assert row.status == ("feasible" if feasible else "infeasible")
    if row.schedule is not None:
        verify(row.schedule, DGX1)


def test_reversing_twice_gives_the_schedule_back() -> None:
    found = solve_copying(
        fabric_of(Router(DGX1)), SyncInstance(Collective("allgather", 8), 2, 2, 3), soon()
    )
    assert found is not None
    assert reverse(reverse(found)) == found


@pytest.mark.parametrize(
    ("name", "root", "steps", "value"),
    [
        ("allgather", None, 2, Fraction(3, 2)),
        ("allgather", None, 3, Fraction(7, 6)),
        ("alltoall", None, 2, Fraction(8, 3)),
        ("broadcast", 0, 3, Fraction(7, 20)),
    ],
)
def test_the_proof_of_the_least_ratio_holds_on_real_schedules(
    name: str, root: int | None, steps: int, value: Fraction
) -> None:
    """The multipliers, applied as plain arithmetic to a schedule that exists, must not claim more
    than its R/C.

    For any schedule of C chunks with x[j,e,s] the share of commodity j over edge e in step s (weak
    duality, written out anew): R/C = sum_s r_s >= sum_s r_s sum_l b_l y[l,s] / max_s(...) >=
    sum_{l,s} y[l,s] load[l,s] / max_s(...).
    """
    collective = Collective(name, 8, root)
    fabric = fabric_of(Router(DGX1))
    proof = prove_least_ratio(fabric, collective, steps)
    assert proof is not None
    assert proof.value == value
    triple = {
        "allgather": (2, 2, 3) if steps == 2 else (6, 3, 7),
        "alltoall": (3, 2, 8),
        "broadcast": (7, 3, 3),
    }[name]
    schedule = solve_copying(fabric, SyncInstance(collective, *triple), soon())
    assert schedule is not None
    chunks = triple[0]
    price = max(
        sum(
            (
                DGX1.capacity_GBps[link] / Router(DGX1).unit_GBps * f
                for (link, t), f in proof.multipliers.y.items()
                if t == s
            ),
            Fraction(0),
        )
        for s in range(steps)
    )
    paid = sum(
        (
            proof.multipliers.y.get(((f"gpu{t.src}", f"gpu{t.dst}"), t.step), Fraction(0)) / chunks
            for t in schedule.transfers
        ),
        Fraction(0),
    )
    assert proof.value <= paid / price <= Fraction(triple[2], chunks)


def test_asymmetric_links_are_honoured() -> None:
    """A ring that is twice as wide one way: allgather's R/C follows the cut, not the mean of both
    directions.
    """
    topology = preset("ring:4")
    wide = topology.links[0].bandwidth_GBps * 2
    from dataclasses import replace

    links = tuple(
        replace(x, bandwidth_GBps=wide) if (int(x.dst[3:]) - int(x.src[3:])) % 4 == 1 else x
        for x in topology.links
    )
    uneven = replace(topology, links=links)
    front = pareto(Collective("allgather", 4), Router(uneven))
    assert front.least_ratio == Fraction(1)
    for row in front.front:
        assert row.schedule is not None
        verify(row.schedule, uneven)
    scatter = pareto(Collective("reduce-scatter", 4), Router(uneven))
    for row in scatter.front:
        assert row.schedule is not None
        verify(row.schedule, uneven)
