"""Messages that share links equally, and schedules that lose nothing by it."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from planned import synthesize
from star_scatter import STAR, scatter_over_star

from topoplan.synth.cost.affine import (
    affine_s,
    bandwidth_s_per_GB,
    cost,
    shared_s_per_GB,
    total_seconds,
)
from topoplan.synth.cost.sharing import end_messages
from topoplan.synth.cost.transfer_times import predict_times
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset


def share_exactly(
    sizes: list[Fraction], crossed: list[list[int]], rates: list[Fraction]
) -> list[Fraction]:
    """Return when messages end, by progressive filling, link by link, in fractions."""
    ends, left, clock = [Fraction(0)] * len(sizes), list(sizes), Fraction(0)
    while any(left):
        open_, free, got = {i for i, x in enumerate(left) if x}, list(rates), dict[int, Fraction]()
        while open_:
            parts = {
                link: free[link] / count
                for link in range(len(rates))
                if (count := sum(link in crossed[i] for i in open_))
            }
            part, link = min((part, link) for link, part in parts.items())
            for i in [i for i in open_ if link in crossed[i]]:
                got[i] = part
                open_.remove(i)
                for other in crossed[i]:
                    free[other] -= part
        step = min(left[i] / rate for i, rate in got.items())
        clock += step
        for i, rate in got.items():
            left[i] -= rate * step
            if not left[i]:
                ends[i] = clock
    return ends


def test_a_large_message_beside_small_ones_ends_late() -> None:
    schedule = scatter_over_star()
    # Each of the four has .5 GB/s until the small ones end after 1/3 s; then the large one has 1.
    assert bandwidth_s_per_GB(schedule, STAR) == Fraction(1, 2)
    assert cost(schedule, STAR).beta_s_per_GB == pytest.approx(2 / 3, abs=1e-6)
    assert shared_s_per_GB(schedule, STAR) == cost(schedule, STAR).beta_s_per_GB
    # What is certified does not change.
    assert schedule.step_s_per_GB == (Fraction(1, 2),)
    assert max(total_seconds(schedule, STAR).values()) == Fraction(1, 2)


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("stepwise", [True, False])
def test_the_times_of_transfers_end_with_the_cost(segments: int, stepwise: bool) -> None:
    schedule = replace(scatter_over_star(), segments=segments, stepwise=stepwise)
    size_bytes = 6 * 10**6
    times = predict_times(schedule, STAR, size_bytes)
    assert max(x.end_us for x in times) == pytest.approx(
        cost(schedule, STAR).time_s(size_bytes) * 1e6, rel=1e-5
    )
    assert max(x.end_us for x in times if x.dst > 1 and x.tick == 0) == pytest.approx(
        2000 / segments
    )


@pytest.mark.parametrize("seed", range(5))
def test_messages_end_as_by_filling_link_by_link(seed: int) -> None:
    draw = random.Random(seed)
    links, count = draw.randint(2, 7), draw.randint(2, 30)
    rates = [Fraction(draw.choice([1, 2, 3, 12, 24])) for _ in range(links)]
    sizes = [Fraction(draw.randint(0, 12), 4) for _ in range(count)]
    crossed = [draw.sample(range(links), draw.randint(1, min(4, links))) for _ in range(count)]
    padded = np.array([[*row, *[links] * (4 - len(row))] for row in crossed])
    ends = end_messages(
        np.array([*map(float, sizes)]), padded, np.array([*(float(1 / x) for x in rates), 0.0])
    )
    assert ends == pytest.approx([*map(float, share_exactly(sizes, crossed, rates))], rel=1e-6)


def test_many_messages_end_nearly_so() -> None:
    draw = random.Random(1)
    crossed = np.array([draw.sample(range(8), 2) for _ in range(200)])
    sizes = [draw.randint(1, 50) for _ in range(200)]
    rates = [Fraction(1 + i % 2) for i in range(8)]
    exact = share_exactly([*map(Fraction, sizes)], crossed.tolist(), rates)
    s_per_GB = np.array([*(float(1 / rate) for rate in rates), 0.0])
    ends = end_messages(np.array(sizes, float), crossed, s_per_GB)
    assert max(ends) == pytest.approx(float(max(exact)), rel=0.01)


@pytest.mark.parametrize("name", ["dgx1", "mesh:4x4"])
def test_equal_messages_take_what_their_links_need(name: str) -> None:
    topology = preset(name)
    plan = synthesize(collective_on("allreduce", topology), topology, "packing").plan
    schedule = plan.entries[-1].schedule
    if schedule.segments > 1:
        schedule = replace(schedule, segments=2)
    assert shared_s_per_GB(schedule, topology) == bandwidth_s_per_GB(schedule, topology)


def test_rings_of_unequal_shares_have_equal_ones_beside_them() -> None:
    """On a ring of four Sparks, the best shares are 2 to 1 and cost 7 %, two rings nothing."""
    topology = preset("spark-ring:4")
    found = synthesize(collective_on("allreduce", topology), topology, "ring")
    assert found.plan.gap_of(found.plan.entries[-1]) == 0
    lost = sorted(
        float(shared_s_per_GB(s, topology) / bandwidth_s_per_GB(s, topology))
        for s in {schedule.uncut for schedule, _ in found.candidates}
    )
    assert lost == [1, pytest.approx(1.072, abs=0.001)]


@pytest.mark.parametrize(
    ("far_us", "segments", "stepwise", "predicted_us"),
    [
        *((300, 1, False, 4000), (300, 4, False, 4000), (300, 4, True, 4000)),
        *((5000, 1, False, 7000), (5000, 4, False, 22000), (5000, 4, True, 8500)),
    ],
)
def test_a_tick_ends_with_its_last_message_whatever_the_latency_of_others(
    far_us: int, segments: int, stepwise: bool, predicted_us: float
) -> None:
    # Small messages leave after 2,000 us, the large one after 4,000; small ones have far to go.
    links = tuple(
        replace(link, latency_us=Fraction(far_us)) if link.dst not in ("gpu1", "switch") else link
        for link in STAR.links
    )
    star = replace(STAR, links=links)
    schedule = replace(scatter_over_star(), segments=segments, stepwise=stepwise)
    size_bytes = 6 * 10**6
    found = cost(schedule, star)
    assert found.time_s(size_bytes) * 1e6 == pytest.approx(predicted_us, rel=1e-5)
    times = predict_times(schedule, star, size_bytes)
    assert max(x.end_us for x in times) == pytest.approx(predicted_us, rel=1e-5)
    # The affine cost, by which plans are chosen, adds both up.
    paid = 1 if stepwise else segments
    assert affine_s(found, size_bytes) * 1e6 == pytest.approx(4000 + paid * far_us, rel=1e-5)
