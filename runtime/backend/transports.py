"""The plain process group under the backend "topo": gloo for CPUs, NCCL for GPUs where there is one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore


def kind_of(transport: str) -> Any:
    """torch's own name for gloo or nccl."""
    kinds = dist.ProcessGroup.BackendType
    return kinds.NCCL if transport == "nccl" else kinds.GLOO


def plain_group(place: Any) -> tuple[dist.ProcessGroup, dict[str, str]]:
    """A group of gloo for CPUs and NCCL for GPUs (gloo where there is no NCCL); which of them is for which device."""
    plain = dist.ProcessGroup(place.store, place.group_rank, place.group_size)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo", place.store), place.group_rank, place.group_size, place.timeout)
    gloo._set_sequence_number_for_group()
    backends: dict[str, tuple[str, Any]] = {"cpu": ("gloo", gloo), "cuda": ("gloo", gloo)}
    if torch.cuda.is_available() and dist.is_nccl_available():
        backends["cuda"] = "nccl", _nccl(place)
    for device, (transport, backend) in backends.items():
        plain._register_backend(torch.device(device), kind_of(transport), backend)
    plain._set_default_backend(kind_of(backends["cuda"][0]))
    plain._set_group_name(place.group_id)
    return plain, {device: transport for device, (transport, _) in backends.items()}


def _nccl(place: Any) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = place.timeout
    options.global_ranks_in_group = place.global_ranks_in_group
    options.group_name = place.group_id
    store = PrefixStore("nccl", place.store)
    nccl = dist.ProcessGroupNCCL(store, place.group_rank, place.group_size, options)
    nccl._set_sequence_number_for_group()
    return nccl
