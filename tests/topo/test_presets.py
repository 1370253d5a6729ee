"""Presets are the machines and graphs they claim to be, and wrong arguments get one clear line."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from planned import synthesize
from small_xml import machine

from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.derived.stated import state_rates
from topoplan.topo.errors import InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import MAX_GPUS, PRESETS, Preset, preset
from topoplan.topo.routes import Router


def as_graph(topology: Topology) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(d.id for d in topology.devices)
    for (a, b), rate in topology.capacity_GBps.items():
        graph.add_edge(a, b, rate=rate)
    return graph


def into_GBps(topology: Topology, name: str) -> Fraction:
    return sum((c for (_, b), c in topology.capacity_GBps.items() if b == name), Fraction(0))


def pair_counts(topology: Topology) -> dict[tuple[int, int], int]:
    rank = {name: i for i, name in enumerate(topology.ranks)}
    return {
        (rank[x.src], rank[x.dst]): x.count
        for x in topology.links
        if x.src in rank and x.dst in rank and rank[x.src] < rank[x.dst]
    }


@pytest.mark.parametrize("entry", PRESETS.values(), ids=lambda p: p.name)
def test_every_example_builds_and_is_symmetric_connected_and_kept_by_json(entry: Preset) -> None:
    topology = preset(entry.example)
    assert topology.reversed().fingerprint == topology.fingerprint
    assert nx.is_strongly_connected(as_graph(topology))
    assert topology.name == entry.example
    assert Topology.loads(topology.dumps()) == topology
    assert entry.description


@pytest.mark.parametrize(
    ("argument", "reference"),
    [
        ("ring:8", nx.cycle_graph(8)),
        ("ring:2", nx.path_graph(2)),
        ("path:8", nx.path_graph(8)),
        ("star:5", nx.star_graph(4)),
        ("full:6", nx.complete_graph(6)),
        ("mesh:4x4", nx.grid_graph((4, 4))),
        ("mesh:2x3x4", nx.grid_graph((4, 3, 2))),
        ("torus:3x5", nx.grid_graph((5, 3), periodic=True)),
        ("torus:2x2", nx.cycle_graph(4)),
        ("torus:1x4", nx.cycle_graph(4)),
        ("torus:2x1x1", nx.path_graph(2)),
        ("hypercube:4", nx.hypercube_graph(4)),
    ],
)
def test_graphs_are_those_of_networkx(argument: str, reference: nx.Graph[Any]) -> None:
    topology = preset(argument)
    assert len(topology.links) == 2 * reference.number_of_edges(), "no link is doubled"
    assert nx.is_isomorphic(as_graph(topology).to_undirected(), reference)
    assert set(topology.capacity_GBps.values()) == {1}


def test_mesh_ranks_are_row_major() -> None:
    neighbours = preset("mesh:3x4").out_neighbours
    assert set(neighbours["gpu5"]) == {"gpu1", "gpu4", "gpu6", "gpu9"}


def test_the_hub_of_a_star_is_gpu0() -> None:
    assert preset("star:5").out_neighbours["gpu0"] == ("gpu1", "gpu2", "gpu3", "gpu4")


def test_a_switch_holds_no_rank() -> None:
    topology = preset("switch:8")
    assert len(topology.ranks) == 8
    assert topology.by_id["switch0"].kind == "switch"
    assert into_GBps(topology, "switch0") == 8


@pytest.mark.parametrize(
    ("text", "rate"), [("25", Fraction(25)), ("19.2", Fraction(96, 5)), ("0.5", Fraction(1, 2))]
)
def test_a_bandwidth_after_the_at_sign_is_exact(text: str, rate: Fraction) -> None:
    topology = preset(f"mesh:2x2@{text}")
    assert set(topology.capacity_GBps.values()) == {rate}
    assert topology.name == f"mesh:2x2@{text}"


def test_dgx1_is_the_hybrid_cube_mesh() -> None:
    topology = preset("dgx1")
    double = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
    single = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}
    assert pair_counts(topology) == dict.fromkeys(double, 2) | dict.fromkeys(single, 1)
    assert all(into_GBps(topology, gpu) == 150 for gpu in topology.ranks)
    assert topology.capacity_GBps["gpu0", "gpu1"] == 50
    assert {x.kind for x in topology.links} == {"nvlink"}


def test_dgx2_has_two_groups_and_a_trunk() -> None:
    topology = preset("dgx2")
    assert len(topology.ranks) == 16
    assert topology.capacity_GBps["nvswitch0", "nvswitch1"] == 1200
    assert all(into_GBps(topology, gpu) == 150 for gpu in topology.ranks)
    assert {topology.out_neighbours[gpu] for gpu in topology.ranks[8:]} == {("nvswitch1",)}


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("dgx-a100", 300, 25),
        ("dgx-h100", 450, 50),
        ("dgx-h200", 450, 50),
        ("dgx-b200", 900, 50),
        ("dgx-b300", 900, 100),
    ],
)
def test_dgx_boxes(name: str, inside: int, outside: int) -> None:
    one, two = preset(name), preset(f"{name}:2")
    assert one == preset(f"{name}:1")
    assert {d.family for d in one.devices if d.kind == "switch"} == {"nvswitch"}, (
        "one box needs no network"
    )
    assert (len(one.ranks), len(two.ranks)) == (8, 16)
    for i, gpu in enumerate(two.ranks):
        assert two.capacity_GBps[gpu, f"nvswitch{i // 8}"] == inside
        assert two.capacity_GBps[gpu, "network0"] == outside
        assert two.by_id[gpu].extra["box"] == i // 8


@pytest.mark.parametrize(("boxes", "leaves"), [(2, 8), (32, 8), (33, 16)])
def test_rails_join_the_gpus_of_one_place_in_all_boxes(boxes: int, leaves: int) -> None:
    topology = preset(f"dgx-h100-rails:{boxes}")
    networks = [d.id for d in topology.devices if d.family == "network"]
    assert len(networks) == leaves + 1 and networks[-1] == "spine0"
    prefix = "unit0-" if leaves > 8 else ""
    for i, gpu in enumerate(topology.ranks[: min(boxes, 32) * 8]):
        assert topology.capacity_GBps[gpu, f"{prefix}rail{i % 8}"] == 50
    up = topology.capacity_GBps[f"{prefix}rail0", "spine0"]
    assert up == 50 * min(boxes, 32), "as much leaves a leaf as enters it"
    assert into_GBps(topology, "spine0") == 50 * 8 * boxes
    one = preset("dgx-h100-rails")
    assert one.fingerprint == preset("dgx-h100").fingerprint


def test_gh200_in_fours_are_joined_pairwise_by_six_links_each() -> None:
    topology = preset("gh200x4:2")
    pairs = [(a, b) for first in (0, 4) for a, b in combinations(range(first, first + 4), 2)]
    assert pair_counts(topology) == dict.fromkeys(pairs, 6)
    assert topology.capacity_GBps["gpu0", "gpu3"] == 150
    assert all(topology.capacity_GBps[gpu, "network0"] == 25 for gpu in topology.ranks)


def test_rtx_pro_6000_hang_on_two_sockets_whose_rate_is_assumed() -> None:
    topology = preset("rtx-pro-6000")
    assert [topology.out_neighbours[f"gpu{i}"] for i in (0, 3, 4, 7)] == [
        ("cpu0",),
        ("cpu0",),
        ("cpu1",),
        ("cpu1",),
    ]
    assert topology.capacity_GBps["gpu0", "cpu0"] == 48
    assert [x.kind for x in topology.links if x.is_assumed] == ["smp", "smp"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("DGX-H100:2", "dgx-h100:2"),
        ("dgx_b200", "dgx-b200"),
        ("b200", "dgx-b200"),
        ("HGX B300:4", "dgx-b300:4"),
        ("gh200:2", "gh200x4:2"),
        ("h200@", "'@' is not a number"),
        ("dgx-spark", "spark-cable"),
        ("rtx-pro-6000x8", "rtx-pro-6000"),
        ("Ring:8@2", "ring:8@2"),
        ("./b200", "unknown topology"),
    ],
)
def test_presets_have_the_names_that_people_type(typed: str, name: str) -> None:
    if " " in name:
        with pytest.raises(InputError, match=name):
            preset(typed)
    else:
        assert preset(typed).name == name


@pytest.mark.parametrize(
    ("argument", "switches", "GBps"),
    [
        ("dgx-h100:2@25", [("gpu0", "network0")], 25),
        ("dgx-h100-rails:4@25", [("gpu0", "rail0")], 25),
        ("gb200-nvl72:2@100", [("gpu0", "network0")], 100),
        ("mi250:2@50", [("nic0", "network0")], 50),
        ("spark-ring:3@12.5", [("spark0/out", "spark1/in")], 12.5),
        ("mac-mesh:2@5", [("gpu0", "gpu1")], 5),
    ],
)
def test_the_ports_of_a_machine_may_have_a_rate(
    argument: str, switches: list[tuple[str, str]], GBps: float
) -> None:
    topology, plain = preset(argument), preset(argument.partition("@")[0])
    assert topology.name == argument
    assert all(float(topology.capacity_GBps[pair]) == GBps for pair in switches)
    inside = {x.bandwidth_GBps for x in topology.links if x.kind != "network"}
    assert inside == {x.bandwidth_GBps for x in plain.links if x.kind != "network"}
    if "rails" in argument:
        assert topology.capacity_GBps["rail0", "spine0"] == 100
    (stated,) = state_rates([plain], {"network": Fraction(str(GBps))})
    assert stated.capacity_GBps == topology.capacity_GBps
    (stated,) = state_rates([plain], {"nic": Fraction(str(GBps))})
    if "mi250" not in argument:
        assert stated.capacity_GBps == topology.capacity_GBps


def test_rates_of_other_links_of_presets_and_of_changed_ones_are_known() -> None:
    for kind, topology in (
        ("network", preset("dgx1")),
        ("nvlink", preset("dgx-h100:2")),
        ("network", replace(preset("dgx-h100:2"), name="mine")),
    ):
        with pytest.raises(InputError, match=r"known|only assumed"):
            state_rates([topology], {kind: Fraction(1)})


def test_nvl72_racks_are_trays_of_four_on_one_fabric() -> None:
    rack, two = preset("gb200-nvl72"), preset("gb200-nvl72:2")
    assert rack == preset("gb200-nvl72:1")
    assert (len(rack.ranks), len(two.ranks)) == (72, 144)
    assert {d.family for d in rack.devices if d.kind == "switch"} == {"nvswitch"}
    for i, gpu in enumerate(two.ranks):
        assert two.capacity_GBps[gpu, f"nvswitch{i // 72}"] == 900
        assert two.capacity_GBps[gpu, "network0"] == 50
        assert two.by_id[gpu].extra == {"host": f"rack{i // 72}-tray{i % 72 // 4}", "box": i // 72}
    assert len({rack.by_id[gpu].extra["host"] for gpu in rack.ranks}) == 18


@pytest.mark.parametrize(
    ("name", "collective", "bound"),
    [
        ("gb200-nvl72", "allreduce", Fraction(32400, 71)),
        pytest.param("gb200-nvl72:2", "alltoall", Fraction(100), marks=pytest.mark.long),
    ],
)
def test_nvl72_racks_have_plans_at_the_bound(name: str, collective: str, bound: Fraction) -> None:
    topology = preset(name)
    plan = synthesize(collective_on(collective, topology), topology, "packing").plan
    assert plan.bound_one_way.algbw_GBps == bound
    assert plan.limit_GBps(plan.entries[-1]) == bound


def test_mi250_matches_the_published_cut() -> None:
    """ForestColl's optimum of one box, 7/150 s a GB and shard, is the cut around a package: 14 GPUs
    over 300 GB/s.
    """
    topology = preset("mi250")
    for first in range(0, 16, 2):
        package = {f"gpu{first}", f"gpu{first + 1}"}
        entering = sum(
            c for (a, b), c in topology.capacity_GBps.items() if b in package and a not in package
        )
        assert entering >= 300
    assert (
        sum(c for (a, b), c in topology.capacity_GBps.items() if {a, b} & {"gpu0", "gpu1"} == {b})
        == 300
    )


def test_two_mi250_boxes_share_a_nic_between_the_dies_of_a_package() -> None:
    topology = preset("mi250:2")
    assert sum(d.kind == "nic" for d in topology.devices) == 16
    assert topology.out_neighbours["nic9"] == ("gpu18", "gpu19", "network0")
    assert topology.capacity_GBps["nic9", "network0"] == 25


def test_mi300x_z52_and_two_sockets() -> None:
    assert set(preset("mi300x").capacity_GBps.values()) == {64}
    assert nx.is_isomorphic(as_graph(preset("mi300x")).to_undirected(), nx.complete_graph(8))
    assert nx.is_isomorphic(as_graph(preset("z52")).to_undirected(), nx.cycle_graph(8))
    topology = preset("pcie-2socket")
    assert topology.capacity_GBps["cpu0", "cpu1"] == Fraction(96, 5)
    assert {c for (a, b), c in topology.capacity_GBps.items() if {a, b} != {"cpu0", "cpu1"}} == {24}
    assert [topology.out_neighbours[f"gpu{i}"] for i in (0, 1, 2, 7)] == [
        ("plx0",),
        ("plx0",),
        ("plx1",),
        ("plx3",),
    ]
    assert topology.out_neighbours["plx2"] == ("gpu4", "gpu5", "cpu1")


def list_cables(topology: Topology) -> list[tuple[str, str, str, str]]:
    """Return the host and port at both ends of each cable, each cable once."""
    host_of = {d.id: d.extra["host"] for d in topology.devices}
    ends = [
        ((host_of[x.src], x.extra["src_port"]), (host_of[x.dst], x.extra["dst_port"]))
        for x in topology.links
        if "src_port" in x.extra
    ]
    assert sorted(ends) == sorted((b, a) for a, b in ends), "every cable carries both directions"
    return [(*a, *b) for a, b in ends if a < b]


def test_sparks_in_a_ring_are_cabled_as_nvidia_says_and_share_two_pcie_links() -> None:
    topology = preset("spark-ring:3")
    first, second = "enp1s0f0np0", "enp1s0f1np1"
    assert list_cables(topology) == [
        ("spark0", first, "spark1", second),
        ("spark1", first, "spark2", second),
        ("spark0", second, "spark2", first),
    ]
    assert topology.capacity_GBps["spark0/out", "spark1/in"] == 25
    assert all(into_GBps(topology, gpu) == 28 for gpu in topology.ranks)
    bound = find_bounds(collective_on("allgather", topology), Router(topology)).single_path
    assert bound.algbw_GBps == 28 * Fraction(3, 2)


def test_one_cable_between_sparks_carries_what_a_port_does() -> None:
    topology = preset("spark-cable")
    assert list_cables(topology) == [("spark0", "enp1s0f0np0", "spark1", "enp1s0f0np0")]
    assert topology.capacity_GBps["spark0/out", "spark1/in"] == 25


def test_two_cables_between_sparks_end_at_equal_ports() -> None:
    topology = preset("spark-pair")
    ports = ("enp1s0f0np0", "enp1s0f1np1")
    assert list_cables(topology) == [("spark0", p, "spark1", p) for p in ports]
    assert topology.capacity_GBps["spark0/out", "spark1/in"] == 50


def test_strix_boxes_in_a_ring_and_macs_in_a_mesh_use_each_port_once() -> None:
    for argument, graph, rate in (
        ("strix-ring:5", nx.cycle_graph(5), 5),
        ("mac-mesh:7", nx.complete_graph(7), 10),
    ):
        topology = preset(argument)
        assert nx.is_isomorphic(as_graph(topology).to_undirected(), graph)
        assert set(topology.capacity_GBps.values()) == {rate}
        ends = [end for a, x, b, y in list_cables(topology) for end in ((a, x), (b, y))]
        assert len(set(ends)) == len(ends) == len(topology.links)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("spark-ring", "a number of hosts of at least 1 after 'spark-ring:'"),
        ("spark-ring:2", "at least 3 hosts in a ring; two are spark-pair"),
        ("spark-pair:2", "takes no size"),
        ("strix-ring:2", "at least 3 hosts in a ring"),
        ("mac-mesh:1", "from 2 to 7 Macs"),
        ("mac-mesh:8", "has 6 Thunderbolt 5 ports"),
        ("rign:8", "did you mean 'ring:8'"),
        ("", "unknown topology"),
        ("ring", "for example 'ring:8'"),
        ("ring:0", "at least 1"),
        ("ring:-1", "at least 1"),
        ("ring:8:8", "for example"),
        ("ring:4x4", "for example"),
        ("mesh:4x", "x between them"),
        (f"ring:{MAX_GPUS + 1}", "more than 4096"),
        ("mesh:65x65", "more than 4096"),
        ("mesh:999999999x999999999", "more than 4096"),
        ("hypercube:13", "more than 4096"),
        ("hypercube:999999999", "more than 4096"),
        ("dgx-a100:513", "more than 4096"),
        ("dgx-a100:0", "at least 1"),
        ("dgx1:2", "takes no size"),
        ("dgx1@10", "datasheet"),
        ("dgx-h100@10", "write for example 'dgx-h100:2@10'"),
        ("dgx-h100:2@x", "is not a number of GB/s above 0"),
        ("mesh:4x4@0", "above 0"),
        ("mesh:4x4@-1", "above 0"),
        ("mesh:4x4@nan", "above 0"),
        ("mesh:4x4@inf", "above 0"),
        ("mesh:4x4@1e9", "above 0"),
        ("mesh:4x4@", "above 0"),
    ],
)
def test_wrong_arguments_say_what_was_expected(argument: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        preset(argument)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_presets_are_allowed() -> None:
    assert len(preset("hypercube:12").ranks) == MAX_GPUS
    assert len(preset("mesh:64x64").ranks) == prod((64, 64))


def test_resolve_prefers_a_file_and_reads_it_by_content(tmp_path: Path) -> None:
    dgx1 = preset("dgx1")
    for name in ("machine.json", "machine"):
        path = tmp_path / name
        path.write_text(dgx1.dumps(), encoding="utf-8")
        assert resolve(str(path)).fingerprint == dgx1.fingerprint
    assert resolve("dgx1") == dgx1
    (tmp_path / "dgx2").write_text(machine("", ""), encoding="utf-8")
    assert resolve(str(tmp_path / "dgx2")).ranks == ("gpu0", "gpu1")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"what is this", "format is not recognized"),
        (None, "no captured machine"),
    ],
)
def test_resolve_refuses_unusable_files(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "topology"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        resolve(str(path))


def test_resolve_refuses_files_that_are_too_large(tmp_path: Path) -> None:
    path = tmp_path / "huge.xml"
    with path.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        resolve(str(path))


@pytest.mark.parametrize("argument", ["missing.xml", "no/such/dgx1", "./ring"])
def test_resolve_tells_a_missing_file_from_an_unknown_preset(argument: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        resolve(argument)
    with pytest.raises(InputError, match="unknown topology"):
        resolve("dgx-3")
