"""The program of docs/certificates.md rechecks bounds from a plan's file alone, as we do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from planned import synthesize

from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "certificates.md"
# A cheap way in comes before a dear one in the list of links, and after it.
_UNEVEN = Topology(
    "uneven",
    preset("full:4").devices,
    tuple(
        link
        for a, b, rate in (
            *((0, 1, 9), (0, 2, 1), (1, 2, 5), (0, 3, 2)),
            *((2, 3, 4), (1, 3, 1)),
        )
        for link in both_directions(Link(f"gpu{a}", f"gpu{b}", Fraction(rate)))
    ),
)


def recheck(machine: Topology, folder: Path, claimed: str | None = None) -> str:
    """Return what the page's program prints of the bound of a plan, or of a `claimed` one."""
    topology, router = load_for_planning(machine)
    ranks = len(topology.ranks)
    plan = synthesize(
        Collective("allreduce", ranks), topology, router=router, strategy="packing"
    ).plan
    data = plan.to_json()
    if claimed is not None:
        data["bound"]["s_per_GB"] = claimed
    (folder / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    program = re.search(r"```python recheck.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert program is not None
    (folder / "recheck.py").write_text(program[1], encoding="utf-8")
    done = subprocess.run(  # isolated: it can import nothing of ours
        [sys.executable, "-I", "recheck.py"],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == (0 if claimed is None else 1), done.stderr
    if claimed is None:
        assert f" {plan.bound.algbw_GBps} GB/s" in done.stdout
        return plan.bound.kind
    assert "AssertionError" in done.stderr
    return ""


@pytest.mark.parametrize("name", ["dgx1", "pcie-2socket", "dgx-a100:2", "mesh:3x3"])
def test_it_agrees(name: str, tmp_path: Path) -> None:
    assert recheck(preset(name), tmp_path) in ("prices", "cut")


def test_it_takes_the_cheapest_way_wherever_it_is_listed(tmp_path: Path) -> None:
    recheck(_UNEVEN, tmp_path)


def test_it_finds_a_claim_that_the_proof_does_not_bear_out(tmp_path: Path) -> None:
    recheck(preset("pcie-2socket"), tmp_path, "7/97")
