"""The methods of a process group that the backend "topo" leaves to its plain group, each defined here in Python.

A method that a Python subclass of ProcessGroup does not define is looked up by torch's C++ trampoline, which then calls
the C++ base class *while it holds the GIL* (PyProcessGroup.hpp, WORK_OVERRIDE). There `ProcessGroupGloo::barrier` waits for
`workMutex_`, which gloo's worker thread holds while it destroys a finished work; and destroying a tensor that has a Python
object needs the GIL: both wait for ever. The bindings of the plain group, which is a C++ ProcessGroup, release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def _forward(name: str) -> Callable[..., Any]:
    """Return a method that calls the plain group's method of the same name."""

    def method(self: PlainCalls, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.plain, name)(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"PlainCalls.{name}"
    method.__doc__ = f"See torch.distributed.ProcessGroup.{name}."
    return method


class PlainCalls(dist.ProcessGroup):
    """A process group whose collectives, point-to-point operations and settings are those of the group `plain`."""

    plain: dist.ProcessGroup


FORWARDED = (
    # collectives
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "_allgather_base",
    "_reduce_scatter_base",
    "_start_coalescing",
    "_end_coalescing",
    # point-to-point operations
    "recv",
    "recv_anysource",
    "send",
    # settings and the rest
    "_enable_collectives_timing",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_wait_for_pending_works",
    "get_group_store",
    "merge_remote_group",
    "set_timeout",
    "split_group",
)
"""Names of the methods that communicate, wait or change what the plain group does; those that torch lacks are left out."""

for _name in FORWARDED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(PlainCalls, _name, _forward(_name))
