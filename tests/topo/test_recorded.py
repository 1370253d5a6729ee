"""Every recorded machine: what it reads into, counted, or why it is refused; and that it survives
being written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from needs import long_cases
from recorded_machines import READ
from small_xml import check_round_trip
from verdicts import list_findings

from topoplan.topo.errors import InputError
from topoplan.topo.formats import smi
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.pictures.cables import find_cables

REFUSED = {
    "hwloc/nvidiagpunumanodes.console": "lstopo's text for people",
    "nccl_xml/aws/p4d-24xl.xml": "a skeleton: it lists 8 PCI slots of GPU class",
    "nccl_xml/azure/ndv2-topo.xml": "a skeleton: it lists 8 PCI slots of GPU class",
    "nccl_xml/azure/ndv4-topo.xml": "a skeleton: it lists 8 PCI slots of GPU class",
    "nccl_xml/azure/ndv5-topo.xml": "a skeleton: it lists 8 PCI slots of GPU class",
    "nccl_xml/h200-vm-numa-unknown.xml": "is the file cut off",
    "nvlink/h100pcie-pair_s.txt": "says which NVLinks are up, not where they end",
    "smi/06-p2p-matrices-OK-and-CNS_stas00.txt": "line 8: a -p2p matrix says what GPUs may do to "
    "each other",
    "smi/21-failed-topology-matrix_gvisor-14407.txt": "line 2: nvidia-smi failed to run its matrix",
}

# The same of files in shared/inputs.
MORE_INPUTS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "smi/22-dgxh100-12nic-glued-columns_vllm-13855.txt": (
        {"gpu": 8, "nic": 12, "cpu": 2, "pcie": 24, "nvswitch": 1},
        {"pcie": 44, "smp": 1, "nvlink": 8 * 18},
    ),
    "smi/23-b200-13nic-glued-header_vllm-31594.txt": (
        {"gpu": 8, "nic": 13, "cpu": 2, "pcie": 8, "nvswitch": 1},
        {"pcie": 29, "smp": 1, "nvlink": 8 * 18},
    ),
    "smi/24-8x4090-all-SYS_go-gpuallocator-17.txt": (
        {"gpu": 8, "nic": 2, "cpu": 2, "pcie": 1},
        {"pcie": 11, "smp": 1},
    ),
    "smi/25-h100-topo-mp_deepep-60.txt": (
        {"gpu": 8, "nic": 14, "cpu": 2, "pcie": 8},
        {"pcie": 30, "smp": 1},
    ),
    "amd-smi/amd-smi-topology-8gpu.txt": ({"gpu": 8}, {"xgmi": 28}),
    "amd-smi/rocm-smi-showtopo-8gpu-xgmi.txt": (
        {"gpu": 8, "cpu": 2},
        {"xgmi": 28, "pcie": 8, "smp": 1},
    ),
    "nccl_xml/GB300MP-2hosts.xml": (
        {"gpu": 8, "cpu": 4, "pcie": 16, "nic": 8, "nvswitch": 1},
        {"pcie": 32, "smp": 2, "c2c": 8, "nvlink": 8 * 18},
    ),
    "nccl_graphs/ncv4-bridged.topology.xml": (
        {"gpu": 4, "cpu": 4, "nic": 1},
        {"pcie": 5, "smp": 6, "nvlink": 24},
    ),
}

NUMA_NODES = {
    "hwloc/nvidiaDGX2.xml": {0, 1},
    "hwloc/nvidiagpunumanodes.tar.bz2": {0, 8},
    "nccl_xml/azure/ncv4-topo.xml": {0, 1, 2, 3},
    "nccl_xml/oci/H100-topology.xml": {0, 1},
    "nccl_xml/rccl/topo_16p1h.xml": {0, 1, 2, 3},
    "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt": {0, 1},
    "smi/04-8xA100-nvswitch_stas00.txt": {0, 1},
    "smi/20-single-P4-numa-NA_HAMi-99.txt": set(),
}

Recorded = Callable[[str], Path]
# One of each format and kind of links, for what takes long.
OF_EACH_KIND = (
    "hwloc/nvidiaDGX2.xml",
    "nccl_xml/azure/ncv4-topo.xml",
    "nccl_xml/oci/H100-topology.xml",
    "nccl_xml/rccl/topo_4p3l.xml",
    "nvlink/h100pcie-pair_R.txt",
    "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt",
    "smi/13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt",
    "smi/20-single-P4-numa-NA_HAMi-99.txt",
)


@cache
def read(path: Path) -> Topology:
    return resolve(str(path))


def counted(topology: Topology) -> tuple[dict[str, int], dict[str, int]]:
    lanes: Counter[str] = Counter()
    for cable in find_cables(topology):
        lanes[cable.kind] += cable.count if cable.kind in ("nvlink", "xgmi") else 1
    return dict(Counter(str(d.family or d.kind) for d in topology.devices)), dict(lanes)


@pytest.mark.parametrize("name", READ)
def test_a_recorded_machine_reads_into_what_it_has(name: str, recorded: Recorded) -> None:
    assert counted(read(recorded(name))) == READ[name]


@pytest.mark.parametrize("name", MORE_INPUTS)
def test_further_inputs_read_into_what_they_have(name: str, more_inputs: Recorded) -> None:
    assert counted(resolve(str(more_inputs(name)))) == MORE_INPUTS[name]


@pytest.mark.parametrize("name", NUMA_NODES)
def test_its_numa_nodes_are_those_with_cpus(name: str, recorded: Recorded) -> None:
    cpus = [d for d in read(recorded(name)).devices if d.kind == "cpu"]
    assert {d.numa_node for d in cpus} - {None} == NUMA_NODES[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_says_too_little_is_refused_with_the_reason(name: str, recorded: Recorded) -> None:
    with pytest.raises(InputError, match=REFUSED[name]) as caught:
        resolve(str(recorded(name)))
    assert "\n" not in str(caught.value)


def test_no_recorded_machine_is_left_out(recorded: Recorded) -> None:
    folder = recorded("README.md").parent
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names - {"README.md"} == set(READ) | set(REFUSED)


@pytest.mark.parametrize("name", long_cases(READ, *(READ.keys() - OF_EACH_KIND)))
def test_what_was_read_survives_every_format_as_far_as_it_can_say(
    name: str, recorded: Recorded
) -> None:
    topology = read(recorded(name))
    assert Topology.loads(topology.dumps()) == topology
    text = smi.write(topology)
    assert smi.write(smi.read(text, "again")) == text
    check_round_trip(topology)


HEALTHY = (
    "hwloc/nvidiaDGX2.xml",
    "nccl_xml/rccl/topo_8p_940.xml",
    "nccl_xml/rccl/topo_16p1h.xml",
    "smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt",
    "smi/04-8xA100-nvswitch_stas00.txt",
)


@pytest.mark.parametrize("name", HEALTHY)
def test_the_doctor_finds_nothing_on_a_healthy_machine(name: str, recorded: Recorded) -> None:
    assert not [f for f in list_findings(read(recorded(name))) if f.severity != "note"]


def test_the_doctor_sees_the_bridge_that_is_missing(recorded: Recorded) -> None:
    name = "smi/13-a100pcie-4gpu-one-bridge-missing-mlx5_k8s-device-plugin-436.txt"
    found = {f.what: f.about for f in list_findings(read(recorded(name)))}
    assert found["missing-bridge"] == ("gpu2", "gpu3")
