"""Tell helpers of each call that uses them, and play the members' part in it.

Helpers are ranks outside a group that forward bytes for the calls of its members; members and
helpers together are the participants.
"""

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch

from ....synth.ir.schedule import Schedule
from ....synth.plan import Plan
from ....topo.errors import ExecutionError, InputError
from ...codec import Codec
from ...compiled import Compiled
from ...observers import observe_links
from ...program.contract import Player, PlayError
from ...ranks.faults import Call, Faults
from ...ranks.store import put
from ...ranks.transport import Transport
from ...runners.programs import Messages
from .headers import Header, HeaderChannel, HeaderKind

log = logging.getLogger("topoplan")
# Identifies a schedule of a plan, whatever its routes and segments.
_Signature = tuple[object, ...]


class Announcer:
    """Tells the helpers what calls a group makes, for all communicators of the group.

    `transport` is over all participants. The first of `members` sends headers, the messages that
    tell helpers what to do; the other members only give plans the same numbers. `helpers` are all
    ranks that may help in a call, though a single call may use a part of them.
    """

    def __init__(
        self, transport: Transport, members: Sequence[int], helpers: Sequence[int]
    ) -> None:
        self.transport, self.members, self.helpers = transport, members, helpers
        self.is_leader = transport.control.label == members[0]
        self.channel = HeaderChannel(transport)
        self._is_over = False
        self._plans = 0
        transport.faults.find_mismatch = self._find_left

    def add_plan(self, plan: Plan, codec: Codec | None) -> int:
        """Give a plan a number, publish it in the store for the helpers, and return the number.

        `codec` compresses what the plan's calls send (None: nothing does). All members must add
        their plans in the same order, so that they give them the same numbers.
        """
        self._plans += 1
        if self.is_leader:
            given = {"plan": plan.to_json(), "compress": None if codec is None else codec.name}
            put(self.transport.faults.store, f"plan/{self._plans}", given)
        return self._plans

    def announce(self, header: Header, helpers: Iterable[int], call: Call) -> None:
        """Send `header` to `helpers` if this rank is the first member.

        If a connection fails, raise the ExecutionError for a failure of `call`, the current call.
        """
        if not self.is_leader:
            return
        for helper in helpers:
            try:
                self.channel.send(header, helper)
            except RuntimeError as error:
                raise self.transport.faults.stuck(call, "send", helper, 0, 0, error, {}) from error

    def count_sent(self) -> Mapping[int, int]:
        """Return the bytes each helper has sent so far; empty except on the first member."""
        if not self.is_leader:
            return {}
        call = self.transport.faults.begin("the counts of helpers' bytes")
        self.announce(Header(HeaderKind.COUNT), self.helpers, call)
        try:
            return {helper: self.channel.hear_count(helper) for helper in self.helpers}
        except RuntimeError as error:
            raise self.transport.faults.stuck_in_stock(call, error) from error

    def close(self) -> None:
        """Tell the helpers that no more calls will come, so that they stop serving."""
        if self._is_over:
            return
        self._is_over = True
        if self.is_leader and self.transport.faults.broken is None:
            say_left(self.transport.faults)
            self.channel.say_goodbye(self.helpers)

    def _find_left(self) -> ExecutionError | None:
        """Return the error for helpers that left before the members were done, None without any."""
        left = [helper for helper in self.helpers if has_left(self.transport.faults, helper)]
        if not left:
            return None
        me, names = self.transport.control.label, ", ".join(map(str, left))
        return ExecutionError(
            f"rank {me}: rank {names}, which helped, has left; helpers serve "
            "until the members have closed their communicators"
        )


def say_left(faults: Faults) -> None:
    """Record in the store of `faults` that this rank leaves on purpose, which is no failure."""
    try:
        faults.store.set(f"left/{faults.rank}", "yes")
    except RuntimeError as error:  # the store is gone, with the rank that hosted it
        log.info("rank %d: no store to say goodbye: %s", faults.rank, error)


def has_left(faults: Faults, rank: int) -> bool:
    """Return whether a participant left on purpose; False if the store of `faults` is gone."""
    try:
        return faults.store.check([f"left/{rank}"])
    except RuntimeError:
        return False


class HelpedMessages(Messages):
    """Sends a member's messages of schedules that use helpers, and announces each call to these.

    The helpers know `plan` by `number`. `faults` are those of the members' own transport, which a
    failed call also breaks. `announcer` tells the helpers; `codec` compresses what calls send.
    """

    name = "messages, helped"

    def __init__(
        self,
        announcer: Announcer,
        plan: Plan,
        number: int,
        codec: Codec | None,
        faults: Faults,
    ) -> None:
        super().__init__(announcer.transport, plan.topology, codec)
        observe_links(self, announcer.transport, plan.topology)
        announcer.transport.faults.topology = plan.topology
        self._announcer, self._plan_number, self._members = announcer, number, faults
        self._numbers = {sign_schedule(x): n for n, x in enumerate(plan.schedules)}
        # Signing a schedule takes longer than a small call.
        self._signed: weakref.WeakKeyDictionary[Compiled, int] = weakref.WeakKeyDictionary()

    def execute(self, compiled: Compiled, player: Player, number: int | None) -> None:
        """Announce a call to the schedule's helpers, then run this member's program by `player`.

        `compiled` is what `player` runs, on its buffers. The group's `number` of the call is not
        used. Raise InputError, over NCCL, if a CUDA graph captures the call, and ExecutionError if
        a rank fails.
        """
        if self.transport.links.is_batched and torch.cuda.is_current_stream_capturing():
            raise InputError(
                "a CUDA graph would replay this call without its helpers: leave helpers out "
                "(helpers='none', or a plan without them) where calls are captured"
            )
        # The participants count their calls by themselves: helpers are in some of the group's only.
        number, deadline = self.faults.admit()
        schedule = compiled.schedule
        try:
            self._announcer.announce(
                self._make_header(compiled, number),
                schedule.helpers,
                Call(compiled.call, number, deadline, self.topology),
            )
        except ExecutionError as error:
            self._members.break_off(error)
            raise
        super().execute(compiled, player, number)

    def _make_header(self, compiled: Compiled, number: int) -> Header:
        schedule = compiled.schedule
        signed = self._signed.get(compiled)
        if signed is None:
            signed = self._signed[compiled] = self._numbers[sign_schedule(schedule)]
        return Header(
            HeaderKind.CALL,
            self._plan_number,
            signed,
            schedule.segments,
            schedule.stepwise,
            compiled.numel,
            compiled.given_dtype,
            compiled.op,
            number,
        )

    def blame(
        self, compiled: Compiled, number: int, deadline: float, interrupted: PlayError
    ) -> ExecutionError:
        """Return the error to raise after a call was `interrupted`; it names the rank at fault.

        The call is number `number` of the program `compiled`, and had to end by `deadline`. Breaks
        the members' own transport, too.
        """
        error = super().blame(compiled, number, deadline, interrupted)
        self._members.break_off(error)
        return error


def sign_schedule(schedule: Schedule) -> _Signature:
    """Return a key equal for schedules with the same messages, whatever routes these take."""
    t = schedule.transfers
    columns = (t.step, t.src, t.dst, t.chunk, t.op)
    return (schedule.strategy, *(column.tobytes() for column in columns))
