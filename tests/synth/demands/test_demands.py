"""Demands: what is refused, and what handles them as it handles any collective."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from played import play

from topoplan.runtime.program.layout import ends_numel
from topoplan.runtime.program.lowering import lower
from topoplan.synth.cost.affine import tighten
from topoplan.synth.demands.demands import Demand, Demands, from_matrix, read_demands
from topoplan.synth.ir.collective import Chunk
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.verify import verify
from topoplan.topo.errors import InputError, VerificationError
from topoplan.topo.presets import preset

SHOWN = {
    "format": "topoplan-demands",
    "version": 1,
    "ranks": 4,
    "pieces": [{"size": 12, "have": [0, 1], "need": [2, 3]}, {"size": 5, "have": [1], "need": [0]}],
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "demands.json"
    path.write_text(json.dumps({**SHOWN, **changes}))
    return path


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


def test_a_file_of_demands_is_read(tmp_path: Path) -> None:
    demands, helpers = read_demands(write(tmp_path, helpers=[3]), 4)
    assert demands == relay().collective
    assert helpers == [3]
    assert (demands.name, demands.size, demands.has_all_gpus) == ("reshard", 17, True)
    assert read_demands(write(tmp_path), 4)[1] == "rest"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": [{"size": -1, "have": [0], "need": [1]}]}, "piece 0 has size -1; expected a"),
        ({"pieces": [{"size": 1, "have": [], "need": [1]}]}, "piece 0: no rank has it; expected"),
        ({"pieces": [{"size": 1, "have": [0], "need": []}]}, "piece 0: no rank needs it; expect"),
        ({"pieces": [{"size": 1, "have": [0], "need": [4]}]}, "rank 4 needs it; ranks are 0 to 3"),
        ({"pieces": [{"size": 1, "have": [-1], "need": [2]}]}, "rank -1 has it; ranks are 0 to 3"),
        ({"pieces": [{"size": 1, "have": [0, 0], "need": [2]}]}, "ranks 0, 0, of which each has"),
        ({"pieces": [{"size": 1, "have": [2], "need": [2]}]}, "nothing is to move"),
        ({"pieces": [{"size": 1 << 53, "have": [0], "need": [2]}]}, "bytes in all"),
        ({"pieces": []}, "nothing is to move"),
        ({"ranks": 5}, "for 5 ranks; the topology has 4 GPUs"),
        ({"peices": []}, "unknown field 'peices' (did you mean 'pieces'?)"),
    ],
)
def test_each_mistake_is_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_demands(write(tmp_path, **changes), 4)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}")
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for text in ("", "[", "{}", '{"format": "topoplan-plan"}'):
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(InputError):
            read_demands(path, 4)
    with pytest.raises(InputError, match="No such file"):
        read_demands(tmp_path / "missing.json", 4)


def test_a_matrix_is_an_alltoallv() -> None:
    demands = from_matrix(np.array([[9, 3, 0], [2, 9, 5], [0, 0, 9]]), 3)
    assert [(p.size, p.holders, p.receivers) for p in demands.pieces] == [
        (3, (0,), (1,)),
        (2, (1,), (0,)),
        (5, (1,), (2,)),
    ]
    assert str(demands) == "alltoallv over 3 ranks"
    part = from_matrix(np.array([[0, 1], [0, 0]]), 5, (1, 3))
    assert list(part.members) == [1, 3]
    assert part.among((1, 2, 3)).pieces == (Demand(1, (0,), (2,)),)
    for wrong in ([[0, -1], [0, 0]], [[0, 0], [0, 0]], [[0, 1]], [[0, 0.5], [0, 0]]):
        with pytest.raises(InputError):
            from_matrix(np.array(wrong), 2)


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
