"""Describe the calls of a DeviceMesh's groups for joint planning."""

from torch.distributed.device_mesh import DeviceMesh

from ....synth.extras.joint.joint_calls import JointCall, list_mesh_calls
from ....synth.sizes import count_bytes


def mesh_groups(mesh: DeviceMesh, **calls: tuple[str, int | str]) -> tuple[JointCall, ...]:
    """Return the calls of a mesh's groups that run at the same time, for `synthesize_joint`.

    Each keyword is a dimension of the mesh, with a collective and the bytes of a call:
    `mesh_groups(mesh, tp=("allreduce", "64M"), dp=("allreduce", "1G"))`. All groups of a dimension
    make its call. Rank i of the mesh must run on GPU i of the topology. Raise InputError for a
    dimension that the mesh lacks.
    """
    listed = [(name, collective, count_bytes(size)) for name, (collective, size) in calls.items()]
    return list_mesh_calls(mesh.mesh.tolist(), mesh.mesh_dim_names, listed)
