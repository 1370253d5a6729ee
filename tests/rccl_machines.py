"""Machines of AMD GPUs as RCCL's XML, for several test files."""

from __future__ import annotations

from itertools import combinations

from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Topology

Pairs = set[tuple[int, int]]


def machine(
    gpus: int,
    wires: Pairs,
    gcn: str = "908",
    vendor: str = "AuthenticAMD",
    model: int = 1,
    sockets: int = 1,
) -> Topology:
    """GPUs on Naples (or Rome, model 49) or Skylake, with an xGMI link between the pairs `wires`.

    Each socket has as many GPUs.
    """

    def slot(gpu: int) -> str:
        peers = [b if a == gpu else a for a, b in sorted(wires) if gpu in (a, b)]
        links = "".join(
            f'<xgmi target="0000:{p + 1:02x}:00.0" count="1" tclass="0x038000"/>' for p in peers
        )
        return (
            f'<pci busid="0000:{gpu + 1:02x}:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" '
            f'link_width="16"><gpu dev="{gpu}" rank="{gpu}" sm="120" gcn="{gcn}" arch="1" gdr="1">'
            f"{links}</gpu></pci>"
        )

    each = gpus // sockets
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="{vendor}" familyid="143" modelid="{model}">'
        f"{''.join(map(slot, range(i * each, (i + 1) * each)))}</cpu>"
        for i in range(sockets)
    )
    return nccl_xml.read(f'<system version="2">{cpus}</system>', "machine")


def mesh(gpus: int, *missing: tuple[int, int]) -> Pairs:
    """The pairs of a full mesh, without some."""
    return set(combinations(range(gpus), 2)) - set(missing)
