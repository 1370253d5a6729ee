"""Machines of which tests draw pictures and make tables."""

from __future__ import annotations

from fractions import Fraction

from topoplan.topo.graph import Device, Link, Topology, both_directions

PRESETS = [
    "dgx1",
    "dgx2",
    "dgx-a100",
    "dgx-a100:2",
    "dgx-h100:5",
    "pcie-2socket",
    "mi300x",
    "mi250",
    "mi250:2",
    "gb200-nvl72",
    "z52",
    "mesh:4x4",
    "torus:4x4",
    "torus:8x8",
    "mesh:3x3x3",
    "ring:1",
    "ring:2",
    "ring:8",
    "ring:64",
    "path:30",
    "star:5",
    "full:16",
    "switch:8",
    "switch:40",
    "hypercube:3",
    "hypercube:4",
    "dgx-a100:16",
]
NASTY = ['<&>"', 'a\\b"];}', "zeile\numbruch", "\x00\x1b\ud800", "ランク", "x" * 300]


def odd(ids: list[str]) -> Topology:
    """A ring of GPUs with these ids behind a switch with another."""
    devices = (*(Device(i) for i in ids), Device("sw<&>", "switch", "nvswitch"))
    links = [
        x for i in ids for x in both_directions(Link(i, "sw<&>", Fraction(25), kind="odd<kind>"))
    ]
    return Topology('name "&<>', devices, tuple(links))


def two_hosts(switches: int = 1, nic: str = "mlx5_0") -> Topology:
    """Two hosts, each with two GPUs and a NIC on a CPU, on NVSwitches that they share."""
    names = [f"host{h}" for h in range(2)]
    devices = [Device(f"{n}/gpu{g}") for n in names for g in range(2)]
    devices += [
        Device(f"{n}/{other}", kind)
        for n in names
        for other, kind in (("cpu0", "cpu"), (nic, "nic"))
    ]
    devices += [Device(f"nvswitch{i}", "switch", "nvswitch") for i in range(switches)]
    ends = [(f"{n}/{end}", f"{n}/cpu0", "pcie") for n in names for end in ("gpu0", "gpu1", nic)]
    ends += [(d.id, f"nvswitch{i}", "nvlink") for d in devices[:4] for i in range(switches)]
    links = [
        x
        for a, b, kind in ends
        for x in both_directions(Link(a, b, Fraction(24), kind=kind, source="Gen4 x16"))
    ]
    return Topology("two", tuple(devices), tuple(links))
