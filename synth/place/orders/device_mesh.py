"""An order as the tensor of a DeviceMesh, for scripts that place ranks themselves.

Such scripts start their ranks in the given order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....topo.errors import InfeasibleError
from ..job import PLAN
from ..placement import Placement


def make_mesh(placement: Placement) -> list[Any]:
    """Return the mesh as a nested list: the rank, by the given order, whose GPU each position gets.

    torch sorts the ranks of a DeviceMesh's groups, while DTensor takes positions in the mesh for
    positions in groups. So ranks must ascend along every dimension. Its positions are renumbered if
    that changes no time: rings may begin anywhere, alltoall and topoplan's plans have no order.
    Raise InfeasibleError if ranks still do not ascend.
    """
    rank_of = {gpu: rank for rank, gpu in enumerate(placement.given)}
    dimensions = placement.job.dimensions
    mesh = np.array([rank_of[gpu] for gpu in placement.order], dtype=np.int64)
    mesh = mesh.reshape([size for _, size in dimensions])
    for axis, (name, _) in enumerate(dimensions):
        line = np.moveaxis(mesh, axis, 0).reshape(mesh.shape[axis], -1)[:, 0]
        collectives = {t.collective for t in placement.job.traffics if t.dimension == name}
        if "sendrecv" in collectives:
            continue
        if collectives <= {"alltoall"} or placement.target == PLAN:
            mesh = np.take(mesh, line.argsort(), axis=axis)
        else:
            mesh = np.roll(mesh, -int(line.argmin()), axis=axis)
    for axis, (name, _) in enumerate(dimensions):
        if (np.diff(mesh, axis=axis) < 0).any():
            raise InfeasibleError(
                "device-mesh: torch sorts the ranks of a DeviceMesh's groups, and in this order "
                f"those of {name} do not ascend; start ranks in this order instead (slurm, "
                "rankfile, torchrun)",
                parameter="format",
            )
    return list(mesh.tolist())


def write_device_mesh(placement: Placement) -> str:
    """Return Python code that makes the mesh in ranks that were started in the given order."""
    mesh, names = make_mesh(placement), tuple(name for name, _ in placement.job.dimensions)
    return (
        "# ranks count as the job is started now, in the given order\n"
        "import torch\n"
        "from torch.distributed.device_mesh import DeviceMesh\n\n"
        f"MESH = {mesh}\n"
        f'mesh = DeviceMesh("cuda", torch.tensor(MESH), mesh_dim_names={names!r})\n'
    )
