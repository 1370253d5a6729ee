"""A placement under ranks that run already: the DeviceMesh that puts each place of the job's mesh
on its GPU.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...synth.place.orders.device_mesh import make_mesh
from ...synth.place.placement import Placement
from ...topo.errors import InputError


def device_mesh(placement: Placement, device_type: str | None = None) -> DeviceMesh:
    """Return the DeviceMesh of a placement's job (`topoplan.place(...)`), with the names of its
    dimensions. Collective.

    Rank i of the default process group must run on the GPU that the placement's given order has for
    it (without `order`, the i-th listed). `device_type` is "cuda" or "cpu" (default: cuda where the
    process group has NCCL). Raises InputError where there are another number of ranks,
    InfeasibleError where a DeviceMesh cannot express the order.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call init_process_group first")
    if dist.get_world_size() != len(placement.order):
        raise InputError(
            f"the placement is for {len(placement.order)} ranks, and {dist.get_world_size()} are "
            "running; place a job of that "
            "size"
        )
    kind = device_type or (
        "cuda" if torch.cuda.is_available() and "nccl" in str(dist.get_backend_config()) else "cpu"
    )
    names = tuple(name for name, _ in placement.job.dimensions)
    return DeviceMesh(kind, torch.tensor(make_mesh(placement)), mesh_dim_names=names)
