"""What the plans of a group are for: which GPUs of a machine, and which of the user's plans fit.

A launch is all ranks that were started together; a group has some of them. Modules that read and
change machines are imported only if there is a machine to plan for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from ...synth.ir.collective import Collective
from ...synth.ir.demands import Demands
from ...synth.plan import Plan
from ...topo.errors import PlanMismatchError
from ...topo.graph import Topology
from .plan_files import PlanFiles


class Scope:
    """Plans for exactly the ranks of a group, in their order; extras have other scopes.

    `ranks` are the group's global ranks, of which this rank is `ranks[rank]`. `whole` says that
    these are all ranks of the launch: then the plans that the user named must fit it. Other groups
    go without a plan if none fits. `helpers` are ranks that pass on data for the group; here none.
    Demands are collectives of which each piece is listed, with the ranks that hold and need it.
    """

    insists = True
    """Whether calls wait for the plans that the user named, and fail if these cannot be used."""
    helpers: Sequence[int] = ()
    """The numbers of GPUs that may pass on data for the group."""

    def __init__(self, ranks: Sequence[int], rank: int, *, whole: bool) -> None:
        self.ranks, self.rank, self.whole = list(ranks), rank, whole
        self.seats: Sequence[int] = self.ranks
        """The ranks' numbers in plans for some of the GPUs of a larger machine."""
        self.listed: dict[str, Demands] = {}
        """The collectives whose pieces are listed, by name; an extra adds them."""

    def is_within(self, device: str) -> bool:
        """Return whether plans for a device type number ranks as a larger machine does.

        False here.
        """
        return False

    def describe(self, name: str, root: int | None, device: str) -> Collective:
        """Return the collective that a plan is wanted for, on tensors of a device type.

        `name` is the collective's, `root` the root's number in the group, if it has one. Here it is
        the same for all `device` types.
        """
        return self.listed.get(name) or Collective(name, len(self.ranks), root)

    def find_machine(
        self, store: Store, device: torch.device, timeout: timedelta, stop: threading.Event
    ) -> Topology | None:
        """Return the machine of the group's ranks on its first rank, and None on the others.

        Collective over the group, whose `store` it uses. `device` is that of this rank's tensors.
        Raise InputError if ranks share a GPU or a host cannot be probed, RuntimeError if a rank
        does not answer within `timeout`, or `stop` is set.
        """
        from ..ranks.rank_locations import find_machine

        gpu = device.index if device.type == "cuda" else None
        store = PrefixStore(device.type, store)
        return find_machine(store, self.rank, self.seats, gpu, timeout, stop)

    def pick(self, source: PlanFiles | Topology, wanted: Collective) -> Plan | Topology | None:
        """Return the plan for `wanted` in the user's plans, or the topology to synthesize it for.

        `source` is those plans, or a topology. None if there is neither. Raise PlanMismatchError if
        what was named must fit the launch and does not.
        """
        if isinstance(source, PlanFiles):
            if isinstance(wanted, Demands):  # files say nothing of a rank's part for itself
                return None
            return source.find(wanted, strict=self.whole, ranks=self.ranks)
        if self.whole and len(source.ranks) != wanted.ranks:
            raise PlanMismatchError(
                f"topology {source.name!r} has {len(source.ranks)} GPUs, the group has "
                f"{wanted.ranks} ranks; start as many"
            )
        if max(self.ranks) >= len(source.ranks):
            return None
        from ..ranks.rank_locations import restrict

        return restrict(source, self.ranks)
