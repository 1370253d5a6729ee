"""A rank's role in a plan: whether it makes the plan's calls, and over which ranks.

Members make the calls of a plan; helpers pass on data for them; both are its participants; other
ranks do nothing. A transport is a group of ranks with what carries their messages. An extra adds
the roles of ranks if there are helpers (group `roles`).
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
        """Return the runners that send a member's messages, beginning with `first`.

        That one sends over the members' own links.
        """
        return [first]

    def explain(self) -> str:
        """Return why this rank, which is no member, makes no calls."""
        ranks = spell_ranks(self.plan.collective.members)
        return f"rank {self.label} takes no part in the plan, whose members are rank {ranks}"

    def serve(self, calls: int | None) -> int:
        """Return 0: only helpers carry bytes for others; raise InputError on a member.

        `calls`, how many calls to serve (None: until the members close), has no effect here.
        """
        if self.members is not None:
            raise InputError(f"rank {self.label} is a member of the plan; only helpers serve")
        return 0

    def count_relayed_bytes(self) -> dict[int, int]:
        """Return an empty dict: without helpers none has sent bytes.

        Raise InputError on a rank that is no member.
        """
        if self.members is None:
            raise InputError(self.explain())
        return {}

    def close(self, group: Transport) -> None:
        """End the role, and close its transport unless that is `group`, the communicator's own."""
        if self.members is not None and self.members is not group:
            self.members.close()


# Returns the role of a rank in a plan over a transport of all ranks. Collective.
FindRole = Callable[[Plan, Transport, "Codec | None"], Role]


def find_role(plan: Plan, transport: Transport, codec: Codec | None) -> Role:
    """Return this rank's role in a plan that all ranks of a transport hold. Collective.

    The transport has a rank for each GPU of the topology, in its order, or for each participant, in
    ascending order. `codec` compresses messages, if given. Raise PlanMismatchError if it has
    neither, InputError if the plan needs helpers and the extra for them is not installed.
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
    """Return each rank's number in the plan's topology, for a group of `size` ranks.

    Raise PlanMismatchError if the plan is for another number of ranks.
    """
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
    """Return a transport over the ranks `wanted`, which are numbers in a topology.

    `labels` has that number for each rank of `transport`. Collective over these ranks.
    """
    return transport.narrow([labels.index(label) for label in wanted], wanted)
