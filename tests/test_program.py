"""Lowering: all ranks' programs, played on numpy arrays over FIFO channels, give the collective's result for any length."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.runtime.program import Program, lower
from topoplan.synth.collective import Collective
from topoplan.synth.ksync.copying import Instance, solve_copying
from topoplan.synth.ksync.fabric import fabric_of
from topoplan.synth.order import is_uniform
from topoplan.synth.schedule import Schedule, Transfer
from topoplan.synth.strategies import STRATEGIES
from topoplan.synth.strategies.base import Request
from topoplan.synth.synthesize import collective_on
from topoplan.synth.transform import reverse
from topoplan.topo.presets import preset

Array = np.ndarray


def built(name: str, topology: str, collective: str = "allreduce") -> Schedule:
    target = preset(topology)
    return STRATEGIES[name](Request(collective_on(collective, target), target, time.monotonic() + 30))[0]


def exact(name: str, triple: tuple[int, int, int], root: int | None = None) -> Schedule:
    found = solve_copying(
        fabric_of(preset("dgx1")), Instance(Collective(name, 8, root), *triple), time.monotonic() + 60
    )
    assert found is not None
    return found


SCHEDULES = {
    "ring": built("ring", "ring:4"),
    "doubling, 6 ranks": built("recursive-doubling", "switch:6"),
    "halving-doubling": built("halving-doubling", "hypercube:3"),
    "direct": built("direct", "switch:5"),
    "one-shot": built("one-shot", "switch:5"),
    "double-tree": built("double-tree", "switch:7"),
    "packing": built("packing", "dgx1"),
    "allgather": exact("allgather", (6, 3, 7)),
    "reduce-scatter": reverse(exact("allgather", (2, 2, 3))),
    "broadcast": exact("broadcast", (6, 3, 3), 3),
    "reduce": reverse(exact("broadcast", (6, 3, 3), 3)),
    "gather": exact("gather", (6, 3, 7), 2),
    "scatter": exact("scatter", (6, 3, 7), 2),
    "alltoall": exact("alltoall", (3, 3, 8)),
    "packed allgather": built("packing", "mesh:2x3", "allgather"),
    "packed reduce-scatter": built("packing", "mesh:2x3", "reduce-scatter"),
    "packed broadcast": built("packing", "dgx1", "broadcast"),
    "packed reduce": built("packing", "dgx1", "reduce"),
    "packed alltoall": built("packing", "mesh:2x3", "alltoall"),
    "packed scatter": built("packing", "mesh:2x3", "scatter"),
    "packed gather": built("packing", "mesh:2x3", "gather"),
    "hierarchical": built("hierarchical", "pcie-2socket"),
    "greedy": built("greedy", "mesh:2x3"),
    "greedy allgather": built("greedy", "mesh:2x3", "allgather"),
    "parameter-server": built("parameter-server", "switch:5"),
}
PARTED = ("allgather", "reduce-scatter", "gather", "scatter", "alltoall")


def play(programs: list[Program], inputs: list[Array], in_place: bool, out_numel: int) -> list[Array]:
    """Every rank in turn for as long as it can go on; a rank that waits for what nobody sends is a deadlock."""
    work = [np.full(p.work_numel, -1e9) for p in programs]
    staging = [np.full(p.staging_numel, -1e9) for p in programs]
    wires: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
    for p, w, x in zip(programs, work, inputs, strict=True):
        if in_place:
            w[:] = x
        for f in p.fills:
            w[f.to : f.to + f.hi - f.lo] = x[f.lo : f.hi]

    def run(rank: int) -> object:
        for tick in programs[rank].ticks:
            for m in tick.sends:
                wires[rank, m.peer].append(work[rank][m.lo : m.hi].copy())
            for m in tick.receives:
                while not wires[m.peer, rank]:
                    yield
                data = wires[m.peer, rank].popleft()
                assert len(data) == m.hi - m.lo, "sender and receiver cut the message differently"
                into = work[rank][m.lo : m.hi] if m.staged is None else staging[rank][m.staged : m.staged + len(data)]
                into[:] = data
            for c in tick.combines:
                mine, n = work[rank], c.hi - c.lo
                parts = [mine[c.lo : c.hi].copy() if at is None else staging[rank][at : at + n] for at in c.terms]
                mine[c.lo : c.hi] = sum(parts[1:], parts[0])
            for move in tick.places:
                work[rank][move.to : move.to + move.hi - move.lo] = staging[rank][move.lo : move.hi]

    going = {rank: run(rank) for rank in range(len(programs))}
    for _ in range(10_000):
        for rank, it in list(going.items()):
            if next(it, "done") == "done":  # type: ignore[call-overload]
                del going[rank]
        if not going:
            break
    assert not going, "deadlock"
    assert not any(wires.values()), "something was sent that nobody received"
    out = []
    for p, w in zip(programs, work, strict=True):
        y = w.copy() if in_place else np.full(out_numel, np.nan)
        for d in p.drains:
            y[d.to : d.to + d.hi - d.lo] = w[d.lo : d.hi]
        out.append(y)
    return out


def check(schedule: Schedule, numel: int) -> None:
    name, n, root = schedule.collective.name, schedule.collective.ranks, schedule.collective.root or 0
    part = numel // n
    brings = {"allgather": part, "gather": part}.get(name, numel)
    gets = {"reduce-scatter": part, "scatter": part}.get(name, numel)
    random = np.random.default_rng(numel)
    inputs = [random.integers(0, 1000, brings).astype(float) for _ in range(n)]
    programs = [lower(schedule, rank, numel) for rank in range(n)]
    outputs = play(programs, inputs, name not in PARTED, gets)
    total = sum(inputs[1:], inputs[0])
    for rank, got in enumerate(outputs):
        mine = slice(rank * part, (rank + 1) * part)
        wanted = {
            "allreduce": lambda: total,
            "broadcast": lambda: inputs[root],
            "reduce": lambda: total if rank == root else None,  # noqa: B023
            "allgather": lambda: np.concatenate(inputs),
            "gather": lambda: np.concatenate(inputs) if rank == root else None,  # noqa: B023
            "reduce-scatter": lambda: total[mine],  # noqa: B023
            "scatter": lambda: inputs[root][mine],  # noqa: B023
            "alltoall": lambda: np.concatenate([x[mine] for x in inputs]),  # noqa: B023
        }[name]()
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=6, deadline=None)
@given(numel=st.one_of(st.sampled_from([0, 1, 2, 7]), st.integers(8, 3000)))
def test_programs_compute_the_collective(name: str, segments: int, numel: int) -> None:
    schedule = replace(SCHEDULES[name], segments=segments)
    if schedule.collective.name in PARTED:
        numel *= schedule.collective.ranks
    check(schedule, numel)


def test_neighbouring_chunks_travel_in_one_message() -> None:
    """Halving-doubling sends half the vector first: one message, not one a chunk."""
    program = lower(SCHEDULES["halving-doubling"], 0, 800)
    assert [[m.hi - m.lo for m in t.sends] for t in program.ticks] == [[400], [200], [100], [100], [200], [400]]


def test_a_dropped_transfer_is_seen_by_this_test() -> None:
    schedule = SCHEDULES["ring"]
    with pytest.raises(AssertionError):
        check(replace(schedule, transfers=schedule.transfers[:-1]), 64)


@pytest.mark.parametrize("name", ["ring", "doubling, 6 ranks", "halving-doubling", "direct", "one-shot", "packing"])
def test_classic_schedules_give_all_ranks_the_same_bits(name: str) -> None:
    assert is_uniform(SCHEDULES[name])


def test_different_orders_of_addition_are_seen() -> None:
    """Three ranks: rank 0 adds (0+1)+2, rank 2 adds 0+(1+2)."""
    collective = Collective("allreduce", 3)
    rows = (
        Transfer(0, 1, 0, 0, "reduce"),
        Transfer(0, 1, 2, 0, "reduce"),
        Transfer(1, 2, 1, 0, "copy"),
        Transfer(2, 0, 2, 0, "copy"),
    )
    schedule = Schedule(collective, "by hand", collective.even_chunks(1), rows, (1, 1, 1))  # type: ignore[arg-type]
    assert not is_uniform(schedule)
