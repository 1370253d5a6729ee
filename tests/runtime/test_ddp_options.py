"""DDP with the hook under every option that DDP has: replicas agree bitwise, and are stock's to
1e-6 in float32.

Relative means: the largest difference of any parameter to stock's, to the largest parameter. Ideas
are those of torch's own tests of DDP (uneven inputs, control flow that differs between ranks,
rebuilt buckets, shared parameters, ...).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from culprit import is_named
from launch import run_ranks
from ranks import ddp_hooks, ddp_options

Plans = Callable[..., str]
# Mode and hash of what training ends with.
Hashes = list[tuple[str, str]]


@pytest.fixture(scope="module")
def options(plans: Plans) -> list[Hashes]:
    """What three ranks return that train under each option, by rank."""
    return run_ranks(ddp_options.options, 3, plans("ring:3"), plans("ring:2"))


def test_options_train_as_stock_does(options: list[Hashes]) -> None:
    """Overlap, rebuilt buckets, views, static graph, unused parameters, no_sync, join, mixed
    precision.
    """
    assert len(options) == 3


@pytest.mark.long
def test_options_together_and_other_models_train_as_stock_does(plans: Plans) -> None:
    """Shared, complex and frozen parameters, checkpointing, gradients that come in another order
    on each rank, a state loaded in between.
    """
    run_ranks(ddp_options.variants_and_models, 3, plans("ring:3"))


@pytest.fixture(scope="module")
def uses(plans: Plans) -> list[tuple[Hashes, ddp_hooks.Errors]]:
    """What three ranks return that use several hooks, and then use hooks wrongly, by rank."""
    return run_ranks(ddp_hooks.right_and_wrong, 3, plans("ring:3"), plans("ring:2"))


def test_hooks_may_be_shared_and_used_side_by_side(
    uses: list[tuple[Hashes, ddp_hooks.Errors]],
) -> None:
    """Two models with one hook, and with one each, whose backward passes alternate or are one; a
    bucket's average does not hold up backward; a race's choice is alike on all ranks and can be
    asked for.
    """
    assert len(uses) == 3


@pytest.mark.parametrize(
    ("use", "kind", "text"),
    [
        ("other world", "PlanMismatchError", "the plan is for 2 ranks, the group has 3"),
        ("twice", "RuntimeError", "can only be called once"),
        ("mixed_precision", "RuntimeError", "can only be called once"),
        ("float8", "InputError", "float8_e4m3fn tensors cannot be reduced; expected one of"),
        ("sparse", "InputError", "sparse_coo tensors are not supported; expected a dense one"),
    ],
)
def test_wrong_use_gives_one_clear_error_on_every_rank(
    uses: list[tuple[Hashes, ddp_hooks.Errors]], use: str, kind: str, text: str
) -> None:
    """DDP's own mixed_precision brings a hook of its own, so that ours would be the second."""
    for _, errors in uses:
        assert errors[use][0] == kind
        assert text in errors[use][1]


def test_a_fault_comes_out_of_backward_as_itself(
    uses: list[tuple[Hashes, ddp_hooks.Errors]],
) -> None:
    """The rank that fell over raises what it fell over; the others, within the deadline, an error
    that names it.
    """
    faults = [errors["fault"] for _, errors in uses]
    assert tuple(faults[2]) == ("ZeroDivisionError", "fell over")
    for kind, text in faults[:2]:
        assert kind == "ExecutionError"
        assert is_named(2, text)


def test_two_runs_train_to_the_same_bits(
    options: list[Hashes], uses: list[tuple[Hashes, ddp_hooks.Errors]]
) -> None:
    """The order of reduction is fixed where no race decides on it."""
    hashes = [tuple(row) for rows in (*options, *(rows for rows, _ in uses)) for row in rows]
    assert len(hashes) == 12
    assert len(set(hashes)) == 2
