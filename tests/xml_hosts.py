"""Hosts as NCCL writes them in XML, of GPUs in bridged pairs and of NICs."""

from __future__ import annotations

from collections.abc import Mapping


def gpu(number: int, partner: int | None, sm: int = 80) -> str:
    bridge = (
        ""
        if partner is None
        else f'<nvlink target="0000:{partner + 1:02x}:00.0" count="12" tclass="0x030200"/>'
    )
    return (
        f'<pci busid="0000:{number + 1:02x}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{number}" rank="{number}" sm="{sm}" gdr="1">{bridge}</gpu>'
        "</pci>"
    )


def nic(number: int, mbps: int | str = 200_000) -> str:
    return (
        f'<pci busid="0000:{number + 0x81:02x}:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" '
        f'link_width="16"><nic><net name="mlx5_{number}" dev="{number + 3}" speed="{mbps}" '
        f'port="1" guid="0x{number + 1}" gdr="1"/></nic></pci>'
    )


def host(*sockets: str) -> str:
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">{below}'
        "</cpu>"
        for i, below in enumerate(sockets)
    )
    return f'<system version="1">{cpus}</system>'


def switch(number: int, below: str) -> str:
    return (
        f'<pci busid="0000:{number + 0x40:02x}:00.0" class="0x060400" '
        f'link_speed="16.0 GT/s PCIe" link_width="16">{below}</pci>'
    )


def pairs(count: int, nics: Mapping[int, int | str]) -> str:
    """Return a host of bridged pairs, each on a PCIe switch, some with a NIC of a speed."""
    slots = [
        switch(
            k,
            gpu(2 * k, 2 * k + 1) + gpu(2 * k + 1, 2 * k) + (nic(k, nics[k]) if k in nics else ""),
        )
        for k in range(count)
    ]
    return host("".join(slots[: count // 2]), "".join(slots[count // 2 :]))
