"""Orders as the tensor of a DeviceMesh, for scripts that are started in the given order and put ranks in place themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....topo.errors import InfeasibleError
from ..patterns import PLAN
from .seats import Seats


def make_mesh(seats: Seats) -> list[Any]:
    """Return the tensor as a nested list: at each place of the mesh the rank, by the given order, whose GPU it is to have.

    torch sorts the ranks of the groups that a DeviceMesh makes, so a mesh says which ranks form a group, not how they follow
    each other in it. Raises InfeasibleError where that would be another order than the one that was found.
    """
    placement = seats.placement
    rank_of = {gpu: rank for rank, gpu in enumerate(placement.given)}
    sizes = [size for _, size in placement.job.dimensions]
    mesh = np.array([rank_of[gpu] for gpu in placement.order], dtype=np.int64)
    for traffic in placement.job.traffics:
        groups = mesh[placement.job.list_groups(traffic.dimension)]
        if placement.target != PLAN and not _survives(groups, traffic.collective):
            raise InfeasibleError(
                f"--format device-mesh: torch sorts the ranks of a DeviceMesh's groups, and in this order those of "
                f"{traffic.dimension} are not ascending; start ranks in this order (--format slurm, rankfile, torchrun), or "
                "place --for plan"
            )
    nested: Any = mesh.reshape(sizes).tolist()
    return list(nested)


def _survives(groups: np.ndarray[Any, np.dtype[np.int64]], collective: str) -> bool:
    """Return whether sorted groups do the same as these: rings may begin anywhere, alltoall has no order."""
    if collective == "alltoall":
        return True
    if collective != "sendrecv":
        starts = groups.argmin(axis=1)
        columns = (starts[:, None] + np.arange(groups.shape[1])) % groups.shape[1]
        groups = np.take_along_axis(groups, columns, axis=1)
    return bool((np.diff(groups, axis=1) > 0).all())


def write_device_mesh(seats: Seats, file: str) -> str:
    """Return Python that makes the mesh, under ranks that were started in the given order."""
    mesh = make_mesh(seats)
    names = tuple(name for name, _ in seats.placement.job.dimensions)
    return (
        "# ranks count as the job is started now, in the given order\n"
        "import torch\n"
        "from torch.distributed.device_mesh import DeviceMesh\n\n"
        f"MESH = {mesh}\n"
        f'mesh = DeviceMesh("cuda", torch.tensor(MESH), mesh_dim_names={names!r})\n'
    )
