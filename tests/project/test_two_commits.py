"""The statistic of benchmarks/two_commits.py: medians of ratios, intervals and verdicts."""

from __future__ import annotations

import random

import pytest
from two_commits import find_interval, summarize


@pytest.mark.parametrize(
    ("n", "place", "level"), [(5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 0.9609375), (15, 3, 0.9648)]
)
def test_the_interval_is_between_order_statistics(n: int, place: int, level: float) -> None:
    ratios = [1 + i / 100 for i in range(n)]
    random.Random(1).shuffle(ratios)
    found = find_interval(ratios)
    assert (found.low, found.high) == (1 + place / 100, 1 + (n - 1 - place) / 100)
    assert found.median == pytest.approx(1 + (n - 1) / 200)
    assert found.level == pytest.approx(level, abs=1e-4)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(4000):
        found = find_interval([chance.lognormvariate(0.0, 0.2) for _ in range(15)])
        held += found.low <= 1.0 <= found.high
    assert held / 4000 == pytest.approx(0.9648, abs=0.015)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.05] * 5, "too few"),
        ([1.05] * 6, "worse"),
        ([1.05] * 5 + [1.01], "open"),
        ([0.9] * 8, "better"),
        ([1.01, 0.99] * 4, "same"),
        ([1.5, 0.7] * 4, "open"),
    ],
)
def test_a_cell_is_worse_only_where_its_whole_interval_is(
    ratios: list[float], verdict: str
) -> None:
    assert find_interval(ratios).verdict == verdict


def test_only_pairs_of_the_two_commits_count() -> None:
    cell = {"case": "messages", "ranks": 2, "size": "4K"}
    pairs = [
        {**cell, "old_commit": "a", "new_commit": new, "turn": turn, "old": 100.0, "new": value}
        for turn in range(6)
        for new, value in (("b", 110.0), ("c", 500.0))
    ]
    (row,) = summarize(pairs, ("a", "b"))
    assert (row["ratio"], row["turns"], row["verdict"]) == (1.1, 6, "worse")
