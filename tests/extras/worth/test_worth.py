"""What a plan is worth: one figure in all places, and advice that no assumed rate carries."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from called import call_command
from planned import synthesize

from topoplan.synth.extras.stock.library import reach
from topoplan.synth.extras.stock.on_paper import StockRate
from topoplan.synth.extras.worth.screen import list_rows
from topoplan.synth.extras.worth.worth import BACKEND, FILE, HOOK, KEEP, MIN_GAIN, find_worth
from topoplan.synth.ir.collective import Collective
from topoplan.synth.plan import Plan
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load_for_planning, resolve
from topoplan.topo.presets import preset

SIZE = 1 << 30
_BRIDGED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\t0-15\t0
GPU1\tNV12\t X \tSYS\tSYS\t0-15\t0
GPU2\tSYS\tSYS\t X \tNODE\t16-31\t1
GPU3\tSYS\tSYS\tNODE\t X \t16-31\t1
"""


def plan_for(machine: Topology, name: str = "allreduce") -> Plan:
    topology, router = load_for_planning(machine)
    return synthesize(Collective(name, len(topology.ranks)), topology, router=router).plan


@pytest.mark.parametrize(
    ("machine", "collective", "advice"),
    [
        ("pcie-2socket", "allreduce", FILE),
        ("pcie-2socket", "allgather", BACKEND),
        ("dgx1", "allreduce", KEEP),
        ("dgx-a100", "allreduce", KEEP),
        ("mi300x", "allreduce", KEEP),
    ],
)
def test_the_advice_follows_the_gain(machine: str, collective: str, advice: str) -> None:
    worth = find_worth(plan_for(preset(machine), collective), SIZE)
    assert worth.advice == advice
    assert worth.stock_GBps is not None
    assert worth.ratio == pytest.approx(worth.plan_GBps / worth.stock_GBps)
    assert (worth.plan_GBps >= worth.stock_GBps * MIN_GAIN) == (advice != KEEP)
    assert worth.reason is None


def test_stock_has_the_figure_that_every_command_gives() -> None:
    topology, _ = load_for_planning(preset("pcie-2socket"))
    limit = reach("allreduce", topology)
    assert isinstance(limit, StockRate)
    worth = find_worth(plan_for(preset("pcie-2socket")), 1 << 40)
    assert worth.stock_GBps == pytest.approx(float(limit.algbw_GBps), rel=1e-3)


def test_between_hosts_the_ratio_is_the_least_one() -> None:
    plan = plan_for(preset("dgx-a100:2"), "allgather")
    worth = find_worth(plan, SIZE)
    assert worth.is_limit
    assert "at least" in worth.line
    assert "at most" in worth.line
    assert any("not modelled" in text for _, text in list_rows(plan, worth, "x"))


def test_no_advice_rests_on_a_rate_that_nothing_states(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.txt"
    matrix.write_text(_BRIDGED)
    guessed = find_worth(plan_for(resolve(str(matrix))), SIZE)
    assert guessed.ratio is not None
    assert guessed.ratio >= MIN_GAIN
    assert guessed.advice is None
    assert guessed.reason is not None
    assert "nothing states" in guessed.reason
    assert guessed.condition.startswith(" if ")
    done = call_command(
        *("worth", str(matrix), "--rate", "pcie=24", "--rate", "smp=24", "--rate", "nvlink=25")
    )
    assert done.returncode == 0, done.stderr
    assert "machine.json" in done.stdout
    assert "no advice" not in done.stdout


def test_without_a_model_of_stock_nothing_is_claimed() -> None:
    worth = find_worth(plan_for(preset("mesh:2x2")), SIZE)
    fields = worth.to_json()
    assert fields["stock_GBps"] is fields["ratio"] is fields["advice"] is None
    assert "not modelled" in fields["reason"]
    assert "is not known" in worth.line


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-h100:4"])
def test_where_switches_can_add_stock_is_kept(machine: str) -> None:
    worth = find_worth(plan_for(preset(machine)), SIZE)
    assert (worth.advice, worth.stock_GBps, worth.ratio) == (KEEP, None, None)
    assert worth.line.startswith("keep NCCL: its NVSwitches can add")
    assert "NVLS" in worth.line


def test_where_latency_decides_nothing_is_claimed() -> None:
    plan = plan_for(preset("pcie-2socket"))
    small = find_worth(plan, 1 << 16)
    assert (small.ratio, small.advice, small.stock_GBps) == (None, None, None)
    assert small.reason is not None
    assert "at 64 KiB latency decides" in small.reason
    assert find_worth(plan, 1 << 28).ratio is not None


def test_a_group_gets_no_file() -> None:
    topology, router = load_for_planning(preset("pcie-2socket"))
    group = Collective("allreduce", 4, members=(0, 2, 4, 6))
    plan = synthesize(group, topology, router=router).plan
    assert find_worth(plan, SIZE).advice in (KEEP, HOOK)


def test_every_place_says_the_same(tmp_path: Path) -> None:
    synth = call_command("synth", "allreduce", "pcie-2socket", "-o", str(tmp_path / "plan.json"))
    line = synth.stdout.splitlines()[-1]
    assert re.match(r"stock NCCL by a model: 10\.96 GB/s; this plan: 1\.24x at 1 GiB", line), line
    data = json.loads(call_command("synth", "allreduce", "pcie-2socket", "--json").stdout)["worth"]
    assert sorted(data) == sorted(
        ("stock_GBps", "stock_basis", "plan_GBps", "ratio", "advice", "reason")
    )
    assert data["advice"] == FILE
    screen = json.loads(call_command("worth", "pcie-2socket", "--json").stdout)
    assert screen["worth"] == data
    page = tmp_path / "page.html"
    done = call_command("report", str(tmp_path / "plan.json"), "-o", str(page))
    assert done.returncode == 0, done.stderr
    embedded = re.search(r'data-worth="([^"]*)"', page.read_text(encoding="utf-8"))
    assert embedded is not None
    assert json.loads(html.unescape(embedded[1])) == data
    first = re.search(r'<div class="facts"[^>]*><div><b>([^<]*)', page.read_text(encoding="utf-8"))
    assert first is not None
    assert first[1] == "1.24x"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such",), "no-such"),
        (("dgx1", "--size", "many"), "many"),
        (("dgx1", "--rate", "pcie=24"), "pcie"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = call_command("worth", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
