"""A runner that another package adds: it exchanges whole tensors as objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ranks.checks import refused
from topoplan import Communicator, Policy
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.runners.contract import Opening, Runner, RunnerKind
from topoplan.synth.ir.schedule import Schedule


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
    with refused("no-such: expected one of"):
        Communicator(allreduce, policy=Policy(runners=("no-such",)))
    choice = raced.choice(4000)
    assert choice is not None
    return sorted(choice.raced)
