"""Faults while a schedule is chosen: no rank goes on alone, none waits
for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist
from culprit import is_named
from launch import run_ranks
from ranks import faults
from torch._C._distributed_c10d import HashStore

from topoplan.runtime.program.layout import IN_PLACE
from topoplan.runtime.ranks.stock import has_stock, make_stock_call
from topoplan.runtime.reductions import REDUCIBLE_DTYPES
from topoplan.synth.ir.collective import Collective

SUM, PRODUCT, MIN, MAX = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
)

Plans = Callable[..., str]


def assert_rank_1_is_named(errors: list[str | None]) -> None:
    for rank in (0, 2):
        assert str(errors[rank]).startswith(f"rank {rank}: "), errors
        assert is_named(1, errors[rank]), errors


@pytest.mark.parametrize(
    ("name", "number"),
    [("exchange", 1), ("find_slowest_s", 1), ("meet", 3)],
    ids=["told what to try", "shown the times", "a run"],
)
def test_a_rank_that_dies_during_a_race_is_an_error_on_all_others(
    plans: Plans, name: str, number: int
) -> None:
    assert_rank_1_is_named(run_ranks(faults.dies_in_a_race, 3, plans("ring:3"), name, number))


@pytest.mark.long
def test_a_stopped_rank_in_a_race_is_an_error_within_the_deadline(plans: Plans) -> None:
    """Nothing is closed: the others give up by themselves, the stock collective at its own
    deadline.
    """
    assert_rank_1_is_named(run_ranks(faults.stops_in_a_race, 3, plans("ring:3")))


@pytest.mark.parametrize(
    "name", ["allreduce", "reduce", "broadcast", "allgather", "reduce-scatter", "alltoall"]
)
def test_what_gloo_has_is_known_without_asking(name: str) -> None:
    """gloo, tried alone, refuses exactly the dtypes that it is said to refuse, with all
    reductions.
    """
    group = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=10))
    collective = Collective(name, 1, 0 if name in ("reduce", "broadcast") else None)
    for dtype, op in product(REDUCIBLE_DTYPES, (SUM, PRODUCT, MIN, MAX)):
        tensor = torch.ones(1, dtype=dtype)
        target = tensor if name in IN_PLACE else tensor.clone()
        try:
            make_stock_call(collective, group, tensor, target, op)()
            works = True
        except (RuntimeError, ValueError):
            works = False
        assert works == has_stock(dtype), (dtype, op)
