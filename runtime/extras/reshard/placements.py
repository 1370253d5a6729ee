"""Read how a tensor is distributed over a mesh from torch's DeviceMesh and placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ....topo.errors import InputError
from .shards import Copied, Laid, Shards, Split, Term

# A DeviceMesh, or the ranks in the shape of the mesh, where a rank cannot make the DeviceMesh.
Mesh = Any


def read_shards(
    mesh: Mesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    where: str,
    world: int,
    *,
    of_device_mesh: bool = False,
) -> Shards:
    """Return how a tensor of `shape` is distributed over a mesh among `world` ranks.

    `where` names it in errors. `of_device_mesh` says that a mesh given as an array was taken from a
    DeviceMesh. Raise InputError if mesh and placements do not fit together, or a DeviceMesh splits
    by descending ranks.
    """
    try:
        array = torch.as_tensor(mesh.mesh if isinstance(mesh, DeviceMesh) else mesh)
        ranks = np.asarray(array.cpu(), dtype=np.int64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{where}: mesh {mesh!r:.60}: expected a DeviceMesh, or an array of ranks"
        ) from None
    if ranks.size and ranks.max() >= world:
        raise InputError(f"{where}: mesh with rank {ranks.max()}; {world} ranks are running")
    laid = tuple(_read(placement, len(shape), where) for placement in placements)
    shards = Shards(ranks, laid, tuple(shape), where)
    # Along a dimension torch's groups are in ascending order, whatever the order of the mesh: which
    # shard a rank has is then one thing to full_tensor and FSDP, another to checkpoints.
    of_device_mesh = of_device_mesh or isinstance(mesh, DeviceMesh)
    for dim, part in enumerate(laid):
        if of_device_mesh and isinstance(part, Split) and (np.diff(ranks, axis=dim) < 0).any():
            raise InputError(
                f"{where}: DeviceMesh {ranks.tolist()!s:.60} with descending ranks, of whose "
                "shards torch has two orders; make one with ascending ranks"
            )
    return shards


def _read(placement: object, dims: int, where: str) -> Laid:
    if isinstance(placement, Replicate):
        return Copied()
    # torch's own subclasses change the terms before they are added (norms, masked embeddings).
    if type(placement) is Partial:
        if placement.reduce_op in ("sum", "avg"):
            return Term(averages=placement.reduce_op == "avg")
    elif isinstance(placement, Shard) or type(placement).__name__ == "_StridedShard":
        dim = int(placement.dim)  # type: ignore[attr-defined]
        return Split(dim + dims if dim < 0 else dim, int(getattr(placement, "split_factor", 1)))
    raise InputError(
        f"{where}: placement {placement!r:.60}: expected Shard, Replicate, or on the source "
        "Partial of a sum or an average"
    )
