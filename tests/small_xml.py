"""Small texts in NCCL's XML, and whether a machine survives being written as one."""

from __future__ import annotations

import pytest

from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Topology

CPU = (
    '<cpu numaid="{}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" '
    'modelid="143">{}</cpu>'
)
PCI = '<pci busid="{}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">{}</pci>'
GPU = '<gpu dev="{0}" sm="{1}" rank="{0}" gdr="1">{2}</gpu>'


def machine(*links: str, sm: int = 80, version: int = 1) -> str:
    """A CPU with a GPU at 0000:0N:00.0 for each of `links`."""
    gpus = (PCI.format(f"0000:0{i}:00.0", GPU.format(i, sm, text)) for i, text in enumerate(links))
    return f'<system version="{version}">{CPU.format(0, "".join(gpus))}</system>'


def nvlink(target: str, count: int = 1, tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def notes(topology: Topology) -> str:
    return "\n".join(topology.extra.get("notes", []))


def check_round_trip(topology: Topology) -> None:
    nccl_topology = pytest.importorskip(
        "topoplan.topo.extras.nccl_topology", reason="needs the extra nccl-topology"
    )
    again = nccl_xml.read(nccl_topology.write(topology), topology.name)
    assert again.fingerprint == topology.fingerprint
    assert again.ranks == topology.ranks
    assert again.capacity_GBps == topology.capacity_GBps
    assert again.latency_us == topology.latency_us
    assert {d.id: (d.kind, d.family, d.numa_node) for d in again.devices} == {
        d.id: (d.kind, d.family, d.numa_node) for d in topology.devices
    }
