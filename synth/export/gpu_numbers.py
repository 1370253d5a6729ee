"""The numbers by which NCCL's and RCCL's files name GPUs (`dev`: the driver's index), and the types
of their paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ...topo.errors import InfeasibleError
from ...topo.graph import Device, Topology
from ...topo.matrix import ConnectionFinder
from ...topo.routes import route_links
from .graph_file import TYPES
from .nccl_version import NcclVersion

_GPU = re.compile(r"(?:(.+)/)?gpu(\d{1,6})")
_MOST_DEV = 10**6
# NCCL's types for labels that it does not have: direct links, abstract switches, and two bridges of
# one NUMA node.
_TYPE_OF_LABEL = {"LNK": "NVL", "SW": "NVL", "NODE": "PHB"}


@dataclass(frozen=True)
class GpuNumbers:
    """The `dev` of each rank's GPU, and where the numbers are from, in words."""

    devs: tuple[int, ...]
    source: str

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each dev."""
        return {dev: rank for rank, dev in enumerate(self.devs)}


def number_gpus(topology: Topology) -> GpuNumbers:
    """Return the driver's index of each rank's GPU. Raises InfeasibleError where they are on
    several hosts, or none.

    GPUs of a part of a machine keep the numbers that they have on the whole one.
    """
    gpus = [topology.by_id[ident] for ident in topology.ranks]
    if any(gpu.extra.get("stands_for") for gpu in gpus):
        raise InfeasibleError(
            f"topology {topology.name!r} has ranks without a GPU; such a file is for GPUs"
        )
    hosts = {_name_host(gpu) for gpu in gpus}
    if len(hosts) > 1:
        raise InfeasibleError(
            f"topology {topology.name!r} has GPUs on {len(hosts)} hosts: such a file is for the "
            "GPUs of one, and between "
            "hosts the library keeps its own way; export one host by itself"
        )
    told = [_read_dev(gpu) for gpu in gpus]
    if all(dev is not None for dev in told) and len(set(told)) == len(told):
        return GpuNumbers(tuple(dev for dev in told if dev is not None), "the file's dev numbers")
    named = [_read_name(gpu) for gpu in gpus]
    if all(number is not None for number in named) and len(set(named)) == len(named):
        return GpuNumbers(
            tuple(number for number in named if number is not None),
            "the numbers in the GPUs' names",
        )
    return GpuNumbers(
        tuple(range(len(gpus))), "the order of the ranks, as the GPUs have no numbers"
    )


def _name_host(gpu: Device) -> str:
    """Return what tells a GPU's host from others."""
    match = _GPU.fullmatch(gpu.id)
    box = gpu.extra.get("host", gpu.extra.get("box", ""))
    return f"{match.group(1) if match and match.group(1) else ''} {box}"


def _read_dev(gpu: Device) -> int | None:
    """Return the dev of a GPU that was read from NCCL's or RCCL's XML."""
    dev = gpu.extra.get("dev")
    if isinstance(dev, bool) or not isinstance(dev, (int, str)):
        return None
    text = str(dev)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _read_name(gpu: Device) -> int | None:
    """Return the number in a GPU's name; boxes of presets but the first count on from the box
    before, so theirs is unknown.
    """
    match = _GPU.fullmatch(gpu.id)
    return int(match.group(2)) if match and not gpu.extra.get("box") else None


class PathTypes:
    """The types that NCCL gives the ways between a topology's GPUs, from the routes of the
    topology.
    """

    def __init__(self, topology: Topology, version: NcclVersion) -> None:
        self._topology, self._version = topology, version
        self.connections = ConnectionFinder(topology)
        self._kinds: dict[tuple[str, str], set[str]] = {}
        for link in topology.links:
            self._kinds.setdefault((link.src, link.dst), set()).add(link.kind)

    def find_type(self, src: int, dst: int) -> str:
        """Return the type of the way from one rank to another. InfeasibleError where it leaves the
        host, or there is none.
        """
        a, b = self._topology.ranks[src], self._topology.ranks[dst]
        label = self.connections.find(a, b).label
        if label in ("NET", "DIS"):
            raise InfeasibleError(
                f"{a} reaches {b} "
                f"{'through a network' if label == 'NET' else 'through other GPUs only'}; a graph "
                "file has "
                "the ways inside a host alone"
            )
        if label.startswith(("NV", "XGMI")):
            return "NVL"
        if label == "PHB" and self._version.knows_p2c and self._is_all_c2c(a, b):
            return "P2C"
        return _TYPE_OF_LABEL.get(label, label)

    def find_worst(self, pairs: Iterable[tuple[int, int]]) -> str:
        """Return the type of the farthest of some pairs of ranks."""
        return max((self.find_type(*pair) for pair in set(pairs)), key=TYPES.index, default="LOC")

    def _is_all_c2c(self, src: str, dst: str) -> bool:
        """Return whether a route has links between chips (C2C) only."""
        route = self.connections.route(src, dst)
        return route is not None and all("c2c" in self._kinds[hop] for hop in route_links(route))
