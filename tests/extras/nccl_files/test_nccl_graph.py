"""NcclGraph files for stock NCCL: optimal, sound by NCCL's rules and by those that it does not
check, with true speeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import nccl_rules as rules
import pytest
from called import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, on
from thorough import count_examples
from unhurried import make_effort

from topoplan.synth.channels.channels import algbw_GBps, schedule_channels
from topoplan.synth.extras.nccl_files.export import NCCL_GRAPH, export
from topoplan.synth.extras.nccl_files.gpu_numbers import PathTypes, number_gpus
from topoplan.synth.extras.nccl_files.graph_check import check_graph_file, list_channels
from topoplan.synth.extras.nccl_files.graph_file import GraphFile, NcclGraph, read_graph_file
from topoplan.synth.extras.stock.constants import FILE_TYPES
from topoplan.synth.extras.stock.model import StockModel, model_stock
from topoplan.synth.extras.stock.nccl_version import NEWEST, parse_nccl_version
from topoplan.synth.extras.stock.routes import NcclRouter
from topoplan.synth.library_format import Export
from topoplan.synth.request import Request
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.derived.stated import state_rates
from topoplan.topo.devices import Device, Link, both_directions
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

MATRIX = """\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNODE\tNODE\tSYS\t0-7\t0
GPU1\tNV12\t X \tPHB\tPHB\tSYS\t0-7\t0
GPU2\tNODE\tPHB\t X \tPIX\tSYS\t0-7\t0
GPU3\tNODE\tPHB\tPIX\t X \tSYS\t0-7\t0
GPU4\tSYS\tSYS\tSYS\tSYS\t X \t8-15\t1
"""
BRIDGED = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\t0-7\t0
GPU1\tNV12\t X \tSYS\tSYS\t8-15\t1
GPU2\tSYS\tSYS\t X \tNV12\t16-23\t2
GPU3\tSYS\tSYS\tNV12\t X \t24-31\t3
"""
XML = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="9" sm="80" rank="0"/></pci>
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="12" sm="80" rank="1"/></pci>
  </cpu>
</system>
"""

# A DGX-1 of which two GPUs are not used.
PART = degrade(preset("dgx1"), Change(without_ranks=(0, 5)))


@cache
def write(name: str, topology: Topology, version: str = str(NEWEST)) -> tuple[Export, GraphFile]:
    made = export(
        NCCL_GRAPH,
        on(name, topology),
        Router(topology),
        make_effort(),
        version=parse_nccl_version(version),
        guard=False,
    )
    return made, read_graph_file(made.text, "graph.xml")


def route_as_nccl(topology: Topology) -> Router:
    modelled = isinstance(model_stock(topology), StockModel)
    return NcclRouter(Router(topology)) if modelled else Router(topology)


def rate_of(graph: NcclGraph, topology: Topology, name: str = "allreduce") -> Fraction:
    """The algbw of a graph's channels, from the links that they cross."""
    channels = list_channels(graph, number_gpus(topology).rank_of, "graph.xml")
    request = Request(on(name, topology), topology, make_effort(), router=route_as_nccl(topology))
    return algbw_GBps(schedule_channels(request, channels, "graph"), topology)


@pytest.mark.parametrize(
    ("name", "optimum"),
    [
        pytest.param("ncv4-bridged", 24, marks=pytest.mark.long),
        ("a100-one-bridge-missing", 10.8),
        ("pcie-3gpu", 16),
    ],
)
def test_stock_nccl_comes_to_the_bound(
    name: str, optimum: float, more_inputs: Callable[[str], Path]
) -> None:
    topology = resolve(str(more_inputs(f"nccl_graphs/{name}.topology.xml")))
    made, file = write("allreduce", topology)
    assert made.figures["bound_one_way"] == pytest.approx(optimum)
    assert made.figures["fraction"] >= 0.97
    rates = {graph.id: rate_of(graph, topology) for graph in file.graphs}
    assert made.figures["algbw_GBps"] == {"rings": float(rates[0]), "chains": float(rates[1])}
    own = read_graph_file(more_inputs(f"nccl_graphs/{name}.graph.xml").read_text(), name)
    assert max(rates.values()) > max(rate_of(graph, topology) for graph in own.graphs[:2])


def test_the_file_is_as_nccl_reads_it() -> None:
    made, file = write("allreduce", preset("pcie-2socket"))
    assert (
        "<?" not in made.text
        and "rank=" not in made.text
        and made.text.startswith('<graphs version="1">')
    )
    assert re.findall('dev="(?!0x)', made.text) == [] and file.notes == ()
    comment = made.text[made.text.index("<!--") : made.text.index("-->")]
    assert (
        preset("pcie-2socket").fingerprint in comment
        and "pcie-2socket" in comment
        and "13.71" in comment
    )
    ring, tree = file.graphs
    assert (ring.id, ring.pattern, tree.id, tree.pattern) == (0, 4, 1, 1)
    assert ring.nchannels == tree.nchannels == len(ring.channels) == made.figures["channels"] <= 32
    assert ring.typeintra == tree.typeintra == "SYS"


def test_speeds_let_nccls_tuner_see_the_true_rates() -> None:
    topology, n = preset("pcie-2socket"), 8
    ring, tree = write("allreduce", topology)[1].graphs
    assert float(ring.nchannels * ring.speedintra) * n / (2 * (n - 1)) == pytest.approx(
        float(rate_of(ring, topology))
    )
    assert float(tree.nchannels * tree.speedintra) / 2 == pytest.approx(
        float(rate_of(tree, topology))
    )
    gathering = write("allgather", topology)[1].graphs[0]
    whole = float(gathering.nchannels * gathering.speedintra) * n / (n - 1)
    assert whole == pytest.approx(float(rate_of(gathering, topology, "allgather")))


def test_allgather_sends_both_directions_around() -> None:
    text = BRIDGED.replace("PIX", "NV12").replace("PHB", "SYS").replace("NODE", "SYS")
    (topology,) = state_rates([read_topology_text(text, "bridged")], {"pcie": Fraction(12)})
    made, file = write("allgather", topology)
    rings = file.graphs[0].channels
    hops = {hop for ring in rings for hop in pairwise((*ring, ring[0]))}
    assert hops == {(b, a) for a, b in hops}
    alone = float(rate_of(one_ring(file.graphs[0]), topology, "allgather"))
    assert made.figures["algbw_GBps"]["rings"] == pytest.approx(2 * alone)


def one_ring(graph: NcclGraph) -> NcclGraph:
    return replace(
        graph, channels=graph.channels[:1], nets=((),), ranks=graph.ranks[:1], nchannels=1
    )


@cache
def write_good() -> str:
    return write("allreduce", preset("ring:4"))[0].text


@pytest.mark.parametrize(
    ("machine", "dialect"),
    [
        ("part", rules.GRAPHS),
        pytest.param("dgx1", rules.OLD_GRAPHS, marks=pytest.mark.long),
        ("dev numbers", rules.GRAPHS),
        ("dev numbers", rules.OLD_GRAPHS),
    ],
)
def test_nccls_own_reader_loads_it(machine: str, dialect: rules.Dialect) -> None:
    topology = {
        "dgx1": preset("dgx1"),
        "part": PART,
        "dev numbers": read_topology_text(XML, "x.xml"),
    }[machine]
    version = "2.20.5" if dialect is rules.OLD_GRAPHS else str(NEWEST)
    made, file = write("allreduce", topology, version)
    numbers, n = number_gpus(topology), len(topology.ranks)
    loaded = rules.load_graphs(made.text, numbers.rank_of, dialect)
    for graph, kind in ((loaded[0], "rings"), (loaded[1], "chains")):
        assert all(sorted(channel) == list(range(n)) for channel in graph.channels)
        assert graph.count_algbw_GBps(n) == pytest.approx(made.figures["algbw_GBps"][kind])
    assert (
        loaded[0].pattern == 4
        and loaded[1].pattern == 1
        and len(loaded[0].channels) == len(loaded[1].channels)
    )
    assert {number: graph.type_intra for number, graph in loaded.items()} == {
        g.id: g.typeintra for g in file.graphs
    }


@given(st.data())
@settings(max_examples=count_examples(60))
def test_what_the_checker_lets_pass_nccl_loads_as_it_says(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(write_good())))
    instead = data.draw(st.text("<>\"'=/ 0123ax\n&-!", max_size=4))
    text = write_good()[:start] + instead + write_good()[start + data.draw(st.integers(0, 8)) :]
    try:
        file = read_graph_file(text, "graph.xml")
        check_graph_file(file, range(4), inside=True)
    except InputError:
        return
    loaded = rules.load_graphs(text, {dev: dev for dev in range(4)})
    assert {g.id: [list(channel) for channel in g.channels] for g in file.graphs} == {
        number: graph.channels for number, graph in loaded.items()
    }
    for graph in file.graphs:
        assert loaded[graph.id].type_intra == graph.typeintra
        assert loaded[graph.id].speed == pytest.approx(float(graph.speedintra))


@given(graphs(most=5, two_way=False, switches=2))
@settings(max_examples=count_examples(5))
def test_files_for_random_machines_are_sound(topology: Topology) -> None:
    try:
        made, file = write("allreduce", topology)
    except InfeasibleError as error:
        assert "\n" not in str(error)
        return
    check_graph_file(file, range(len(topology.ranks)), inside=True)
    assert {graph.nchannels for graph in file.graphs} == {made.figures["channels"]}
    for graph, kind in (
        zip(file.graphs, ("rings", "chains"), strict=False) if len(file.graphs) == 2 else ()
    ):
        assert made.figures["algbw_GBps"][kind] == float(rate_of(graph, topology))
    assert 0 < made.figures["fraction"] <= 1


@pytest.mark.parametrize(
    ("version", "most"), [("2.6", 16), ("2.20.5", 16), ("2.24", 16), ("2.25.1-1", 32), ("2.99", 32)]
)
def test_older_versions_have_room_for_fewer_channels(version: str, most: int) -> None:
    _, file = write(
        "allreduce", preset("dgx1") if version == "2.20.5" else preset("ring:4"), version
    )
    assert all(0 < len(graph.channels) <= most for graph in file.graphs)
    assert parse_nccl_version(version).max_channels == most


@pytest.mark.parametrize("text", ["2.5", "two", "2", "", "2.x", "-2.20"])
def test_versions_without_graph_files_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"a version of NCCL|and later"):
        parse_nccl_version(text)


def test_gpus_are_numbered_as_the_driver_numbers_them() -> None:
    assert number_gpus(read_topology_text(XML, "x.xml")).devs == (9, 12)
    assert 'dev="0xc"' in write("allreduce", read_topology_text(XML, "x.xml"))[0].text
    assert number_gpus(PART).devs == (1, 2, 3, 4, 6, 7)
    assert sorted(write("allreduce", PART)[1].graphs[0].channels[0]) == [1, 2, 3, 4, 6, 7]
    unnamed = Topology("t", (Device("a"), Device("b")), both_directions(Link("a", "b")))
    assert number_gpus(unnamed).devs == (0, 1) and "order" in number_gpus(unnamed).source
    second = degrade(preset("dgx-a100:2"), Change(without_ranks=tuple(range(8))))
    assert number_gpus(second).devs == tuple(range(8))


def test_types_are_those_of_the_worst_way() -> None:
    types = PathTypes(Router(read_topology_text(MATRIX, "smi")), NEWEST)
    assert [types.find_type(0, 1), types.find_type(2, 3), types.find_type(1, 2)] == [
        "NVL",
        "PIX",
        "PHB",
    ]
    assert types.find_type(0, 2) == "PHB" and types.find_type(0, 4) == "SYS"
    assert types.find_worst([(0, 1), (2, 3)]) == "PIX" and types.find_worst([]) == "LOC"
    assert PathTypes(Router(preset("dgx-a100")), NEWEST).find_type(0, 1) == "NVL"
    chip = Device("cpu0", "cpu")
    links = [
        x
        for gpu in ("gpu0", "gpu1")
        for x in both_directions(Link(gpu, "cpu0", Fraction(100), kind="c2c"))
    ]
    grace = Topology("grace", (Device("gpu0"), Device("gpu1"), chip), tuple(links))
    assert PathTypes(Router(grace), NEWEST).find_type(0, 1) == "P2C"
    assert PathTypes(Router(grace), parse_nccl_version("2.27")).find_type(0, 1) == "PHB"


@pytest.mark.parametrize("machine", ["dgx-a100:2", "pair"])
def test_several_hosts_are_refused_with_the_reason(machine: str) -> None:
    pair = Topology(
        "pair",
        (Device("host0/gpu0"), Device("host1/gpu0")),
        both_directions(Link("host0/gpu0", "host1/gpu0")),
    )
    with pytest.raises(InfeasibleError, match="has GPUs on 2 hosts"):
        write("allreduce", pair if machine == "pair" else preset(machine))


def test_ways_through_a_network_are_refused() -> None:
    devices = (Device("gpu0"), Device("gpu1"), Device("net", "switch", "network"))
    links = [x for gpu in ("gpu0", "gpu1") for x in both_directions(Link(gpu, "net"))]
    with pytest.raises(InfeasibleError, match="through a network"):
        write("allreduce", Topology("net", devices, tuple(links)))


@pytest.mark.parametrize(
    ("pattern", "after", "words"),
    [
        (
            'dev="0x3"',
            'dev="0x4"',
            "graph 0 (ring), channel 0 has dev 0x4, not on the machine and lacks dev 0x3",
        ),
        (
            'dev="0x3"',
            'dev="0x2"',
            "channel 0 has dev 0x2 more than once and lacks dev 0x3; expected every GPU once",
        ),
        ('      <gpu dev="0x1"/>\n', "", "channel 0 lacks dev 0x1"),
        ('nchannels="[0-9]+"', 'nchannels="1"', "NCCL would use the first 1"),
        ('nchannels="[0-9]+"', 'nchannels="33"', "NCCL fails on that"),
        (
            'typeintra="NVL"',
            'typeintra="NVLINK"',
            "typeintra='NVLINK' is not known to NCCL 2.30, which reads it as LOC",
        ),
        ('typeintra="NVL"', 'typeintra="C2C"', "typeintra='C2C' is not known"),
        ('speedintra="[^"]+"', 'speedintra="0"', "speedintra is 0"),
        ('pattern="4"', 'pattern="1"', "pattern 1; expected 4"),
        ('id="0"', 'id="7"', "NCCL has graphs 0 to 4"),
        ("<!-- ", "<!--= ", "is not written as NCCL reads tags"),
        ("<channel>", '<channel><net dev="0"/>', "has <net> elements, but the machine is one host"),
    ],
)
def test_faulty_files_are_told_in_one_line(pattern: str, after: str, words: str) -> None:
    damaged = re.sub(pattern, after, write_good(), count=1)
    assert damaged != write_good()
    with pytest.raises(InputError) as error:
        check_graph_file(read_graph_file(damaged, "graph.xml"), range(4), inside=True)
    assert (
        words in str(error.value)
        and "graph.xml, line " in str(error.value)
        and "\n" not in str(error.value)
    )


def test_a_tree_that_misses_a_gpu_is_found_without_the_machine() -> None:
    start = write_good().index('id="1"')
    damaged = write_good()[:start] + write_good()[start:].replace('dev="0x1"', 'dev="0x0"', 1)
    with pytest.raises(
        InputError,
        match=r"graph 1 \(tree\), channel 0 has dev 0x0 more than once and lacks dev 0x1",
    ):
        check_graph_file(read_graph_file(damaged, "graph.xml"))


def test_rules_that_depend_on_the_version() -> None:
    old = parse_nccl_version("2.20")
    file = read_graph_file(write_good(), "g")
    many = replace(
        file.graphs[0], nchannels=17, channels=file.graphs[0].channels[:1] * 17, nets=((),) * 17
    )
    check_graph_file(GraphFile("g", (many,)))
    with pytest.raises(InputError, match=r"17 channels; NCCL 2.20 has room for 16"):
        check_graph_file(GraphFile("g", (many,)), version=old)
    near = replace(file.graphs[0], typeintra="P2C")
    check_graph_file(GraphFile("g", (near,)))
    with pytest.raises(InputError, match=r"'P2C' is not known to NCCL 2.20"):
        check_graph_file(GraphFile("g", (near,)), version=old)
    with pytest.raises(InputError, match=r"XML elements; NCCL 2.20 reads at most 1024"):
        check_graph_file(
            GraphFile("g", (replace(many, channels=many.channels * 20, nets=((),) * 340),)),
            version=old,
        )
    assert "C2C" not in FILE_TYPES


def test_the_command_writes_the_file_and_says_what_it_reaches(tmp_path: Path) -> None:
    path = tmp_path / "graph.xml"
    args = ["--collective", "allreduce", "--topology", "ring:4", "--format", "nccl-graph"]
    done = call_command("synth", *args, "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["nccl_graph"].keys() >= {"algbw_GBps", "bound_one_way", "fraction", "channels"}
    assert body["nccl_graph"]["written"] and body["nccl_graph"]["stock_model"] is None
    assert "without PCIe or NVLink" in body["nccl_graph"]["stock_not_modelled"]
    assert set(body["nccl_graph"]["algbw_GBps"]) == {"rings", "chains"}
    assert (
        body["nccl_graph"]["fraction"] == 1
        and body["bound_one_way"]["algbw_GBps"] == body["nccl_graph"]["bound_one_way"]
    )
    check_graph_file(read_graph_file(path.read_text(), str(path)), range(4), inside=True)
    again = call_command("synth", *args, "-o", str(path))
    assert again.returncode == 2 and "give --force" in again.stderr
    forced = call_command("synth", *args, "-o", str(path), "--force", "--nccl-version", "2.21")
    assert forced.returncode == 0 and "100.0% of the single-path bound" in forced.stdout
    printed = call_command("synth", *args)
    assert printed.stdout.startswith("<graphs") and "chains 1.333 GB/s" in printed.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            ["--format", "nccl-graph", "--strategy", "ring"],
            2,
            "--strategy with --format nccl-graph",
        ),
        (["--format", "rccl-env", "--pareto"], 2, "--pareto with --format rccl-env"),
        (["--nccl-version", "2.21"], 2, "--nccl-version without --format nccl-graph"),
        (["--measured", "a=b"], 2, "--measured without --format nccl-tuner"),
        (
            ["--format", "nccl-graph", "--nccl-version", "1.0"],
            2,
            "1.0: graph files of this form are read by NCCL 2.6 and later (--nccl-version)",
        ),
        (["--format", "nccl-graph", "--collective", "alltoall"], 3, "have no alltoall"),
        (["--format", "nccl-graph", "--topology", "dgx-a100:2"], 3, "has GPUs on 2 hosts"),
        (["--format", "nccl-tuner"], 2, "written from measured times alone"),
        (["--format", "graph"], 2, "did you mean 'nccl-graph'?"),
    ],
)
def test_what_cannot_be_written_is_refused(options: list[str], code: int, words: str) -> None:
    done = call_command("synth", "--collective", "allreduce", "--topology", "ring:4", *options)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
