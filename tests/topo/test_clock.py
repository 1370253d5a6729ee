"""The time limit of steps that are no searches."""

from __future__ import annotations

import time

import pytest

from topoplan.topo.clock import limit_time, pace
from topoplan.topo.errors import TimeLimitError

MANY = range(100_000)


def test_without_a_limit_items_are_returned_as_they_are() -> None:
    assert pace(MANY, "counting") is MANY


def test_a_step_ends_with_the_time_and_says_how_far_it_came() -> None:
    said: list[str] = []
    with limit_time(time.monotonic() - 5.0, 5.0, said.append):
        with pytest.raises(TimeLimitError, match=r"5 s was over after 4,096 steps of counting"):
            list(pace(MANY, "counting"))
        assert list(pace(range(100), "counting")) == list(range(100))  # short ones end in any case
    assert said == ["counting: 4,096"]
    assert pace(MANY, "counting") is MANY


def test_items_that_take_long_are_paced_one_by_one_and_the_last_ends_its_step() -> None:
    with limit_time(time.monotonic() - 5.0, 5.0, lambda _: None):
        with pytest.raises(TimeLimitError, match="over after 1 steps of counting"):
            list(pace(range(2), "counting", batch=1))
        assert list(pace(range(1), "counting", batch=1)) == [0]


def test_a_step_may_take_the_least_time_whatever_the_limit() -> None:
    with limit_time(time.monotonic() - 5.0, 1.0, lambda _: None, least_s=60.0):
        assert sum(pace(MANY, "adding")) == sum(MANY)
