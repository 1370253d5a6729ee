"""The local probe on captured and invented machines: sysfs trees in a folder, and an NVML that
answers as told.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

import pynvml
import pytest
from captures import Tree, write
from fake_library import serve
from fake_machine import HOSTBRIDGE, SINGLE, SYSTEM, Machine
from needs import long_cases

from topoplan.topo.facts import keys as fact_keys
from topoplan.topo.facts.keys import normalize_bus_id
from topoplan.topo.graph import Topology
from topoplan.topo.hardware import pcie_GBps
from topoplan.topo.matrix import find_connections
from topoplan.topo.probe.join import probe_local
from topoplan.topo.probe.linux.sysfs import read_sysfs
from topoplan.topo.probe.nvml.questions import read_nvml

# Active links of a GPU: link number -> (kind of the remote device, its bus id).
Links = Mapping[int, tuple[str, str]]

UNKNOWN_ERROR = 999


def fake_nvml(
    monkeypatch: pytest.MonkeyPatch,
    links: list[Links],
    *,
    sm: int = 70,
    real_links: int = 6,
    node: Mapping[int, int] | None = None,
    broken: Iterable[str] = (),
) -> None:
    """Serves a machine with a GPU for each entry of `links`, at bus 01, 02, ...; `broken` functions
    fail.
    """
    machine = Machine(
        {"driver": "550.54", "version": "12.550.54", "cuda_version": 12040, "count": 0}
    )
    for index, active in enumerate(links):
        machine.gpu(f"0{index + 1}:00.0", 0, "Tesla V100-SXM2-16GB", sm, 3)
        machine.inactive(index, *range(real_links))
        for link, (kind, bus_id) in active.items():
            machine.link(index, link, kind, bus_id, 2)
        if node is None:
            del machine.lines[f"gpu.{index}.nodes"]
        else:
            machine.set(f"gpu.{index}.nodes", node[index])
    for function in broken:
        machine.fail(function, UNKNOWN_ERROR)
    serve(monkeypatch, machine)


def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, Machine().fail("nvmlInitWithFlags", 9))


def two_sockets(root: Path) -> Tree:
    """A switch with two GPUs and a NIC on socket 0; behind a root port of its own, a Gen2 GPU on
    socket 1.
    """
    tree = Tree(root).cpus(2)
    bridge = "0x060400"
    tree.pci("80:01.0", bridge)
    tree.pci("80:01.0 10:00.0", bridge)  # the switch's upstream port
    for port in range(3):
        tree.pci(f"80:01.0 10:00.0 11:0{port}.0", bridge)
    tree.pci("80:01.0 10:00.0 11:00.0 01:00.0", "0x030200", 0)
    tree.pci("80:01.0 10:00.0 11:01.0 02:00.0", "0x030200", 0)
    nic = tree.pci("80:01.0 10:00.0 11:02.0 12:00.0", "0x020700", 0, width="8", vendor="0x15b3")
    tree.net("ib0", nic, "-1")
    tree.rdma("mlx5_0", nic, "100 Gb/sec (4X EDR)")
    tree.pci("90:01.0", bridge, speed="5.0 GT/s PCIe")
    tree.pci("90:01.0 03:00.0", "0x030200", 1)
    return tree


def pairs(topology: Topology, kind: str) -> dict[tuple[str, str], tuple[Fraction, int]]:
    return {(x.src, x.dst): (x.bandwidth_GBps, x.count) for x in topology.links if x.kind == kind}


def notes(topology: Topology) -> list[str]:
    return list(topology.extra["notes"])


def test_the_tree_of_two_sockets_becomes_switch_gpus_and_nic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sockets(tmp_path)
    fake_nvml(monkeypatch, [{}, {}, {}])
    topology = probe_local(tmp_path)
    assert topology.name == "box"
    assert [(d.id, d.kind, d.numa_node) for d in topology.devices] == [
        ("cpu0", "cpu", 0),
        ("cpu1", "cpu", 1),
        ("pci-0000:10:00.0", "switch", 0),
        ("gpu0", "gpu", 0),
        ("gpu1", "gpu", 0),
        ("gpu2", "gpu", 1),
        ("mlx5_0", "nic", 0),
    ]
    full, slow = (pcie_GBps(3, 16), 1), (pcie_GBps(2, 16), 1)
    expected = {
        ("pci-0000:10:00.0", "cpu0"): full,
        ("gpu0", "pci-0000:10:00.0"): full,
        ("gpu1", "pci-0000:10:00.0"): full,
        ("mlx5_0", "pci-0000:10:00.0"): (pcie_GBps(3, 8), 1),
        ("gpu2", "cpu1"): slow,  # the root port above it is the bottleneck
    }
    assert pairs(topology, "pcie") == expected | {(b, a): rate for (a, b), rate in expected.items()}
    assert pairs(topology, "smp")["cpu0", "cpu1"] == (Fraction(10), 1)  # Skylake
    assert [[connection.label for connection in row] for row in find_connections(topology)] == [
        ["X", "PIX", "SYS"],
        ["PIX", "X", "SYS"],
        ["SYS", "SYS", "X"],
    ]


def test_everything_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sockets(tmp_path)
    fake_nvml(
        monkeypatch, [{0: ("switch", "00000000:C0:00.0")}, {0: ("gpu", "00000000:03:00.0")}, {}]
    )
    topology = probe_local(tmp_path)
    assert [d.id for d in topology.devices if not d.source] == []
    assert [x for x in topology.links if not x.source] == []
    sources = [d.source for d in topology.devices] + [x.source for x in topology.links]
    assert not any(str(tmp_path) in str(source) for source in sources)


def test_gpu_facts_keep_the_maximum_beside_the_idle_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sockets(tmp_path)
    fake_nvml(monkeypatch, [{}, {}, {}])
    gpu = probe_local(tmp_path).by_id["gpu0"]
    assert gpu.bus_id == "0000:01:00.0"
    assert gpu.extra["pcie"] == {"max": "Gen3 x16", "current": "Gen1 x16"}
    assert (gpu.extra["uuid"], gpu.extra["name"], gpu.extra["sm"]) == (
        "GPU-00000000-0000-0000-0000-000000000000",
        "Tesla V100-SXM2-16GB",
        70,
    )


def test_an_rdma_port_gives_the_speed_that_the_interface_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sockets(tmp_path)
    no_driver(monkeypatch)
    nic = probe_local(tmp_path).by_id["mlx5_0"]
    assert (nic.extra["speed"], nic.extra["net_speed_GBps"], nic.extra["interfaces"]) == (
        100_000,
        12.5,
        ["ib0"],
    )


def test_interfaces_without_hardware_and_virtual_functions_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = two_sockets(tmp_path)
    no_driver(monkeypatch)
    write(tmp_path / "sys/class/net/lo/speed", "1")
    virtual = tree.pci("80:01.0 10:00.0 11:02.0 12:00.1", "0x020000", 0)
    (virtual / "physfn").symlink_to(virtual.parent)
    tree.net("eth1v0", virtual, "1000")
    virtual_gpu = tree.pci("80:01.0 10:00.0 11:00.0 01:00.4", "0x030200", 0)
    (virtual_gpu / "physfn").symlink_to(virtual_gpu.parent)
    topology = probe_local(tmp_path)
    assert [d.id for d in topology.devices if d.kind == "nic"] == ["mlx5_0"]
    assert not any("01:00.4" in note for note in notes(topology))


def test_a_virtio_interface_is_found_behind_its_virtio_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path).cpus(1)
    no_driver(monkeypatch)
    function = tree.pci("00:03.0", "0x020000", 0, vendor="0x1af4")
    (function / "virtio0").mkdir()
    tree.net("eth0", function / "virtio0", "10000")
    nic = probe_local(tmp_path).by_id["eth0"]
    assert (nic.bus_id, nic.extra["speed"]) == ("0000:00:03.0", 10_000)


def test_the_numa_node_that_sysfs_does_not_know_comes_from_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path).cpus(2)
    tree.pci("00:01.0", "0x060400")
    tree.pci("00:01.0 01:00.0", "0x030200", -1)
    fake_nvml(monkeypatch, [{}], node={0: 1})
    topology = probe_local(tmp_path)
    assert topology.by_id["gpu0"].numa_node == 1
    assert ("gpu0", "cpu1") in pairs(topology, "pcie")
    fake_nvml(monkeypatch, [{}])
    unknown = probe_local(tmp_path)
    assert unknown.by_id["gpu0"].numa_node is None
    assert "gpu0: NUMA node not known; taken to hang on cpu0" in notes(unknown)


def test_a_placeholder_bridge_does_not_slow_the_gpu_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path).cpus(1)
    tree.pci("00:01.0", "0x060400", speed="2.5 GT/s PCIe", width="1")
    tree.pci("00:01.0 01:00.0", "0x030200", 0)
    fake_nvml(monkeypatch, [{}])
    topology = probe_local(tmp_path)
    assert pairs(topology, "pcie")["gpu0", "cpu0"] == (pcie_GBps(3, 16), 1)
    assert any("placeholder" in note and "0000:00:01.0" in note for note in notes(topology))


def test_lost_lanes_count_and_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path).cpus(1)
    tree.pci("01:00.0", "0x030200", 0, current_link_width="4")
    fake_nvml(monkeypatch, [{}])
    topology = probe_local(tmp_path)
    assert pairs(topology, "pcie")["gpu0", "cpu0"] == (pcie_GBps(3, 4), 1)
    assert "0000:01:00.0 runs on 4 of its 16 PCIe lanes" in notes(topology)


@pytest.mark.parametrize(
    ("speed", "width"), [("Unknown", "0"), ("", "255"), ("8.0 GT/s PCIe", "63")]
)
def test_a_link_that_sysfs_cannot_tell_is_told_by_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: str, width: str
) -> None:
    Tree(tmp_path).cpus(1).pci("01:00.0", "0x030200", 0, speed=speed, width=width)
    fake_nvml(monkeypatch, [{}])
    assert pairs(probe_local(tmp_path), "pcie")["gpu0", "cpu0"] == (pcie_GBps(3, 16), 1)


def test_numa_nodes_without_cpus_are_no_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_driver(monkeypatch)
    Tree(tmp_path).cpus(2)
    write(tmp_path / "sys/devices/system/node/node1/cpulist", "")
    assert [d.id for d in probe_local(tmp_path).devices] == ["cpu0"]


def test_where_sys_is_silent_nvml_places_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four GPUs: 0 and 1 below one switch, 2 on the same CPU, 3 on the other; then NUMA nodes
    alone, without ancestors.
    """
    machine = Machine(
        {"driver": "550.54", "version": "12.550.54", "cuda_version": 12040, "count": 0}
    )
    for index in range(4):
        machine.gpu(f"0{index + 1}:00.0", int(index == 3), "NVIDIA L40S", 89, 4)
    told = {
        (0, 1): SINGLE,
        (0, 2): HOSTBRIDGE,
        (1, 2): HOSTBRIDGE,
        (0, 3): SYSTEM,
        (1, 3): SYSTEM,
        (2, 3): SYSTEM,
    }
    machine.lines |= {f"ancestor.{a}.{b}": level for (a, b), level in told.items()}
    Tree(tmp_path).cpus(0)
    (tmp_path / "sys").mkdir(exist_ok=True)
    serve(monkeypatch, machine)
    topology = probe_local(tmp_path)
    assert {
        link: rate for link, (rate, _) in pairs(topology, "pcie").items() if link[0] < link[1]
    } == {
        ("gpu0", "pcie-switch0"): 24,
        ("gpu1", "pcie-switch0"): 24,
        ("cpu0", "pcie-switch0"): 24,
        ("cpu0", "gpu2"): 24,
        ("cpu1", "gpu3"): 24,
    }
    assert [d.numa_node for d in topology.devices if d.kind == "cpu"] == [0, 1]
    assert "GPUs are placed by NVML's common ancestors and NUMA affinities" in " ".join(
        notes(topology)
    )
    for a, b in told:
        machine.fail("nvmlDeviceGetTopologyCommonAncestor", UNKNOWN_ERROR, a, b)
    serve(monkeypatch, machine)
    alone = probe_local(tmp_path)
    assert sorted((a, b) for a, b in pairs(alone, "pcie") if a < b) == [
        *(("cpu0", f"gpu{i}") for i in range(3)),
        ("cpu1", "gpu3"),
    ]


def test_an_empty_root_gives_one_socket_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_driver(monkeypatch)
    (tmp_path / "sys").mkdir()
    topology = probe_local(tmp_path)
    assert [d.id for d in topology.devices] == ["cpu0"]
    assert topology.ranks == ()
    assert "NVML does not answer: driver not loaded; GPUs are not listed" in notes(topology)
    assert any("NUMA" in note for note in notes(topology))
    assert Topology.loads(topology.dumps()) == topology


def test_without_the_python_package_the_rest_is_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sockets(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    topology = probe_local(tmp_path)
    assert [d.id for d in topology.devices if d.kind == "nic"] == ["mlx5_0"]
    assert any("nvidia-ml-py is not installed" in note for note in notes(topology))
    assert [topology.by_id[gpu].bus_id for gpu in topology.ranks] == [
        f"0000:0{i}:00.0" for i in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkVersion",
        "nvmlShutdown",
    ],
)
def test_one_broken_nvml_function_loses_one_fact_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    two_sockets(tmp_path)
    fake_nvml(
        monkeypatch,
        [{0: ("gpu", "00000000:02:00.0")}, {0: ("gpu", "00000000:01:00.0")}, {}],
        broken=[function],
    )
    assert probe_local(tmp_path).ranks == ("gpu0", "gpu1", "gpu2")
    broken = {f.source for f in read_nvml().items if f.missing == "Unknown Error"}
    assert broken == ({function.removesuffix("_v3")} if function != "nvmlShutdown" else set())


def test_a_refused_argument_and_an_absent_function_are_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_nvml(monkeypatch, [{}])

    def refuses(*arguments: object) -> object:
        raise ctypes.ArgumentError("argument 2: wrong type")

    before = {f.key for f in read_nvml().missing}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", refuses)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMaxPcieLinkWidth")
    facts = read_nvml()
    assert {f.key for f in facts.missing} - before == {"cpu_affinity", "pcie_max_width"}
    assert facts.get_text("gpu/0", fact_keys.GPU_UUID) == "GPU-00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("every", long_cases([5, 1], 1))
def test_every_file_of_the_tree_can_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Takes one file away at a time, here every fifth: always a topology with the same GPUs."""
    two_sockets(tmp_path)
    fake_nvml(monkeypatch, [{}, {}, {}])
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    assert len(files) > 50
    for path in files[::every]:
        text = path.read_text()
        path.unlink()
        assert probe_local(tmp_path).ranks == ("gpu0", "gpu1", "gpu2"), path
        path.write_text("\x00garbage\n")
        assert probe_local(tmp_path).ranks == ("gpu0", "gpu1", "gpu2"), path
        path.write_text(text)


def test_links_that_lead_nowhere_or_in_a_circle_are_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = two_sockets(tmp_path)
    no_driver(monkeypatch)
    (tmp_path / "sys/class/net/ring").mkdir()
    (tmp_path / "sys/class/net/ring/device").symlink_to(tmp_path / "sys/class/net/ring/device")
    (tmp_path / "sys/bus/pci/devices/0000:ff:00.0").symlink_to(tmp_path / "nowhere")
    assert probe_local(tmp_path).by_id["mlx5_0"].kind == "nic"
    shutil.rmtree(tree.root / "sys/devices/pci0000:00")
    assert [d.kind for d in probe_local(tmp_path).devices] == ["cpu", "cpu"]


def test_links_to_switches_become_one_nvswitch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tree(tmp_path).cpus(2)
    links = {i: ("switch", f"00000000:C{i % 6}:00.0") for i in range(12)}
    fake_nvml(monkeypatch, [links, links], sm=80, real_links=12)
    topology = probe_local(tmp_path)
    assert topology.by_id["nvswitch0"].family == "nvswitch"
    one_way = {
        ("gpu0", "nvswitch0"): (Fraction(300), 12),
        ("gpu1", "nvswitch0"): (Fraction(300), 12),
    }
    assert pairs(topology, "nvlink") == one_way | {(b, a): v for (a, b), v in one_way.items()}
    assert find_connections(topology)[0][1].label == "NV12"


def test_active_links_need_not_be_contiguous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indices of a bridged H100 PCIe pair; what lies past the real links answers
    InvalidArgument.
    """
    Tree(tmp_path).cpus(1)
    active = (0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15)
    there, back = (dict.fromkeys(active, ("gpu", f"00000000:0{peer}:00.0")) for peer in (2, 1))
    fake_nvml(monkeypatch, [there, back], sm=90, real_links=16)
    assert pairs(probe_local(tmp_path), "nvlink")["gpu0", "gpu1"] == (Fraction(300), 12)


def test_an_unreadable_remote_end_is_taken_for_a_switch_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tree(tmp_path).cpus(1)
    unknown = {0: ("unknown", "FFFFFFFF:FF:FF.0")}
    fake_nvml(monkeypatch, [unknown, unknown])
    topology = probe_local(tmp_path)
    assert ("gpu0", "nvswitch0") in pairs(topology, "nvlink")
    assert (
        "gpu0: 1 active NVLink with an unknown other end; taken for an NVSwitch, as NCCL does"
        in notes(topology)
    )


def test_an_active_link_to_a_gpu_that_is_hidden_joins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tree(tmp_path).cpus(1)
    hidden = {0: ("gpu", "00000000:09:00.0")}
    fake_nvml(monkeypatch, [hidden, hidden])
    topology = probe_local(tmp_path)
    assert pairs(topology, "nvlink") == {}
    assert "gpu1: 1 active NVLink to 0000:09:00.0, a GPU that is not listed here" in notes(topology)


def test_a_gpu_that_misses_a_link_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tree(tmp_path).cpus(1)
    links = dict.fromkeys(range(6), ("switch", "00000000:C0:00.0"))
    fake_nvml(monkeypatch, [links, links, {i: links[i] for i in range(5)}])
    assert "gpu2: 5 active NVLinks, where 2 others have 6" in notes(probe_local(tmp_path))


def test_two_ends_that_disagree_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tree(tmp_path).cpus(1)
    two = dict.fromkeys(range(2), ("gpu", "00000000:02:00.0"))
    fake_nvml(monkeypatch, [two, {0: ("gpu", "00000000:01:00.0")}])
    assert "gpu0 reports 2 active NVLinks to gpu1, which reports 1 back" in notes(
        probe_local(tmp_path)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
    ],
)
def test_bus_ids_are_written_as_linux_writes_them(text: str, expected: str) -> None:
    assert normalize_bus_id(text) == expected


def test_sysfs_of_this_machine_can_be_read() -> None:
    facts = read_sysfs(Path("/"))
    assert all((fact.value is None) != (fact.missing is None) for fact in facts.items)
