"""Make the DeviceMesh of a placement, and groups for joint plans of a DeviceMesh."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...synth.describe import count_bytes
from ...synth.groups.calls import JointCall, list_mesh_calls
from ...synth.place.orders import make_mesh
from ...synth.place.placement import Placement
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
            "running; place a job of that "
            "size"
        )
    has_nccl = torch.cuda.is_available() and "nccl" in str(dist.get_backend_config())
    return DeviceMesh(
        device_type or ("cuda" if has_nccl else "cpu"),
        torch.tensor(make_mesh(placement)),
        mesh_dim_names=tuple(name for name, _ in placement.job.dimensions),
    )


def mesh_groups(mesh: DeviceMesh, **calls: tuple[str, int | str]) -> tuple[JointCall, ...]:
    """Return the calls of a mesh's groups that run at the same time, for `synthesize_joint`.

    Each keyword is a dimension of the mesh, with a collective and the bytes of a call:
    `mesh_groups(mesh, tp=("allreduce", "64M"), dp=("allreduce", "1G"))`. All groups of a dimension
    make its call. Rank i of the mesh must run on GPU i of the topology. Raise InputError for a
    dimension that the mesh lacks.
    """
    listed = [(name, collective, count_bytes(size)) for name, (collective, size) in calls.items()]
    return list_mesh_calls(mesh.mesh.tolist(), mesh.mesh_dim_names, listed)
