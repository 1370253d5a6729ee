"""Chakra traces for ASTRA-sim: decoded by the schema, and played on numbers in random order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from called import call_command
from chakra_player import COMM_SEND_NODE, play, read_attributes, read_trace
from needs import long_cases
from sample_schedules import SCHEDULES, built

from topoplan.synth.extras.astra_sim import traces as writer
from topoplan.synth.extras.astra_sim.traces import write_traces
from topoplan.synth.ir.schedule import Schedule
from topoplan.topo.errors import InfeasibleError

MACHINES = ("dgx-a100", "mi300x", "z52", "pcie-2socket")
# Step by step, and long to find; of these the allgather is in the fast tier.
EXACT = ("reduce-scatter", "broadcast", "reduce", "gather", "scatter", "alltoall")
SIZE_bytes = 5040 * 64


def check(schedule: Schedule, size_bytes: int = SIZE_bytes, seed: int = 0) -> None:
    """Play the traces of a schedule, and compare the numbers at every unit of a receiver's data."""
    collective, files = schedule.collective, list(write_traces(schedule, size_bytes).files)
    sends = [node for file in files for node in read_trace(file)[1] if node.type == COMM_SEND_NODE]
    total = read_attributes(sends[0])["total_chunk_cnt"]
    numbers = np.random.default_rng(seed)
    inputs = [numbers.integers(0, 2**50, total) for _ in files]
    n, units = collective.ranks, np.arange(total)
    # For each unit, the rank that has it at the start and the one that gets it; -1: all.
    owner = target = np.full(total, -1)
    block = units // max(1, total // (n * n if collective.name == "alltoall" else n))
    match collective.name:
        case "allgather" | "gather":
            owner = block
        case "reduce-scatter" | "scatter":
            target = block
        case "alltoall":
            target, owner = block // n, block % n
    if collective.name in ("broadcast", "scatter"):
        owner = np.full(total, collective.root)
    if collective.name in ("reduce", "gather"):
        target = np.full(total, collective.root)
    want = np.sum(inputs, axis=0)
    if not collective.reduces:
        want = np.array(inputs)[owner, units]
    for rank, end in enumerate(play(files, inputs, seed)):
        # What a rank has at the start and only needs to keep is in no message.
        mine = (target < 0) | (target == rank)
        mine &= collective.reduces | (owner != rank)
        for unit in np.flatnonzero(mine).tolist():
            assert end.get(unit) == want[unit], f"{schedule}, rank {rank}, unit {unit}"


@pytest.mark.parametrize("name", long_cases(SCHEDULES, *EXACT))
def test_every_kind_of_schedule_is_right(name: str) -> None:
    check(SCHEDULES[name])


@pytest.mark.parametrize("machine", long_cases(MACHINES, "dgx-a100", "mi300x"))
def test_small_machines(machine: str) -> None:
    check(replace(built("packing", machine), segments=2))


def test_bytes_add_up_to_those_of_the_schedule() -> None:
    schedule = replace(built("ring", "ring:4"), segments=3)
    traces = write_traces(schedule, 1000)
    sizes = [
        read_attributes(node)["comm_size"]
        for file in traces.files
        for node in read_trace(file)[1]
        if node.type == COMM_SEND_NODE
    ]
    share = sum(schedule.chunks[t.chunk].share for t in schedule.transfers)
    assert len(sizes) == traces.messages == 3 * len(schedule.transfers)
    assert sum(sizes) == share * 1000
    metadata, _ = read_trace(traces.files[0])
    assert metadata["schema"] == "1.0.2-chakra.0.0.4" and metadata["collective"] == "allreduce"


def test_there_are_fewer_segments_where_there_would_be_too_many_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "USUAL_MESSAGES", 500)
    schedule = replace(built("ring", "ring:4"), segments=2048)
    traces = write_traces(schedule, 1 << 30)
    assert 1 < traces.segments < 2048 and traces.messages <= 500
    check(replace(schedule, segments=traces.segments))
    with pytest.raises(InfeasibleError, match="has no byte"):
        write_traces(schedule, 64)


def test_the_command_writes_a_file_for_each_rank(tmp_path: Path) -> None:
    args = ("allreduce", "ring:4", "--strategy", "ring", "--format", "astra-sim")
    prefix = tmp_path / "traces"
    wrote = call_command("synth", *args, "--size", "1M", "-o", str(prefix))
    assert wrote.returncode == 0, wrote.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"traces.{rank}.et" for rank in range(4)]
    assert all(read_trace(path.read_bytes())[1] for path in tmp_path.iterdir())
    (tmp_path / "traces.0.et").unlink()
    again = call_command("synth", *args, "-o", str(prefix))
    assert again.returncode == 2 and "traces.1.et: already exists" in again.stderr
    assert not (tmp_path / "traces.0.et").exists()
    bare = call_command("synth", *args)
    assert bare.returncode == 2 and "-o traces/allreduce" in bare.stderr
