"""Orders as the tensor of a DeviceMesh, for scripts that are started in the given order and put
ranks in place themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....topo.errors import InfeasibleError
from ..patterns import PLAN
from ..placement import Placement
from .seats import Seats


def make_mesh(placement: Placement) -> list[Any]:
    """Return the tensor as a nested list: at each place of the mesh the rank, by the given order,
    whose GPU it is to have.

    torch sorts the ranks of the groups that a DeviceMesh makes, and DTensor takes places in the
    mesh for those in groups. So ranks must ascend along every dimension, for which its places are
    counted anew where that changes nothing: rings may begin anywhere, alltoall and topoplan's plans
    have no order. Raises InfeasibleError where they still do not ascend.
    """
    rank_of = {gpu: rank for rank, gpu in enumerate(placement.given)}
    dimensions = placement.job.dimensions
    mesh = np.array([rank_of[gpu] for gpu in placement.order], dtype=np.int64).reshape(
        [size for _, size in dimensions]
    )
    for axis, (name, _) in enumerate(dimensions):
        line = np.moveaxis(mesh, axis, 0).reshape(mesh.shape[axis], -1)[:, 0]
        collectives = {
            traffic.collective for traffic in placement.job.traffics if traffic.dimension == name
        }
        if collectives <= {"alltoall"} or (
            placement.target == PLAN and "sendrecv" not in collectives
        ):
            mesh = np.take(mesh, line.argsort(), axis=axis)
        elif "sendrecv" not in collectives:
            mesh = np.roll(mesh, -int(line.argmin()), axis=axis)
    for axis, (name, _) in enumerate(dimensions):
        if (np.diff(mesh, axis=axis) < 0).any():
            raise InfeasibleError(
                "device-mesh: torch sorts the ranks of a DeviceMesh's groups, and in this order "
                f"those of {name} do "
                "not ascend; start ranks in this order instead (--format slurm, rankfile, torchrun)"
            )
    nested: Any = mesh.tolist()
    return list(nested)


def write_device_mesh(seats: Seats, file: str) -> str:
    """Return Python that makes the mesh, under ranks that were started in the given order."""
    mesh = make_mesh(seats.placement)
    names = tuple(name for name, _ in seats.placement.job.dimensions)
    return (
        "# ranks count as the job is started now, in the given order\n"
        "import torch\n"
        "from torch.distributed.device_mesh import DeviceMesh\n\n"
        f"MESH = {mesh}\n"
        f'mesh = DeviceMesh("cuda", torch.tensor(MESH), mesh_dim_names={names!r})\n'
    )
