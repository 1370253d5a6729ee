"""The plain group under a group of the backend "topo": gloo for CPUs, and NCCL for GPUs."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...topo.errors import ExecutionError
from ..ranks.plain_backends import make_gloo, make_nccl

# File descriptors of one of gloo's groups beside its connections (measured with torch 2.13).
_DESCRIPTORS = 4


def backend_type(transport: str) -> Any:
    """Return torch's own constant for gloo or nccl."""
    types = dist.ProcessGroup.BackendType
    return types.NCCL if transport == "nccl" else types.GLOO


def check_descriptors(ranks: int) -> None:
    """Raise ExecutionError where this process may not open the files that one more group of gloo's
    takes.

    gloo itself ends the process then: its listening thread throws.
    """
    try:
        in_use = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:  # not Linux
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and in_use + _DESCRIPTORS + ranks > limit:
        raise ExecutionError(
            f"a process group of {ranks} ranks takes {_DESCRIPTORS + ranks} file descriptors, and "
            f"this process has {in_use} "
            f"of at most {limit} in use; raise the limit (ulimit -n), or make fewer groups"
        )


def make_plain_group(place: Any, store: Store) -> tuple[dist.ProcessGroup, dict[str, str]]:
    """Return a group of gloo for CPUs and NCCL for GPUs (gloo without NCCL), and which of them is
    for which device.
    """
    check_descriptors(place.group_size)
    plain = dist.ProcessGroup(store, place.group_rank, place.group_size)
    gloo = make_gloo(place, PrefixStore("gloo", store))
    backends: dict[str, tuple[str, Any]] = {"cpu": ("gloo", gloo), "cuda": ("gloo", gloo)}
    if torch.cuda.is_available() and dist.is_nccl_available():
        backends["cuda"] = "nccl", make_nccl(place, PrefixStore("nccl", store))
    for device, (transport, backend) in backends.items():
        plain._register_backend(torch.device(device), backend_type(transport), backend)
    plain._set_default_backend(backend_type(backends["cuda"][0]))
    plain._set_group_name(place.group_id)
    return plain, {device: transport for device, (transport, _) in backends.items()}
