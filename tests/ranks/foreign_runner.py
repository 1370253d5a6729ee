"""What another package adds: a runner that exchanges tensors as objects, a layer that counts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from needs import has_extra

from ranks.checks import refused
from topoplan import Communicator, Policy, backend_options
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.dispatcher import CallPath
from topoplan.runtime.layers import LayerKind, PlainLayer
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.runners.contract import Opening, Runner, RunnerKind
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan


class ByObjects(Runner):
    """Adds up what all ranks exchange as objects; of allreduces alone."""

    name = "by-objects"

    def __init__(self, opening: Opening) -> None:
        self.transport, self.calls = opening.transport, 0

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        return [Candidate(sent[0].schedule, self.name, "by objects")]

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        return None

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        return self.list_candidates(sent)

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        return None if buffers.op == dist.ReduceOp.SUM else "objects are added up alone"

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        with self.transport.faults.stock("an allreduce by objects", number):
            lists = self.transport.control.exchange(buffers.target.tolist())
        buffers.target.copy_(torch.tensor(lists, dtype=buffers.target.dtype).sum(0))
        self.calls += 1

    def bind(self, candidate: Candidate, buffers: Buffers) -> None:
        """Nothing is made beforehand."""


class Kind:
    def prepare(self, transport: Transport) -> str | None:
        return None

    def open(self, opening: Opening) -> Runner | str:
        if opening.plan.collective.name != "allreduce":
            return "objects are for allreduces"
        return ByObjects(opening)


KIND: RunnerKind = Kind()


class Counting(PlainLayer):
    """Counts calls."""

    why_no_group: ClassVar[str | None] = "groups of the backend: they count their calls themselves"

    @classmethod
    def why_not_plan(cls, plan: Plan) -> str | None:
        return None if plan.collective.name == "allreduce" else "broadcasts: allreduces alone count"

    def run(self, path: CallPath, buffers: Buffers, number: int | None = None) -> None:
        path.run(buffers, number)
        self.history.append({"at": 0.0, "numel": buffers.numel})


COUNTING: LayerKind = Counting


def count(folder: str, allreduce: str, broadcast: str) -> list[int]:
    """Put the layer around calls by its name, and see where it is refused."""
    sys.path.insert(0, folder)
    policy = Policy(around=("counting",))
    communicator = Communicator(allreduce, policy=policy)
    for numel in (5, 5, 5, 700):
        x = torch.ones(numel)
        communicator.allreduce(x)
        assert (x == dist.get_world_size()).all()
    with refused("around='counting' excludes broadcasts: allreduces alone count"):
        Communicator(broadcast, policy=policy)
    says = (
        "around='counting' excludes groups of the backend: they count their"
        if has_extra("layered-groups")
        else "the extra 'layered-groups' is not in this copy"
    )
    with refused(says):
        backend_options(policy=policy)
    with refused("around='counting': expected a tuple of names"):
        Policy(around="counting")  # type: ignore[arg-type]
    return [row["numel"] for row in communicator.recoveries]


def use(folder: str, allreduce: str, broadcast: str) -> list[str]:
    """Use it by its name, and see what a call does that it cannot carry out."""
    sys.path.insert(0, folder)

    def choose(size_bytes: int, candidates: Sequence[Schedule]) -> Schedule:
        (mine,) = (x for x in candidates if x.label.endswith("by objects"))
        return mine

    communicator = Communicator(allreduce, policy=Policy(choose=choose, runners=("by-objects",)))
    runner = communicator.dispatcher.runners["by-objects"]
    assert isinstance(runner, ByObjects)
    for op, calls in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.MAX, 1), (dist.ReduceOp.SUM, 2)):
        x = torch.full((5,), float(dist.get_rank()))
        communicator.allreduce(x, op)
        last = dist.get_world_size() - 1
        assert (x == (last if op == dist.ReduceOp.MAX else sum(range(last + 1)))).all()
        assert runner.calls == calls
    raced = Communicator(allreduce, policy=Policy(runners=("by-objects",)))
    raced.allreduce(torch.ones(1000))
    with refused("runners: by-objects: objects are for allreduces"):
        Communicator(broadcast, policy=Policy(runners=("by-objects",)))
    last = dist.get_rank() == dist.get_world_size() - 1
    with refused("runners: ranks 0 and 1 name"):
        Communicator(allreduce, policy=Policy(runners=("by-objects",) if last else ("other",)))
    twice = Communicator(allreduce, policy=Policy(runners=("by-objects", "by-objects")))
    assert len([x for x in twice.dispatcher.candidates.others if x.name == "by-objects"]) == 1
    with refused("no-such: expected one of"):
        Communicator(allreduce, policy=Policy(runners=("no-such",)))
    choice = raced.choice(4000)
    assert choice is not None
    return sorted(choice.raced)
