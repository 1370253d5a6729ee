"""Make the DeviceMesh of a placement, that is, of a job's positions assigned to GPUs."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...synth.extras.place.orders import make_mesh
from ...synth.extras.place.placement import Placement
from ...topo.errors import InputError


def device_mesh(placement: Placement, device_type: str | None = None) -> DeviceMesh:
    """Return the DeviceMesh that puts each position of a placed job on its GPU.

    `placement` is the result of `topoplan.place(...)`. Collective. Rank i of the default process
    group must run on the GPU that the placement's given order has for it (without `order`, the i-th
    listed). `device_type` is "cuda" or "cpu" (default: cuda if the process group has NCCL). Raise
    InputError for another number of ranks, InfeasibleError if a DeviceMesh cannot express the
    order.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed is not initialised; call init_process_group first")
    if dist.get_world_size() != len(placement.order):
        raise InputError(
            f"the placement is for {len(placement.order)} ranks, and {dist.get_world_size()} are "
            "running; place a job of that size"
        )
    has_nccl = torch.cuda.is_available() and "nccl" in str(dist.get_backend_config())
    return DeviceMesh(
        device_type or ("cuda" if has_nccl else "cpu"),
        torch.tensor(make_mesh(placement)),
        mesh_dim_names=tuple(name for name, _ in placement.job.dimensions),
    )
