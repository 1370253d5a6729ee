"""Files for RCCL are written where they gain, or cannot lose, and never below stock RCCL."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import run_module
from needs import long_cases
from random_graphs import on
from rccl_machines import machine, mesh
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.channels.channels import CHAIN, RING, Channels
from topoplan.synth.extras.nccl_files.export import NCCL_GRAPH, RCCL_ENV, export
from topoplan.synth.extras.nccl_files.graph_check import check_graph_file, list_channels
from topoplan.synth.extras.nccl_files.graph_file import RING_ID, TREE_ID, read_graph_file
from topoplan.synth.extras.nccl_files.rccl_env import read_rccl_env
from topoplan.synth.extras.nccl_files.rccl_env_choice import rate_trees
from topoplan.synth.extras.nccl_files.rccl_limits import find_rccl_version
from topoplan.synth.extras.stock.model import make_graph
from topoplan.synth.extras.stock.rccl import RcclHost, model_rccl
from topoplan.synth.library_format import Export
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

SHAPES = ((RING_ID, RING), (TREE_ID, CHAIN))
# A tree of wires, which chains cannot follow.
TREE = {(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)}


def write(name: str, topology: Topology, format: str = NCCL_GRAPH) -> Export:
    return export(
        format, on(name, topology), Router(topology), make_effort(), beside_path="/tmp/rccl.env.xml"
    )


def rate_on(host: RcclHost, channels: Channels, between_cpus: int) -> Fraction:
    return host.rate(make_graph(host.gpus, channels), between_cpus)


def host_of(topology: Topology) -> RcclHost:
    host = model_rccl(topology)
    assert isinstance(host, RcclHost)
    return host


def rate_file(text: str, topology: Topology, between_cpus: int = 1) -> dict[str, Fraction]:
    """The algbw of what a file says, by RCCL's own count."""
    file = read_graph_file(text, "graph.xml")
    ranks = range(len(topology.ranks))
    check_graph_file(file, ranks, find_rccl_version(topology), inside=True)
    out = {}
    for number, shape in SHAPES:
        graph = file.find(number)
        if graph is not None:
            channels = list_channels(graph, {rank: rank for rank in ranks}, "graph.xml")
            out[shape] = rate_on(host_of(topology), channels, between_cpus)
    return out


def test_nothing_is_written_where_stock_uses_every_link() -> None:
    topology = machine(4, mesh(4), "gfx942")
    made = write("allreduce", topology)
    assert made.reason and "\n" not in made.reason and not made.figures["written"]
    assert made.figures["stock_model"] == {
        "algbw_GBps": {"rings": 96, "chains": 72},
        "picked": "rings",
    }
    # What --no-guard writes loses nothing: as many channels as RCCL has by itself.
    assert made.figures["channels"] == 54
    assert rate_file(made.text, topology) == {RING: 96, CHAIN: 96}


@pytest.mark.parametrize("name", long_cases(["allreduce", "allgather"], "allgather"))
def test_a_mesh_without_a_link_gains(name: str) -> None:
    topology = machine(5, mesh(5, (0, 1)), "gfx942")
    made = write(name, topology)
    assert made.reason is None and made.figures["basis"] == "above stock"
    rates = rate_file(made.text, topology)
    assert rates[RING] == Fraction(7, 4) * host_of(topology).rate_stock(RING, 1)
    assert rates[CHAIN] >= host_of(topology).rate_stock(CHAIN, 1)
    assert "times stock" in made.text


@pytest.mark.long
def test_where_a_table_may_decide_the_file_is_proved_optimal() -> None:
    made = write("allreduce", preset("mi250"))
    assert made.reason is None and made.figures["basis"] == "proved optimal"
    assert made.figures["stock_model"] is None and "written as proved optimal" in made.text
    # Two hives on sockets of Rome: what is best depends on the links between the sockets.
    hives = {(a, b) for a, b in mesh(8) if a // 4 == b // 4}
    made = write("allreduce", machine(8, hives, model=49, sockets=4))
    assert made.reason and "decided by RCCL's model table" in made.reason


@pytest.mark.long
def test_trees_come_with_rings_for_the_other_collectives() -> None:
    topology = machine(7, TREE)
    made, host = write("allreduce", topology, RCCL_ENV), host_of(topology)
    assert made.reason is None and made.beside is not None
    rings, trees = read_rccl_env(made.text, "rccl.env", 7)
    assert rings is None and 'NCCL_GRAPH_FILE="/tmp/rccl.env.xml"' in made.text
    counted = rate_trees(host, trees, 1)
    assert counted > max(host.rate_stock(shape, 1) for shape in (RING, CHAIN))
    assert counted > max(rate_file(write("allreduce", topology).text, topology).values())
    beside = rate_file(made.beside, topology)
    assert beside.keys() == {RING} and beside[RING] >= host.rate_stock(RING, 1)
    assert made.figures["channels"] == 2 * made.figures["rings_beside"]["channels"]


@pytest.mark.long
def test_trees_that_gain_nothing_are_not_set() -> None:
    for made in (
        write("allreduce", preset("mi300x"), RCCL_ENV),
        write("allgather", machine(7, TREE), RCCL_ENV),
    ):
        assert made.reason is not None and made.reason.startswith("no file written")
        assert "\n" not in made.reason and not made.figures["written"]


@pytest.mark.long
def test_the_command_writes_both_files_or_says_why_not(tmp_path: Path) -> None:
    from topoplan.topo.extras import nccl_topology

    source, path = tmp_path / "machine.xml", tmp_path / "rccl.env"
    source.write_text(nccl_topology.write(machine(7, TREE)))
    args = ("--collective", "allreduce", "--format", "rccl-env", "-o", str(path), "--json")
    done = run_module("topoplan.cli.synth", *args, "--topology", str(source))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["rccl_env"]
    assert figures["written"] and figures["rings_beside"]["file"] == f"{path}.xml"
    assert f'NCCL_GRAPH_FILE="{path}.xml"' in path.read_text()
    assert rate_file(Path(f"{path}.xml").read_text(), machine(7, TREE))
    other = tmp_path / "other.env"
    done = run_module("topoplan.cli.synth", *args[:5], str(other), "--topology", "mi300x")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and not other.exists()


@pytest.mark.long
@given(st.integers(3, 6), st.sampled_from([1, 2, 3]), st.data())
@settings(max_examples=count_examples(3), deadline=None)
def test_no_file_is_below_stock(gpus: int, sockets: int, data: st.DataObject) -> None:
    wires = data.draw(st.sets(st.sampled_from(sorted(mesh(gpus))), max_size=gpus + 2))
    topology = machine(gpus, wires, sockets=sockets if gpus % sockets == 0 else 1)
    made, host = write("allreduce", topology), host_of(topology)
    if made.reason is not None:
        assert "\n" not in made.reason
        return
    for factor in (1, 2, 4):
        for shape, rate in rate_file(made.text, topology, factor).items():
            assert rate >= host.rate_stock(shape, factor)
