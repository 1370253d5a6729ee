"""Which ranks of a group take part in a plan, and the transports of members and participants."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...synth.ir.collective import spell_ranks
from ...synth.plan import Plan
from ...topo.errors import PlanMismatchError
from ..ranks.transport import Transport
from .announcer import Announcer


@dataclass(frozen=True)
class Parts:
    """This rank's part in a plan; `label` is its number in the plan's topology.

    `members` is the transport of the members alone, None on other ranks. `participants` is that of
    members and helpers, None on other ranks and for plans without helpers.
    """

    label: int
    members: Transport | None
    participants: Transport | None


def find_parts(plan: Plan, transport: Transport) -> Parts:
    """Return this rank's part in a plan that all ranks of a transport hold. Collective.

    The transport has a rank for each GPU of the topology, in its order, or for each participant,
    in ascending order. Raise PlanMismatchError if it has neither.
    """
    if transport.find_part(Announcer) is not None:  # the members of a group that others help
        return Parts(transport.control.label, transport, None)
    labels = _label_ranks(plan, transport.size)
    if plan.collective.has_all_gpus:
        return Parts(transport.control.label, transport, None)
    own, helpers = labels[transport.rank], plan.used_helpers
    members = plan.collective.members
    if not helpers and list(transport.control.labels) == list(members):
        return Parts(own, transport, None)
    taking_part = sorted((*members, *helpers))
    participants = (
        _narrow(transport, labels, taking_part) if helpers and own in taking_part else None
    )
    alone = _narrow(transport, labels, members) if own in members else None
    return Parts(own, alone, participants)


def _label_ranks(plan: Plan, size: int) -> Sequence[int]:
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


def _narrow(transport: Transport, labels: Sequence[int], wanted: Sequence[int]) -> Transport:
    return transport.narrow([labels.index(label) for label in wanted], wanted)
