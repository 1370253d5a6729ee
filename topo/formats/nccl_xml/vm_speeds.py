"""Estimate the PCI Express link that a device is made for if the machine does not report it."""

from __future__ import annotations

import re
from fractions import Fraction

from ...devices import Device
from ...facts import Facts, keys
from ...facts.keys import gpu_subject, net_subject, rdma_subject
from ...hardware import PCIE_GTps, PcieLink

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


def find_gpu_link(gpu: Device, facts: Facts, index: str | None) -> PcieLink:
    """Estimate a GPU's link from NVML's facts, its architecture, compute capability or name.

    As in `find_nic_link`, the link's `assumed` is the reason for the estimate.
    """
    subject = gpu_subject(index)
    by_nvml = [
        (
            facts.get_number(subject, keys.GPU_PCIE_MAX_GENERATION) or 0,
            facts.get_number(subject, keys.GPU_PCIE_MAX_WIDTH) or 0,
        )
    ]
    pcie = gpu.extra.get("pcie")
    if isinstance(pcie, dict) and (match := _MAX.fullmatch(str(pcie.get("max")))):
        by_nvml.append((int(match[1]), int(match[2])))
    for generation, width in by_nvml:
        if _MIN_GPU_GENERATION <= generation in PCIE_GTps and 1 <= width <= 32:
            return PcieLink(generation, width, ("the GPU's own most, as NVML says",))
    gcn = str(gpu.extra.get("gcn") or "").split(":")[0]
    for pattern, generation in _GENERATION_OF_GCN:
        if pattern.fullmatch(gcn):
            return PcieLink(generation, 16, (f"what {gcn} is made for",))
    sm = gpu.extra.get("sm")
    sm = sm if isinstance(sm, int) else facts.get_number(subject, keys.GPU_SM)
    for least, generation in _GENERATION_OF_SM:
        if sm is not None and sm >= least and not gcn:
            model = f"GPUs of compute capability {sm // 10}.{sm % 10}"
            return PcieLink(generation, 16, (f"what {model} are made for",))
    name = str(gpu.extra.get("name") or facts.get_text(subject, keys.GPU_NAME) or "")
    for pattern, generation in _GENERATION_OF_NAME:
        if pattern.search(name):
            return PcieLink(generation, 16, (f"what {name} is made for",))
    return PcieLink(3, 16, ("as NCCL takes it, since nothing is known of the GPU",))


def find_nic_link(nic: Device, facts: Facts) -> PcieLink:
    """Estimate the link that a NIC of this speed is made for."""
    speed_GBps = nic.extra.get("net_speed_GBps")
    if isinstance(speed_GBps, (int, float)) and 0 < speed_GBps < 10**6:
        Gbps = Fraction(speed_GBps) * 8
    else:
        rdma_Mbps = facts.get_number(rdma_subject(nic.id), keys.RDMA_SPEED_Mbps)
        Mbps = rdma_Mbps or facts.get_number(net_subject(nic.id), keys.NET_SPEED_Mbps)
        Gbps = Fraction(Mbps or 0, 1000)
    if Gbps <= 0:
        return PcieLink(3, 16, ("as NCCL takes it, since the speed of the NIC is not known",))
    generation = next((g for most, g in _GENERATION_OF_Gbps if Gbps <= most), 6)
    return PcieLink(generation, 16, (f"what a NIC of {float(Gbps):g} Gb/s is made for",))
