"""AMD GPUs by the kernel's own topology: a captured tree like that of 8 MI300X, and of a package
with two dies.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from captures import Tree, write

from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.probe.join import probe_local


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)


def gpu_node(tree: Tree, node: int, bus: int, gfx: int = 90402) -> None:
    folder = tree.root / f"sys/class/kfd/kfd/topology/nodes/{node}"
    facts = {
        "cpu_cores_count": 0,
        "simd_count": 1216,
        "gfx_target_version": gfx,
        "location_id": bus << 8,
        "domain": 0,
    }
    write(
        folder / "properties",
        "\n".join(f"{k} {v}" for k, v in {**facts, "unique_id": 255 + node}.items()),
    )
    write(folder / "name", "ip discovery")
    tree.pci(f"00:{node:02x}.0 {bus:02x}:00.0", "0x120000", 0, "32.0 GT/s PCIe", vendor="0x1002")


def link(
    tree: Tree,
    src: int,
    dst: int,
    number: int,
    weight: int = 15,
    least: int = 64000,
    most: int = 64000,
    kind: int = 11,
) -> None:
    told = {
        "type": kind,
        "node_from": src,
        "node_to": dst,
        "weight": weight,
        "min_bandwidth": least,
        "max_bandwidth": most,
    }
    folder = tree.root / f"sys/class/kfd/kfd/topology/nodes/{src}/io_links/{number}"
    write(folder / "properties", "\n".join(f"{k} {v}" for k, v in told.items()))


def box(root: Path, gpus: int) -> Tree:
    tree = Tree(root).cpus(1)
    write(
        root / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0"
    )
    for i in range(gpus):
        gpu_node(tree, i + 1, 0x20 + i)
    return tree


def between_gpus(topology: Topology) -> dict[tuple[str, str], tuple[Fraction, int]]:
    return {(x.src, x.dst): (x.bandwidth_GBps, x.count) for x in topology.links if x.kind == "xgmi"}


def test_eight_mi300x_are_joined_all_to_all_as_the_preset(tmp_path: Path) -> None:
    tree = box(tmp_path, 8)
    for a in range(1, 9):
        link(tree, a, 0, 0, kind=2)
        for number, b in enumerate(b for b in range(1, 9) if b != a):
            link(tree, a, b, number + 1)
    topology = probe_local(tmp_path)
    assert topology.ranks == preset("mi300x").ranks
    assert {pair: rate for pair, (rate, _) in between_gpus(topology).items()} == dict(
        preset("mi300x").capacity_GBps
    )
    device = topology.by_id["gpu3"]
    assert (device.bus_id, device.extra["gcn"], device.extra["uuid"]) == (
        "0000:23:00.0",
        "gfx942",
        f"{259:016x}",
    )
    assert topology.capacity_GBps["gpu3", "cpu0"] == 48
    assert "kfd" in str(next(x.source for x in topology.links if x.kind == "xgmi"))


def test_dies_of_a_package_have_several_links_and_distant_gpus_none(tmp_path: Path) -> None:
    tree = box(tmp_path, 3)
    link(tree, 1, 2, 0, weight=13, least=50000, most=200000)
    link(tree, 2, 1, 0, weight=13, least=50000, most=200000)
    link(tree, 1, 3, 1, weight=30, least=50000, most=50000)
    topology = probe_local(tmp_path)
    assert between_gpus(topology) == {
        ("gpu0", "gpu1"): (Fraction(200), 4),
        ("gpu1", "gpu0"): (Fraction(200), 4),
    }


def test_an_old_kernel_that_gives_no_bandwidth_gets_rccls(tmp_path: Path) -> None:
    tree = box(tmp_path, 2)
    gpu_node_folder = tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties"
    gpu_node_folder.write_text(gpu_node_folder.read_text().replace("90402", "90010"))
    link(tree, 1, 2, 0, least=0, most=0)
    topology = probe_local(tmp_path)
    assert topology.by_id["gpu0"].extra["gcn"] == "gfx90a"
    assert between_gpus(topology) == {("gpu0", "gpu1"): (Fraction(36), 1)}
    missing = [
        f for f in topology.extra["facts"] if f["subject"] == "gpu/0/xgmi/1" and "missing" in f
    ]
    assert missing == [
        {**missing[0], "key": "speed_MBps", "missing": "the kernel says 0 to 0 MB/s"}
    ]


@pytest.mark.parametrize(
    "text", ["", "simd_count", "simd_count 99999999999999999999999", "node_to 1\ntype 11\n\x00"]
)
def test_damaged_properties_cost_one_gpu_or_link_only(text: str, tmp_path: Path) -> None:
    tree = box(tmp_path, 3)
    link(tree, 1, 2, 0)
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/3/properties", text)
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties", text)
    topology = probe_local(tmp_path)
    assert topology.ranks == ("gpu0", "gpu1")
    assert list(between_gpus(topology)) == [("gpu0", "gpu1")]
