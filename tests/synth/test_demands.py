"""Demands are handled as any collective is: verified, and made programs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from played import play

from topoplan.runtime.program.layout import ends_numel
from topoplan.runtime.program.lowering import lower
from topoplan.synth.cost.affine import tighten
from topoplan.synth.ir.collective import Chunk
from topoplan.synth.ir.demands import Demand, Demands
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.verify import verify
from topoplan.topo.errors import VerificationError
from topoplan.topo.presets import preset


def relay() -> Schedule:
    """Two pieces on a ring of four: 2 gets the first one from 1 and hands half of it on to 3."""
    demands = Demands.of([Demand(12, (0, 1), (2, 3)), Demand(5, (1,), (0,))], 4)
    half = demands.share_of(0) / 2
    chunks = (Chunk(half, piece=0), Chunk(half, piece=0), Chunk(demands.share_of(1), piece=1))
    moves = [
        Transfer(0, 0, 3, 0),
        Transfer(0, 1, 2, 0),
        Transfer(0, 1, 2, 1),
        Transfer(0, 1, 0, 2),
        Transfer(1, 2, 3, 1),
    ]
    return tighten(Schedule(demands, "mine", chunks, Transfers.of(moves), ()), preset("ring:4"))


def test_the_verifier_knows_who_has_and_needs_what() -> None:
    schedule, ring = relay(), preset("ring:4")
    verify(schedule, ring)
    t = schedule.transfers
    for lost in t:
        kept = Transfers.of(x for x in t if x != lost)
        with pytest.raises(VerificationError, match=r"never gets|does not have"):
            verify(replace(schedule, transfers=kept), ring)
    whole = replace(schedule, chunks=(*schedule.chunks[:2], Chunk(Fraction(1, 2), piece=1)))
    with pytest.raises(VerificationError, match="chunks of piece 1 make up 1/2"):
        verify(whole, ring)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("segments", [1, 3])
def test_programs_deliver_every_piece_and_nothing_else(batched: bool, segments: int) -> None:
    schedule = replace(relay(), segments=segments)
    demands = schedule.collective
    assert isinstance(demands, Demands)
    numel = demands.size * 2
    values = [np.arange(1000 * i, 1000 * i + 2 * p.size) for i, p in enumerate(demands.pieces)]
    programs = [lower(schedule, rank, numel, batched=batched) for rank in range(4)]
    inputs = [
        np.concatenate([values[i] for i in demands.list_held(rank)] or [np.zeros(0, np.int64)])
        for rank in range(4)
    ]
    outputs = play(programs, [x.astype(float) for x in inputs], False, numel, 1)
    for rank in range(4):
        wanted = [x for i in demands.list_needed(rank) for x in values[i]]
        assert ends_numel(demands, rank, numel) == (len(inputs[rank]), len(wanted))
        np.testing.assert_array_equal(outputs[rank][: len(wanted)], wanted)
    # Each rank has room for what it sends and gets, and for nothing else.
    assert [program.work_numel for program in programs] == [12 + 10, 24 + 10, 24, 24]
