"""Reports of machines and plans whose searches were cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import synthesize

from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.describe import CUT_SHORT
from topoplan.synth.extras.report.gather import gather_report, report_plan
from topoplan.synth.extras.report.page import write_page
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

TWO_BOXES = "dgx-h100:2"


def test_a_page_marks_a_bound_that_was_cut_short() -> None:
    whole = synthesize(Collective("allreduce", 4), preset("star:4")).plan
    stopped = replace(whole, bound_one_way=replace(whole.bound_one_way, is_cut_short=True))
    assert CUT_SHORT in write_page(report_plan(stopped, "plan.json"))


@pytest.mark.long
def test_a_report_in_haste_has_no_bound_above_the_true_one_unmarked() -> None:
    machine = preset(TWO_BOXES)
    for section in gather_report(machine, 0.2).sections:
        assert section.bounds is not None
        collective = collective_on(section.collective.name, machine)
        truth = find_bounds(collective, Router(machine), Effort()).single_path
        found = section.bounds.single_path
        assert found.is_cut_short or found.algbw_GBps == truth.algbw_GBps
        levers = section.explanation.levers if section.explanation is not None else ()
        for lever in levers:
            assert lever.wider_GBps is None or lever.wider_GBps <= truth.algbw_GBps * 11 / 10
