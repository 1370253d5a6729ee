"""Reproducible plans: an element's bits follow from the contributions alone, whatever buffer it is
in, and wherever in it.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from called import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_ranks
from planned import synthesize
from played import Array, play
from random_graphs import graphs, on
from ranks import same_bits
from same_bits import add_up
from sample_helped import build_helped
from thorough import count_examples
from unhurried import make_effort

import topoplan
from topoplan.extras import Extra
from topoplan.runtime.program.lowering import lower
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.cost.segmentation import families
from topoplan.synth.extras.reproducible.bracket import list_leaves, parse_bracket
from topoplan.synth.extras.reproducible.bracketing import find_bracketing
from topoplan.synth.extras.reproducible.build import build_reproducible
from topoplan.synth.extras.reproducible.section import OneBracketing
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan
from topoplan.synth.planner.whole import cost_all
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.topo.errors import InfeasibleError, InputError, VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

ADDING = ("allreduce", "reduce-scatter", "reduce")
CASES = 10_000


def built(name: str, topology: str, collective: str = "allreduce") -> Schedule:
    target = preset(topology)
    return STRATEGIES[name](Request(collective_on(collective, target), target, make_effort()))[0]


def draw_values(chance: np.random.Generator, ranks: int, numel: int) -> list[Array]:
    """Return contributions whose sums are rounded: of any size and sign, so that another bracketing
    gives other bits.
    """
    return [
        (chance.normal(size=numel) * 2.0 ** chance.integers(-8, 8, numel)).astype(np.float32)
        for _ in range(ranks)
    ]


def count_differing(
    schedule: Schedule, bracketing: str, numel: int, seed: int, *, batched: bool
) -> int:
    """Play a schedule on random buffers; return at how many elements its bits are not those of the
    bracketing.
    """
    collective = schedule.collective
    n, is_parted = collective.ranks, collective.name == "reduce-scatter"
    inputs = draw_values(np.random.default_rng(seed), n, numel)
    programs = [lower(schedule, rank, numel, batched=batched) for rank in range(n)]
    outputs = play(programs, inputs, not is_parted, numel // n, seed)
    wanted = add_up(bracketing, inputs).view(np.int32)
    own = numel // n if is_parted else 0
    ends = range(n) if collective.root is None else [collective.root]
    return sum(
        int(
            (
                outputs[r].view(np.int32)
                != (wanted[r * own : (r + 1) * own] if is_parted else wanted)
            ).sum()
        )
        for r in ends
    )


def list_variants(schedules: list[Schedule], topology: Topology) -> list[Schedule]:
    """Return all that the runtime may choose among, cut no finer than tests have time for."""
    listed = families(schedules, Router(topology))
    return [s for family in listed for s in (*family.stepwise, *family.piped) if s.segments <= 8]


def search_quickly(topology: Topology, collective: Collective) -> list[Schedule]:
    bound = find_bounds(collective, Router(topology), make_effort()).single_path
    return build_reproducible(
        Request(collective, topology, make_effort().grant(0.15), bound=bound, quick=True)
    )


@pytest.mark.parametrize("name", ADDING)
def test_10000_generated_cases_have_the_bits_of_the_bracketing(name: str) -> None:
    """A case is an element: its contributions, a machine, one of the schedules, a segmentation, a
    size, a place, and whether messages go in batches.
    """
    cases = 0

    @settings(max_examples=count_examples(4), deadline=None)
    @given(topology=graphs(most=5, switches=2), seed=st.integers(0, 10**6))
    def check(topology: Topology, seed: int) -> None:
        nonlocal cases
        collective = on(name, topology)
        try:
            costed = cost_all(
                Router(topology), search_quickly(topology, collective)
            )  # replays each
        except InfeasibleError:
            return
        chance = random.Random(seed)
        by_text: dict[str, list[Schedule]] = {}
        for schedule in dict.fromkeys(schedule.uncut for schedule, _ in costed):
            text = find_bracketing(schedule)
            if text is not None:
                by_text.setdefault(text, []).append(schedule)
        for text, schedules in by_text.items():
            assert sorted(list_leaves(parse_bracket(text))) == list(range(collective.ranks))
            variants = list_variants(schedules, topology)
            for variant in chance.sample(variants, min(3, len(variants))):
                numel = chance.choice([0, 1, 7, chance.randrange(1000, 4000)]) * collective.ranks
                for batched in (False, True):
                    assert count_differing(variant, text, numel, seed, batched=batched) == 0
                    cases += numel

    check()
    assert cases >= CASES / 3


@pytest.mark.parametrize(
    ("name", "topology", "collective", "bracketing"),
    [
        ("direct", "switch:4", "allreduce", "(((0+1)+2)+3)"),
        ("direct", "switch:4", "reduce-scatter", "(((0+1)+2)+3)"),
        ("halving-doubling", "hypercube:2", "allreduce", "((0+2)+(1+3))"),
        ("one-shot", "switch:3", "allreduce", "((0+1)+2)"),
        ("ring", "ring:4", "allreduce", None),
        ("double-tree", "switch:7", "allreduce", None),
        ("direct", "switch:4", "allgather", None),
    ],
)
def test_the_bracketing_of_known_schedules(
    name: str, topology: str, collective: str, bracketing: str | None
) -> None:
    schedule = built(name, topology, collective)
    assert find_bracketing(schedule) == bracketing
    if bracketing is not None:
        assert (
            count_differing(replace(schedule, segments=3), bracketing, 400, 1, batched=False) == 0
        )


def test_a_helper_that_adds_has_no_place_in_the_bracketing() -> None:
    """A sum of two terms has one order only."""
    assert find_bracketing(build_helped("allreduce", 4, (0, 2), (1, 3))) == "(0+2)"


def test_a_ring_has_other_bits_in_other_places() -> None:
    """What the promise is about, and that the replay would see it broken."""
    assert count_differing(built("ring", "ring:4"), "(((0+1)+2)+3)", 400, 1, batched=False) > 0


def make(topology: str, collective: str = "allreduce") -> Plan:
    target = preset(topology)
    return synthesize(collective_on(collective, target), target, reproducible=True).plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make("switch:4")


@pytest.mark.parametrize("collective", ADDING)
def test_on_switches_it_costs_next_to_nothing(collective: str) -> None:
    for topology in ("dgx-a100:2", "pcie-2socket") if collective == "allreduce" else ("dgx-a100",):
        found = make(topology, collective)
        least = min(
            bandwidth_s_per_GB(replace(schedule.uncut, segments=2), found.topology)
            for schedule in found.schedules
        )
        assert least * Fraction(9, 10) <= found.bound_one_way.s_per_GB
        assert found.bracketing is not None


@pytest.mark.long
def test_a_sparse_machine_has_one_bracketing_near_its_bound() -> None:
    found = make("dgx1")
    assert found.gap_of(found.entries[-1]) < Fraction(1, 100)
    assert {find_bracketing(schedule) for schedule in found.schedules} == {found.bracketing}


def test_a_plan_that_promises_what_its_schedules_do_not_keep_is_refused(
    plan: Plan, tmp_path: Path
) -> None:
    assert Plan.loads(json.dumps(plan.to_json())).bracketing == plan.bracketing == "(((0+1)+2)+3)"
    wrong = replace(plan, extensions=(OneBracketing("((0+1)+(2+3))"),))
    with pytest.raises(
        VerificationError,
        match=r"says that it is reproducible, but its levels schedule does not add",
    ):
        wrong.save(tmp_path / "plan.json")
    with pytest.raises(VerificationError, match="says that it is reproducible"):
        Plan.loads(json.dumps(wrong.to_json()))
    ring = preset("ring:4")
    usual = synthesize(collective_on("allreduce", ring), ring, "ring").plan
    assert "reproducible" not in usual.to_json()
    with pytest.raises(VerificationError, match="says that it is reproducible"):
        replace(usual, extensions=(OneBracketing("(((0+1)+2)+3)"),)).verify()
    with pytest.raises(InputError, match=r"synthesize\(reproducible=True\)"):
        usual.check_one_bracketing()


def test_requests_that_cannot_be_met_say_why() -> None:
    ring = preset("ring:4")
    with pytest.raises(
        InfeasibleError, match="no schedule of ring adds every element up in one bracketing"
    ):
        synthesize(collective_on("allreduce", ring), ring, "ring", reproducible=True)
    with pytest.raises(InputError, match="allgather adds nothing"):
        synthesize(collective_on("allgather", ring), ring, reproducible=True)


def test_topo_synth_writes_one_and_topo_run_takes_no_other(tmp_path: Path) -> None:
    ask = ["--collective", "allreduce", "--topology", "switch:3", "--json"]
    path, other = tmp_path / "same.json", tmp_path / "usual.json"
    done = call_command("synth", *ask, "--reproducible", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reproducible"] == {"bracketing": "((0+1)+2)"}
    assert Plan.load(path).bracketing == "((0+1)+2)"
    ring = preset("ring:3")
    synthesize(collective_on("allreduce", ring), ring, "ring").plan.save(other)
    done = call_command("synth", *ask, "--reproducible", "--bound-only")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--reproducible with --bound-only" in done.stderr
    done = call_command("run", str(other), "--choose", "same-bits")
    assert done.returncode == 2
    assert (
        "is not reproducible: its schedules add in different bracketings; synthesize one with "
        "topo-synth" in done.stderr
    )


@pytest.mark.long
def test_whole_in_pieces_and_elsewhere_on_real_ranks(plan: Plan, tmp_path: Path) -> None:
    """Through a communicator, the DDP hook's way and the backend: no element differs, in any
    floating-point type.
    """
    plan.save(tmp_path / "same.json")
    ring = preset("ring:4")
    synthesize(collective_on("allreduce", ring), ring, "ring").plan.save(tmp_path / "usual.json")
    results = run_ranks(same_bits.everywhere, 4, str(tmp_path))
    for differing in results:
        assert differing == {"communicator": 0, "backend": 0}


def test_a_copy_without_the_extra_reads_the_plan_and_does_not_promise_its_bits(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = json.dumps(plan.to_json())
    monkeypatch.setattr(Extra, "is_here", property(lambda extra: extra.name != "reproducible"))
    loaded = Plan.loads(text, "plan.json")
    assert loaded.entries == plan.entries
    assert loaded.bracketing is None
    (said,) = caplog.messages
    assert said.startswith("plan.json: read without the field reproducible: the extra 'reproducib")
    with pytest.raises(InputError, match="is not reproducible"):
        loaded.check_one_bracketing()


def test_a_reproducible_plan_of_a_group_uses_no_helpers() -> None:
    plan = topoplan.synthesize("allreduce", "mi300x", group=[1, 3, 4], reproducible=True)
    assert plan.helpers == ()
    plan.check_one_bracketing()
    # It names ranks of the whole machine, as the schedules do.
    assert plan.bracketing == "((1+3)+4)"
    plan.verify()
    assert plan.bound_with_helpers is not None
    assert plan.bound_with_helpers.s_per_GB < plan.bound_one_way.s_per_GB
