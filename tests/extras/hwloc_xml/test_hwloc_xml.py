"""Reading hwloc's XML: recorded and written machines, all three versions, random PCI trees, hostile
files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples
from verdicts import list_findings

from topoplan.synth.bounds.multipath import bound
from topoplan.synth.ir.collective import Collective
from topoplan.topo.errors import InputError
from topoplan.topo.extras.hwloc_xml import read
from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.facts import load_facts
from topoplan.topo.formats.safe_xml import parse_xml
from topoplan.topo.graph import Topology

V100, MI250, CONNECTX = "[10de:1db8]", "[1002:740c]", "[15b3:101b]"
BRIDGE = "0604 [10b5:9781] [10b5:9781] b0"
GEN3, GEN4 = "15.753846", "31.507692"


# -- writing small machines


def obj(kind: str, *inside: str, **attributes: object) -> str:
    text = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<object type="{kind}"{text}>{"".join(inside)}</object>'


def info(name: str, value: str) -> str:
    return f'<info name="{name}" value="{value}"/>'


def pci(address: str, kind: str, *inside: str, speed: str = GEN3, **attributes: object) -> str:
    type_ = f"{kind} [0000:0000] a1"
    return obj(
        "PCIDev", *inside, pci_busid=address, pci_type=type_, pci_link_speed=speed, **attributes
    )


def osdev(name: str, code: int, *inside: str, **attributes: object) -> str:
    return obj("OSDev", *inside, name=name, osdev_type=code, **attributes)


def bridge(address: str, *inside: str, speed: str = GEN3) -> str:
    buses = "0000:[01-ff]"
    return obj(
        "Bridge",
        *inside,
        bridge_type="1-1",
        bridge_pci=buses,
        pci_busid=address,
        pci_type=BRIDGE,
        pci_link_speed=speed,
    )


def host_bridge(*inside: str, buses: str = "0000:[00-ff]") -> str:
    return obj("Bridge", *inside, bridge_type="0-1", bridge_pci=buses)


def package(number: int, *inside: str, gp: int = 0) -> str:
    cpuset, nodeset = f"0x{15 << 4 * number:08x}", f"0x{1 << number:08x}"
    about = (
        info("CPUVendor", "GenuineIntel")
        + info("CPUFamilyNumber", "6")
        + info("CPUModelNumber", "85")
    )
    node = obj("NUMANode", os_index=number, cpuset=cpuset, nodeset=nodeset)
    return obj(
        "Package",
        about,
        node,
        *inside,
        os_index=number,
        cpuset=cpuset,
        nodeset=nodeset,
        gp_index=gp or 900 + number,
    )


def topology(*inside: str, after: str = "", version: str | None = "2.0") -> str:
    head = f' version="{version}"' if version else ""
    dtd = "hwloc2.dtd" if version else "hwloc.dtd"
    machine = obj(
        "Machine",
        info("Architecture", "x86_64"),
        *inside,
        os_index=0,
        cpuset="0x000000ff",
        nodeset="0x00000003",
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "{dtd}">\n'
        f"<topology{head}>\n{machine}\n{after}</topology>\n"
    )


def matrix(name: str, objects: list[str], rows: list[list[int]]) -> str:
    values = " ".join(str(value) for row in rows for value in row)
    return (
        f'<distances2hetero nbobjs="{len(objects)}" kind="25" name="{name}">'
        f'<indexes length="9">{" ".join(objects)} </indexes><u64values length="9">{values} '
        "</u64values></distances2hetero>"
    )


def gpus_below(
    count: int, first: int = 0, ids: str = V100, tool: str = "nvml", model: str = "Tesla V100"
) -> str:
    """GPUs on a host bridge, with the gp_index 100 + i and their tool's 200 + i."""
    return host_bridge(
        *(
            pci(
                f"0000:{16 + i:02x}:00.0",
                f"0302 {ids}",
                osdev(f"{tool}{i}", 5, info("GPUModel", model), gp_index=200 + i),
                gp_index=100 + i,
            )
            for i in range(first, first + count)
        )
    )


def linked(
    rows: list[list[int]],
    objects: list[str] | None = None,
    name: str = "NVLinkBandwidth",
    **gpus: str,
) -> str:
    """Two packages with two GPUs each, and a matrix of their links."""
    objects = objects or [f"OSDev:{200 + i}" for i in range(4)]
    parts = [package(number, gpus_below(2, 2 * number, **gpus)) for number in range(2)]
    return topology(*parts, after=matrix(name, objects, rows))


def ring_of(value: int) -> list[list[int]]:
    return [
        [1_000_000 if i == j else value if abs(i - j) in (1, 3) else 0 for j in range(4)]
        for i in range(4)
    ]


def links_of(found: Topology, kind: str) -> dict[tuple[str, str], tuple[float, int]]:
    return {
        (x.src, x.dst): (float(x.bandwidth_GBps), x.count) for x in found.links if x.kind == kind
    }


def kinds(found: Topology) -> Counter[str]:
    return Counter(device.family or device.kind for device in found.devices)


def notes(found: Topology) -> str:
    return "\n".join(found.extra.get("notes", ()))


# -- recorded


@pytest.fixture
def recorded_dgx2(recorded: Callable[[str], Path]) -> Topology:
    path = recorded("hwloc/nvidiaDGX2.xml")
    return read(path.read_text(), str(path))


def test_the_recorded_dgx2_has_its_gpus_switches_and_links(recorded_dgx2: Topology) -> None:
    found = recorded_dgx2
    assert kinds(found) == {"gpu": 16, "cpu": 2, "pcie": 12, "nvswitch": 12}
    assert found.ranks == tuple(f"gpu{i}" for i in range(16))
    assert [found.by_id[gpu].numa_node for gpu in found.ranks] == [0] * 8 + [1] * 8
    assert (
        found.by_id["gpu0"].bus_id == "0000:34:00.0"
        and found.by_id["gpu15"].bus_id == "0000:e7:00.0"
    )
    sorts = Counter((link.kind, link.bandwidth_GBps, link.count) for link in found.links)
    assert sorts == {
        ("nvlink", 25, 1): 192,
        ("nvlink", 200, 8): 12,
        ("pcie", 12, 1): 56,
        ("smp", 10, 1): 2,
    }
    for rank, gpu in enumerate(found.ranks):
        own = {f"nvswitch{i}" for i in (range(6) if rank < 8 else range(6, 12))}
        assert {n for n in found.out_neighbours[gpu] if n.startswith("nv")} == own
    assert found.is_symmetric
    assert found.source == "hwloc XML, version 3.0"


def test_the_recorded_dgx2_hangs_gpus_on_its_pcie_switches_two_by_two(
    recorded_dgx2: Topology,
) -> None:
    parents = links_of(recorded_dgx2, "pcie")
    assert (("gpu0", "pci-0000:32:00.0") in parents) and (("gpu1", "pci-0000:32:00.0") in parents)
    assert ("pci-0000:32:00.0", "pci-0000:2c:00.0") in parents and (
        "pci-0000:2c:00.0",
        "cpu0",
    ) in parents
    assert ("pci-0000:d8:00.0", "cpu1") in parents


def test_between_the_two_boards_of_the_dgx2_links_are_assumed_and_noted(
    recorded_dgx2: Topology,
) -> None:
    joined = {
        (x.src, x.dst): x
        for x in recorded_dgx2.links
        if x.src == "nvswitch0" and x.dst.startswith("nvswitch")
    }
    assert list(joined) == [("nvswitch0", "nvswitch6")]
    assert str(joined["nvswitch0", "nvswitch6"].source).startswith("assumed")
    assert "two groups of 6 and 6 with no link between them in the file" in notes(recorded_dgx2)


def test_the_recorded_dgx2_bounds_allreduce_by_its_nvlinks_and_pcie(
    recorded_dgx2: Topology,
) -> None:
    assert bound(Collective("allreduce", 16), recorded_dgx2).algbw_GBps == Fraction(16, 30) * (
        150 + 12
    )


def test_the_recorded_dgx2_keeps_facts(recorded_dgx2: Topology) -> None:
    facts = load_facts(recorded_dgx2.extra, "dgx2")
    assert facts.get_text("gpu/3", fact_keys.GPU_UUID) == "GPU-76965b61-2da3-d640-e0fd-94e26018d1e8"
    assert facts.get_text("gpu/3", fact_keys.GPU_NAME) == "Tesla V100-SXM3-32GB-H"
    assert (
        facts.get_text("gpu/3", fact_keys.GPU_BUS_ID) == "0000:3b:00.0"
        and facts.get_source("gpu/3", fact_keys.GPU_BUS_ID) == "hwloc XML"
    )
    assert facts.get_text("pci/0000:3b:00.0", fact_keys.PCI_CLASS) == "0x030200"
    assert facts.get_text("pci/0000:3b:00.0", fact_keys.PCI_ROOT) == "pci0000:2b"
    assert facts.get_texts("pci/0000:3b:00.0", fact_keys.PCI_BRIDGES)[0] == "0000:2b:00.0"
    assert facts.get_text("pci/0000:2b:00.0", fact_keys.PCI_VENDOR) == "0x8086"
    assert (
        facts.get_text("numa/1", fact_keys.NUMA_CPUS) == "24-25"
        and facts.get_number("numa/1", fact_keys.NUMA_SOCKET) == 1
    )
    assert Topology.loads(recorded_dgx2.dumps()) == recorded_dgx2


# -- the three versions

VERSION_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology>
  <object type="Machine" os_index="0" cpuset="0x000000ff" nodeset="0x00000003">
    <info name="Architecture" value="x86_64"/><info name="HostName" value="old"/>
    <distances nbobjs="2" relative_depth="1" latency_base="10.000000">
      <latency value="1.0"/><latency value="2.1"/><latency value="2.1"/><latency value="1.0"/>
    </distances>
    <object type="NUMANode" os_index="0" cpuset="0x0000000f" nodeset="0x00000001" local_memory="1">
      <object type="Socket" os_index="4" cpuset="0x0000000f" nodeset="0x00000001">
        <info name="CPUVendor" value="GenuineIntel"/><info name="CPUFamilyNumber" value="6"/>
        <info name="CPUModelNumber" value="63"/><info name="CPUModel" value="Intel Xeon E5-2683 v3"/>
      </object>
      <object type="Bridge" os_index="0" bridge_type="0-1" depth="0" bridge_pci="0000:[00-0d]">
        <object type="Bridge" os_index="16" bridge_type="1-1" depth="1" bridge_pci="0000:[01-05]" pci_busid="0000:00:01.0"
          pci_type="0604 [8086:2f02] [8086:0000] 02" pci_link_speed="7.876923">
          <object type="PCIDev" os_index="4096" pci_busid="0000:02:00.0" pci_type="0302 [10de:1094] [00de:0088] a1"
            pci_link_speed="15,753846"><object type="OSDev" name="cuda1" osdev_type="5"/></object>
          <object type="PCIDev" os_index="8192" pci_busid="0000:03:00.0" pci_type="0c06 [15b3:1011] [15b3:0013] 00"
            pci_link_speed="7.876923"><object type="OSDev" name="ib0" osdev_type="2"/>
            <object type="OSDev" name="mlx5_0" osdev_type="3"><info name="Port1State" value="4"/>
              <info name="NodeGUID" value="f452:1403"/></object></object>
        </object>
        <object type="PCIDev" os_index="9" pci_busid="0000:05:03.0" pci_type="0300 [102b:0532] [00d9:0062] 0a"
          pci_link_speed="0.000000"/>
      </object>
    </object>
    <object type="NUMANode" os_index="1" cpuset="0x000000f0" nodeset="0x00000002" local_memory="1">
      <object type="Socket" os_index="5" cpuset="0x000000f0" nodeset="0x00000002"/>
      <object type="Bridge" os_index="2" bridge_type="0-1" depth="0" bridge_pci="0000:[80-84]">
        <object type="PCIDev" os_index="528384" pci_busid="0000:81:00.0" pci_type="0302 [10de:1094] [00de:0088] a1"
          pci_link_speed="0.000000"><object type="OSDev" name="cuda0" osdev_type="5"/></object>
        <object type="PCIDev" os_index="528386" pci_busid="0000:82:00.0" pci_type="0200 [8086:1521] [00d9:0021] 01"
          pci_link_speed="2.000000"><object type="OSDev" name="eth0" osdev_type="2"><info name="Address" value="aa:bb"/>
          </object></object>
      </object>
    </object>
  </object>
</topology>
"""


@pytest.mark.parametrize(
    ("version", "gpu_code", "net_code", "rdma_code"), [("2.0", 5, 2, 3), ("3.0", 12, 16, 32)]
)
def test_versions_2_and_3_differ_in_the_codes_of_devices_only(
    version: str, gpu_code: int, net_code: int, rdma_code: int
) -> None:
    card = pci(
        "0000:21:00.0",
        f"0207 {CONNECTX}",
        osdev("ib0", net_code),
        osdev("mlx5_0", rdma_code),
        speed=GEN4,
    )
    gpu = pci("0000:20:00.0", f"0302 {V100}", osdev("nvml0", gpu_code))
    found = read(
        topology(package(0, host_bridge(gpu, card)), package(1), version=version), "box.xml"
    )
    assert kinds(found) == {"gpu": 1, "cpu": 2, "nic": 1}
    assert found.by_id["mlx5_0"].extra["interfaces"] == ["ib0"]
    assert links_of(found, "pcie")["mlx5_0", "cpu0"] == (24, 1)
    assert links_of(found, "smp")["cpu0", "cpu1"] == (10, 1)
    assert found.source == f"hwloc XML, version {version}"


# -- which devices are GPUs


@pytest.mark.parametrize(
    ("kind", "speed", "inside", "is_gpu"),
    [
        ("0300 [1a03:2000]", "0.5", osdev("card0", 1), False),  # ASPEED, a management controller
        ("0300 [102b:0532]", "0", "", False),  # Matrox
        ("0300 [1002:515e]", "0.2", osdev("card0", 1), False),  # ATI ES1000: conventional PCI
        ("0300 [10de:11ba]", "0", "", True),
        ("0302 [1002:740c]", "0", "", True),
        ("0380 [1002:740c]", GEN4, "", True),
        ("1200 [1002:74a1]", GEN4, "", True),
        ("0380 [8086:0bd5]", GEN4, osdev("ze0", 5), True),
        ("0300 [8086:3e92]", "0", osdev("card0", 1), False),
        # hwloc may put a GPU's OpenCL device on the adapter that the hypervisor emulates
        ("0300 [1d0f:1111]", "0", osdev("opencl0d2", 5, info("GPUModel", "Tesla V100")), False),
        ("0300 [1234:1111]", "0", osdev("opencl0d0", 5), False),
        ("0300 [1414:5353]", "0", osdev("ze0", 5), False),
        ("0302 [10de:1db5]", "0", osdev("opencl0d0", 5), True),
        ("0380 [8086:0bd5]", GEN4, osdev("ze0", 5, info("LevelZeroDeviceType", "GPU")), True),
        ("0880 [8086:0000]", "0", osdev("ze0", 5, info("LevelZeroDeviceType", "CPU")), False),
        ("0300 [8086:3e92]", "0", osdev("opencl0d0", 5, info("OpenCLDeviceType", "CPU")), False),
        (
            "0000 [0000:0000]",
            "0",
            osdev("nvml0", 5),
            True,
        ),  # a configuration space that could not be read
        ("0680 [10de:1ac2]", "1.0", "", False),
        ("0b40 [8086:225c]", GEN3, osdev("mic0", 5), False),
    ],
)
def test_display_adapters_of_management_controllers_are_no_gpus(
    kind: str, speed: str, inside: str, is_gpu: bool
) -> None:
    found = read(
        topology(package(0, host_bridge(pci("0000:05:00.0", kind, inside, speed=speed)))), "box.xml"
    )
    assert len(found.ranks) == is_gpu


@pytest.mark.parametrize(
    ("address", "ids"), [("0000:05:00.0", "1002:515e"), ("0000:05:03.0", "1002:4750")]
)
def test_a_vga_chip_on_the_board_is_no_rank_where_the_file_has_no_speeds_at_all(
    address: str, ids: str
) -> None:
    chip = bridge(
        "0000:00:1e.0", pci(address, f"0300 [{ids}]", osdev("card0", 1), speed="0"), speed="0"
    )
    gpu = pci("0000:06:00.0", "0302 [1002:740c]", speed="0")
    found = read(topology(package(0, host_bridge(chip, gpu))), "box.xml")
    assert [found.by_id[g].bus_id for g in found.ranks] == ["0000:06:00.0"]
    assert f"{address}: a display adapter of AMD (ATI) without PCI Express; it is no rank" in notes(
        found
    )


@pytest.mark.parametrize(
    ("address", "ids", "tool"),
    [
        ("0000:00:02.0", "8086:a780", "ze0"),
        ("0000:00:02.0", "8086:a780", "opencl0d0"),
        ("0000:7a:00.0", "1002:13c0", "opencl1d0"),
    ],
)
def test_the_gpu_of_the_processor_is_no_rank_beside_others(
    address: str, ids: str, tool: str
) -> None:
    own = pci(address, f"0300 [{ids}]", osdev(tool, 5))
    cards = [pci(f"0000:0{i}:00.0", "0300 [10de:2b85]") for i in (1, 2)]
    found = read(topology(package(0, host_bridge(own, *cards))), "box.xml")
    assert [found.by_id[g].bus_id for g in found.ranks] == ["0000:01:00.0", "0000:02:00.0"]
    assert f"{address}: the processor's own GPU; it is no rank" in notes(found)
    alone = read(topology(package(0, host_bridge(own))), "box.xml")
    assert len(alone.ranks) == 1


def test_gpus_of_different_makers_get_a_warning() -> None:
    both = (
        pci("0000:05:00.0", f"0302 {V100}", osdev("nvml0", 5)),
        pci("0000:06:00.0", "0302 [1002:740c]", osdev("rsmi0", 5)),
    )
    found = read(topology(package(0, host_bridge(*both))), "box.xml")
    assert "GPUs of different makers: neither NCCL nor RCCL makes one allreduce of them" in notes(
        found
    )
    assert "mixed-makers" in [finding.what for finding in list_findings(found)]


# -- NUMA nodes and machines


# -- PCI links


@pytest.mark.parametrize(
    ("told", "GBps"),
    [
        (GEN3, 12),
        (GEN4, 24),
        ("63.015385", 48),
        ("121.000000", 96),
        ("7.876923", 6),
        ("3.938462", 3),
        ("8.000000", 6),
        ("0.984615", 0.75),
    ],
)
def test_a_raw_rate_counts_as_the_generation_and_width_that_it_stands_for(
    told: str, GBps: float
) -> None:
    found = read(
        topology(package(0, host_bridge(pci("0000:05:00.0", f"0302 {V100}", speed=told)))),
        "box.xml",
    )
    assert links_of(found, "pcie")["gpu0", "cpu0"] == (GBps, 1)


@pytest.mark.parametrize("placeholder", ["0.246154", "0.250000"])
def test_placeholders_of_virtual_machines_are_left_out_of_account(placeholder: str) -> None:
    gpu = pci("0000:05:00.0", f"0302 {V100}", speed=placeholder)
    found = read(
        topology(package(0, host_bridge(bridge("0000:00:01.0", gpu, speed=GEN4)))), "box.xml"
    )
    assert links_of(found, "pcie")["gpu0", "cpu0"] == (24, 1)
    gpu = pci("0000:05:00.0", f"0302 {V100}", speed=GEN4)
    below = read(
        topology(package(0, host_bridge(bridge("0000:00:01.0", gpu, speed=placeholder)))), "box.xml"
    )
    assert links_of(below, "pcie")["gpu0", "cpu0"] == (24, 1)
    assert all("placeholder of virtual machines" in notes(x) for x in (found, below))


@pytest.mark.parametrize(("told", "GBps"), [("2.000000", 12), ("1.969231", 1.5), ("15.753846", 12)])
def test_a_bridge_at_rest_above_a_gpu_that_can_do_more_does_not_limit_it(
    told: str, GBps: float
) -> None:
    gpu = pci("0000:05:00.0", f"0302 {V100}", speed=GEN3)
    found = read(
        topology(package(0, host_bridge(bridge("0000:00:01.0", gpu, speed=told)))), "box.xml"
    )
    assert links_of(found, "pcie")["gpu0", "cpu0"] == (GBps, 1)
    assert (
        "0000:00:01.0: its PCIe link was at rest when hwloc ran (2.5 GT/s x8), which is no rate of "
        "a GPU; taken as the link of a GPU below" in notes(found)
    ) == (told == "2.000000")


@pytest.mark.parametrize(
    ("ids", "told", "link", "source"),
    [
        ("10de:27b8", "2.000000", 24, "assumed: a link at rest, taken as Gen4 x16, by the GPU: L4"),
        (
            "10de:28b0",
            "2.000000",
            12,
            "assumed: a link at rest, taken as Gen4 x8, by the GPU: RTX 2000 Ada",
        ),
        (
            "1002:740c",
            "4.000000",
            24,
            "assumed: a link at rest, taken as Gen4 x16, by the GPU: MI250",
        ),
        ("10de:ffff", "4.000000", 12, "assumed: a link at rest, taken as Gen3 x16, as NCCL does"),
        ("10de:27b8", "8.000000", 6, "hwloc XML, pci_link_speed"),  # 5 GT/s, which may be true
    ],
)
def test_a_gpu_at_rest_has_the_slot_of_its_board(
    ids: str, told: str, link: float, source: str
) -> None:
    gpus = [
        bridge(f"0000:0{i}:01.0", pci(f"0000:1{i}:00.0", f"0302 [{ids}]", speed=told), speed=told)
        for i in range(2)
    ]
    found = read(topology(package(0, host_bridge(*gpus))), "box.xml")
    up = next(x for x in found.links if (x.src, x.dst) == ("gpu0", "cpu0"))
    assert float(up.bandwidth_GBps) == link
    assert str(up.source).startswith(source)


def test_an_uplink_at_rest_is_that_of_the_gpus_below() -> None:
    gpus = [pci(f"0000:1{i}:00.0", "0302 [10de:2330]", speed="4.0") for i in range(2)]
    found = read(
        topology(package(0, host_bridge(bridge("0000:01:00.0", *gpus, speed="4.0")))), "box.xml"
    )
    links = links_of(found, "pcie")
    assert links["pci-0000:01:00.0", "cpu0"] == links["gpu0", "pci-0000:01:00.0"] == (48, 1)


def boards(ids: str, count: int, *inside: str) -> Topology:
    gpus = [pci(f"0000:1{i}:00.0", f"0302 [{ids}]", *inside, speed=GEN4) for i in range(count)]
    return read(topology(package(0, host_bridge(*gpus))), "box.xml")


@pytest.mark.parametrize(
    ("ids", "count", "note"),
    [
        ("10de:2901", 2, "gpu0, gpu1: B200 boards have 18 NVLinks each, of which the file lists"),
        ("10de:20b0", 8, "gpu0, gpu1, gpu2 and 5 more: A100 boards have 12 NVLinks each"),
        ("1002:74a1", 2, "gpu0, gpu1: MI300X boards have 7 xGMI links each"),
        ("10de:2901", 1, ""),  # it may be alone in a virtual machine
        ("10de:20b5", 4, ""),  # cards, which may have bridges or none
        ("1002:740f", 4, ""),
        ("10de:27b8", 4, ""),
    ],
)
def test_links_of_boards_that_the_file_does_not_tell_are_missed(
    ids: str, count: int, note: str
) -> None:
    found = boards(ids, count)
    assert note in notes(found)
    assert ("no-nvlink-told" in [finding.what for finding in list_findings(found)]) == bool(note)


def test_a_file_without_any_speeds_has_the_gpus_of_amd_all_the_same() -> None:
    card = pci("0000:05:00.0", "0300 [1002:66a1]", osdev("card0", 1), speed="0")
    nic = pci("0000:06:00.0", f"0207 {CONNECTX}", osdev("mlx4_0", 3), speed="{}")
    for speed, gpus in (("0", 1), (GEN3, 0)):
        found = read(topology(package(0, host_bridge(card, nic.format(speed)))), "box.xml")
        assert len(found.ranks) == gpus


@dataclass
class Part:
    """A bridge (with parts below), a GPU or a NIC of a random tree; `lanes` is (generation,
    width).
    """

    kind: str
    lanes: tuple[int, int]
    below: list[Part] = field(default_factory=list)
    address: str = ""


RAW = {1: 0.25, 2: 0.5, 3: 128 / 130, 4: 256 / 130, 5: 512 / 130, 6: 7.5625}
COUNTED = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}

# 2.5 GT/s of a GPU are no rate, and 5 GT/s on half the lanes look alike.
some_lanes = st.tuples(st.integers(3, 6), st.sampled_from((4, 8, 16)))
leaves = st.builds(Part, st.sampled_from(("gpu", "nic")), some_lanes)
parts_of_a_tree = st.recursive(
    leaves,
    lambda below: st.builds(Part, st.just("bridge"), some_lanes, st.lists(below, max_size=3)),
    max_leaves=8,
)
trees = st.lists(st.lists(parts_of_a_tree, max_size=3), min_size=1, max_size=3)


def number(parts: list[Part], buses: Iterator[int]) -> Iterator[Part]:
    for part in parts:
        part.address = f"0000:{next(buses):02x}:00.0"
        yield part
        yield from number(part.below, buses)


def written(part: Part, ranks: dict[str, int], version: str) -> str:
    generation, width = part.lanes
    speed = f"{RAW[generation] * width:.6f}"
    if part.kind == "bridge":
        return bridge(part.address, *(written(x, ranks, version) for x in part.below), speed=speed)
    if part.kind == "gpu":
        inside = osdev(f"nvml{ranks[part.address]}", 12 if version == "3.0" else 5)
        return pci(part.address, f"0302 {V100}", inside, speed=speed)
    return pci(
        part.address,
        f"0200 {CONNECTX}",
        osdev(f"eth-{part.address}", 16 if version == "3.0" else 2),
        speed=speed,
    )


def expected(
    part: Part, names: dict[str, str]
) -> tuple[str, Fraction, dict[tuple[str, str], Fraction]] | None:
    """Top device of a part's tree, what its way up carries, and all links further down; None where
    nothing hangs there.
    """
    generation, width = part.lanes
    own = Fraction(width * COUNTED[generation], 80)
    if part.kind != "bridge":
        return names[part.address], own, {}
    below = [told for told in (expected(x, names) for x in part.below) if told is not None]
    if len(below) <= 1:
        return (below[0][0], min(own, below[0][1]), below[0][2]) if below else None
    switch = f"pci-{part.address}"
    links = {(top, switch): rate for top, rate, _ in below}
    for _, _, further in below:
        links |= further
    return switch, own, links


@settings(max_examples=count_examples(20))
@given(trees, st.sampled_from(("2.0", "3.0")), st.randoms(use_true_random=False))
def test_random_pci_trees_read_back_with_their_devices_switches_and_rates(
    roots: list[list[Part]], version: str, random: object
) -> None:
    every = list(number([x for root in roots for x in root], iter(range(1, 256))))
    gpus = [x.address for x in every if x.kind == "gpu"]
    random.shuffle(gpus)  # type: ignore[attr-defined]
    ranks = {address: i for i, address in enumerate(gpus)}
    names = {address: f"gpu{i}" for address, i in ranks.items()}
    names |= {x.address: f"eth-{x.address}" for x in every if x.kind == "nic"}
    packages = [
        package(i, host_bridge(*(written(x, ranks, version) for x in root))) if root else package(i)
        for i, root in enumerate(roots)
    ]
    found = read(topology(*packages, version=version), "random.xml")
    wanted: dict[tuple[str, str], Fraction] = {}
    for i, root in enumerate(roots):
        for told in (expected(x, names) for x in root):
            if told is not None:
                wanted |= {(told[0], f"cpu{i}"): told[1]} | told[2]
    up = {(x.src, x.dst): x.bandwidth_GBps for x in found.links if x.kind == "pcie"}
    assert up == wanted | {(b, a): rate for (a, b), rate in wanted.items()}
    assert [found.by_id[gpu].bus_id for gpu in found.ranks] == gpus
    assert {d.id for d in found.devices if d.kind == "nic"} == {
        n for n in names.values() if n.startswith("eth")
    }
    assert {d.id for d in found.devices if d.kind == "switch"} == {
        b for _, b in wanted if b.startswith("pci")
    }


# -- NVLink and xGMI


@pytest.mark.parametrize(
    ("model", "MBps", "count"),
    [
        ("Tesla P100-SXM2", 40_000, 2),
        ("Tesla P100", 100_000, 5),
        ("H100", 450_000, 18),
        ("NVIDIA B200", 900_000, 18),
        ("NVIDIA A40", 56_248, 4),  # 14,062 MB/s each
    ],
)
def test_links_are_counted_by_what_one_carries_in_that_gpu(
    model: str, MBps: int, count: int
) -> None:
    found = read(linked(ring_of(MBps), model=model), "box.xml")
    assert links_of(found, "nvlink")["gpu0", "gpu1"] == (MBps / 1000, count)


def test_gpus_may_be_named_by_their_pci_function_and_in_a_plain_matrix() -> None:
    text = linked(ring_of(25_000), objects=[f"PCIDev:{100 + i}" for i in range(4)])
    plain = text.replace("PCIDev:", "").replace("distances2hetero", "distances2")
    assert read(text, "a.xml").links == read(plain, "a.xml").links
    assert len(links_of(read(text, "a.xml"), "nvlink")) == 8


def test_power9_links_its_gpus_to_the_package_they_are_in() -> None:
    rows = [
        [0 if i == j else 75_000 if {i, j} in ({0, 1}, {2, 3}) else 0 for j in range(6)]
        for i in range(6)
    ]
    for gpu, cpu in ((0, 4), (1, 4), (2, 5), (3, 5)):
        rows[gpu][cpu] = rows[cpu][gpu] = 75_000
    memory = [
        obj("NUMANode", os_index=255 - i, cpuset="0x000000ff", subtype="GPUMemory")
        for i in range(4)
    ]
    parts = [package(i, gpus_below(2, 2 * i), gp=900 + i) for i in range(2)]
    objects = [*(f"OSDev:{200 + i}" for i in range(4)), "Package:900", "Package:901"]
    text = topology(*memory, *parts, after=matrix("NVLinkBandwidth", objects, rows)).replace(
        "x86_64", "ppc64le"
    )
    found = read(text.replace("GenuineIntel", "IBM"), "power9.xml")
    assert kinds(found) == {"gpu": 4, "cpu": 2}
    nvlinks = links_of(found, "nvlink")
    assert len(nvlinks) == 12 and set(nvlinks.values()) == {(75, 3)}
    assert (
        ("gpu1", "cpu0") in nvlinks
        and ("cpu1", "gpu2") in nvlinks
        and ("gpu0", "cpu1") not in nvlinks
    )
    assert links_of(found, "smp")["cpu0", "cpu1"] == (32, 1)


def test_xgmi_links_have_the_rate_told_but_a_way_through_others_is_no_link() -> None:
    hops = matrix(
        "XGMIHops",
        [f"OSDev:{200 + i}" for i in range(4)],
        [[abs(i - j) for j in range(4)] for i in range(4)],
    )
    rows = [
        [1_000_000 if i == j else 50_000 * (1 + (i + j) % 4) for j in range(4)] for i in range(4)
    ]
    text = linked(rows, name="XGMIBandwidth", ids=MI250, tool="rsmi", model="MI250").replace(
        "</topology>", hops + "</topology>"
    )
    found = read(text, "amd.xml")
    assert links_of(found, "xgmi") == {
        ("gpu0", "gpu1"): (100, 1),
        ("gpu1", "gpu2"): (200, 1),
        ("gpu2", "gpu3"): (100, 1),
        ("gpu1", "gpu0"): (100, 1),
        ("gpu2", "gpu1"): (200, 1),
        ("gpu3", "gpu2"): (100, 1),
    }
    assert "gpu0 - gpu2" in notes(found) and "2 hops apart; no link" in notes(found)


def mesh_of_eight(model: str, ids: str) -> str:
    """Eight GPUs, each joined to all others at hwloc's constant rate."""
    rows = [[1_000_000 if i == j else 100_000 for j in range(8)] for i in range(8)]
    objects = [f"OSDev:{200 + i}" for i in range(8)]
    parts = package(0, gpus_below(8, ids=ids, tool="rsmi", model=model))
    return topology(parts, after=matrix("XGMIBandwidth", objects, rows))


def test_the_constant_rate_of_xgmi_is_that_of_the_board() -> None:
    found = read(mesh_of_eight("MI300X", "[1002:74a1]"), "amd.xml")
    assert set(links_of(found, "xgmi").values()) == {(64, 1)}
    assert "taken as 64 GB/s, as MI300X has" in notes(found)
    sources = {str(x.source) for x in found.links if x.kind == "xgmi"}
    assert sources == {"assumed: xGMI links of an MI300X"}


def test_dies_that_cannot_all_be_joined_directly_are_refused() -> None:
    with pytest.raises(InputError, match=r"line \d+: .*each MI250 to 7 others.*its weights$"):
        read(mesh_of_eight("MI250", MI250), "amd.xml")


def with_switches(groups: list[tuple[list[int], list[int]]], joined: bool = False) -> Topology:
    """GPUs (by index) linked to all switches (by index) of their group; `joined` links switches 0
    and 1 in the file.
    """
    gpus, count = 4, 1 + max(s for _, switches in groups for s in switches)
    switches = [
        pci(f"0000:{64 + i:02x}:00.0", "0680 [10de:1ac2]", gp_index=300 + i, speed="1.0")
        for i in range(count)
    ]
    rows = [[0] * (gpus + count) for _ in range(gpus + count)]
    for members, own in groups:
        for gpu in members:
            for switch in own:
                rows[gpu][gpus + switch] = rows[gpus + switch][gpu] = 25_000
    if joined:
        rows[gpus][gpus + 1] = rows[gpus + 1][gpus] = 100_000
    objects = [
        *(f"OSDev:{200 + i}" for i in range(gpus)),
        *(f"PCIDev:{300 + i}" for i in range(count)),
    ]
    text = topology(
        package(0, gpus_below(gpus), host_bridge(*switches)),
        after=matrix("NVLinkBandwidth", objects, rows),
    )
    return read(text, "switched.xml")


def between_switches(found: Topology) -> dict[tuple[str, str], tuple[float, int]]:
    return {
        ends: told
        for ends, told in links_of(found, "nvlink").items()
        if all("nvswitch" in end for end in ends)
    }


@pytest.mark.parametrize(
    "change", [("OSDev:203", "OSDev:777"), ('name="NVLinkBandwidth"', 'name="Mine"')]
)
def test_a_matrix_of_unknown_objects_or_name_is_noted_and_skipped(change: tuple[str, str]) -> None:
    found = read(linked(ring_of(25_000)).replace(*change), "box.xml")
    assert links_of(found, "nvlink") == {} and "matrix" in notes(found)


# -- bad files

GOOD = linked(ring_of(25_000))
BOMB = (
    '<!DOCTYPE topology [<!ENTITY a "ha"><!ENTITY b '
    '"&a;&a;&a;&a;&a;&a;&a;&a;">]><topology>&b;</topology>'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "declares a DTD or entities"),
        (
            '<!DOCTYPE t [<!ENTITY e SYSTEM "file:///etc/passwd">]><topology>&e;</topology>',
            "declares a DTD or entities",
        ),
        (
            '<!DOCTYPE t SYSTEM "x" [<!ENTITY % e SYSTEM "file:///etc/passwd"> %e;]><topology/>',
            "DTD or entities",
        ),
        ('<!DOCTYPE t SYSTEM "x" []><topology/>', "DTD or entities"),
        (
            GOOD.replace("0 25000", "0 " + "25000 " * 200_000, 1),
            "a text of more than 1048576 characters",
        ),
        ("<system/>", "expected <topology> as the outermost element"),
        ("<topology/>", "has no <object>"),
        (
            "<topology version='x'><object type='Machine'/></topology>",
            "version='x': expected one such as 2.0",
        ),
        (topology("<object type='Package'>" * 100 + "</object>" * 100), "nested deeper than 64"),
        (GOOD.replace('nbobjs="4"', 'nbobjs="5"'), "nbobjs=5, 4 indexes and 16 values"),
        (GOOD.replace('nbobjs="4"', 'nbobjs="99999"'), "expected a whole number from 1 to 512"),
        (GOOD.replace('nbobjs="4"', 'nbobjs="-4"'), "expected a whole number from 1 to 512"),
        (GOOD.replace(" 25000", " -25000", 1), "u64values hold '-25000'"),
        (GOOD.replace(" 25000", " 1e9", 1), "u64values hold '1e9'"),
        (GOOD.replace(" 25000", " " + "9" * 5000, 1), "u64values hold '9999"),
        (GOOD.replace("OSDev:201", "OSDev:x"), "indexes hold 'OSDev:x'"),
        (GOOD.replace("OSDev:201", "OSDev:200"), "indexes hold 'one twice'"),
        (GOOD.replace(GEN3, "fast", 1), "pci_link_speed='fast'"),
        (GOOD.replace(GEN3, "-1", 1), "pci_link_speed='-1'"),
        (GOOD.replace(GEN3, "1e300", 1), "pci_link_speed='1e300'"),
        (
            GOOD.replace("0000:10:00.0", "10:00", 1),
            "pci_busid='10:00': expected an address such as",
        ),
        (
            GOOD.replace("0000:10:00.0", "0000:11:00.0", 1),
            "pci_busid=0000:11:00.0: another device has this address",
        ),
        (GOOD.replace("0302 [10de:1db8]", "0302 10de", 1), "pci_type='0302 10de"),
        (
            GOOD.replace('gp_index="200"', 'gp_index="x"', 1),
            "gp_index='x': expected a whole number",
        ),
        (
            GOOD.replace('cpuset="0x0000000f"', 'cpuset="all"', 1),
            "cpuset='all': expected hexadecimal words",
        ),
        (
            GOOD.replace('cpuset="0x0000000f"', f'cpuset="{"f" * 70_000}"', 1),
            "expected hexadecimal words",
        ),
        (
            GOOD.replace('type="NUMANode" os_index="1"', 'type="NUMANode" os_index="0"'),
            "another NUMA node has this",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(text: str, says: str) -> None:
    assert_refused_in_one_line(text, says)


def test_a_file_that_is_too_long_is_refused_in_one_line() -> None:
    text = "<topology>" + " " * 100_000_000
    assert_refused_in_one_line(text, "100000010 characters; more than")


def assert_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, "box.xml")
    message = str(caught.value)
    assert (
        says in message
        and message.startswith("box.xml")
        and "\n" not in message
        and len(message) < 300
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            topology(
                package(
                    0, host_bridge(pci("0000:05:00.0", "0200 [15b3:101b]", osdev("a", 2) * 5_000))
                )
            ),
            "5000 network",
        ),
        (
            topology(
                *(
                    obj("NUMANode", cpuset=f"0x{1 << i % 32:08x}" + ",0x0" * (i // 32))
                    for i in range(600)
                )
            ),
            "has 600 NUMA",
        ),
        (
            f"<topology>{obj('System', *[obj('Machine')] * 50_000)}</topology>",
            "holds 50000 machines; more than 512",
        ),
        (topology(package(0, *(osdev(f"nvml{i}", 5) for i in range(5000)))), "has 5000 GPUs"),
    ],
)
def test_files_of_absurd_size_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, "big.xml")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_many_doubts_are_told_in_few_lines() -> None:
    many = "".join(
        pci(f"0000:{i >> 8 & 255:02x}:{i & 31:02x}.{i >> 5 & 7}", f"0302 {V100}")
        for i in range(5_000)
    )
    found = read(topology(package(0, gpus_below(1), host_bridge(many))), "big.xml")
    assert len(found.ranks) == 1 and len(found.extra["notes"]) < 10


def test_a_document_type_is_never_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.dtd").write_text('<!ENTITY x "fetched">')
    head = f'<!DOCTYPE topology SYSTEM "{(tmp_path / "a.dtd").as_uri()}">'
    assert parse_xml(head + "<topology>plain</topology>", "a.xml", doctype=True).text == "plain"
    with pytest.raises(InputError, match="undefined entity"):
        parse_xml(head + "<topology>&x;</topology>", "a.xml", doctype=True)


def test_a_format_without_document_types_refuses_them() -> None:
    with pytest.raises(InputError, match="DTD or entities"):
        parse_xml('<!DOCTYPE topology SYSTEM "hwloc.dtd"><topology/>', "a.xml")


def test_texts_of_elements_are_kept_each_for_itself() -> None:
    root = parse_xml("<a> x <b>1 2\n3</b> y&lt;<c/> </a>", "a.xml")
    assert (root.text, [child.text for child in root]) == ("x  y<", ["1 2\n3", ""])


@settings(max_examples=count_examples(25))
@given(st.integers(0, len(GOOD.rstrip()) - 1))
def test_a_file_cut_off_anywhere_is_refused_in_one_line(length: int) -> None:
    with pytest.raises(InputError) as caught:
        read(GOOD[:length], "cut.xml")
    assert str(caught.value).startswith("cut.xml") and "\n" not in str(caught.value)


@settings(max_examples=count_examples(50))
@given(st.sampled_from((GOOD, VERSION_1)), st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + data.draw(st.sampled_from(("", "0", "9999999999", "-", "x", '"', "<", "\n")))
            + text[at + 1 :]
        )
    try:
        assert read(text, "damaged.xml").devices
    except InputError as error:
        assert "\n" not in str(error)
