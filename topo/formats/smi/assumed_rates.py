"""Assume the rates that a matrix does not give, by the generation that the number of NVLinks tells.

V100 have 6 NVLinks and PCIe Gen3, A100 12 and Gen4, H100 and B200 18 and Gen5 (NVIDIA's
datasheets). Machines are built with NICs for their GPUs: HDR InfiniBand (200 Gb/s) in DGX A100, NDR
(400 Gb/s) in DGX H100 and B200. H100 PCIe and NVL cards with bridges have 12 NVLinks, too: they are
taken for A100 here, which `--rate pcie=48` corrects.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...hardware import NVLINK_LINKS_PER_GPU, PCIE_GTps, PcieLink, pcie_link
from ...notes import assumed
from .cells import Cells, count_nvlinks, find_family

_MOST_LINKS = max(NVLINK_LINKS_PER_GPU.values())
# For GPUs with more NVLinks than the first number: their PCIe, GB/s of a NIC, and what is taken for
# what.
_BY_LINKS = (
    (12, PcieLink(5, 16), Fraction(50), "H100 and later: 18 NVLinks"),
    (6, PcieLink(4, 16), Fraction(25), "A100: 12 NVLinks"),
)


@dataclass(frozen=True)
class AssumedRates:
    """What is assumed for PCIe links, and GB/s of NICs where anything is; each with its source."""

    pcie: PcieLink
    pcie_source: str
    nic_GBps: Fraction | None = None
    nic_source: str = ""


# What is assumed where NVLinks tell nothing.
UNKNOWN_RATES = AssumedRates(
    pcie_link(None, None), assumed("Gen3 x16, as NCCL takes PCIe links that are not known")
)


def assume_rates(cells: Cells) -> AssumedRates:
    """Return what is assumed for a machine, by the most NVLinks that a GPU of it has."""
    most = max((_count_lanes(row) for row in cells.labels), default=0)
    for least, pcie, nic_GBps, taken_for in _BY_LINKS:
        if most > least:
            speed = f"{float(PCIE_GTps[pcie.generation]):g} GT/s"
            return AssumedRates(
                pcie,
                assumed(f"Gen{pcie.generation} x{pcie.width} ({speed}), by the GPUs ({taken_for})"),
                nic_GBps,
                f"{float(nic_GBps) * 8:g} Gb/s, by the GPUs ({taken_for})",
            )
    return UNKNOWN_RATES


def _count_lanes(row: list[str | None]) -> int:
    """Return how many NVLinks a GPU has: its labels added up, or the most of one where they go
    through NVSwitches.
    """
    lanes = [
        count_nvlinks(label) for label in row if label is not None and find_family(label) == "NV"
    ]
    return sum(lanes) if sum(lanes) <= _MOST_LINKS else max(lanes)
