"""Execution plans of MSCCL++: played on numbers in random order, on every small preset machine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called import call_command
from mscclpp_player import Numbers, PlanError, Player
from needs import long_cases
from sample_schedules import ALLREDUCES, OTHERS, SCHEDULES, built

from topoplan.synth.extras.mscclpp import write as writer
from topoplan.synth.extras.mscclpp.write import COLLECTIVES, ExecutionPlan, write_mscclpp
from topoplan.synth.ir.schedule import Schedule
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.presets import preset

NOT_IN_MSCCLPP = ("gather", "scatter")
PLAYED = [*ALLREDUCES, *(x for x in OTHERS if x.removeprefix("packed ") not in NOT_IN_MSCCLPP)]
# Step by step, and long to find; of these the allgather is in the fast tier.
EXACT = ("reduce-scatter", "broadcast", "reduce", "alltoall")
SIMILAR = (
    "doubling, 6 ranks",
    "halving-doubling",
    "packed broadcast",
    "packed reduce",
    "double-tree",
)
MACHINES = ("dgx1", "dgx2", "dgx-a100", "pcie-2socket", "mi250", "z52", "dgx-a100:2")
LONG = ("dgx1", "dgx2", "dgx-a100", "mi250", "z52", "dgx-a100:2")
# Divides into the blocks of 8 and 16 ranks, and into thirds.
SIZE_bytes = 3 << 16


def write(schedule: Schedule, machine: str, size_bytes: int = SIZE_bytes) -> ExecutionPlan:
    return write_mscclpp(schedule, preset(machine), size_bytes)


def play(
    text: str,
    schedule: Schedule,
    size_bytes: int = SIZE_bytes,
    *,
    in_place: bool = False,
    seed: int = 0,
) -> None:
    """Play two calls of a plan in a random order, and compare what all ranks get."""
    collective = schedule.collective
    n, name = collective.ranks, collective.name
    in_bytes = size_bytes // n if name == "allgather" else size_bytes
    out_bytes = size_bytes // n if name == "reduce-scatter" else size_bytes
    player = Player(text, in_bytes, out_bytes, in_place, seed)
    numbers = np.random.default_rng(seed)
    calls = [
        [numbers.integers(-(2**60), 2**60, in_bytes // 16) for _ in range(n)] for _ in range(2)
    ]
    results = player.play(calls)
    for inputs, outputs in zip(calls, results, strict=True):
        for rank, (got, want) in enumerate(zip(outputs, expect(schedule, inputs), strict=True)):
            assert want is None or np.array_equal(got, want), f"{schedule}, rank {rank}"
    for rank, given in enumerate(calls[-1]):
        assert in_place or np.array_equal(player.memory[rank]["i"], given), "the input was changed"


def expect(schedule: Schedule, inputs: list[Numbers]) -> list[Numbers | None]:
    """Return what each rank must end with, None for a rank that gets nothing."""
    collective, n = schedule.collective, len(inputs)
    total: Numbers = np.sum(inputs, axis=0)
    everything: Numbers = np.concatenate(inputs)
    match collective.name:
        case "allreduce":
            return [total] * n
        case "reduce":
            return [total if rank == collective.root else None for rank in range(n)]
        case "broadcast":
            return [inputs[collective.root or 0]] * n
        case "allgather":
            return [everything] * n
        case "reduce-scatter":
            return list(np.split(total, n))
        case "alltoall":
            return list(np.reshape(everything, (n, n, -1)).swapaxes(0, 1).reshape(n, -1))
    raise AssertionError(collective.name)


@pytest.mark.parametrize("machine", long_cases(MACHINES, *LONG))
def test_every_collective_is_right_on_every_small_machine(machine: str) -> None:
    for seed, name in enumerate(COLLECTIVES):
        schedule = built("packing", machine, name)
        play(write(schedule, machine).text, schedule, seed=seed)


@pytest.mark.parametrize("name", long_cases(PLAYED, *EXACT, *SIMILAR))
def test_every_kind_of_schedule_is_right_also_in_place(name: str) -> None:
    schedule = SCHEDULES[name]
    machine = f"full:{schedule.collective.ranks}"
    size = 240 << 10
    text = write(schedule, machine, size).text
    play(text, schedule, size, seed=1)
    if schedule.collective.name != "alltoall":
        play(text, schedule, size, seed=2, in_place=True)


@pytest.mark.parametrize(
    ("machine", "name", "size_bytes"),
    [
        ("ring:4", "allreduce", 1 << 20),
        ("z52", "broadcast", 3 << 18),
        ("path:3", "reduce", 1 << 20),
    ],
)
def test_segments_are_pipelines(machine: str, name: str, size_bytes: int) -> None:
    schedule = replace(built("packing", machine, name), segments=8)
    plan = write(schedule, machine, size_bytes)
    assert plan.iterations > 1 and "pipeline" in plan.text
    play(plan.text, schedule, size_bytes)
    # The same file is for other sizes.
    assert plan.step_bytes < size_bytes
    play(plan.text, schedule, size_bytes + plan.step_bytes, seed=1)


def test_more_peers_than_channels_are_divided_over_blocks() -> None:
    schedule, machine = built("one-shot", "switch:20"), "switch:20"
    plan = write(schedule, machine, 20 * 512)
    assert plan.channels <= 16 and plan.operations <= 64 and "sem_acquire" in plan.text
    play(plan.text, schedule, 20 * 512)


@pytest.mark.long
def test_chunks_share_blocks_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = built("ring", "z52")
    alone = write(schedule, "z52").blocks
    monkeypatch.setattr(writer, "MAX_BLOCKS", 5)
    plan = write(schedule, "z52")
    assert plan.blocks <= 5 < alone and plan.operations > 32
    play(plan.text, schedule)
    pipelined = replace(built("packing", "z52", "broadcast"), segments=8)
    monkeypatch.setattr(writer, "MAX_BLOCKS", 2)
    shared = write(pipelined, "z52", 6 << 20)
    assert shared.blocks <= 2 and shared.iterations > 1
    play(shared.text, pipelined, 6 << 20)
    monkeypatch.setattr(writer, "MAX_BLOCKS", 1)
    with pytest.raises(InfeasibleError, match=r"needs \d+ thread blocks on a GPU, at MSCCL\+\+'s"):
        write(schedule, "z52")


def test_hosts_are_joined_by_ports() -> None:
    plan = json.loads(write(built("packing", "dgx-a100:2"), "dgx-a100:2").text)
    for gpu in plan["gpus"]:
        for listed in gpu["channels"]:
            beyond = {peer // 8 != gpu["id"] // 8 for peer in listed["connected_to"]}
            assert beyond == {listed["channel_type"] == "port"}


def test_plans_say_for_which_messages_they_are() -> None:
    schedule = built("packing", "switch:4")
    plan = write_mscclpp(schedule, preset("switch:4"), 1 << 20, 5000, 3_000_000)
    assert plan.min_bytes % plan.step_bytes == plan.max_bytes % plan.step_bytes == 0
    assert 5000 <= plan.min_bytes < 5000 + plan.step_bytes
    assert 3_000_000 - plan.step_bytes <= plan.max_bytes < 3_000_000
    play(plan.text, schedule, plan.min_bytes)
    for size in (plan.min_bytes - plan.step_bytes, plan.min_bytes + 16):
        with pytest.raises(PlanError):
            play(plan.text, schedule, size)


@pytest.mark.parametrize(
    ("name", "size_bytes", "message"),
    [
        ("gather", SIZE_bytes, "no gather; they are for allreduce"),
        ("allgather", 1000, "a message of 1000 bytes cannot be divided into the"),
        ("allgather", 1 << 40, "too large for MSCCL.*takes up to"),
    ],
)
def test_what_the_format_lacks_is_one_line(name: str, size_bytes: int, message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        write(built("packing", "ring:4", name), "ring:4", size_bytes)


def list_operations(plan: dict[str, Any]) -> Iterator[tuple[list[Any], int]]:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            yield from ((block["ops"], place) for place in range(len(block["ops"])))


@pytest.mark.parametrize(
    "kind", ["put", "re", "copy", "signal", "wait", "rlxsignal", "rlxwait", "nop"]
)
def test_the_player_notices_a_missing_operation(kind: str) -> None:
    schedule = built("packing", "ring:4")
    text = write(schedule, "ring:4", 4096).text
    places = [i for i, (ops, at) in enumerate(list_operations(json.loads(text)))]
    noticed = 0
    for place in random.Random(kind).sample(places, len(places)):
        damaged = json.loads(text)
        ops, at = list(list_operations(damaged))[place]
        if ops[at]["name"] != kind:
            continue
        del ops[at]
        try:
            for seed in range(5):
                play(json.dumps(damaged), schedule, 4096, seed=seed)
        except (AssertionError, PlanError):
            noticed += 1
            if noticed == 2:
                return
        else:
            # A barrier may be missed in few orders only.
            assert kind == "nop"
    raise AssertionError(f"no missing {kind} was noticed")


def test_the_command_writes_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    args = ("allgather", "ring:4", "--strategy", "ring", "--format", "mscclpp")
    wrote = call_command("synth", *args, "--size", "64K", "-o", str(path))
    assert wrote.returncode == 0, wrote.stderr
    assert "of 64 operations" in wrote.stdout and "for messages of" in wrote.stdout
    plan = json.loads(path.read_text())
    assert plan["collective"] == "allgather" and len(plan["gpus"]) == 4
    again = call_command("synth", *args, "-o", str(path))
    assert again.returncode == 2 and "already exists" in again.stderr
    printed = call_command("synth", *args, "--size", "64K")
    assert json.loads(printed.stdout) == plan
    refused = call_command("synth", "gather", *args[1:2], *args[4:])
    assert refused.returncode == 3 and refused.stderr.count("\n") == 1
