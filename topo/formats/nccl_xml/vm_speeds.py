"""Estimate the PCI Express link that a device is made for if the machine does not report it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ...devices import Device
from ...facts import Facts, keys
from ...facts.keys import gpu_subject, net_subject, rdma_subject
from ...hardware import PCIE_GTps, pcie_GBps

# NVML inside a virtual machine may report a placeholder below Gen3.
_MIN_GPU_GENERATION = 3
# PCIe generation by the lowest compute capability, times ten (datasheets: V100 3, A100 4, H100 and
# B200 5, B300 6).
_GENERATION_OF_SM: tuple[tuple[int, int], ...] = ((120, 5), (103, 6), (90, 5), (80, 4), (30, 3))

_GENERATION_OF_NAME: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"\bG?B300\b"), 6),
    (re.compile(r"\b(G?H100|H800|G?H200|H20|G?B[12]00|RTX 50\d\d|RTX PRO|MI3\d\d[AX]?)\b"), 5),
    (
        re.compile(
            r"\b(A100|A800|A[1-4]0G?|A16|L4|L20|L40S?|RTX [34]0\d\d|RTX A\d+|MI2\d\dX?|MI100)\b"
        ),
        4,
    ),
    (re.compile(r"\b(V100S?|P100|P40|P4|T4|RTX 20\d\d|MI[56]0)\b"), 3),
)
_GENERATION_OF_GCN: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"(gfx)?9[45]\w"), 5),
    (re.compile(r"(gfx)?(90[68a]|910)"), 4),
)
# The generation whose 16 lanes carry a NIC of this speed (ConnectX-5, -6 and -7); faster NICs have
# Gen6.
_GENERATION_OF_Gbps: tuple[tuple[int, int], ...] = ((100, 3), (200, 4), (400, 5))

_MAX = re.compile(r"Gen([1-6]) x(\d{1,2})")


@dataclass(frozen=True)
class PcieSpeed:
    """A PCI Express link; `why` is the reason for an estimate, empty for a reported link."""

    generation: int
    width: int = 16
    why: str = ""

    @property
    def GBps(self) -> Fraction:
        """The rate in one direction in GB/s, as NCCL counts it."""
        return pcie_GBps(self.generation, self.width)

    def __str__(self) -> str:
        return f"{float(PCIE_GTps[self.generation]):g} GT/s x{self.width}"


def find_gpu_speed(gpu: Device, facts: Facts, index: str | None) -> PcieSpeed:
    """Estimate a GPU's link from NVML's facts, its compute capability, architecture or name."""
    subject = gpu_subject(index)
    for speed in _read_nvml_speeds(gpu, facts, subject):
        if speed.generation >= _MIN_GPU_GENERATION and speed.width:
            return speed
    gcn = str(gpu.extra.get("gcn") or "").split(":")[0]
    generation = next((g for pattern, g in _GENERATION_OF_GCN if pattern.fullmatch(gcn)), None)
    if generation is not None:
        return PcieSpeed(generation, why=f"what {gcn} is made for")
    sm = (
        gpu.extra.get("sm")
        if isinstance(gpu.extra.get("sm"), int)
        else facts.get_number(subject, keys.GPU_SM)
    )
    if isinstance(sm, int) and not gcn:
        generation = next((g for least, g in _GENERATION_OF_SM if sm >= least), None)
        if generation is not None:
            return PcieSpeed(
                generation, why=f"what GPUs of compute capability {sm // 10}.{sm % 10} are made for"
            )
    name = str(gpu.extra.get("name") or facts.get_text(subject, keys.GPU_NAME) or "")
    generation = next((g for pattern, g in _GENERATION_OF_NAME if pattern.search(name)), None)
    if generation is not None:
        return PcieSpeed(generation, why=f"what {name} is made for")
    return PcieSpeed(3, why="as NCCL takes it, since nothing is known of the GPU")


def _read_nvml_speeds(gpu: Device, facts: Facts, subject: str) -> Iterator[PcieSpeed]:
    """Yield a GPU's fastest link according to NVML, from the facts and the device."""
    generation = facts.get_number(subject, keys.GPU_PCIE_MAX_GENERATION)
    width = facts.get_number(subject, keys.GPU_PCIE_MAX_WIDTH)
    if generation and generation in PCIE_GTps and width and 1 <= width <= 32:
        yield PcieSpeed(generation, width, "the GPU's own most, as NVML says")
    pcie = gpu.extra.get("pcie")
    match = _MAX.fullmatch(str(pcie.get("max"))) if isinstance(pcie, dict) else None
    if match and 1 <= int(match.group(2)) <= 32:
        yield PcieSpeed(
            int(match.group(1)), int(match.group(2)), "the GPU's own most, as NVML says"
        )


def find_nic_speed(nic: Device, facts: Facts) -> PcieSpeed:
    """Estimate the link that a NIC of this speed is made for."""
    Gbps = read_nic_Gbps(nic, facts)
    if Gbps is None:
        return PcieSpeed(3, why="as NCCL takes it, since the speed of the NIC is not known")
    generation = next((g for most, g in _GENERATION_OF_Gbps if Gbps <= most), 6)
    return PcieSpeed(generation, why=f"what a NIC of {float(Gbps):g} Gb/s is made for")


def read_nic_Gbps(nic: Device, facts: Facts) -> Fraction | None:
    """Return the speed of a NIC in Gb/s, None if it is unknown."""
    speed_GBps = nic.extra.get("net_speed_GBps")
    if isinstance(speed_GBps, (int, float)) and 0 < speed_GBps < 10**6:
        return Fraction(speed_GBps) * 8
    Mbps = facts.get_number(rdma_subject(nic.id), keys.RDMA_SPEED_Mbps) or facts.get_number(
        net_subject(nic.id), keys.NET_SPEED_Mbps
    )
    return Fraction(Mbps, 1000) if Mbps and Mbps > 0 else None
