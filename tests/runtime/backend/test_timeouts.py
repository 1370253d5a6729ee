"""A timeout that torch sets anew holds for calls by plans, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from culprit import is_named
from launch import run_ranks
from needs import has_extra, long_cases
from ranks import timeouts

WAYS = [
    *([("one-sided", "raise")] if has_extra("shared-memory") else []),
    ("point-to-point", "raise"),
    *([("point-to-point", "replan")] if has_extra("recovery") else []),
    ("stock", "raise"),
]


@pytest.mark.parametrize(("executor", "on_fault"), long_cases(WAYS, "one-sided", "stock"))
def test_a_shortened_timeout_holds(plans: Callable[..., str], executor: str, on_fault: str) -> None:
    errors = run_ranks(timeouts.shorten, 2, plans("full:2"), executor, on_fault)
    assert is_named(1, errors[0]), errors


def test_a_lengthened_timeout_holds(plans: Callable[..., str]) -> None:
    run_ranks(timeouts.lengthen, 2, plans("full:2"), WAYS)
