"""Which GPUs the plans of a re-formed group are for: those that its ranks have on the machine."""

from collections.abc import Sequence

from ....synth.ir.collective import Collective
from ....synth.plan import Plan
from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...backend.plan_files import PlanFiles
from ...backend.scope import Scope
from ...ranks.rank_locations import restrict


class SeatedScope(Scope):
    """Plans for ranks that are on the GPUs `seats` of the machine that the user named.

    Rank i of the group, whose global ranks are `ranks`, is on the GPU numbered seats[i]; this rank
    is number `rank`. A plan that was named for these GPUs is used, or else one is made. `whole`
    says that the group has all ranks of the launch.
    """

    insists = False

    def __init__(
        self, ranks: Sequence[int], rank: int, seats: Sequence[int], *, whole: bool
    ) -> None:
        super().__init__(ranks, rank, whole=whole)
        self.seats = seats

    def pick(self, source: PlanFiles | Topology, wanted: Collective) -> Plan | Topology:
        """Return the user's plan for `wanted` on these GPUs, or else the topology to make one for.

        `source` are the user's plans or topology. Raise InfeasibleError if the machine is not
        known, or has no GPU for a rank.
        """
        machine: Topology | None
        if isinstance(source, PlanFiles):
            machine = _find_machine(source, max(self.seats) + 1)
            plan = _find_spare(source, wanted, self.seats, machine)
            if plan is not None:
                return plan
        else:
            machine = source if max(self.seats) < len(source.ranks) else None
        if machine is None:
            raise InfeasibleError(
                f"the machine that was named has no GPU for each of {len(self.seats)} ranks"
            )
        return restrict(machine, self.seats)


def _find_machine(files: PlanFiles, gpus: int) -> Topology | None:
    """Return the machine of a plan over all of at least so many GPUs, None without such one."""
    for entry in files.entries:
        if not entry.members and entry.ranks >= gpus:
            return files.load(entry).topology
    return None


def _find_spare(
    files: PlanFiles, wanted: Collective, gpus: Sequence[int], machine: Topology | None
) -> Plan | None:
    """Return the plan for a collective over these GPUs of the `machine`, or None.

    It is one for these members, or one for a machine of these GPUs alone, as is made when the
    others are left out. If the machine is not known, a plan for as many GPUs will do.
    """
    own = files.find_among(wanted, gpus)
    if own is not None:
        return own
    ids = None if machine is None else [machine.ranks[gpu] for gpu in gpus]
    for entry in files.entries:
        if (entry.collective, entry.ranks, entry.root, entry.members) == (
            wanted.name,
            wanted.ranks,
            wanted.root,
            (),
        ):
            plan = files.load(entry)
            if ids is None or list(plan.topology.ranks) == ids:
                return plan
    return None
