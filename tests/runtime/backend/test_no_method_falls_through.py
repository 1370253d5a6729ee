"""No method of a process group that communicates may reach torch's C++ trampoline, which holds the
GIL (plain_calls.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from needs import has_extra
from torch._C._distributed_c10d import HashStore

from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.register import register

# What only reads or names: none of these waits for another rank, or for a lock of the backend's.
HARMLESS = {
    "_backend_id",
    "_device_types",
    "_get_backend",
    "_get_backend_name",
    "_has_hooks",
    "_id",
    "_register_backend",
    "_set_default_backend",
    "_set_group_desc",
    "_set_group_name",
    "bound_device_id",
    "get_backend",
    "boxed",
    "group_desc",
    "group_name",
    "name",
    "rank",
    "size",
    "unbox",
    "use_pg_for_symm_mem_rendezvous",
    "_pybind11_conduit_v1_",
}
# What a TopoGroup does by itself, with the plain group's help.
OWN = {
    "abort",
    "shutdown",
    "_get_sequence_number_for_group",
}
if has_extra("membership"):
    OWN |= {
        "get_reconfigure_handle",
        "reconfigure",
        "register_abort_hook",
        "unregister_abort_hook",
    }
else:  # torch's own answer is an error
    HARMLESS |= {"get_reconfigure_handle", "reconfigure"}


def methods() -> list[str]:
    """Return the names of the methods that the installed torch's ProcessGroup has."""
    names = [
        name
        for name, value in vars(dist.ProcessGroup).items()
        if callable(value) and not name.startswith("__")
    ]
    return sorted(name for name in names if not isinstance(getattr(dist.ProcessGroup, name), type))


@pytest.fixture(scope="module")
def group() -> Iterator[TopoGroup]:
    """Return the group of a launch of one rank."""
    register()
    dist.init_process_group("topo", store=HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    assert isinstance(world, TopoGroup)
    yield world
    dist.destroy_process_group()


class Recorder:
    """Stands in for a plain group: it remembers which of its methods were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.called.append(name)


@pytest.mark.parametrize("name", [name for name in methods() if name not in HARMLESS])
def test_method_is_defined_in_python(name: str) -> None:
    """Each method that may wait is found on a Python class before torch's own."""
    owner = next(cls for cls in TopoGroup.__mro__ if name in vars(cls))
    assert owner is not dist.ProcessGroup and owner.__module__.startswith("topoplan.")


@pytest.mark.parametrize("name", [name for name in methods() if name not in HARMLESS | OWN])
def test_method_reaches_the_plain_group(
    name: str, group: TopoGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called with what it has no plan for, each method calls the plain group, and not the base
    class.
    """
    recorder = Recorder()
    monkeypatch.setattr(group, "plain", recorder)
    getattr(group, name)(*_arguments(name))
    assert len(recorder.called) == 1


def _arguments(name: str) -> tuple[object, ...]:
    """Return arguments that no plan is for: two integers' tensors, below the least size."""
    import torch

    one = torch.ones(1, dtype=torch.int64)
    if name == "set_timeout":
        return (timedelta(minutes=5),)
    if "single_coalesced" in name or name.endswith("_coalesced"):
        return ([one, one], [one, one]) if "allreduce" not in name else ([one, one],)
    if name in (
        "all_gather_single",
        "_allgather_base",
        "reduce_scatter_single",
        "_reduce_scatter_base",
    ):
        return one, one
    if name in ("all_to_all_single", "alltoall_base"):
        return one, one, [], []
    if name in ("allreduce", "broadcast", "reduce"):
        return ([one, one],)
    if name in ("recv", "send"):
        return [one], 0, 1
    if name == "recv_anysource":
        return [one], 1
    if name in ("allgather", "reduce_scatter"):
        return [one, one], [one, one]
    return ()
