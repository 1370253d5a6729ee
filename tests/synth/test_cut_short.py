"""Bounds whose search the time limit stopped: they are marked, and nothing is advised by them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from called import call_command
from planned import synthesize

from topoplan.cli.synthesis.bound import find_lost_help
from topoplan.cli.synthesis.job import make_job
from topoplan.cli.synthesis.options import build_parser, check_options
from topoplan.synth.bounds import cuts
from topoplan.synth.bounds.certificate import Bounds, check_bound
from topoplan.synth.bounds.cuts import cut_bound
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.describe import CUT_SHORT, bounds_text, help_lines
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.packing.survey import survey
from topoplan.synth.plan import Plan
from topoplan.topo.clock import limit_time
from topoplan.topo.errors import TimeLimitError
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

TWO_BOXES = "dgx-h100:2"


class LastMinute(Effort):
    """An allowance that is not over itself, though the clock stops all searches in it."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def is_over(self, search: str) -> bool:
        """Return False: one more search may begin."""
        return False


def stopped_bounds(machine: str = TWO_BOXES) -> tuple[Collective, Router, Bounds]:
    topology = preset(machine)
    collective, router = Collective("allreduce", len(topology.ranks)), Router(topology)
    survey.cache_clear()  # else what another test has found proves the bound without a search
    return collective, router, find_bounds(collective, router, Effort(0.0))


@cache
def whole_bounds(machine: str = TWO_BOXES, name: str = "allreduce") -> Bounds:
    """The bounds of searches that nothing stops."""
    topology = preset(machine)
    return find_bounds(collective_on(name, topology), Router(topology))


def test_a_stopped_search_leaves_a_bound_that_holds_and_says_so() -> None:
    _, router, stopped = stopped_bounds()
    whole = whole_bounds()
    assert stopped.single_path.is_cut_short and stopped.multipath.is_cut_short
    assert not whole.single_path.is_cut_short
    assert stopped.single_path.algbw_GBps > whole.single_path.algbw_GBps
    assert CUT_SHORT in bounds_text(stopped, router.topology)
    assert CUT_SHORT not in bounds_text(whole, router.topology)
    assert stopped.single_path.to_json()["cut_short"] is True
    assert "cut_short" not in whole.single_path.to_json()


def test_a_stop_elsewhere_is_not_blamed_on_the_bound() -> None:
    effort = Effort()
    effort.record_cut("another search")
    bounds = find_bounds(Collective("allreduce", 8), Router(preset("dgx1")), effort)
    assert not bounds.single_path.is_cut_short
    assert effort.cut_short == ["another search"]


def test_help_is_worth_nothing_known_beside_a_bound_that_may_be_too_high() -> None:
    _, _, stopped = stopped_bounds()
    high = stopped.single_path
    (line,) = help_lines([1], high, replace(high, s_per_GB=high.s_per_GB / 2, is_cut_short=False))
    assert line.endswith("what help adds is not known")


def test_a_plan_keeps_the_mark_of_its_bound_unless_it_reaches_the_bound(tmp_path: Path) -> None:
    whole = synthesize(Collective("allreduce", 4), preset("star:4")).plan
    stopped = replace(whole, bound_one_way=replace(whole.bound_one_way, is_cut_short=True))
    stopped.save(str(tmp_path / "plan.json"))
    read = Plan.load(str(tmp_path / "plan.json"))
    assert read.bound_one_way.is_cut_short and not read.bound.is_cut_short
    # One that reaches its bound has proved that no search would have lowered it.
    made = synthesize(Collective("allreduce", 4), preset("ring:4"), time_limit_s=0.001).plan
    assert min(map(made.gap_of, made.entries)) > 0 or not made.bound_one_way.is_cut_short


def test_the_command_marks_a_bound_in_text_and_json() -> None:
    asked = "allreduce", TWO_BOXES, "--bound-only", "--time-limit", "0.001"
    assert CUT_SHORT in call_command("synth", *asked).stdout
    out = json.loads(call_command("synth", *asked, "--json").stdout)
    assert out["bound_one_way"]["cut_short"] is True
    assert out["search_complete"] is False


def test_a_stopped_bound_with_the_help_of_ranks_left_out_is_a_stopped_search() -> None:
    args = build_parser().parse_args(["allreduce", TWO_BOXES, "--without-rank", "3"])
    check_options(args)
    job = make_job(args)
    job.started -= 2 * args.time_limit
    survey.cache_clear()
    find_lost_help(job, lambda _: None)
    assert job.with_help is not None and job.with_help.is_cut_short
    assert job.cut_short


@pytest.mark.long
def test_a_bound_of_a_huge_machine_keeps_its_time_limit() -> None:
    ended = call_command(
        "synth", "allreduce", "full:1500", "--bound-only", "--time-limit", "1", "-v"
    )
    assert ended.returncode == TimeLimitError.exit_code
    stopped = re.search(r"time limit of 1 s was over after ([\d,]+) steps of", ended.stderr)
    assert stopped is not None and "building links" in ended.stderr
    assert int(stopped[1].replace(",", "")) < 1500 * 1499  # one of the first steps


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_cuts_of_a_large_machine_end_with_the_time_and_those_of_small_ones_do_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = preset("mesh:8x8")
    with limit_time(time.monotonic(), 0.0, lambda _: None):
        cut_bound(collective_on(name, topology), topology)
        monkeypatch.setattr(cuts, "_CELLS", 1)
        with pytest.raises(TimeLimitError, match="of cuts"):
            cut_bound(collective_on(name, topology), topology)


def test_a_large_machine_without_time_for_searches_has_the_bound_of_a_cut() -> None:
    topology = preset("full:225")  # 50,400 links
    collective = Collective("gather", 225, 0)
    router = Router(topology)
    stopped = find_bounds(collective, router, Effort(0.0)).single_path
    assert stopped.kind == "cut" and stopped.is_cut_short
    with limit_time(time.monotonic(), 0.0, lambda _: None):
        hasty = find_bounds(collective, router, Effort(0.0)).single_path
    check_bound(hasty, collective, topology)
    assert hasty.is_cut_short and len(hasty.certificate["inside"]) == 224
