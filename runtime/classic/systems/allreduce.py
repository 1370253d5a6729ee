"""Systems that average gradients by one allreduce a bucket: a plan's, a ring's, a hierarchical one, or the backend's own."""

from __future__ import annotations

import json
from typing import ClassVar

import torch.distributed as dist

from ....synth.plan import Plan
from ....topo.errors import InputError
from ....topo.graph import Topology
from ....topo.presets import preset
from ...communicator import Communicator
from ..base import Averaging, Setting
from ..buckets import Flats

_SYNTHESIS_S = 20.0


def ring_bytes(ranks: int, size_bytes: int) -> int:
    """What each rank sends in a ring allreduce, which is gloo's."""
    return 2 * (ranks - 1) * size_bytes // ranks


class Planned(Averaging):
    """The plan's schedules through the executor (Communicator), chosen for each size as `choose` says; so "race" takes the
    backend's own allreduce where that is faster. `report()["schedules"]` says what was used.
    """

    name = "plan"
    promise = (
        "replicas bitwise equal after every step; the schedules are verified, and their bandwidth has a proved bound"
    )
    source = "this package; Cai et al., Synthesizing Optimal Collective Algorithms (SCCL), PPoPP 2021, for the model"
    takes_plan = True
    strategy: ClassVar[str] = "auto"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        plan = setting.plan if setting.plan is not None else self._synthesized(setting)
        choose = setting.choose if self.strategy == "auto" else "model"  # else stock could take its place
        self._communicator = Communicator(plan, setting.group, setting.timeout, choose)
        self._check(self._communicator.plan)
        self._before, self._stock_bytes = self._communicator.wire_bytes, 0

    @property
    def bytes_sent(self) -> int | None:
        """See System; races on scratch memory count. None where the backend's own allreduce won one, and is not gloo's."""
        stock = self._stock_bytes
        return None if stock and self.mail.batched else self._communicator.wire_bytes - self._before + stock

    def average(self, flats: Flats) -> None:
        """See Averaging."""
        for flat in flats:
            self._communicator.allreduce(flat.div_(len(self.workers)))
            choice = self._communicator.choice(flat.nbytes)
            if choice is not None and choice.schedule is None:
                self._stock_bytes += ring_bytes(len(self.workers), flat.nbytes)

    def report(self) -> dict[str, object]:
        """`schedules`: what is used, by the size of a bucket in bytes."""
        sizes = {flat.nbytes for flat in self._flats}
        chosen = {
            size: choice.label for size in sorted(sizes) if (choice := self._communicator.choice(size)) is not None
        }
        return {"schedules": chosen}

    def _synthesized(self, setting: Setting) -> Plan:
        """A plan of this system's strategy for the topology, found on rank 0."""

        def find() -> str:
            from ....synth.synthesize import (  # rank 0 alone needs the solvers, which load slowly
                collective_on,
                synthesize,
            )

            topology = setting.topology if setting.topology is not None else self._default_topology(setting)
            if len(topology.ranks) != len(setting.workers):
                raise InputError(
                    f"topology {topology.name!r} has {len(topology.ranks)} GPUs, there are {len(setting.workers)} workers"
                )
            found = synthesize(collective_on("allreduce", topology), topology, self.strategy, _SYNTHESIS_S)
            return json.dumps(found.plan.to_json())

        return Plan.loads(setting.told(find), self.name)

    def _default_topology(self, setting: Setting) -> Topology:
        raise InputError(f"{self.name} needs a plan, or a topology to make one for")

    def _check(self, plan: Plan) -> None:
        if plan.collective.name != "allreduce":
            raise InputError(f"{self.name} needs a plan for allreduce, this one is for {plan.collective.name}")
        for schedule in plan.schedules:
            if self.strategy not in ("auto", schedule.strategy):
                raise InputError(
                    f"{self.name} takes plans of that strategy alone, this one has {schedule.strategy}, too"
                )
        plan.check_same_bits()


class Ring(Planned):
    """Every part of a bucket travels around a Hamiltonian cycle of the GPUs, once to be added up and once to be handed on:
    over the topology's best cycles in both directions, weighted, or over the ring of ranks where no topology is given.
    """

    name = "ring"
    promise = "replicas bitwise equal after every step; every rank sends 2 (n - 1) / n of the gradients, whatever n is"
    source = "Patarasuk and Yuan, JPDC 2009; Gibiansky, Baidu, 2017; Sergeev and Del Balso, Horovod, arXiv 1802.05799"
    strategy = "ring"

    def _default_topology(self, setting: Setting) -> Topology:
        return preset(f"ring:{len(setting.workers)}")


class Hierarchical(Planned):
    """Gradients are reduced inside each box, lane by lane between boxes, and handed on inside (strategies/hierarchical.py)."""

    name = "hierarchical"
    promise = "replicas bitwise equal after every step; between boxes goes each part of a box's sum, not of a GPU's"
    source = (
        "Jia et al., arXiv 1807.11205, section 4.2 (hierarchical allreduce); Goyal et al., arXiv 1706.02677, section 4"
    )
    strategy = "hierarchical"


class Stock(Averaging):
    """torch.distributed.all_reduce on each flat bucket, after backward; DDP does the same during backward."""

    name = "stock"
    promise = "whatever the backend promises: the mean of the gradients on every rank"
    source = "torch.distributed.all_reduce"

    def average(self, flats: Flats) -> None:
        """See Averaging."""
        ranks = len(self.workers)
        for number, flat in enumerate(flats):
            with self.faults.stock(f"{self.name}, step {self.steps}, bucket {number}"):
                dist.all_reduce(flat.div_(ranks), group=self.setting.group)
            self.mail.bytes_sent += ring_bytes(ranks, flat.nbytes)

    @property
    def bytes_sent(self) -> int | None:
        """What gloo's ring sends: 2 (n - 1) / n of the buckets. None for other backends, which choose among algorithms."""
        return None if self.mail.batched else self.mail.bytes_sent
