"""The executor's way over NCCL, on a stand-in with NCCL's rules (nccl_standin.py): every strategy's programs on random machines,
and faults that the stand-in must find.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nccl_standin import NcclStandIn
from played import PARTED, expected
from random_graphs import graphs, on

from topoplan.runtime.compiled import NCCL_BATCH
from topoplan.runtime.executor import Executor
from topoplan.runtime.program.layout import ends_numel
from topoplan.synth.effort import Effort
from topoplan.synth.ir.collective import COLLECTIVES
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.request import Request
from topoplan.synth.strategies import STRATEGIES
from topoplan.topo.errors import InfeasibleError, TimeLimitError
from topoplan.topo.graph import Device, Link, Topology, both_ways
from topoplan.topo.presets import preset

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int16, torch.uint8)


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """Two or three equal boxes, each around a switch, which a slower network joins."""
    count, gpus = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    fast, slow = draw(st.integers(3, 9)), draw(st.integers(1, 2))
    names = [[f"b{b}g{i}" for i in range(gpus + 1)] for b in range(count)]
    devices = [Device("net", "switch", family="network")]
    links = []
    for b, members in enumerate(names):
        devices += [Device(f"b{b}s", "switch"), *(Device(name, "gpu") for name in members)]
        links += [Link(name, f"b{b}s", Fraction(fast)) for name in members]
        links.append(Link(f"b{b}s", "net", Fraction(slow)))
    return Topology("boxes", tuple(devices), both_ways(links))


def machines(strategy: str) -> st.SearchStrategy[Topology]:
    """Random machines on which a strategy has schedules often enough."""
    if strategy == "exact":
        return graphs(most=3, two_way=False)
    if strategy == "hierarchical":
        return boxes()
    if strategy in ("packing", "greedy"):
        return graphs(most=5, two_way=False, switches=2 if strategy == "packing" else 0)
    switches = st.sampled_from(["switch:2", "switch:3", "switch:5", "switch:8"]).map(preset)
    return st.one_of(switches, boxes(), graphs(most=5, switches=2))


def make_inputs(schedule: Schedule, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Small whole numbers for each rank: all sums are exact."""
    made = torch.Generator().manual_seed(numel)
    ranks, brings_part = schedule.collective.ranks, schedule.collective.name in ("allgather", "gather")
    brings = numel // ranks if brings_part else numel
    return [torch.randint(0, 20, (brings,), generator=made).to(dtype) for _ in range(ranks)]


def check_outputs(schedule: Schedule, numel: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    name, n, root = schedule.collective.name, schedule.collective.ranks, schedule.collective.root or 0
    given = [x.numpy() for x in inputs]
    for rank, output in enumerate(outputs):
        wanted = expected(name, given, rank, root, numel // n)
        if wanted is not None:
            assert torch.equal(output, torch.from_numpy(wanted).to(output.dtype)), f"{schedule.label}: rank {rank}"


def play(
    calls: Sequence[tuple[Schedule, int]], dtype: torch.dtype = torch.float32, seed: int = 0, most: int = NCCL_BATCH
) -> NcclStandIn:
    """Make calls, all under way at once, over one transport by the product's executor, and check what they end with."""
    ranks = calls[0][0].collective.ranks
    standin = NcclStandIn(ranks, most)
    inputs = [make_inputs(schedule, numel, dtype) for schedule, numel in calls]
    outputs: list[list[torch.Tensor]] = [[] for _ in calls]
    for rank in range(ranks):
        executor = None
        for number, (schedule, numel) in enumerate(calls):
            source = inputs[number][rank]
            if schedule.collective.name in PARTED:
                target = source.new_zeros(ends_numel(schedule.collective, rank, numel)[1])
            else:
                source = target = source.clone()
            outputs[number].append(target)
            with standin.host_of(rank) as transport:
                executor = executor or Executor(transport, None)
                executor.run(schedule, numel, source, target)
    standin.play(seed)
    for (schedule, numel), given, got in zip(calls, inputs, outputs, strict=True):
        check_outputs(schedule, numel, given, got)
    return standin


def build(strategy: str, topology: Topology, collective: str) -> list[Schedule]:
    """Return a strategy's schedules, each once whatever its segments; none where it has none."""
    with suppress(InfeasibleError, TimeLimitError):
        found = STRATEGIES[strategy](Request(on(collective, topology), topology, Effort(1), quick=True))
        return list(dict.fromkeys(schedule.uncut for schedule in found))
    return []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_program_is_right_by_nccls_rules(strategy: str) -> None:
    played = set()

    @settings(max_examples=2 if strategy == "exact" else 5, phases=[Phase.generate])  # a failure is small already
    @given(topology=machines(strategy), data=st.data())
    def play_all(topology: Topology, data: st.DataObject) -> None:
        ranks = len(topology.ranks)
        for collective in COLLECTIVES:
            for schedule in build(strategy, topology, collective):
                cut = data.draw(st.sampled_from([(1, False), (3, False), (3, True)]))
                numel = data.draw(st.integers(0, 200)) * (ranks if collective in PARTED else 1)
                dtype = data.draw(st.sampled_from(DTYPES))
                play([(replace(schedule, segments=cut[0], stepwise=cut[1]), numel)], dtype, data.draw(st.integers(0, 99)))
                played.add(collective)

    play_all()
    assert "allreduce" in played
