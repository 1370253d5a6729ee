"""NCCL's and RCCL's XML: recorded machines are read as the libraries read them, and survive being
written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from small_xml import check_round_trip, machine, notes, nvlink
from verdicts import list_findings

from topoplan.topo import hardware
from topoplan.topo.errors import InputError
from topoplan.topo.formats import nccl_xml
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

# -- recorded machines

# file: GPUs, one-way links between GPUs, GPU links to NVSwitches, PCIe switches, NICs, NUMA nodes
RECORDED = {
    "oci/H100-topology.xml": (8, 0, 8, 8, 16, 2),
    "aws/p5.48xl.xml": (8, 0, 0, 8, 32, 1),
    "azure/ncv4-topo.xml": (4, 0, 0, 0, 1, 4),
    "rccl/topo_16p1h.xml": (16, 56, 0, 20, 8, 4),
    "rccl/topo_3p_pcie.xml": (3, 0, 0, 3, 1, 2),
    "rccl/topo_4p3l.xml": (4, 12, 0, 6, 2, 1),
    "rccl/topo_8p6l.xml": (8, 48, 0, 8, 1, 2),
    "rccl/topo_8p_940.xml": (8, 56, 0, 24, 8, 2),
    "rccl/topo_8p_940vm.xml": (8, 56, 0, 0, 8, 2),
    "rccl/topo_8p_pcie.xml": (8, 0, 0, 10, 1, 1),
    "rccl/topo_8p_rome.xml": (8, 16, 0, 8, 1, 2),
}


@pytest.fixture
def read_recorded(recorded: Callable[[str], Path]) -> Callable[[str], Topology]:
    def read(name: str) -> Topology:
        path = recorded(f"nccl_xml/{name}")
        return read_topology_text(path.read_text(encoding="utf-8"), path.name)

    return read


@pytest.mark.parametrize("name", RECORDED)
def test_counts_of_recorded_machines(name: str, read_recorded: Callable[[str], Topology]) -> None:
    topology = read_recorded(name)
    gpus = set(topology.ranks)
    kinds = Counter((d.kind, d.family) for d in topology.devices)
    assert (
        len(gpus),
        sum(x.src in gpus and x.dst in gpus for x in topology.links),
        sum(x.src in gpus and x.dst == "nvswitch0" for x in topology.links),
        kinds["switch", "pcie"],
        kinds["nic", None],
        len({d.numa_node for d in topology.devices if d.numa_node is not None}),
    ) == RECORDED[name]
    assert topology.is_symmetric


@pytest.mark.parametrize(
    "name",
    ["azure/ndv2-topo.xml", "azure/ndv4-topo.xml", "azure/ndv5-topo.xml", "aws/p4d-24xl.xml"],
)
def test_skeletons_are_told_as_such(name: str, read_recorded: Callable[[str], Topology]) -> None:
    with pytest.raises(InputError, match=r"skeleton: it lists 8 PCI slots .*NCCL_TOPO_DUMP_FILE"):
        read_recorded(name)


def test_a_recorded_fragment_is_refused(read_recorded: Callable[[str], Topology]) -> None:
    with pytest.raises(InputError, match=r"line 13, column 1; is the file cut off\?"):
        read_recorded("h200-vm-numa-unknown.xml")


def test_h100_has_18_links_into_one_nvswitch_and_flat_broadcom_switches(
    read_recorded: Callable[[str], Topology],
) -> None:
    topology = read_recorded("oci/H100-topology.xml")
    assert {topology.capacity_GBps[gpu, "nvswitch0"] for gpu in topology.ranks} == {
        18 * Fraction(103, 5)
    }
    assert topology.by_id["nvswitch0"].extra["members"] == [f"0000:1{x}:00.0" for x in "abcd"]
    assert topology.by_id["pci-0000:08:00.0"].extra["flattened"] == ["0000:0d:00.0", "0000:0a:00.0"]
    assert topology.capacity_GBps["pci-0000:08:00.0", "cpu0"] == 6, "5.0 GT/s x16, as the file says"
    assert topology.capacity_GBps["gpu0", "pci-0000:08:00.0"] == 48
    assert topology.capacity_GBps["cpu0", "cpu1"] == 22
    assert "5 GT/s x16" in notes(topology)
    assert "ports of one adapter" in notes(topology)


def test_mi250_has_the_adjacency_of_the_preset(read_recorded: Callable[[str], Topology]) -> None:
    topology, known = read_recorded("rccl/topo_16p1h.xml"), preset("mi250")
    count = {(x.src, x.dst): x.count for x in topology.links if x.kind == "xgmi"}
    assert count == {(x.src, x.dst): x.count for x in known.links}
    assert topology.capacity_GBps["gpu0", "gpu1"] == 4 * 36
    numa = [topology.by_id[gpu].numa_node for gpu in topology.ranks]
    assert numa == [known.by_id[gpu].numa_node for gpu in known.ranks]


def test_ranks_follow_the_file_where_device_numbers_do_not(
    read_recorded: Callable[[str], Topology],
) -> None:
    topology = read_recorded("rccl/topo_8p_940vm.xml")
    assert topology.ranks[:3] == ("gpu1", "gpu0", "gpu2")
    assert {
        topology.capacity_GBps[a, b] for a in topology.ranks for b in topology.ranks if a != b
    } == {48}


def test_doubts_about_recorded_machines_are_noted(read_recorded: Callable[[str], Topology]) -> None:
    bridged = notes(read_recorded("azure/ncv4-topo.xml"))
    assert "has the GPU itself as target" in bridged
    assert "taken as Gen3" in bridged
    assert "taken as 16 lanes" in bridged
    assert "no nvlink elements" in notes(read_recorded("aws/p5.48xl.xml"))
    assert "enp96s0f0: PCIe at 2.5 GT/s x1" in notes(read_recorded("rccl/topo_4p3l.xml"))
    assert notes(read_recorded("rccl/topo_8p_rome.xml")) == ""


# -- small texts


def test_a_link_told_by_one_side_only_stays_one_way() -> None:
    topology = nccl_xml.read(machine(nvlink("0000:01:00.0"), ""), "small.xml")
    assert ("gpu1", "gpu0") not in topology.capacity_GBps
    assert "gpu0 -> gpu1: only one end lists it" in notes(topology)
    check_round_trip(topology)


@pytest.mark.parametrize("target", ["fffffff:ff:ff.0", "FFFFFFFF:FF:FF.0", ""])
def test_unreadable_targets_are_one_nvswitch(target: str) -> None:
    links = nvlink(target, 10, "0x068000") + nvlink("0000:c3:00.0", 8, "0x068000")
    topology = nccl_xml.read(machine(links, links, sm=90), "small.xml")
    assert [d.id for d in topology.devices if d.family == "nvswitch"] == ["nvswitch0"]
    assert topology.capacity_GBps["gpu0", "nvswitch0"] == Fraction(1854, 5)
    assert topology.capacity_GBps["nvswitch0", "gpu1"] == Fraction(1854, 5)
    assert topology.by_id["nvswitch0"].extra["members"] == (
        ["0000:c3:00.0"] if target else ["", "0000:c3:00.0"]
    )


@pytest.mark.parametrize(
    ("sm", "rate"),
    [(60, 18), (70, 20), (80, 20), (86, 12), (90, "103/5"), (100, "401/10"), (120, "401/10")],
)
def test_nvlink_rates_by_capability(sm: int, rate: int | str) -> None:
    topology = nccl_xml.read(
        machine(nvlink("0000:01:00.0"), nvlink("0000:00:00.0"), sm=sm), "small.xml"
    )
    assert topology.capacity_GBps["gpu0", "gpu1"] == Fraction(rate)


@pytest.mark.parametrize(
    ("gcn", "rate"),
    [("906", 24), ("908", 24), ("910", 36), ("gfx90a", 36), ("gfx942", 48), ("gfx950", 48)],
)
def test_xgmi_rates_by_architecture(gcn: str, rate: int) -> None:
    text = machine(
        nvlink("0000:01:00.0", 2, "0x120000"),
        nvlink("0000:00:00.0", 2, "0x120000"),
        sm=304,
        version=2,
    )
    text = text.replace("nvlink", "xgmi").replace('sm="304"', f'sm="304" gcn="{gcn}" arch="38911"')
    topology = nccl_xml.read(text, "small.xml")
    assert topology.capacity_GBps["gpu0", "gpu1"] == 2 * rate
    assert {x.kind for x in topology.links if x.src == "gpu0" and x.dst == "gpu1"} == {"xgmi"}
    assert topology.source == "RCCL XML, version 2"
    check_round_trip(topology)


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("2.5 GT/s", 16, 3),
        ("5 GT/s PCIe", 16, 6),
        ("8 GT/s", 16, 12),
        ("16.0 GT/s PCIe", 8, 12),
        ("32.0 GT/s PCIe", 16, 48),
        ("64.0 GT/s PCIe", 16, 96),
        ("Unknown", 4, 3),
        ("", 0, 12),
    ],
)
def test_pcie_rates(speed: str, width: int, rate: int) -> None:
    text = (
        machine("")
        .replace("16.0 GT/s PCIe", speed)
        .replace('link_width="16"', f'link_width="{width}"')
    )
    topology = nccl_xml.read(text, "small.xml")
    assert topology.capacity_GBps["gpu0", "cpu0"] == rate
    assert ("taken as Gen3" in notes(topology)) == (speed in ("Unknown", ""))
    check_round_trip(topology)


@pytest.mark.parametrize(
    ("arch", "vendor", "family", "model", "rate"),
    [
        ("x86_64", "GenuineIntel", 6, 79, 6),
        ("x86_64", "GenuineIntel", 6, 85, 10),
        ("x86_64", "GenuineIntel", 6, 143, 22),
        ("x86_64", "GenuineIntel", 6, 207, 40),
        ("x86_64", "GenuineIntel", 6, 173, 40),
        ("x86_64", "AuthenticAMD", 25, 17, 16),
        ("arm64", None, None, None, 6),
        ("ppc64", None, None, None, 32),
    ],
)
def test_rates_between_cpus(
    arch: str, vendor: str | None, family: int | None, model: int | None, rate: int
) -> None:
    assert hardware.inter_cpu_GBps(arch, vendor, family, model) == rate


def test_latencies_are_of_whole_paths() -> None:
    """0.6 us from GPU to GPU by NVLink, with or without a switch in between; 1.0 us over two PCIe
    links.
    """
    switched = nccl_xml.read(machine(*[nvlink("f:f:f.0", 2, "0x068000")] * 2), "small.xml")
    direct = nccl_xml.read(machine(nvlink("0000:01:00.0"), nvlink("0000:00:00.0")), "small.xml")
    plain = nccl_xml.read(machine("", ""), "small.xml")
    for topology, middle, expected in (
        (switched, "nvswitch0", "3/5"),
        (direct, "gpu1", "3/5"),
        (plain, "cpu0", "1"),
    ):
        route = Router(topology).route(0, 1)
        assert route is not None
        assert middle in route
        assert Router(topology).latency_us(route) == Fraction(expected)


def test_c2c_pcilinks_and_links_to_cpus() -> None:
    c2c = '<c2c bw="44712" count="10"/>' + nvlink("0004:05:00.0", 3, "0x068001")
    bridges = "".join(
        f'<pci busid="0000:e{i}:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<pcilink target="0000:e{1 - i}:00.0"/></pci>'
        for i in range(2)
    )
    topology = nccl_xml.read(machine(c2c).replace("</cpu>", bridges + "</cpu>"), "small.xml")
    rates = {x.kind: x.bandwidth_GBps for x in topology.links if (x.src, x.dst) == ("gpu0", "cpu0")}
    assert rates == {"pcie": 24, "c2c": Fraction(44712, 100), "nvlink": 60}
    assert topology.capacity_GBps["pci-0000:e0:00.0", "pci-0000:e1:00.0"] == hardware.LOCAL_GBps
    check_round_trip(topology)


def test_unknown_numa_node() -> None:
    topology = nccl_xml.read(machine("").replace('numaid="0"', 'numaid="-1"'), "vm.xml")
    assert topology.by_id["cpu0"].numa_node is None
    assert topology.by_id["gpu0"].numa_node is None
    assert "NUMA node unknown" in notes(topology)
    check_round_trip(topology)


def test_nics_keep_their_net_speed_and_name() -> None:
    net = '<net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1"/>'
    nic = (
        '<pci busid="0000:60:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" '
        'link_width="16"><nic>{}</nic></pci>'
    )
    topology = nccl_xml.read(machine("").replace("</cpu>", nic.format(net) + "</cpu>"), "small.xml")
    assert topology.by_id["mlx5_0"].extra["net_speed_GBps"] == 50
    assert topology.capacity_GBps["mlx5_0", "cpu0"] == 48
    twice = nccl_xml.read(
        machine("").replace("</cpu>", nic.format(net + net) + "</cpu>"), "small.xml"
    )
    assert [d.id for d in twice.devices if d.kind == "nic"] == ["mlx5_0", "mlx5_0#2"]


def test_a_nic_without_a_net_is_noted() -> None:
    text = machine("", "").replace("</gpu>", '</gpu><nic dev="mlx5_0" speed="200"/>', 1)
    found = nccl_xml.read(text, "by-hand.xml")
    assert not [d for d in found.devices if d.kind == "nic"]
    assert "the <nic> of pci 0000:00:00.0: has no <net> in it; left out" in notes(found)


def test_several_hosts_in_one_file_keep_apart() -> None:
    one = machine(nvlink("0000:01:00.0", 1, "0x068000"), "")
    cpu = one[one.index("<cpu") : one.index("</system>")]
    other = (
        cpu.replace("<cpu ", '<cpu host_hash="0x2" ')
        .replace('rank="0"', 'rank="2"')
        .replace('rank="1"', 'rank="3"')
    )
    topology = nccl_xml.read(
        one.replace("<cpu ", '<cpu host_hash="0x1" ').replace("</system>", other + "</system>"), "x"
    )
    assert topology.ranks == ("host0/gpu0", "host0/gpu1", "host1/gpu0", "host1/gpu1")
    assert ("host0/cpu0", "host1/cpu0") not in topology.capacity_GBps
    assert topology.capacity_GBps["nvswitch0", "host1/gpu0"] == 20
    check_round_trip(topology)


BILLION_LAUGHS = (
    '<!DOCTYPE lolz [<!ENTITY a "lol">'
    + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + ']><system version="1">&i;</system>'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BILLION_LAUGHS, "DTD or entities"),
        ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', "DTD or entities"),
        (machine("")[:-30], "is the file cut off?"),
        ("<system>\n<cpu", "line 2, column 1"),
        ("<system>" + "<pci>" * 100_000, "nested deeper than 64"),
        ("<topology/>", "expected <system>"),
        (machine("").replace("0000:00:00.0", "&amp;&x;"), "undefined entity"),
        (machine("").replace('busid="0000:00:00.0"', ""), "line 1: <pci> has no busid"),
        (machine(nvlink("f", -3)), "count='-3': expected a whole number"),
        (machine(nvlink("f", 10**30)), "expected a whole number"),
        (machine("").replace('dev="0"', f'dev="{"9" * 5000}"'), "expected a whole number"),
        ('<system version="1"><cpu numaid="0"><gpu dev="0"/></cpu></system>', "nothing to read"),
        (
            machine("").replace(
                "</system>", '<topoplan_link src="gpu0" dst="x" GBps="1" us="1"/></system>'
            ),
            "'x'",
        ),
        (
            machine("").replace(
                "</system>", '<topoplan_link src="gpu0" dst="cpu0" GBps="1/0"/></system>'
            ),
            "GBps='1/0'",
        ),
    ],
)
def test_hostile_and_broken_texts_get_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        nccl_xml.read(text, "bad.xml")
    assert str(caught.value).startswith("bad.xml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_detection_goes_by_content() -> None:
    topology = preset("dgx1")
    commented = "\ufeff<?xml version='1.0'?>\n<!-- a comment -->\n" + machine("", "")
    assert read_topology_text(commented, "x.json").ranks == ("gpu0", "gpu1")
    assert read_topology_text("\n" + topology.dumps(), "x.xml").fingerprint == topology.fingerprint
    with pytest.raises(InputError, match=r"the format is not recognized.*NCCL's"):
        read_topology_text("<machine/>", "x")


# -- what topoplan wrote, and rates


def test_a_made_up_capability_gives_way_to_the_name_and_a_real_one_does_not() -> None:
    text = machine(nvlink("0000:01:00.0", 4), nvlink("0000:00:00.0", 4), sm=60)
    named = text.replace('rank="', 'name="NVIDIA A40" rank="')
    made_up = named.replace('sm="60"', 'sm="60" topoplan_made_up="sm"')
    rates = [
        float(nccl_xml.read(each, "x").capacity_GBps["gpu0", "gpu1"]) for each in (named, made_up)
    ]
    assert rates == [72, 48]


@pytest.mark.parametrize(("width", "told"), [(8, "x8"), (1, "x1")])
def test_a_link_at_rest_has_the_rate_of_the_slot_of_its_board(width: int, told: str) -> None:
    text = (
        machine("", "")
        .replace('link_speed="16.0 GT/s PCIe" link_width="16"', f'link_width="{width}" @')
        .replace("@", 'link_speed="2.5 GT/s PCIe"')
    )
    unknown = nccl_xml.read(text, "x")
    assert "a placeholder of a virtual machine, or read while idle" in notes(unknown)
    slow = [link for link in unknown.links if "read while idle" in str(link.source)]
    assert slow and all(link.is_conditional and link.counted_by == "NCCL" for link in slow)
    topology = nccl_xml.read(text.replace('rank="', 'name="NVIDIA L4" rank="'), "x")
    up = next(link for link in topology.links if link.src == "gpu0")
    assert up.bandwidth_GBps == 24
    assert up.source == "assumed: a link at rest, taken as Gen4 x16, by the GPU: L4"
    assert f"gpu0, gpu1: PCIe at 2.5 GT/s {told}: a link at rest" in notes(topology)
    check_round_trip(topology)


def test_nvlinks_to_the_gpu_itself_are_left_out_and_told_once() -> None:
    """As in Azure's file for ncv4."""
    links = [nvlink(f"0000:0{i}:00.0", 12) for i in range(2)]
    topology = nccl_xml.read(machine(*links), "x")
    kinds = [note.kind for note in topology.notes]
    assert kinds == ["link-without-peer", "nvlinks-left-out"]
    assert "all peers of its NVLink or xGMI links are unknown" in notes(topology)
    told = [f.what for f in list_findings(topology) if "nvlink" in f.what or "peer" in f.what]
    assert told == ["link-without-peer"]
    half = nccl_xml.read(machine(links[0] + nvlink("0000:01:00.0", 4), links[1]), "x")
    assert "nvlinks-left-out" not in [note.kind for note in half.notes]


@pytest.mark.parametrize(
    ("device", "count", "note"),
    [
        ("0x2901", 2, "gpu0, gpu1: B200 boards have 18 NVLinks each, of which the file lists none"),
        ("0x20b5", 4, ""),  # A100 PCIe: cards, with bridges or without
        ("0x26b9", 8, ""),
        ("0x2901", 1, ""),
    ],
)
def test_nvlinks_of_known_boards_are_missed(device: str, count: int, note: str) -> None:
    text = machine(*[""] * count, sm=100).replace('class="', f'device="{device}" class="')
    assert ("NVLinks" in notes(nccl_xml.read(text, "x"))) == bool(note)
    assert note in notes(nccl_xml.read(text, "x"))


def test_links_of_which_each_end_lists_another_number_are_noted() -> None:
    ends = "".join(
        f'<pci busid="0000:{gpu}0:00.0" class="0x030200"><gpu dev="{gpu}" rank="{gpu}" sm="90">'
        f'<nvlink target="0000:{1 - gpu}0:00.0" count="{count}" tclass="0x030200"/></gpu></pci>'
        for gpu, count in ((0, 4), (1, 2))
    )
    text = f'<system version="1"><cpu numaid="0">{ends}</cpu></system>'
    noted = notes(nccl_xml.read(text, "x.xml"))
    assert "gpu0 -> gpu1: 4 links in one direction, 2 in the other" in noted
