"""Find the numbers by which NCCL's and RCCL's files name GPUs, and the types of their paths.

The number (`dev`) is the driver's index.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ....topo.errors import InfeasibleError
from ....topo.graph import Device, Topology
from ....topo.matrix import ConnectionFinder
from ....topo.routes import Router, route_links
from ..stock.constants import FILE_TYPES
from ..stock.nccl_version import NcclVersion

_GPU = re.compile(r"(?:(.+)/)?gpu(\d{1,6})")
# NCCL's types for topoplan's labels that it lacks: direct links, abstract switches, and two bridges
# of a NUMA node.
_TYPE_OF_LABEL = {"LNK": "NVL", "SW": "NVL", "NODE": "PHB"}


@dataclass(frozen=True)
class GpuNumbers:
    """The driver's index (`dev`) of each rank's GPU; `source` says where the numbers are from."""

    devs: tuple[int, ...]
    source: str

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank whose GPU has each dev."""
        return {dev: rank for rank, dev in enumerate(self.devs)}


def number_gpus(topology: Topology) -> GpuNumbers:
    """Return the driver's index of each rank's GPU, as the whole machine numbers them.

    They are the GPUs' `dev` numbers if the topology has them, else the numbers in their names, else
    the ranks. Raise InfeasibleError if GPUs are on several hosts, or ranks have no GPUs.
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
            "GPUs of one, and between hosts the library keeps its own routes; export one host by "
            "itself"
        )
    for read, source in (
        (_read_dev, "the file's dev numbers"),
        (_read_name, "the numbers in the GPUs' names"),
    ):
        numbers = tuple(number for number in map(read, gpus) if number is not None)
        if len(set(numbers)) == len(gpus):
            return GpuNumbers(numbers, source)
    return GpuNumbers(
        tuple(range(len(gpus))), "the order of the ranks, as the GPUs have no numbers"
    )


def _name_host(gpu: Device) -> str:
    match = _GPU.fullmatch(gpu.id)
    box = gpu.extra.get("host", gpu.extra.get("box", ""))
    return f"{match.group(1) if match and match.group(1) else ''} {box}"


def _read_dev(gpu: Device) -> int | None:
    text = str(gpu.extra.get("dev"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _read_name(gpu: Device) -> int | None:
    """Return the number in a GPU's name; None if it has none, or in boxes of presets.

    Presets number the GPUs of all boxes consecutively.
    """
    match = _GPU.fullmatch(gpu.id)
    return int(match.group(2)) if match and not gpu.extra.get("box") else None


class PathTypes:
    """NCCL's types (NVL, PIX, PHB, ...) of the paths between GPUs, from the topology's routes.

    `FILE_TYPES` lists the types, nearest first. P2C (NVLink-C2C through a CPU) is used only
    if NCCL's `version` knows it.
    """

    def __init__(self, router: Router, version: NcclVersion) -> None:
        topology = router.topology
        self._topology, self._router, self._version = topology, router, version
        self.connections = ConnectionFinder(topology)
        self._kinds: dict[tuple[str, str], set[str]] = {}
        for link in topology.links:
            self._kinds.setdefault((link.src, link.dst), set()).add(link.kind)

    def find_type(self, src: int, dst: int) -> str:
        """Return the type of the path from one rank to another.

        Raise InfeasibleError if the path leaves the host, or does not exist.
        """
        a, b = self._topology.ranks[src], self._topology.ranks[dst]
        if set((self._router.find_route(a, b) or ())[1:-1]) & set(self._topology.ranks):
            return "NVB"
        label = self.connections.find(a, b).label
        if label in ("NET", "DIS"):
            raise InfeasibleError(
                f"{a} reaches {b} through "
                f"{'a network' if label == 'NET' else 'other GPUs only'}; a graph file has "
                "only the paths inside a host"
            )
        # NCCL has one type for NVLink, NVSwitch and XGMI.
        if label.startswith(("NV", "XGMI")):
            return "NVL"
        if label == "PHB" and self._version.knows_p2c and self._is_all_c2c(a, b):
            return "P2C"
        return _TYPE_OF_LABEL.get(label, label)

    def find_worst(self, pairs: Iterable[tuple[int, int]]) -> str:
        """Return the type of the most distant of these pairs of ranks; "LOC" without pairs."""
        return max(
            (self.find_type(*pair) for pair in set(pairs)), key=FILE_TYPES.index, default="LOC"
        )

    def _is_all_c2c(self, src: str, dst: str) -> bool:
        route = self.connections.router.find_route(src, dst)
        return route is not None and all("c2c" in self._kinds[hop] for hop in route_links(route))
