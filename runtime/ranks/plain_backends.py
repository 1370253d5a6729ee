"""Make torch's own backends, gloo and NCCL, for topoplan's groups, and name their engines.

torch 2.15 has several NCCL engines. "nccl" makes nccl2 there, unless TORCH_DIST_USE_NCCL2=0;
"nccl-legacy" is the only engine of older torch; "nccl-lazy" is nccl2 with a communicator for each
pair of ranks that send to each other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ..torch_version import is_torch_at_least

# Fields of a rank's place in its group that an engine is given; older torch lacks some of them.
_PLACE = (
    "group_rank",
    "group_size",
    "timeout",
    "group_id",
    "global_ranks_in_group",
    "process_group",
)


def make_gloo(place: Any, store: Store) -> Any:
    """Make gloo for the group that `place`, torch's DistributedBackendOptions, describes.

    The ranks meet in `store`.
    """
    gloo = dist.ProcessGroupGloo(store, place.group_rank, place.group_size, place.timeout)
    _number_calls(gloo)
    return gloo


def make_nccl(
    place: Any, store: Store, engine: str = "nccl", device: torch.device | None = None
) -> Any:
    """Make NCCL for the group that `place` describes.

    `engine` is named as torch names backends; "nccl" is torch's own choice. An engine that is bound
    to one GPU (nccl2) takes `device`, else the group's, else the one of this rank's number.
    """
    if is_torch_at_least(2, 15):
        return _ask_torch_for_nccl(place, store, engine, device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = place.timeout
    options.global_ranks_in_group = place.global_ranks_in_group
    options.group_name = place.group_id
    nccl = dist.ProcessGroupNCCL(store, place.group_rank, place.group_size, options)
    _number_calls(nccl)
    return nccl


def _ask_torch_for_nccl(place: Any, store: Store, engine: str, device: torch.device | None) -> Any:
    """Return the backend that torch's own creator makes.

    For "nccl" it depends on the environment at first use.
    """
    own = type(place)()
    for name in _PLACE:
        setattr(own, name, getattr(place, name))
    own.store, own.split_from = (
        store,
        None,
    )  # splitting off another group would need all ranks of that one
    if device is not None:
        own.process_group = dist.ProcessGroup(store, place.group_rank, place.group_size)
        own.process_group.bound_device_id = device
    registry: Any = dist.Backend
    registry._ensure_backend_registered(engine)
    return registry._plugins[engine.upper()].creator_fn(own, None)


def find_engine(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the engine of a group's stock collectives on a device type.

    It is gloo, nccl, nccl2 or nccl-lazy. "nccl" is the engine of torch before 2.15, which later
    versions call nccl-legacy.
    """
    return str(group._get_backend(device).name())


def _number_calls(backend: Any) -> None:
    """Make a backend count its calls from 0.

    torch 2.15 does so by itself, and warns if asked to.
    """
    if not is_torch_at_least(2, 15):
        backend._set_sequence_number_for_group()
