"""Where the stock allreduce is used, several are under way at once: right beside planned ones, and
failing as themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from culprit import is_named
from launch import run_ranks
from ranks import stock

Plans = Callable[[str], str]


@pytest.mark.long
def test_stock_and_planned_calls_may_be_under_way_together(plans: Plans) -> None:
    """Sums and averages, with gaps between elements, sizes that are raced while others are under
    way; on every rank.
    """
    run_ranks(stock.beside_planned, 3, plans("ring:3"))


@pytest.mark.parametrize("way", [stock.gone_under_the_hook, stock.gone_under_the_backend])
def test_a_rank_that_is_gone_is_named_where_stock_is_used(
    way: Callable[[str], str | None], plans: Plans
) -> None:
    errors = run_ranks(way, 3, plans("ring:3"))
    for rank in (0, 2):
        assert is_named(1, errors[rank])
        assert "by the stock allreduce" in str(errors[rank])
