"""RCCL's rings and trees, read back and replayed; the tuner's table, from measured times alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from called import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, on
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.channels.channels import algbw_GBps, schedule_channels
from topoplan.synth.extras.nccl_files.binary_trees import schedule_trees
from topoplan.synth.extras.nccl_files.export import RCCL_ENV, export
from topoplan.synth.extras.nccl_files.nccl_tuner import write_nccl_tuner
from topoplan.synth.extras.nccl_files.rccl_env import read_rccl_env, read_tree, write_tree
from topoplan.synth.library_format import Export
from topoplan.synth.request import Request
from topoplan.synth.verify import verify
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


def write(name: str, topology: Topology) -> Export:
    return export(RCCL_ENV, on(name, topology), Router(topology), make_effort())


def replay(made: Export, topology: Topology) -> dict[str, Fraction]:
    """The algbw of what a text says, replayed element by element and from the loads of its
    links.
    """
    n = len(topology.ranks)
    rings, trees = read_rccl_env(made.text, "rccl.env", n)
    request = Request(on("allreduce", topology), topology, make_effort())
    out = {}
    if rings is not None:
        schedule = schedule_channels(request, rings, "rings")
        verify(schedule, topology)
        out["rings"] = algbw_GBps(schedule, topology)
    if trees:
        schedule = schedule_trees(request, trees, "trees")
        verify(schedule, topology)
        out["trees"] = algbw_GBps(schedule, topology)
        for parents in trees:
            assert max(Counter(parent for parent in parents if parent >= 0).values()) <= 2
    return out


@pytest.mark.long
def test_eight_dies_of_an_mi250_come_near_the_bound(recorded: Callable[[str], Path]) -> None:
    whole = resolve(str(recorded("nccl_xml/rccl/topo_16p1h.xml")))
    topology = degrade(whole, Change(without_ranks=tuple(range(8, 16))))
    made = write("allreduce", topology)
    assert made.figures["fraction"] >= 0.9
    rates = replay(made, topology)
    assert (
        float(rates["trees"])
        == made.figures["algbw_GBps"]["trees"]
        >= 0.9 * made.figures["bound_one_way"]
    )
    assert made.figures["algbw_GBps"]["trees"] > 2 * made.figures["algbw_GBps"]["rings"]
    _, trees = read_rccl_env(made.text, "rccl.env", 8)
    assert trees and made.figures["channels"] % len(trees) == 0
    assert f"NCCL_MIN_NCHANNELS={made.figures['channels']}\n" in made.text


@given(graphs(most=5, switches=2))
@settings(max_examples=count_examples(3))
def test_texts_for_random_machines_are_sound(topology: Topology) -> None:
    try:
        made = write("allreduce", topology)
    except InfeasibleError as error:
        assert "\n" not in str(error)
        return
    rates = {name: float(rate) for name, rate in replay(made, topology).items()}
    assert rates == {"trees": made.figures["algbw_GBps"]["trees"]}
    assert made.reason and "\n" not in made.reason  # RCCL runs on AMD GPUs only
    assert 0 < made.figures["fraction"] <= 1


def test_allgather_has_rings_alone() -> None:
    made = write("allgather", preset("ring:4"))
    assert "RCCL_TREES" not in made.text and made.figures["algbw_GBps"] == {
        "rings": pytest.approx(8 / 3),
        "trees": None,
    }


def test_gpus_that_rccl_would_take_for_other_ranks_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="would have to be 0 to 2 in order"):
        write("allreduce", degrade(preset("ring:4"), Change(without_ranks=(0,))))


@st.composite
def binary_trees(draw: st.DrawFn) -> tuple[int, ...]:
    n = draw(st.integers(1, 12))
    order = draw(st.permutations(range(n)))
    parents, room = [-1] * n, [2] * n
    for i, rank in enumerate(order[1:], 1):
        parent = draw(st.sampled_from([other for other in order[:i] if room[other]]))
        parents[rank], room[parent] = parent, room[parent] - 1
    return tuple(parents)


@given(binary_trees())
@settings(max_examples=count_examples(30))
def test_trees_are_read_as_they_are_written(parents: tuple[int, ...]) -> None:
    assert read_tree(write_tree(parents), "t", len(parents)) == parents


def test_a_tree_as_rccl_writes_them() -> None:
    parents = read_tree("(2(5(6(7(4))))(3(0(1))))", "t", 8)
    assert parents == (3, 0, -1, 2, 7, 2, 5, 6)
    assert write_tree(parents) == "(2(3(0(1)))(5(6(7(4)))))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('RCCL_TREES="(0(1)(2)(3))"', "rank 0 has 3 children; RCCL's kernels read 2"),
        ('RCCL_TREES="(0(1(2)))"', "misses rank 3"),
        ('RCCL_TREES="(0(1(2(3(1)))))"', "has GPU 1 twice"),
        ('RCCL_TREES="(0(1(2(4))))"', "has rank 4, of 4 ranks"),
        ('RCCL_TREES="(0(1(2(3)))"', "1 brackets are not closed"),
        ('RCCL_TREES="(0)(1(2(3)))"', "not understood at character 4"),
        ('RCCL_TREES="0(1(2(3)))"', "not understood at character 1"),
        ('RCCL_TREES="(0(1(2(3' + " " * 300 + '))))"', "RCCL has room for 255"),
        ('NCCL_RINGS="0 1 2 3|0 1 2"', "ring '0 1 2' misses rank 3"),
        ('NCCL_RINGS="0 1 2 x"', "expected numbers of GPUs"),
        ("NCCL_RINGS=0 1 2 3", "line 1: 'NCCL_RINGS=0 1 2 3'; expected NAME=\"value\""),
        ("# nothing", "sets neither NCCL_RINGS nor RCCL_TREES"),
    ],
)
def test_faulty_texts_are_told_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        read_rccl_env(text, "rccl.env", 4)
    assert (
        words in str(error.value)
        and str(error.value).startswith("rccl.env")
        and "\n" not in str(error.value)
    )


def measured(path: Path, times: dict[int, float | None], **other: Any) -> str:
    rows = [{"size_bytes": size, "stock_us": us, "plan_us": None} for size, us in times.items()]
    body = {"collective": "allreduce", "ranks": 4, "backend": "nccl", "rows": rows} | other
    path.write_text(json.dumps(body))
    return str(path)


def test_the_fastest_is_named_at_each_size(tmp_path: Path) -> None:
    tree = measured(tmp_path / "tree.json", {1024: 10.0, 4096: 12.0, 65536: 90.0, 1 << 20: None})
    ring = measured(tmp_path / "ring.json", {1024: 20.0, 4096: 13.0, 65536: 50.0, 1 << 20: 400.0})
    topology = preset("ring:4")
    text = write_nccl_tuner(
        on("allreduce", topology), topology, [f"tree/ll/8={tree}", f"ring/simple/16={ring}"]
    )
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert rows == [
        "allreduce,0,65535,tree,ll,8,1,4,-1,-1",
        f"allreduce,65536,{2**64 - 1},ring,simple,16,1,4,-1,-1",
    ]
    assert (
        "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
        in text
    )
    assert all(len(line) < 256 for line in text.splitlines())


@pytest.mark.parametrize(
    ("argument", "other", "words"),
    [
        ("{file}", {}, "expected ALGORITHM/PROTOCOL/CHANNELS=FILE"),
        ("tree/simple={file}", {}, "expected ALGORITHM/PROTOCOL/CHANNELS=FILE"),
        ("star/simple/1={file}", {}, "algorithms are tree, ring"),
        ("tree/simple/0={file}", {}, "expected 1 to 64"),
        ("tree/simple/4={file}.missing", {}, "cannot be read"),
        ("tree/simple/4={file}", {"backend": "gloo"}, "its backend is gloo; expected nccl"),
        ("tree/simple/4={file}", {"ranks": 8}, "its ranks is 8; expected 4"),
        (
            "tree/simple/4={file}",
            {"collective": "allgather"},
            "its collective is allgather; expected allreduce",
        ),
        (
            "tree/simple/4={file}",
            {"rows": [{"size_bytes": 8, "stock_us": None}, 3]},
            "no row has a time",
        ),
        ("tree/simple/4={file}", {"rows": 1}, "not the JSON that topo-run prints"),
    ],
)
def test_what_was_not_measured_is_refused(
    tmp_path: Path, argument: str, other: dict[str, Any], words: str
) -> None:
    path, topology = measured(tmp_path / "m.json", {1024: 1.0}, **other), preset("ring:4")
    with pytest.raises(InputError) as error:
        write_nccl_tuner(on("allreduce", topology), topology, [argument.format(file=path)])
    assert words in str(error.value) and "\n" not in str(error.value)


def test_sizes_have_to_be_shared_and_the_collective_known(tmp_path: Path) -> None:
    a, b = (measured(tmp_path / f"{size}.json", {size: 1.0}) for size in (8, 16))
    topology = preset("ring:4")
    with pytest.raises(InputError, match="no size was measured in all"):
        write_nccl_tuner(on("allreduce", topology), topology, [f"tree/ll/1={a}", f"ring/ll/1={b}"])
    with pytest.raises(InfeasibleError, match="nothing for alltoall"):
        write_nccl_tuner(on("alltoall", topology), topology, [])


def test_the_command_writes_both(tmp_path: Path) -> None:
    path = tmp_path / "rccl.env"
    args = ("--collective", "allreduce", "--topology", "ring:4")
    done = call_command(
        "synth", *args, "--format", "rccl-env", "-o", str(path), "--json", "--no-guard"
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["rccl_env"]
    assert figures["fraction"] == pytest.approx(1) and read_rccl_env(path.read_text(), "e", 4)[1]
    tree = measured(tmp_path / "tree.json", {1024: 10.0})
    done = call_command("synth", *args, "--format", "nccl-tuner", "--measured", f"tree/ll/2={tree}")
    assert done.stdout.splitlines()[-1] == f"allreduce,0,{2**64 - 1},tree,ll,2,1,4,-1,-1"
