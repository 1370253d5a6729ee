"""The methods of a process group that the backend "topo" leaves to its plain group, each defined
here in Python.

A method that a Python subclass of ProcessGroup does not define is looked up by torch's C++
trampoline, which then calls the C++ base class *while it holds the GIL* (PyProcessGroup.hpp,
WORK_OVERRIDE). There `ProcessGroupGloo::barrier` waits for `workMutex_`, which gloo's worker thread
holds while it destroys a finished work; and destroying a tensor that has a Python object needs the
GIL: both wait for ever. The bindings of the plain group, which is a C++ ProcessGroup, release the
GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ...topo.errors import InputError
from ..compiled import FIRST_TAG


def _leave(name: str) -> Callable[..., Any]:
    """Return a method that leaves a collective to the plain group, in the order of the group's
    calls.
    """

    def method(self: PlainCalls, *args: Any, **kwargs: Any) -> Any:
        return self._leave(name, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"PlainCalls.{name}"
    method.__doc__ = f"See torch.distributed.ProcessGroup.{name}."
    return method


def _forward(name: str) -> Callable[..., Any]:
    """Return a method that calls the plain group's method of the same name at once."""

    def method(self: PlainCalls, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.plain, name)(*args, **kwargs)

    method.__name__, method.__qualname__ = name, f"PlainCalls.{name}"
    method.__doc__ = f"See torch.distributed.ProcessGroup.{name}."
    return method


class PlainCalls(dist.ProcessGroup):
    """A process group whose collectives, point-to-point operations and settings are those of the
    group `plain`.
    """

    plain: dist.ProcessGroup

    def _leave(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        """Call the collective `name` of the plain group, in the order of this group's calls."""
        raise NotImplementedError

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> dist.Work:
        """See torch.distributed.send."""
        check_tag(tag)
        return self.plain.send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> dist.Work:
        """See torch.distributed.recv."""
        check_tag(tag)
        return self.plain.recv(tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """See torch.distributed.recv."""
        check_tag(tag)
        return self.plain.recv_anysource(tensors, tag)


def check_tag(tag: int) -> None:
    """Raise InputError for a tag of a user's message that a plan's message may have: they share
    connections.
    """
    if tag >= FIRST_TAG:
        raise InputError(
            f"tag {tag}: the backend topo has tags from {FIRST_TAG} on for itself; use a smaller "
            "one"
        )


# Names of the methods that all ranks must call in one order.
COLLECTIVES = (
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
)
# Names of the other methods that wait, or change what the plain group does.
FORWARDED = (
    "_enable_collectives_timing",
    "_end_coalescing",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_start_coalescing",
    "_wait_for_pending_works",
    "get_group_store",
    "merge_remote_group",
    "set_timeout",
    "split_group",
)

for _names, _make in ((COLLECTIVES, _leave), (FORWARDED, _forward)):
    for _name in _names:
        if hasattr(dist.ProcessGroup, _name):  # torch 2.13 has names that older ones lack
            setattr(PlainCalls, _name, _make(_name))
