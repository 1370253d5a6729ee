"""NCCL's graph file is set while a communicator is made, and no longer."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from random_graphs import on
from unhurried import make_effort
from xml_hosts import pairs

import topoplan
from topoplan.synth.export.formats import NCCL_GRAPH, export
from topoplan.synth.export.graph_check import check_graph_file
from topoplan.synth.export.graph_file import read_graph_file
from topoplan.topo.errors import InputError
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


@cache
def write_good() -> str:
    ring = preset("ring:4")
    return export(NCCL_GRAPH, on("allreduce", ring), Router(ring), make_effort()).text


@pytest.mark.parametrize("before", [None, "/somewhere/else.xml"])
def test_the_variable_is_set_for_a_moment(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    else:
        monkeypatch.setenv("NCCL_GRAPH_FILE", before)
    with pytest.raises(ZeroDivisionError), topoplan.nccl_graph(preset("ring:4")) as path:
        assert path is not None
        assert os.environ["NCCL_GRAPH_FILE"] == str(path)
        check_graph_file(read_graph_file(path.read_text(), str(path)), range(4), inside=True)
        raise ZeroDivisionError
    assert path is not None and not path.exists()
    assert os.environ.get("NCCL_GRAPH_FILE") == before


def test_a_plan_a_name_and_a_file_are_taken(
    plans: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    for argument in ("ring:4", plans("ring:4"), topoplan.Plan.load(plans("ring:4"))):
        with topoplan.nccl_graph(argument, nccl_version="2.20") as path:
            assert path is not None
            assert read_graph_file(path.read_text(), "g").graphs[0].channels
    own = tmp_path / "own.xml"
    own.write_text(write_good())
    with topoplan.nccl_graph(own) as path:
        assert path == own and os.environ["NCCL_GRAPH_FILE"] == str(own)
    assert own.exists()
    own.write_text(write_good().replace('dev="0x3"', 'dev="0x2"', 1))
    with pytest.raises(InputError, match="more than once"), topoplan.nccl_graph(str(own)):
        pytest.fail("a faulty file was taken")
    with pytest.raises(InputError), topoplan.nccl_graph(str(tmp_path / "missing.xml")):
        pytest.fail("a missing file was taken")
    assert "NCCL_GRAPH_FILE" not in os.environ


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"OMPI_COMM_WORLD_SIZE": "12", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, 4),
    ],
)
def test_files_for_one_host_are_refused_in_jobs_of_several(
    variables: dict[str, str], hosts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_GRAPH_FILE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    one, several = tmp_path / "one.xml", tmp_path / "several.xml"
    one.write_text(write_good())
    between = write_good().replace("<channel>", '<channel><net dev="0"/>')
    several.write_text(between.replace("</channel>", '<net dev="0"/></channel>'))
    with pytest.raises(InputError, match="for several hosts"), topoplan.nccl_graph(several):
        pytest.fail("a file for several hosts was taken on one")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = f"has {hosts} .*for {hosts} hosts"
    with pytest.raises(InputError, match=words) as refused, topoplan.nccl_graph(one):
        pytest.fail("a file for one host was taken on several")
    assert "\n" not in str(refused.value) and "NCCL_GRAPH_FILE" not in os.environ
    with topoplan.nccl_graph(several):
        assert os.environ["NCCL_GRAPH_FILE"] == str(several)
    with topoplan.nccl_graph(one, hosts=1):
        assert os.environ["NCCL_GRAPH_FILE"] == str(one)


def test_nothing_is_set_where_stock_is_as_good(
    monkeypatch: pytest.MonkeyPatch, more_inputs: Callable[[str], Path]
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    with topoplan.nccl_graph(more_inputs("nccl_stock/h100nvl4_2s_srp.xml")) as none:
        assert none is None
        assert "NCCL_GRAPH_FILE" not in os.environ


@pytest.mark.long
def test_a_dead_link_needs_nvb_switched_off(
    more_inputs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over PCIe the DGX-1V with a dead link gains by far more than through the GPU between."""
    monkeypatch.setenv("NCCL_NVB_DISABLE", "0")
    machine = more_inputs("nccl_stock/dgx1v_dead_0-1.xml")
    with topoplan.nccl_graph(machine) as path:
        assert path is not None
        assert "needs NCCL_NVB_DISABLE=1" in path.read_text()
        assert os.environ["NCCL_NVB_DISABLE"] == "1"
    assert os.environ["NCCL_NVB_DISABLE"] == "0"


@pytest.mark.long
def test_the_variable_is_set_in_jobs_of_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    machine = tmp_path / "host.xml"
    machine.write_text(pairs(1, {0: 100_000}))
    with topoplan.nccl_graph(str(machine), guard=False) as path:
        assert path is not None and os.environ["NCCL_GRAPH_FILE"] == str(path)
        assert "for jobs of 2 hosts" in path.read_text()
    assert "NCCL_GRAPH_FILE" not in os.environ
