"""What a step costs between GPUs over NCCL where nothing was measured, and where it counts."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from called import call_command
from planned import synthesize

from topoplan.synth.cost.affine import costs, costs_between_gpus
from topoplan.synth.cost.host_costs import (
    OVER_NCCL,
    HostCosts,
    NCCL_STEP_us,
    describe_host,
    runs_over_nccl,
    step_us,
    with_host,
)
from topoplan.synth.cost.simulate import predict_us
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.derived.hosts import join_cpu_hosts
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset


def plan_of(topology: Topology, strategy: str = "auto") -> list[tuple[str, int]]:
    plan = synthesize(collective_on("allreduce", topology), topology, strategy, 30).plan
    return [(entry.schedule.strategy, entry.min_bytes) for entry in plan.entries]


@pytest.mark.parametrize("name", ["dgx1", "dgx-a100:2", "mi300x", "pcie-2socket"])
def test_gpus_of_machines_run_over_nccl(name: str) -> None:
    assert step_us(preset(name)) == NCCL_STEP_us


@pytest.mark.parametrize("name", ["ring:4", "mesh:3x3@25", "switch:8", "z52"])
def test_abstract_graphs_cost_what_their_links_say(name: str) -> None:
    assert not runs_over_nccl(preset(name)) and step_us(preset(name)) == 0


def test_cpu_hosts_and_calibrated_machines_stay_as_they_are() -> None:
    cpus = join_cpu_hosts(["a", "b"], [0, 0, 1, 1])
    assert step_us(cpus) == 0
    calibrated = with_host(preset("dgx1"), HostCosts(source="measured here"))
    assert step_us(calibrated) == 0 and describe_host(calibrated) == "measured here"


def test_every_tick_costs_a_step() -> None:
    dgx1 = preset("dgx1")
    ring = next(
        x.schedule
        for x in synthesize(collective_on("allreduce", dgx1), dgx1, "ring", 10).plan.entries
    ).uncut
    counts = [1, 2, 8]
    for m, plain, dear in zip(
        counts, costs(ring, dgx1, counts), costs_between_gpus(ring, dgx1, counts), strict=True
    ):
        assert dear.beta_s_per_GB == plain.beta_s_per_GB
        assert dear.alpha_us == plain.alpha_us + NCCL_STEP_us * replace(ring, segments=m).ticks
    # Played, as the runtime does for its choices, it is the same to within what a link's latency
    # makes of it.
    played = predict_us(ring, dgx1, OVER_NCCL, 8, batched=True)
    assert played == pytest.approx(float(costs_between_gpus(ring, dgx1, [1])[0].alpha_us), rel=0.02)


def test_few_steps_win_up_to_larger_sizes() -> None:
    """Two steps at full rate against one at half of it: they cross where the second step is paid
    for.
    """
    four = degrade(preset("dgx-a100"), Change(without_ranks=(4, 5, 6, 7)))
    (small, _), (large, crossing) = plan_of(four)
    assert (small, large) == ("one-shot", "packing")
    step = NCCL_STEP_us + Fraction(3, 5)
    saved_s_per_GB = 1 / Fraction(100) - 1 / Fraction(200)
    assert crossing == pytest.approx(float(step / saved_s_per_GB) * 1000, abs=2)


def test_the_output_says_which_costs_it_rests_on() -> None:
    asked = ("--collective", "allreduce", "--strategy", "direct", "--topology")
    assert (
        "host costs: not measured; typical of NCCL (6.6 us a step)"
        in call_command("synth", *asked, "dgx-a100").stdout
    )
    out = json.loads(call_command("synth", *asked, "switch:4", "--json").stdout)
    assert out["host_costs"] == "not measured; none, the links' latencies alone"
