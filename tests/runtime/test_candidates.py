"""Candidates: compared by value, and offering what their schedules do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

import topoplan
from topoplan.runtime.candidates import Candidate
from topoplan.synth.ir.schedule import Schedule


@pytest.fixture(scope="module")
def ring() -> Schedule:
    return topoplan.synthesize("allreduce", "ring:3", "ring").schedules[0]


def test_a_candidate_is_its_value_not_an_object(ring: Schedule) -> None:
    same = Schedule.from_json(ring.to_json())
    assert same is not ring
    assert Candidate(ring) == Candidate(same) and hash(Candidate(ring)) == hash(Candidate(same))
    played = Candidate(ring, "shared-memory", "one-sided")
    assert len({Candidate(ring), Candidate(same), played}) == 2


def test_a_candidate_offers_what_its_schedule_does(ring: Schedule) -> None:
    played = Candidate(replace(ring, segments=4), "shared-memory", "one-sided")
    assert played.label == "ring x4, one-sided" and Candidate(ring).label == ring.label
    assert (played.strategy, played.segments, played.steps) == ("ring", 4, ring.steps)
    assert played.transfers is ring.transfers
    with pytest.raises(AttributeError, match="nothing"):
        _ = played.nothing


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_candidate_can_be_copied(ring: Schedule, copied: object) -> None:
    candidate = Candidate(ring, "kernels", "one-sided, pushed")
    assert callable(copied) and copied(candidate) == candidate
