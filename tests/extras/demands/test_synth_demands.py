"""topo-synth alltoallv --traffic and --demands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from called import call_synth as synth

from topoplan.synth.ir.demands import Demands
from topoplan.synth.plan import Plan


@pytest.fixture
def hot(tmp_path: Path) -> str:
    """Return the matrix of eight ranks that send ten times as much to rank 3 as to others."""
    matrix = np.full((8, 8), 1 << 20)
    matrix[:, 3] *= 10
    np.save(tmp_path / "hot.npy", matrix)
    return str(tmp_path / "hot.npy")


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """Return demands of two hosts of eight: rank 0 has what the second host's first four need."""
    path = tmp_path / "weights.json"
    pieces = [{"size": 1 << 30, "have": [0], "need": [8, 9, 10, 11]}]
    head = {"format": "topoplan-demands", "version": 1, "ranks": 16}
    path.write_text(json.dumps({**head, "pieces": pieces}))
    return str(path)


def test_an_uneven_alltoall_has_a_plan(hot: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    out = json.loads(synth("all_to_all_v", "dgx1", "--traffic", hot, "--json", "-o", str(path)))
    assert (out["collective"], out["size_bytes"]) == ("alltoallv", 7 * 17 << 20)
    assert out["bound_one_way"]["algbw_GBps"] == out["bound"]["algbw_GBps"] == 255
    assert (out["gap"], out["verified"], out["search_complete"]) == (0.0, True, True)
    plan = Plan.load(path)
    assert isinstance(plan.collective, Demands)
    assert plan.hash == out["plan_hash"]
    text = synth("dgx1", "--collective", "alltoallv", "--traffic", hot, "--size", "1G")
    assert text.startswith("alltoallv on dgx1 (8 ranks, ")
    assert "at 1 GiB: packing" in text
    part = synth("alltoallv", "dgx-a100:2", "--traffic", hot, "--group", "0-7", "--bound-only")
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7: at most 552.5" in part


@pytest.mark.long
def test_demands_have_a_plan_with_help_and_without(weights: str) -> None:
    out = json.loads(synth("dgx-a100:2", "--demands", weights, "--json"))
    assert out["bound_alone"]["algbw_GBps"] == 25
    assert out["bound_one_way"]["algbw_GBps"] == 200
    assert out["helpers"] == [1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]
    text = synth("dgx-a100:2", "--demands", weights, "--helpers", "1,2,3")
    assert "at most 100 GB/s algbw with the help of ranks 1, 2, 3;" in text
    assert "4 times as much with help" in text
    assert "GB/s algbw without help" in synth(
        "dgx-a100:2", "--demands", weights, "--helpers", "none"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("alltoallv", "dgx1"), "--traffic is for alltoallv, which needs it: expected alltoallv"),
        (("alltoall", "dgx1", "--traffic", "HOT"), "--traffic is for alltoallv"),
        (("alltoallv", "dgx1", "--traffic", "ZERO"), "nothing is to move (--traffic)"),
        (("alltoallv", "dgx1", "--traffic", "VAST"), "not an array of numbers"),
        (("reshard", "dgx1"), "--demands stands in place of a collective"),
        (
            ("allreduce", "dgx1", "--demands", "WEIGHTS"),
            "--demands stands in place of a collective",
        ),
        (("dgx1", "--demands", "WEIGHTS"), "for 16 ranks; the topology has 8 GPUs (--demands)"),
        (("dgx1", "--demands", "HOT"), "hot.npy: not usable JSON"),
        (("alltoallv", "dgx1", "--traffic", "HOT", "--pareto"), "--pareto with demands"),
        (("alltoallv", "dgx1", "--traffic", "HOT", "--root", "0"), "--root with demands"),
        (("alltoallv", "dgx1", "--traffic", "HOT", "--strategy", "ring"), "no alltoallv; expected"),
        (("alltoallv", "ring:4", "--traffic", "HOT"), "8 x 8 numbers; expected 4 x 4"),
        (("dgx-a100:2", "--demands", "WEIGHTS", "--group", "0,1"), "--group with --demands"),
        (("dgx-a100:2", "--demands", "WEIGHTS", "--helpers", "8"), "helpers: rank 8 is a member"),
    ],
)
def test_each_mistake_is_one_line(
    args: tuple[str, ...], message: str, hot: str, weights: str
) -> None:
    folder = Path(hot).parent
    files = {"HOT": hot, "WEIGHTS": weights, "ZERO": f"{folder}/zero.npy"}
    np.save(files["ZERO"], np.eye(8))
    files["VAST"] = f"{folder}/vast.npy"  # 8e22 bytes by its header
    shape = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (%d, %d), }"
    Path(files["VAST"]).write_bytes((shape % (10**11, 10**11)).ljust(127) + b"\n")
    assert message in synth(*(files.get(arg, arg) for arg in args), code=2)


@pytest.mark.long
def test_many_gpus_take_seconds(tmp_path: Path) -> None:
    """Switches that could add, too, are bounded by a cut where there are many GPUs."""
    pieces = [
        {"size": 1 << 24, "have": [i], "need": [*range(72 + i % 8, 136, 8)]} for i in range(72)
    ]
    head = {"format": "topoplan-demands", "version": 1, "ranks": 136}
    path = tmp_path / "many.json"
    path.write_text(json.dumps({**head, "pieces": pieces}))
    plan = tmp_path / "plan.json"
    out = json.loads(synth("dgx-a100:17", "--demands", str(path), "--json", "-o", str(plan)))
    assert out["bound_one_way"]["kind"] == "cut"
    assert out["bound_in_network"]["algbw_GBps"] >= out["bound"]["algbw_GBps"]
    assert out["gap"] < 0.05
    assert Plan.load(plan).hash == out["plan_hash"]
