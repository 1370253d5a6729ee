"""What gloo refuses is refused in gloo's words, and the group works on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from launch import run_ranks
from needs import has_extra, long_cases
from ranks import refusals

from topoplan.runtime.ranks.faults import is_refusal

# Environment variables of the ranks, by what carries out their calls.
MODES: dict[str, dict[str, str]] = {
    "race": {},
    "plan": {"TOPOPLAN_CHOOSE": "plan", "TOPOPLAN_LEAST_BYTES": "1"},
}
if has_extra("recovery"):
    MODES |= {
        "replan": {"TOPOPLAN_ON_FAULT": "replan"},
        "replan by plan": {"TOPOPLAN_ON_FAULT": "replan", **MODES["plan"]},
    }


@pytest.mark.parametrize("at", long_cases([1, 1000], 1000))
def test_what_gloo_refuses_is_refused_in_its_words(at: int) -> None:
    """In every mode, as the first call, whose error is looked into, and where the plain group's
    works are passed on.
    """
    by_mode, of_other_rank = run_ranks(refusals.of_groups, 2, at, MODES)
    of_gloo = by_mode.pop("gloo")
    assert all(text.startswith("RuntimeError: ") for text in of_gloo.values())
    assert by_mode == dict.fromkeys(MODES, of_gloo)
    assert of_other_rank == {"gloo": of_gloo, **by_mode}


def test_stock_calls_that_were_chosen_may_be_refused_too(plans: Callable[..., str]) -> None:
    by_rank = run_ranks(refusals.chosen_stock, 2, plans("full:2", "allreduce"))
    assert [set(outcomes.values()) for outcomes in by_rank] == [
        {"RuntimeError: Invalid scalar type"}
    ] * 2


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("Cannot use ReduceOp.BAND with non-integral dtype", True),
        (
            "Invalid scalar type\nException raised from run at /src/c10d/ProcessGroupGloo.cpp:1",
            True,
        ),
        ("[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711", False),
        ("[enforce fail at /src/gloo/transport/tcp/pair.cc:459] op.nbytes. 8 vs 4", False),
        ("[enforce fail at alloc_cpu.cpp:124] err == 0. can't allocate memory", False),
        ("Application timeout caused pair closure", False),
        ("Operation timed out!", False),
        ("Gloo connectFullMesh failed with [/src/gloo/transport/tcp/pair.cc:144] no", False),
    ],
)
def test_a_lost_connection_is_no_refusal(text: str, *, refuses: bool) -> None:
    assert is_refusal(RuntimeError(text)) == refuses
