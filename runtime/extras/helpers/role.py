"""The roles of ranks in plans with helpers: members make calls, helpers forward bytes for them."""

from __future__ import annotations

import weakref

from ....synth.ir.collective import spell_ranks
from ....synth.plan import Plan
from ...codec import Codec
from ...ranks.transport import Transport
from ...roles import Role, label_ranks, narrow
from ...runners.programs import Messages
from .announcer import Announcer, HelpedMessages
from .service import Service


class HelpedRole(Role):
    """The role of a member: it makes calls, and announces them to the helpers by `announcer`.

    `label` is this rank's number in the plan, `members` the transport over the members, `codec`
    compresses what calls send (None: nothing does). `owns` says that the announcer is for this plan
    alone, so that `close` closes it too.
    """

    def __init__(
        self,
        plan: Plan,
        label: int,
        members: Transport,
        announcer: Announcer,
        codec: Codec | None,
        *,
        owns: bool,
    ) -> None:
        super().__init__(plan, label, members)
        self._announcer, self._codec, self._owns = announcer, codec, owns
        self._number = 0 if owns else announcer.add_plan(plan, codec)
        self._faults = members.faults
        if owns:
            weakref.finalize(self, announcer.close)

    def list_senders(self, first: Messages) -> list[Messages]:
        """Return `first`, for schedules without helpers, and a sender for those with helpers."""
        helped = HelpedMessages(self._announcer, self.plan, self._number, self._codec, self._faults)
        return [first, helped]

    def count_relayed_bytes(self) -> dict[int, int]:
        """Return the bytes that each helper has sent for the members so far, by its rank."""
        if not self._owns:
            return {}
        assert self.members is not None
        with self.members.faults.stock("the counts of helpers' bytes"):
            return dict(self.members.control.exchange(self._announcer.count_sent())[0])

    def close(self, group: Transport) -> None:
        """Let the helpers go, and close the role's transports but not `group`, the group's own."""
        if self._owns:
            self._announcer.close()
        super().close(group)
        if self._owns and self._announcer.transport is not group:
            self._announcer.transport.close()


class HelperRole(Role):
    """The role of a helper: it makes no calls, and forwards bytes for those of the members.

    `label` is this rank's number in the plan; `participants` is the transport over members and
    helpers; `codec` compresses what calls send (None: nothing does).
    """

    def __init__(
        self, plan: Plan, label: int, participants: Transport, codec: Codec | None
    ) -> None:
        super().__init__(plan, label, None)
        self._participants = participants
        self._service = Service(participants, plan.collective.members, lambda _: (plan, codec))

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]
        """The bytes that this helper has sent for the members so far."""
        return self._service.sent_bytes

    def explain(self) -> str:
        """Return why this rank, a helper, cannot make calls, for error messages."""
        ranks = spell_ranks(self.plan.collective.members)
        return (
            f"rank {self.label} is a helper of the plan: its members, rank {ranks}, make the "
            "calls, helpers call serve()"
        )

    def serve(self, calls: int | None) -> int:
        """Forward bytes for `calls` calls (None: until the members end); return how many."""
        return self._service.serve(calls)

    def close(self, group: Transport) -> None:
        """Stop serving, which makes later calls fail; close all transports but `group`."""
        self._service.leave()
        if self._participants is not group:
            self._participants.close()


def find_role(plan: Plan, transport: Transport, codec: Codec | None) -> Role:
    """Return this rank's role in a plan with helpers: member, helper, or neither.

    `transport` has a rank for each participant; `codec` compresses what calls send. Collective.
    """
    announcer = transport.find_part(Announcer)
    if announcer is not None:  # of a group of the backend, whose members this transport joins
        return HelpedRole(plan, transport.control.label, transport, announcer, codec, owns=False)
    labels = label_ranks(plan, transport.size)
    own, members, helpers = labels[transport.rank], plan.collective.members, plan.used_helpers
    taking_part = sorted((*members, *helpers))
    participants = narrow(transport, labels, taking_part) if own in taking_part else None
    alone = narrow(transport, labels, members) if own in members else None
    if alone is not None and participants is not None:
        announcer = Announcer(participants, members, helpers)
        return HelpedRole(plan, own, alone, announcer, codec, owns=True)
    if participants is not None:
        return HelperRole(plan, own, participants, codec)
    return Role(plan, own, None)
