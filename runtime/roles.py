"""A rank's role in a plan: whether it makes the plan's calls, and over which ranks.

An extra adds the roles of ranks that help (group `roles`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..extras import ROLES, Names
from ..synth.ir.collective import spell_ranks
from ..synth.plan import Plan
from ..topo.errors import InputError, PlanMismatchError
from .codec import Codec
from .ranks.transport import Transport
from .runners.programs import Messages


class Role:
    """The role of a rank that makes a plan's calls, or takes no part in them.

    `label` is its number in the plan's topology. `members` is the transport of the members alone,
    None on other ranks.
    """

    sent_bytes: int = 0
    """Bytes that a rank has sent which makes no calls."""

    def __init__(self, plan: Plan, label: int, members: Transport | None) -> None:
        self.plan, self.label, self.members = plan, label, members

    def list_senders(self, first: Messages) -> list[Messages]:
        """Return what sends the members' messages; `first` does over their own links."""
        return [first]

    def explain(self) -> str:
        """Return why this rank, which is no member, makes no calls."""
        ranks = spell_ranks(self.plan.collective.members)
        return f"rank {self.label} takes no part in the plan, whose members are rank {ranks}"

    def serve(self, calls: int | None) -> int:
        """Carry bytes for the members' calls, as helpers do, and return how many were served."""
        if self.members is not None:
            raise InputError(f"rank {self.label} is a member of the plan; only helpers serve")
        return 0

    def count_relayed_bytes(self) -> dict[int, int]:
        """Return the bytes that each helper has sent for the members so far, by its rank."""
        if self.members is None:
            raise InputError(self.explain())
        return {}

    def close(self, group: Transport) -> None:
        """End the role, and close its transports, but not that of the group."""
        if self.members is not None and self.members is not group:
            self.members.close()


# Returns the role of a rank in a plan over a transport of all ranks. Collective.
FindRole = Callable[[Plan, Transport, "Codec | None"], Role]


def find_role(plan: Plan, transport: Transport, codec: Codec | None) -> Role:
    """Return this rank's role in a plan that all ranks of a transport hold. Collective.

    The transport has a rank for each GPU of the topology, in its order, or for each participant,
    in ascending order. Raise PlanMismatchError if it has neither, InputError if the extra for such
    roles is not here.
    """
    if plan.used_helpers:
        find_other: FindRole = Names(ROLES).find("helpers")
        return find_other(plan, transport, codec)
    labels, collective = label_ranks(plan, transport.size), plan.collective
    if collective.has_all_gpus:
        return Role(plan, transport.control.label, transport)
    own, members = labels[transport.rank], collective.members
    if list(transport.control.labels) == list(members):
        return Role(plan, own, transport)
    return Role(plan, own, narrow(transport, labels, members) if own in members else None)


def label_ranks(plan: Plan, size: int) -> Sequence[int]:
    """Return the numbers in the plan's topology of a group's ranks."""
    collective, gpus = plan.collective, len(plan.topology.ranks)
    if collective.has_all_gpus:
        if size != collective.ranks:
            raise PlanMismatchError(
                f"the plan is for {collective.ranks} ranks, the group has {size}; "
                "start as many ranks, or synthesize a plan for this number"
            )
        return range(size)
    participants = sorted((*collective.members, *plan.used_helpers))
    if size == gpus:
        return range(size)
    if size == len(participants):
        return participants
    fewer = f" or {len(participants)} (rank {spell_ranks(participants)})"
    raise PlanMismatchError(
        f"the plan is for {collective} of {gpus} GPUs, with {_spell_helpers(plan)}; the group has "
        f"{size} ranks, expected {gpus} (one for each GPU)"
        f"{fewer if len(participants) < gpus else ''}, in their order"
    )


def _spell_helpers(plan: Plan) -> str:
    helpers = plan.used_helpers
    if not helpers:
        return "no helpers"
    return f"helper{'s' if len(helpers) > 1 else ''} {spell_ranks(helpers)}"


def narrow(transport: Transport, labels: Sequence[int], wanted: Sequence[int]) -> Transport:
    """Return a transport over some of the ranks, given by their numbers in the topology."""
    return transport.narrow([labels.index(label) for label in wanted], wanted)
