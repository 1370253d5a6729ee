"""topo-synth --explain: what limits a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from called import call_command
from unhurried import make_effort

from topoplan.synth.bounds.certificate import Bounds
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.extras.explain.explain import explain
from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.packing.survey import survey
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


class LastMinute(Effort):
    """An allowance that is not over itself, though the clock stops all searches in it."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def is_over(self, search: str) -> bool:
        """Return False: one more search may begin."""
        return False


def synth(*args: str) -> str:
    done = call_command("synth", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def synth_json(*args: str) -> dict[str, Any]:
    return dict(json.loads(synth(*args, "--json")))


def find_stopped(machine: str) -> tuple[Collective, Router, Bounds, Bounds]:
    """Return a collective, the routes, and bounds of searches that nothing stops, and stopped."""
    topology = preset(machine)
    collective, router = Collective("allreduce", len(topology.ranks)), Router(topology)
    whole = find_bounds(collective, router)
    survey.cache_clear()  # else what was found proves the bound without a search
    return collective, router, whole, find_bounds(collective, router, Effort(0.0))


@pytest.mark.long
def test_explain_names_the_bottleneck_and_what_to_improve() -> None:
    out = synth_json(
        "--collective", "allreduce", "--topology", "pcie-2socket", "--explain", "--time-limit", "60"
    )
    explained = out["explain"]
    assert explained["sizes_bytes"] == [1 << b for b in (10, 13, 16, 19, 22, 25, 28, 30)]
    assert {"packing", "ring", "direct", "double-tree"} <= set(explained["algbw_GBps"])
    best = [max(row[i] for row in explained["algbw_GBps"].values()) for i in range(8)]
    assert best == sorted(best) and best[-1] <= out["bound"]["algbw_GBps"]
    levers = explained["links"]
    assert levers[0]["bound_gain_per_GBps"] == max(x["bound_gain_per_GBps"] for x in levers)
    total = sum(x["bound_gain_per_GBps"] * x["bandwidth_GBps"] * x["alike"] for x in levers)
    assert total == pytest.approx(
        out["bound"]["algbw_GBps"]
    )  # the bound is made of its links' prices
    cut = synth_json(
        "--collective", "broadcast", "--topology", "path:3", "--explain", "--time-limit", "10"
    )["explain"]
    assert [part["gpus"] for part in cut["bottleneck"]["parts"]] in (
        [["gpu0"], ["gpu1", "gpu2"]],
        [["gpu0", "gpu1"], ["gpu2"]],
    )
    assert cut["bottleneck"]["across_GBps"] == 1
    paths = synth_json(
        "--collective", "alltoall", "--topology", "dgx1", "--strategy", "packing", "--explain"
    )
    total = sum(
        x["bound_gain_per_GBps"] * x["bandwidth_GBps"] * x["alike"]
        for x in paths["explain"]["links"]
    )
    assert total == pytest.approx(paths["bound"]["algbw_GBps"])
    shown = synth(
        "--collective", "allreduce", "--topology", "dgx1", "--strategy", "packing", "--explain"
    )
    assert "bottleneck: the links between all 8 GPUs" in shown and "links to improve first" in shown


def test_what_helpers_are_worth_is_explained() -> None:
    args = ("allreduce", "ring:4@16", "--group", "0,1", "--strategy", "packing", "--explain")
    text = synth(*args)
    assert "helpers are worth 2 times the bound: at most 16 GB/s algbw without help, 32 " in text
    assert "schedules with help are predicted faster from " in text
    assert "without one of the helpers, by rank: 2: 16, 3: 16" in text
    worth = synth_json(*args)["explain"]["helpers"]
    assert worth["bound_ratio"] == 2
    assert [row["bound_GBps"] for row in worth["without"]] == [16, 16]
    assert worth["predicted_time_s"] < worth["predicted_time_alone_s"]


def test_explain_says_which_links_help_only_together() -> None:
    # Two boxes of four GPUs.
    gone = (4, 5, 6, 7, 12, 13, 14, 15)
    topology = degrade(preset("dgx-a100:2"), Change(without_ranks=gone))
    collective = collective_on("allgather", topology)
    explained = explain(
        collective, Router(topology), bound(collective, topology), [], make_effort()
    )
    assert explained.levers and not any(x.helps_alone for x in explained.levers)
    assert all(x.wider_GBps == bound(collective, topology).algbw_GBps for x in explained.levers)
    assert all(
        x.peers == 8 and (x.together_GBps or 0) > (x.wider_GBps or 0) for x in explained.levers
    )


def test_explain_counts_what_one_way_links_carry() -> None:
    ring = [Link(f"gpu{i}", f"gpu{(i + 1) % 4}", Fraction(1)) for i in range(4)]
    topology = Topology("ring", tuple(Device(f"gpu{i}") for i in range(4)), tuple(ring))
    collective = collective_on("alltoall", topology)
    explained = explain(
        collective, Router(topology), bound(collective, topology), [], make_effort()
    )
    assert explained.across_GBps > 0


@pytest.mark.parametrize("machine", ["dgx1", "dgx-h100:2"])
def test_no_link_is_advised_by_a_bound_that_may_be_too_high(machine: str) -> None:
    collective, router, whole, stopped = find_stopped(machine)
    known = explain(collective, router, whole.single_path, (), LastMinute())
    assert known.levers and all(lever.wider_GBps is None for lever in known.levers)
    marked = replace(stopped.single_path, is_cut_short=True)
    unknown = explain(collective, router, marked, (), Effort())
    assert not unknown.levers and "not known" in unknown.bottleneck
    assert unknown.to_json()["cut_short"] is True
