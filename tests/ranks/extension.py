"""The runner and the layer of examples/extension, by their names in a policy."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks.checks import refused
from topoplan import Communicator, Policy, Schedule, backend_options, ddp_hook
from topoplan.runtime.program.contract import Listener, ObservedCalls


def choose(size_bytes: int, candidates: Sequence[Schedule]) -> Schedule:
    """Choose the runner's own, where it has one."""
    return next((x for x in candidates if x.label.endswith("gathered")), candidates[0])


class Noted:
    """An observer that counts calls by what carries them out."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def listen(self, calls: ObservedCalls) -> Listener:
        return Noting(self.calls, f"{calls.call} by {calls.label}")

    def begin_anew(self, size_bytes: int) -> None:
        """Calls of races count, too."""


class Noting:
    def __init__(self, calls: Counter[str], what: str) -> None:
        self._calls, self._what = calls, what

    def begin(self) -> None:
        """Only ends count."""

    def end(self, number: int | None) -> None:
        self._calls[self._what] += 1


def add_up(folder: str, allreduce: str, broadcast: str) -> dict[str, object]:
    """Carry out calls by both together, of one plan that the runner takes, and one it does not."""
    sys.path.insert(0, folder)
    from topoplan_extension.counted import BYTES

    rank, size = dist.get_rank(), dist.get_world_size()

    policy = Policy(choose=choose, runners=("gathered",), around=("counted",))
    adding = Communicator(allreduce, policy=policy)
    noted = Noted()
    adding.dispatcher.observe(noted)
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for numel in (5, 5, 5, 100_000):
            x = torch.arange(numel, dtype=dtype) * (rank + 1)
            wanted = torch.arange(numel, dtype=dtype) * 0
            for other in range(size):
                wanted += torch.arange(numel, dtype=dtype) * (other + 1)
            assert torch.equal(adding.allreduce(x), wanted)
    choice = adding.choice(20)
    assert choice is not None
    assert noted.calls[f"allreduce (SUM) of 5 elements of float32 by {choice.label}"] == 3
    x = torch.full((7,), float(rank))
    assert torch.equal(adding.allreduce(x, dist.ReduceOp.MAX), torch.full((7,), size - 1.0))
    sent = adding.dispatcher.runners["gathered"].sent_bytes
    copying = Communicator(broadcast, policy=policy)
    assert torch.equal(copying.broadcast(torch.full((3,), float(rank))), torch.zeros(3))
    raced = Communicator(allreduce, policy=Policy(runners=("gathered",)))
    raced.allreduce(torch.ones(1000))
    raced.allreduce(torch.ones(1 << 20))
    small, large = raced.choice(4000), raced.choice(4 << 20)
    assert small is not None and large is not None
    with refused("runners: gathered: its sums have other bits than messages'"):
        Communicator(allreduce, policy=Policy(runners=("gathered",), choose="same-bits"))
    return {
        "label": choice.label,
        "sent": sent,
        "bytes": dict(BYTES),
        "small": any(name.endswith("gathered") for name in small.raced),
        "large": any(name.endswith("gathered") for name in large.raced),
    }


def train(folder: str, allreduce: str, broadcast: str) -> dict[str, object]:
    """Use both in a group of the backend, whose collectives are of several kinds, and in a hook."""
    sys.path.insert(0, folder)
    from topoplan_extension.counted import BYTES

    rank = dist.get_rank()
    policy = Policy(choose=choose, least_bytes=0, runners=("gathered",), around=("counted",))
    options = backend_options([allreduce, broadcast], policy=policy)
    group = dist.new_group(backend="topo", pg_options=options)
    for _ in range(3):
        x = torch.full((11,), rank + 1.0)
        dist.all_reduce(x, group=group)
        assert (x == 3).all()
        y = torch.full((3,), rank + 1.0)
        dist.broadcast(y, 0, group=group)
        assert (y == 1).all()
    in_group = dict(BYTES)
    communicators = [x for x in group.communicators.values() if x is not None]
    sent = sum(x.dispatcher.runners["gathered"].sent_bytes for x in communicators)
    dist.destroy_process_group(group)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model.register_comm_hook(None, ddp_hook(allreduce, policy=policy))
    model(torch.ones(1, 8)).sum().backward()
    in_hook = BYTES["allreduce"] - in_group["allreduce"]
    del model
    return {"group": in_group, "sent": sent, "hook": in_hook}
