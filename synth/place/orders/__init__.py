"""Write rank orders in the formats that launchers take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ....topo.graph import Topology
from ..placement import Placement
from .device_mesh import write_device_mesh
from .launchers import (
    RankLocations,
    list_slurm_hints,
    locate_ranks,
    write_hostfile,
    write_rankfile,
    write_slurm,
    write_torchrun,
    write_visible_devices,
)

__all__ = ["FORMATS", "list_hints", "write_order"]


def _write_json(ranks: RankLocations, file: str) -> str:
    rows = [vars(location) for location in ranks.locations]
    return json.dumps({**ranks.placement.to_json(), "places": rows}) + "\n"


_WRITERS: Mapping[str, Callable[[RankLocations, str], str]] = {
    "hostfile": write_hostfile,
    "rankfile": write_rankfile,
    "slurm": write_slurm,
    "torchrun": write_torchrun,
    "cuda-visible-devices": write_visible_devices,
    "device-mesh": lambda ranks, file: write_device_mesh(ranks.placement),
    "json": _write_json,
}
FORMATS = tuple(_WRITERS)


def write_order(form: str, topology: Topology, placement: Placement, file: str = "FILE") -> str:
    """Return a placement in one of FORMATS.

    `file` is the future name of the file, for lines that explain its use. Raise InfeasibleError if
    the format cannot express the order.
    """
    return _WRITERS[form](locate_ranks(topology, placement), file)


def list_hints(
    form: str, topology: Topology, placement: Placement, file: str = "FILE"
) -> list[str]:
    """Return usage lines for a file that cannot contain them: the srun command for Slurm's."""
    return list_slurm_hints(locate_ranks(topology, placement), file) if form == "slurm" else []
