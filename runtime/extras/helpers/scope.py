"""Which GPUs the plans of a group with helpers cover: its members' and helpers' in the launch."""

import threading
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store

from ....synth.ir.collective import Collective
from ....synth.plan import Plan
from ....topo.errors import PlanMismatchError
from ....topo.graph import Topology
from ...backend.plan_files import PlanFiles
from ...backend.scope import Scope
from ...ranks.rank_locations import find_machine


@dataclass(frozen=True)
class Launch:
    """The launch around a group with helpers; all ranks are numbered as in the launch.

    `members` are the group's ranks, `helpers` other ranks that forward bytes for them, for tensors
    on the device type `device` ("cpu" or "cuda") only. `rank` is this rank, `size` the number of
    all ranks, `store` the one that all of them share.
    """

    members: tuple[int, ...]
    helpers: tuple[int, ...]
    rank: int
    size: int
    store: Store
    device: str

    def find_machine(
        self, gpu: int | None, timeout: timedelta, stop: threading.Event | None = None
    ) -> Topology | None:
        """Return the topology of all ranks on the first member, None on the others. Collective.

        `gpu` is this rank's CUDA device, None for tensors on CPUs; `timeout` limits the wait, and
        setting `stop` ends it.
        """
        return find_machine(
            self.store, self.rank, range(self.size), gpu, timeout, stop, self.members[0]
        )


class HelpedScope(Scope):
    """Plans for a group's members on the machine of the whole launch, in which others help."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch.members, launch.members.index(launch.rank), whole=False)
        self.launch, self.helpers = launch, launch.helpers

    def is_within(self, device: str) -> bool:
        """Return whether plans for a device type also cover GPUs of ranks that are no members.

        They do for the device type for which the group has helpers.
        """
        return device == self.launch.device

    def describe(self, name: str, root: int | None, device: str) -> Collective:
        """Return the collective `name` to plan over the members; `root` is its group number."""
        if not self.is_within(device):
            return super().describe(name, root, device)
        members = self.launch.members
        return Collective(name, len(members), None if root is None else members[root], members)

    def find_machine(
        self, store: Store, device: torch.device, timeout: timedelta, stop: threading.Event
    ) -> Topology | None:
        """Return the topology to plan for on the group's first rank, and None on the others.

        Collective over the whole launch if tensors on `device` are helped, else over the group.
        Setting `stop` ends the wait.
        """
        if not self.is_within(device.type):
            return super().find_machine(store, device, timeout, stop)
        return self.launch.find_machine(
            device.index if device.type == "cuda" else None, timeout, stop
        )

    def pick(self, source: PlanFiles | Topology, wanted: Collective) -> Plan | Topology | None:
        """Return the plan for the collective `wanted`, or the topology to plan for.

        `source` are the user's files of plans, or a topology. Return None if the files have nothing
        for `wanted`. If helpers may help `wanted`, the plan or topology must have a GPU for each
        rank of the launch: raise PlanMismatchError if it does not.
        """
        if wanted.has_all_gpus:
            return super().pick(source, wanted)
        picked = (
            source.find(wanted, strict=False, ranks=self.ranks)
            if isinstance(source, PlanFiles)
            else source
        )
        topology = picked.topology if isinstance(picked, Plan) else picked
        if topology is not None and len(topology.ranks) != self.launch.size:
            raise PlanMismatchError(
                f"topology {topology.name!r} has {len(topology.ranks)} GPUs, {self.launch.size} "
                "ranks run; a group with helpers needs a topology of all of them"
            )
        return picked
