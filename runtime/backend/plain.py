"""The plain group under a group of the backend "topo": gloo for CPUs, and NCCL for GPUs."""

from __future__ import annotations

import errno
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ..ranks.plain_backends import make_gloo, make_nccl


def backend_type(transport: str) -> Any:
    """Return torch's own constant for gloo or nccl."""
    types = dist.ProcessGroup.BackendType
    return types.NCCL if transport == "nccl" else types.GLOO


def is_out_of_descriptors() -> bool:
    """Return whether this process can open no more files: gloo's own error does not always say so."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno == errno.EMFILE
    return False


def make_plain_group(place: Any, store: Store) -> tuple[dist.ProcessGroup, dict[str, str]]:
    """Return a group of gloo for CPUs and NCCL for GPUs (gloo without NCCL), and which of them is for which device."""
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
