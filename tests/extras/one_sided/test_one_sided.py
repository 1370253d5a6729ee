"""One-sided programs, replayed in memory with weak ordering: results, and seeded faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_sided_replay import Memory, OneSidedReplay
from played import PARTED, expected
from random_graphs import graphs
from sample_schedules import SCHEDULES
from thorough import count_examples
from unhurried import make_effort

from topoplan.runtime.extras.one_sided.flat import build_flat
from topoplan.runtime.extras.one_sided.instructions import OneSidedProgram, Signal
from topoplan.runtime.extras.one_sided.lowering import lower_one_sided
from topoplan.runtime.program.layout import IN_PLACE
from topoplan.synth.ir.collective import COLLECTIVES, Collective, collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.topo.errors import InfeasibleError, VerificationError
from topoplan.topo.graph import Topology

Programs = list[OneSidedProgram]
MODES = st.sampled_from(("pull", "push"))
WINDOW = 1 << 13


def lower_all(schedule: Schedule, numel: int, mode: str, slices: int) -> Programs:
    return [
        lower_one_sided(schedule, rank, numel, window_numel=WINDOW, mode=mode, slices=slices)  # type: ignore[arg-type]
        for rank in range(schedule.collective.ranks)
    ]


def replay(
    calls: Sequence[tuple[Schedule, int, Programs]], seed: int, memory: Memory | None = None
) -> None:
    """Play the calls one after the other, and check what each ends with."""
    data = np.random.default_rng(seed)
    inputs, works = [], []
    for schedule, numel, programs in calls:
        name, n = schedule.collective.name, schedule.collective.ranks
        brings = numel // n if name in ("allgather", "gather") else numel
        inputs.append([data.integers(0, 1000, brings) for _ in range(n)])
        works.append([fill(p, x, name) for p, x in zip(programs, inputs[-1], strict=True)])
    OneSidedReplay([programs for _, _, programs in calls], works, seed, memory).run()
    for (schedule, numel, programs), given_, played in zip(calls, inputs, works, strict=True):
        collective = schedule.collective
        part, root = numel // collective.ranks, collective.root or 0
        for rank, (program, work) in enumerate(zip(programs, played, strict=True)):
            wanted = expected(collective.name, given_, rank, root, part)
            if wanted is not None:
                got = drain(program, work, len(wanted), collective.name)
                np.testing.assert_array_equal(got, wanted)


def fill(program: OneSidedProgram, data: np.ndarray, name: str) -> np.ndarray:
    if name in IN_PLACE:
        return np.array(data)
    work: np.ndarray = np.zeros(program.work_numel, dtype=np.int64)
    for move in program.fills:
        work[move.to : move.to + move.hi - move.lo] = data[move.lo : move.hi]
    return work


def drain(program: OneSidedProgram, work: np.ndarray, numel: int, name: str) -> np.ndarray:
    if name in IN_PLACE:
        return work
    output = np.zeros(numel, dtype=np.int64)
    for move in program.drains:
        output[move.to : move.to + move.hi - move.lo] = work[move.lo : move.hi]
    return output


@pytest.mark.long
@settings(max_examples=count_examples(12))
@given(
    name=st.sampled_from(list(SCHEDULES)),
    sizes=st.tuples(*[st.tuples(st.integers(0, 60), st.integers(1, 3))] * 3),
    mode=MODES,
    seed=st.integers(0, 10**6),
)
def test_three_calls_in_a_row_give_the_collectives_results(
    name: str, sizes: tuple[tuple[int, int], ...], mode: str, seed: int
) -> None:
    schedule = SCHEDULES[name]
    scale = schedule.collective.ranks if schedule.collective.name in PARTED else 1
    calls = [
        (schedule, numel * scale, lower_all(schedule, numel * scale, mode, slices))
        for numel, slices in sizes
    ]
    replay(calls, seed)


@settings(max_examples=count_examples(12))
@given(
    topology=graphs(),
    names=st.tuples(*[st.sampled_from(COLLECTIVES)] * 3),
    mode=MODES,
    seed=st.integers(0, 10**6),
)
def test_different_collectives_follow_each_other_on_random_machines(
    topology: Topology, names: tuple[str, ...], mode: str, seed: int
) -> None:
    calls = []
    for number, name in enumerate(names):
        schedule = build_greedy(topology, collective_on(name, topology))
        numel = 17 * (number + 1) * len(topology.ranks)
        calls.append((schedule, numel, lower_all(schedule, numel, mode, 1 + number)))
    replay(calls, seed)


def build_greedy(topology: Topology, collective: Collective) -> Schedule:
    request = Request(collective, topology, make_effort())
    for strategy in ("greedy", "packing"):
        try:
            return STRATEGIES[strategy](request)[0]
        except InfeasibleError:
            continue
    raise AssertionError(collective)


def list_calls(slices: int = 2) -> list[tuple[Schedule, int, Programs]]:
    """Four allreduces by two schedules: slots are used again, and values pass through ranks."""
    ring, direct = SCHEDULES["ring"], build_flat(Collective("allreduce", 4))[0]
    return [
        (schedule, numel, lower_all(schedule, numel, "pull", slices))
        for schedule, numel in ((ring, 64), (direct, 52), (ring, 36), (direct, 64))
    ]


def count_failures(calls: Sequence[tuple[Schedule, int, Programs]], memory: Memory) -> int:
    return sum(fails(calls, seed, memory) for seed in range(20))


def fails(calls: Sequence[tuple[Schedule, int, Programs]], seed: int, memory: Memory) -> bool:
    try:
        replay(calls, seed, memory)
    except (VerificationError, AssertionError):
        return True
    return False


def test_right_programs_in_right_memory_never_fail() -> None:
    assert count_failures(list_calls(), Memory()) == 0


@pytest.mark.parametrize(
    "memory",
    [Memory(halves=1), Memory(acquires=False), Memory(counts_runs=False)],
    ids=["one slot for two", "no acquire", "runs not counted"],
)
def test_a_fault_of_the_memory_is_found(memory: Memory) -> None:
    assert count_failures(list_calls(), memory) > 0


def list_signals(programs: Programs) -> Iterator[tuple[int, int]]:
    for rank, program in enumerate(programs):
        for at, x in enumerate(program.instructions):
            if isinstance(x, Signal):
                yield rank, at


def test_each_missing_signal_is_found() -> None:
    calls = list_calls(slices=1)
    for number, (schedule, numel, programs) in enumerate(calls[:2]):
        for rank, at in list_signals(programs):
            broken = list(programs)
            left = list(programs[rank].instructions)
            del left[at]
            broken[rank] = replace(programs[rank], instructions=tuple(left))
            faulty = [*calls[:number], (schedule, numel, broken), *calls[number + 1 :]]
            assert any(fails(faulty, seed, Memory()) for seed in range(20)), (number, rank, at)


def test_large_buffers_are_cut_until_their_slots_fit() -> None:
    (direct, one_shot) = build_flat(Collective("allreduce", 4))
    for schedule in (direct, one_shot):
        program = lower_one_sided(schedule, 0, 10**7, window_numel=1 << 15)
        fewer = lower_one_sided(schedule, 0, 10**7, window_numel=1 << 15, slices=program.slices)
        assert program == fewer
        with pytest.raises(InfeasibleError, match="one-sided programs need"):
            lower_one_sided(schedule, 0, 10**7, window_numel=1 << 15, slices=program.slices // 2)


def test_a_value_for_several_ranks_is_put_once_in_pull_mode() -> None:
    (one_shot,) = (x for x in build_flat(Collective("allreduce", 5)) if "one-shot" in x.label)
    pulled, pushed = (lower_all(one_shot, 100, mode, 1)[0] for mode in ("pull", "push"))
    assert len(list(pulled.puts)) == 1
    assert len(list(pushed.puts)) == 4
