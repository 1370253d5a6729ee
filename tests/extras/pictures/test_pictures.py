"""Pictures: every device and kind of link is there, ids cannot break the text, nothing lies on
anything else.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from pictured import NASTY, PRESETS, odd, two_hosts

from topoplan.topo.extras.pictures import svg
from topoplan.topo.extras.pictures.layout import lay_out
from topoplan.topo.extras.pictures.shapes import Frame, Picture, Shape, bend_around
from topoplan.topo.extras.pictures.structures import arrange
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.pictures import table, text_tree
from topoplan.topo.pictures.cables import Cable, find_cables, format_rate
from topoplan.topo.pictures.collapse import show_hosts_once
from topoplan.topo.presets import preset

MACHINES = Path(__file__).resolve().parents[3] / "../shared/machines/nccl_xml"
RECORDED = (
    "rccl/topo_8p_rome.xml",
    "rccl/topo_8p_940.xml",
    "rccl/topo_16p1h.xml",
    "oci/H100-topology.xml",
)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def build(name: str) -> Topology:
    return preset(name)


@cache
def draw(name: str) -> Picture:
    return lay_out(build(name))


def gpu_labels(text: str) -> list[str]:
    """The large figures in the GPU rectangles."""
    root = ElementTree.fromstring(text)
    return [
        list(g.iter(f"{SVG}text"))[-1].text or ""
        for g in root.iter(f"{SVG}g")
        if g.get("class") == "gpu"
    ]


def words(text: str) -> str:
    return " | ".join("".join(e.itertext()) for e in ElementTree.fromstring(text).iter() if e.text)


FRAME = re.compile(r'<rect [^>]*width="([\d.]+)" height="([\d.]+)" rx="12"')


def lies_in(shape: Shape, frame: Frame) -> bool:
    return (
        frame.left < shape.left
        and shape.right < frame.left + frame.width
        and frame.top < shape.top
        and shape.bottom < frame.top + frame.height
    )


def overlap(a: Shape, b: Shape) -> bool:
    return (
        a.left < b.right - 1
        and b.left < a.right - 1
        and a.top < b.bottom - 1
        and b.top < a.bottom - 1
    )


def racks(hosts: int, slow: int | None = None) -> Topology:
    """Hosts of two GPUs and a CPU, on one NVSwitch and one network; one may have a slower way
    out.
    """
    names = [f"host{h}" for h in range(hosts)]
    devices = [Device(f"{n}/gpu{g}", extra={"host": n}) for n in names for g in range(2)]
    devices += [Device(f"{n}/cpu0", "cpu", extra={"host": n}) for n in names]
    devices += [Device("nvswitch0", "switch", "nvswitch"), Device("network0", "switch", "network")]
    links = [
        Link(f"{n}/gpu{g}", "nvswitch0", Fraction(900), kind="nvlink")
        for n in names
        for g in range(2)
    ]
    links += [
        Link(f"{n}/gpu{g}", f"{n}/cpu0", Fraction(48), kind="pcie") for n in names for g in range(2)
    ]
    ways_out = [Fraction(7 if h == slow else 25) for h in range(hosts)]
    links += [
        Link(f"{n}/cpu0", "network0", rate, kind="network")
        for n, rate in zip(names, ways_out, strict=True)
    ]
    return Topology("rack", tuple(devices), tuple(way for x in links for way in both_directions(x)))


@pytest.mark.long
def test_of_hosts_that_are_alike_one_is_shown_with_their_number() -> None:
    for topology, said, is_drawn in (
        (preset("gb200-nvl72:2"), "36 hosts: 36 like rack0-tray0 (4 GPUs each)", False),
        (racks(36), "36 hosts: 36 like host0 (2 GPUs each)", True),
    ):
        gpus = sum(
            d.extra["host"] == topology.devices[0].extra["host"]
            for d in topology.devices
            if d.kind == "gpu"
        )
        drawn = svg.write(topology)
        assert (gpu_labels(drawn) == [str(i) for i in range(gpus)]) == is_drawn
        assert (said in words(drawn)) == is_drawn
        lines = text_tree.write(topology).splitlines()
        assert lines[-1] == f"one host of each kind is shown; {said}"
        assert sum("rank " in line for line in lines) == gpus and len(lines) < 12
        tables = table.write(topology)
        assert (
            f"one host of each kind is listed; {said}" in tables
            and f"{len(topology.ranks)} ranks" in tables
        )
        assert "gpu1 " in tables and "gpu4" not in tables


def test_hosts_that_differ_are_shown_with_their_ranks_and_few_hosts_whole() -> None:
    topology = racks(36, slow=4)
    assert gpu_labels(svg.write(topology)) == ["0", "1", "8", "9"]
    assert text_tree.write(topology).endswith(
        "36 hosts: 35 like host0 (2 GPUs each), host4 (2 GPUs)\n"
    )
    assert show_hosts_once(racks(4)).left_out is None
    assert show_hosts_once(preset("dgx-a100:16")).left_out is None


def test_a_rack_of_72_gpus_is_drawn_whole_tray_by_tray() -> None:
    rack = preset("gb200-nvl72")
    assert sorted(map(int, gpu_labels(svg.write(rack)))) == list(range(72))
    picture = lay_out(rack)
    assert sorted(f.label for f in picture.frames) == sorted(f"tray{i}" for i in range(18))
    assert len({round(s.y) for s in picture.shapes if s.look == "gpu"}) == 2
    # Of two racks one is drawn, with the ranks that it has.
    both = svg.write(preset("gb200-nvl72:2"))
    assert sorted(map(int, gpu_labels(both))) == list(range(72))
    assert "there are 2 like that of gpu0" in words(both)


@pytest.mark.parametrize("name", ["mi250", "mi250:2"])
def test_the_dies_of_a_package_are_in_one_frame(name: str) -> None:
    machine = preset(name)
    picture = lay_out(machine)
    packages = [f for f in picture.frames if f.label.startswith("package")]
    rank = {ident: i for i, ident in enumerate(machine.ranks)}
    inside = [
        sorted(rank[s.ids[0]] for s in picture.shapes if s.look == "gpu" and lies_in(s, frame))
        for frame in packages
    ]
    assert sorted(inside) == [[i, i + 1] for i in range(0, len(rank), 2)]
    # A larger frame that is drawn later would hide these.
    areas = [float(w) * float(h) for w, h in FRAME.findall(svg.write(machine))]
    assert areas == sorted(areas, reverse=True)


@pytest.mark.parametrize("name", ["dgx1", "mi300x", "ring:8", "dgx-a100:2"])
def test_other_gpus_are_in_no_package(name: str) -> None:
    assert not [f for f in lay_out(preset(name)).frames if f.label.startswith("package")]


def fabric(hosts: int, leaves: int, rails: bool = False) -> Topology:
    """Hosts of two GPUs over leaves and two spines; with rails, GPU i of each host is on leaf i."""
    gpus = [f"h{h}g{g}" for h in range(hosts) for g in range(2)]
    names = [*(f"leaf{i}" for i in range(leaves)), "spine0", "spine1"]
    devices = [*map(Device, gpus), *(Device(f"h{h}", "switch", "nvswitch") for h in range(hosts))]
    devices += [Device(name, "switch", "network") for name in names]
    pairs = [(gpu, f"h{i // 2}", "nvlink") for i, gpu in enumerate(gpus)]
    pairs += [
        (gpu, f"leaf{i % 2 if rails else i * leaves // len(gpus)}", "network")
        for i, gpu in enumerate(gpus)
    ]
    pairs += [(leaf, spine, "network") for leaf in names[:-2] for spine in names[-2:]]
    links = (Link(a, b, Fraction(25), kind=kind) for a, b, kind in pairs)
    return Topology("fabric", tuple(devices), tuple(x for y in links for x in both_directions(y)))


@pytest.mark.parametrize(
    ("machine", "above"),
    [(fabric(2, 2), 0), (fabric(8, 4), 2), (fabric(9, 3), 1), (fabric(4, 2, rails=True), 0)],
)
def test_leaves_and_spines_are_drawn_in_tiers(machine: Topology, above: int) -> None:
    """From the spines outwards, on one side or two: spines, leaves, hosts, in rows of their own."""
    picture = lay_out(machine)
    at = {ident: shape for shape in picture.shapes for ident in shape.ids}
    assert at["spine0"] is at["spine1"]
    spine_y = at["spine0"].y
    leaves = {at[d.id] for d in machine.devices if d.id.startswith("leaf")}
    assert sum(leaf.y < spine_y for leaf in leaves) == above
    rows = {leaf.y for leaf in leaves}
    assert len(rows) == (2 if above else 1)
    for link in machine.links:
        if link.src in machine.ranks and link.dst.startswith("leaf"):
            gpu, leaf = at[link.src], at[link.dst]
            assert spine_y < leaf.y < gpu.y or spine_y > leaf.y > gpu.y
    assert not [pair for pair in combinations(picture.shapes, 2) if overlap(*pair)]
    assert sum(wire.cables for wire in picture.wires) == len(find_cables(machine))


def test_hosts_of_one_nvlink_domain_have_frames_with_their_names() -> None:
    picture = lay_out(two_hosts())
    assert [frame.label for frame in picture.frames] == ["host0", "host1"]
    for shape in picture.shapes:
        around = [f.label for f in picture.frames if lies_in(shape, f)]
        assert around == ([] if shape.look == "nvswitch" else [shape.ids[0].split("/")[0]])
    without_cpus = tuple(d for d in two_hosts().devices if d.kind in ("gpu", "switch"))
    kept = {d.id for d in without_cpus}
    links = tuple(x for x in two_hosts().links if {x.src, x.dst} <= kept)
    assert [f.label for f in lay_out(Topology("two", without_cpus, links)).frames] == [
        "host0",
        "host1",
    ]


def test_ids_are_written_whole() -> None:
    for nic in ("rdma_vf_rail1_dma", "mlx5_bond_0"):
        assert nic in words(svg.write(two_hosts(nic=nic))).split(" | ")
    longer = Topology("odd", (Device("accelerator-17"), Device("accelerator-18")), ())
    assert "accelerator-17" in words(svg.write(longer)).split(" | ")


def test_nvswitches_of_one_board_are_one_bar_though_cables_join_them_to_another_board() -> None:
    two = two_hosts(switches=6)
    trunk = [
        x
        for i in range(3)
        for x in both_directions(Link(f"nvswitch{i}", f"nvswitch{i + 3}", Fraction(200)))
    ]
    topology = Topology("two", two.devices, (*two.links, *trunk))
    assert [len(s.ids) for s in lay_out(topology).shapes if s.look == "nvswitch"] == [6]


@pytest.mark.parametrize("name", ["mi250", "mi250:2", "z52"])
def test_no_link_passes_behind_a_box(name: str) -> None:
    picture = lay_out(preset(name))
    for wire in picture.wires:
        ends = [
            s
            for s in picture.shapes
            if any(
                s.left <= x <= s.right and s.top <= y <= s.bottom for x, y in (wire.start, wire.end)
            )
        ]
        assert bend_around(wire, [s for s in picture.shapes if s not in ends]) == wire


@pytest.mark.parametrize("name", PRESETS)
def test_svg_shows_every_rank_once_and_every_class_of_links(name: str) -> None:
    topology = build(name)
    text = svg.write(topology)
    assert sorted(gpu_labels(text), key=int) == [str(i) for i in range(len(topology.ranks))]
    shown = words(text)
    for cable in find_cables(topology):
        assert f"{format_rate(cable.GBps)} GB/s" in shown


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_do_not_lie_on_each_other_and_stay_inside(name: str) -> None:
    picture = draw(name)
    on_top = [(a.ids, b.ids) for a, b in combinations(picture.shapes, 2) if overlap(a, b)]
    assert on_top == []
    for shape in picture.shapes:
        assert shape.left >= -0.01 and shape.top >= -0.01
        assert shape.right <= picture.width + 0.01 and shape.bottom <= picture.height + 0.01


@pytest.mark.parametrize("name", PRESETS)
def test_the_wires_of_a_picture_are_the_cables_of_its_topology(name: str) -> None:
    topology = build(name)
    picture = draw(name)
    assert sum(wire.cables for wire in picture.wires) == len(find_cables(topology))
    assert {ident for shape in picture.shapes for ident in shape.ids} == {
        d.id for d in topology.devices
    }


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines_are_drawn_whole(name: str) -> None:
    if not (MACHINES / name).exists():
        pytest.skip(f"recorded machine {name} is not here")
    topology = resolve(str(MACHINES / name))
    picture = lay_out(topology)
    assert {ident for shape in picture.shapes for ident in shape.ids} == {
        d.id for d in topology.devices
    }
    assert [(a.ids, b.ids) for a, b in combinations(picture.shapes, 2) if overlap(a, b)] == []
    assert sum(wire.cables for wire in picture.wires) == len(find_cables(topology))
    assert len(gpu_labels(svg.write(topology))) == len(topology.ranks)


@pytest.mark.parametrize("name", ["dgx1", "mi250", "dgx-a100:3"])
def test_pictures_are_the_same_every_time(name: str) -> None:
    assert svg.write(preset(name)) == svg.write(preset(name))


@pytest.mark.parametrize("ident", NASTY)
def test_no_id_breaks_the_svg(ident: str) -> None:
    text = svg.write(odd([ident, "gpu1"]))
    text.encode("utf-8")
    assert gpu_labels(text) == ["0", "1"]
    assert "odd<kind>, 25 GB/s" in words(text)


def test_svg_names_each_device_whole_in_its_tooltip() -> None:
    long = "x" * 300
    root = ElementTree.fromstring(svg.write(odd([long, "<b>"])))
    titles = [t.text for t in root.iter(f"{SVG}title")]
    assert {long, "<b>", "sw<&>"} <= set(titles)


def test_thicker_lines_carry_more() -> None:
    paths = re.findall(
        r'<path d="M[^"]* h34"[^>]*stroke-width="([\d.]+)"', svg.write(preset("dgx1"))
    )
    assert len(paths) == 2
    assert float(paths[0]) > float(paths[1])


def test_a_link_with_another_way_back_is_drawn_as_two_with_arrows() -> None:
    there, back = Link("a", "b", Fraction(50)), Link("b", "a", Fraction(10))
    topology = Topology("uneven", (Device("a"), Device("b")), (there, back))
    assert find_cables(topology) == (
        Cable("a", "b", "link", Fraction(50), 1, True),
        Cable("b", "a", "link", Fraction(10), 1, True),
    )
    text = svg.write(topology)
    assert text.count("marker-mid=") == 2
    assert "50 GB/s, one direction" in words(text)
    first, second = lay_out(topology).wires
    assert first.bend != second.bend


def test_machines_without_gpus_or_links_can_be_drawn() -> None:
    for devices in (
        (Device("cpu0", "cpu"),),
        (Device("g"),),
        (Device("s", "switch", "network"),),
        (Device("n", "nic"),),
    ):
        assert ElementTree.fromstring(svg.write(Topology("alone", devices, ()))).tag == f"{SVG}svg"


def test_eight_sockets_and_dangling_devices_are_drawn_apart() -> None:
    cpus = tuple(Device(f"cpu{i}", "cpu") for i in range(8))
    smp = (
        x for a, b in combinations(cpus, 2) for x in both_directions(Link(a.id, b.id, kind="smp"))
    )
    gpus = (Device("gpu0"), Device("gpu1"))
    nvlink = both_directions(Link("gpu0", "gpu1", Fraction(50), kind="nvlink"))
    topology = Topology(
        "odd",
        (*cpus, *gpus, Device("n", "nic")),
        (*smp, *both_directions(Link("gpu0", "cpu3")), *nvlink),
    )
    picture = lay_out(topology)
    assert [(a.ids, b.ids) for a, b in combinations(picture.shapes, 2) if overlap(a, b)] == []
    assert sum(wire.cables for wire in picture.wires) == len(find_cables(topology))


def edges(name: str) -> tuple[int, frozenset[tuple[int, int]]]:
    topology = preset(name)
    index = {ident: i for i, ident in enumerate(topology.ranks)}
    found = ((index[a], index[b]) for a, b in topology.capacity_GBps)
    return len(index), frozenset((min(p), max(p)) for p in found)


def test_a_grid_stands_in_rows_and_columns() -> None:
    points = arrange(*edges("mesh:3x5")).points
    assert points == tuple((float(i % 5), float(i // 5)) for i in range(15))


def test_only_the_links_around_a_torus_are_curved() -> None:
    assert len(arrange(*edges("torus:4x4")).bends) == 8
    assert not arrange(*edges("mesh:4x4")).bends


def test_a_hybrid_cube_mesh_is_two_squares_with_partners_facing() -> None:
    points = arrange(*edges("dgx1")).points
    for quad in ((0, 1, 2, 3), (4, 5, 6, 7)):
        xs, ys = ({points[i][k] for i in quad} for k in (0, 1))
        assert len(xs) == len(ys) == 2
    assert all(points[i][1] == points[i + 4][1] for i in range(4))


def test_a_ring_is_a_circle_in_its_own_order() -> None:
    """A ring 0-2-4-1-3-0: neighbours are equally far apart, wherever their numbers are."""
    order = [0, 2, 4, 1, 3]
    pairs = frozenset((min(a, b), max(a, b)) for a, b in zip(order, [*order[1:], 0], strict=True))
    points = arrange(5, pairs).points
    lengths = {round(abs(complex(*points[a]) - complex(*points[b])), 6) for a, b in pairs}
    assert len(lengths) == 1


def test_two_rings_are_not_taken_for_one() -> None:
    two = frozenset({(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)})
    assert len(set(arrange(6, two).points)) == 6
