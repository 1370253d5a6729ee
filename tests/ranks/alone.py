"""Groups of the backend "topo" whose ranks share a store and no default group, as torchft makes its
groups.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, PrefixStore

from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.ranks.groups import describe_place

WORDS = 1 << 12
TIMEOUT = timedelta(seconds=60)


def without_a_default_group(plans: list[str]) -> list[str]:
    """Make a group in a store, use it through its plans and past them, and make a second one after
    its end.
    """
    store, rank, size = (
        dist.distributed_c10d._get_default_store(),
        dist.get_rank(),
        dist.get_world_size(),
    )
    dist.destroy_process_group()
    said = []
    for number in range(2):
        place = describe_place(
            PrefixStore(f"quorum{number}", store), rank, size, TIMEOUT, f"replicas{number}"
        )
        group = TopoGroup(place, backend_options(plans, "plan", least_bytes=0))
        _check_collectives(group, rank, size)
        sent = group.communicators["allreduce", None, "cpu"]
        assert sent is not None
        said.append(f"{sent.plan.collective.name} over {sent.size}")
        group.shutdown()
    assert not dist.is_initialized()
    return said


def numbered_otherwise_than_the_default_group(plans: list[str]) -> list[int]:
    """Beside a default group: ranks count in the store's group, in which their order is the
    reverse.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    store = PrefixStore("reverse", dist.distributed_c10d._get_default_store())
    group = TopoGroup(
        describe_place(store, size - 1 - rank, size, TIMEOUT, "reverse"),
        backend_options(plans, "plan", least_bytes=0),
    )
    assert group.rank() == size - 1 - rank
    _check_collectives(group, group.rank(), size)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)  # the default group is as it was
    return [int(tensor.item())]


def _check_collectives(group: TopoGroup, rank: int, size: int) -> None:
    tensor = torch.full((WORDS,), rank + 1.0)
    group.allreduce([tensor]).wait()
    assert tensor.eq(size * (size + 1) / 2).all()
    part, whole = torch.full((WORDS,), float(rank)), torch.empty(size * WORDS)
    group._allgather_base(whole, part).wait()
    assert whole.view(size, WORDS)[:, 0].tolist() == list(range(size))
    told = torch.full((WORDS,), float(rank))
    group.broadcast(told, 1).wait()  # no plan for it: gloo's
    assert told.eq(1).all()
    group.barrier(BarrierOptions()).wait()
