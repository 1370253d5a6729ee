"""Ranks that make other calls than the rest are named, on all ranks."""

from __future__ import annotations

from itertools import product

import pytest
from launch import run_ranks
from ranks import differing

from topoplan.runtime.extras.compared_calls.compared import explain_difference


@pytest.mark.parametrize(
    ("choose", "kind"),
    [
        *product(["race"], ["dtype", "op", "size", "order"]),
        ("plan", "order"),
        *(pytest.param("plan", kind, marks=pytest.mark.long) for kind in ("dtype", "op", "size")),
    ],
)
def test_a_rank_that_makes_another_call_is_named_by_all(kind: str, choose: str) -> None:
    errors = run_ranks(differing.differ, 3, kind, choose)
    assert all("differs between ranks: rank 1 calls " in error for error in errors), errors


def test_the_few_are_named_and_of_two_both() -> None:
    assert explain_difference(3, [0, 2, 5], ["a", "a", "a"]) == ""
    assert "rank 5 calls b, where the other ranks call a" in explain_difference(
        3, [0, 2, 5], ["a", "a", "b"]
    )
    assert "rank 0 calls a, rank 1 calls b" in explain_difference(3, [0, 1], ["a", "b"])
