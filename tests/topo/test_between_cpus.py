"""The rate between CPUs, which no tool prints: by the CPU's name, else by the era of the GPUs."""

from pathlib import Path

import pytest

from topoplan.topo.between_cpus import assume_between_cpus, find_cpu
from topoplan.topo.derived.stated import state_board
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load

MATRIX = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\t0-31\t0
GPU1\tSYS\t X \t32-63\t1
"""


def read(path: Path, text: str) -> Topology:
    path.write_text(text)
    return load(path)


def rate(topology: Topology) -> float:
    (GBps,) = {float(link.bandwidth_GBps) for link in topology.links if link.kind == "smp"}
    assert all(link.is_guess for link in topology.links if link.kind == "smp")
    return GBps


@pytest.mark.parametrize(
    ("beside", "GBps"),
    [
        ("", 19.2),
        ("GPU 0: Tesla T4 (UUID: GPU-1)\n", 19.2),
        ("GPU 0: NVIDIA A40 (UUID: GPU-1)\n", 24),
        ("GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1)\n", 40),
        ("GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1)\nModel name: AMD EPYC 9575F 64-Core\n", 32),
        ("two AMD EPYC 7763 64-Core Processors\n", 24),
        ("two AMD EPYC 7F72, or EPYC 9654?\n", 19.2),
        ("Intel(R) Xeon(R) Platinum 8480+\n", 22),
        ("INTEL(R) XEON(R) GOLD 6548Y+\n", 40),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz\n", 10),
    ],
)
def test_name_and_era_decide_between_sockets_of_a_matrix(
    tmp_path: Path, beside: str, GBps: float
) -> None:
    assert rate(read(tmp_path / "matrix.txt", beside + MATRIX)) == GBps


def test_amd_and_hwloc_have_the_same_source() -> None:
    assert find_cpu("a CPU of the EPYC family") is None
    zen5 = {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "26", "modelid": "2"}
    by_model, by_era = assume_between_cpus(5, zen5), assume_between_cpus(5, {"arch": "x86_64"})
    assert [float(by_model[0]), float(by_era[0])] == [32, 40]
    assert by_model[1].kind == by_era[1].kind == "assumed"
    unknown = {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "x"}
    assert assume_between_cpus(None, unknown)[0] == 16  # as NCCL 2.30 counts any AMD


def test_a_named_board_brings_its_era(tmp_path: Path) -> None:
    bare = read(tmp_path / "matrix.txt", MATRIX)
    (named,) = state_board([bare], "H100 PCIe")
    assert (rate(bare), rate(named)) == (19.2, 40)
    (same,) = state_board([read(tmp_path / "epyc.txt", f"AMD EPYC 7763\n{MATRIX}")], "H100 PCIe")
    assert rate(same) == 24  # the CPU's name decides
