"""Orders of ranks as launchers take them: `write_order(form, topology, placement)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ....topo.graph import Topology
from ..placement import Placement
from .device_mesh import write_device_mesh
from .launchers import (
    list_slurm_hints,
    write_hostfile,
    write_rankfile,
    write_slurm,
    write_torchrun,
    write_visible_devices,
)
from .seats import Seats, list_seats

__all__ = ["FORMATS", "list_hints", "write_order"]


def _write_json(seats: Seats, file: str) -> str:
    rows = [
        {
            "rank": s.rank,
            "host": s.host,
            "local_rank": s.local_rank,
            "gpu": s.gpu,
            "gpu_id": s.gpu_id,
        }
        for s in seats.seats
    ]
    return json.dumps({**seats.placement.to_json(), "places": rows}) + "\n"


_WRITERS: Mapping[str, Callable[[Seats, str], str]] = {
    "hostfile": write_hostfile,
    "rankfile": write_rankfile,
    "slurm": write_slurm,
    "torchrun": write_torchrun,
    "cuda-visible-devices": write_visible_devices,
    "device-mesh": write_device_mesh,
    "json": _write_json,
}
FORMATS = tuple(_WRITERS)


def write_order(form: str, topology: Topology, placement: Placement, file: str = "FILE") -> str:
    """Return a placement as one of FORMATS; `file` is the name that it will have, for lines that
    tell how to use it.

    Raises InfeasibleError where the format cannot express the order.
    """
    return _WRITERS[form](list_seats(topology, placement), file)


def list_hints(
    form: str, topology: Topology, placement: Placement, file: str = "FILE"
) -> list[str]:
    """Return lines for people about a file that cannot hold them: the line of srun for Slurm's."""
    return list_slurm_hints(list_seats(topology, placement), file) if form == "slurm" else []
