"""A graph file that topo-probe --check or topo-judge offers is one that topo-synth writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from offers import list_machines, measure

# Two that are offered one, and two that are not.
FEW = {"pcie-2socket": True, "rtx-pro-6000": True, "dgx1": False, "spark-cable": False}


@pytest.mark.parametrize("machine", FEW)
def test_an_offer_is_not_withdrawn(machine: str, tmp_path: Path) -> None:
    ((argument, ranks),) = [each for each in list_machines(machine) if each[0] == machine]
    row = measure(argument, ranks, tmp_path)
    assert row["withdrawn"] == ""
    assert bool(row["written"]) == FEW[machine]


@pytest.mark.long
def test_no_offer_is_withdrawn_over_all_recorded_machines(tmp_path: Path) -> None:
    rows = [measure(argument, ranks, tmp_path) for argument, ranks in list_machines("")]
    assert [row["machine"] for row in rows if row["withdrawn"]] == []
    assert any(row["check"] or row["judge"] for row in rows)
