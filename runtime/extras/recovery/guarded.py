"""Run the calls of one plan under a guard, which recovers when a link is lost.

A dispatcher picks the schedule of each call of a plan; a stock collective is gloo's, NCCL's or
MPI's own, without a plan. A spare is a plan for the loss of some links, in the same file as the
plan.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from ....synth.plan import Plan
from ....topo.errors import ExecutionError, InfeasibleError, InputError
from ...candidates import Candidate
from ...compiled import Buffers, make_bindings
from ...dispatcher import CallPath, Dispatcher
from ...layers import MakePath
from ...program.layout import IN_PLACE, MEETING
from ...ranking import Candidates
from ...ranks.transport import Transport
from ...reductions import in_inference_mode
from ...runners.contract import Play
from ..replanning.segments import choose_segments, find_nearest
from .agreement import Decision
from .guard import Attempt, Guard, wait_for_ranks
from .replan import Replanner, import_planner

# Shapes of calls whose buffers are kept for the next call of that shape.
_MAX_SHAPES = 128

# The shape of a call: numbers of elements, dtype, reduction, and whether there is error feedback.
_Shape = tuple[Any, ...]


@dataclass(eq=False)
class _Private(Attempt):
    """A call of a plan on buffers that are not the user's, to be used again by later calls.

    `shape` is that of the call. `kept` is a copy of the input that the call does not write to,
    where one is needed.
    """

    planned: "Guarded"
    shape: _Shape
    buffers: Buffers
    kept: torch.Tensor | None

    def make(self, transport: Transport) -> None:
        planned = self.planned
        planned.renew(transport)
        planned.path.run(self.buffers)
        if planned.name not in MEETING:
            wait_for_ranks(transport)

    def pass_on(self, transport: Transport, server: int, *, has_ended: bool) -> None:
        planned, buffers = self.planned, self.buffers
        if planned.name == "allreduce":
            # Another order of additions would give other bits than those that some ranks have.
            _pass_on(planned.path, transport.control.labels[server], buffers.target)
            if not has_ended and buffers.residual is not None:
                # It is in the sum; what was rounded off in the attempt that failed is not known.
                buffers.residual.zero_()
            return
        if has_ended:
            source = (buffers.source if self.kept is None else self.kept).clone()
            target = source if planned.name in IN_PLACE else torch.empty_like(buffers.target)
            buffers = Buffers(buffers.numel, source, target, buffers.op)
        planned.path.run(buffers)

    def free(self) -> None:
        self.planned.take_back(self)


class Guarded:
    """Runs the calls of one plan under `guard`, whatever links are lost.

    `path` runs the calls over the guard's first transport, without stock collectives; `make_path`
    makes another path for the new plan and transport after a fault. `uses_spare` says whether the
    plan now in use is a spare.
    """

    def __init__(self, guard: Guard, path: CallPath, make_path: MakePath) -> None:
        self.guard, self.path, self._first = guard, path, path.base
        plan = path.base.plan
        self._make_path, self._replanner = make_path, Replanner(plan)
        self.name = plan.collective.name
        self._sent_before, self.uses_spare = 0, False
        self._free: dict[_Shape, list[_Private]] = defaultdict(list)
        guard.planned.append(self)
        guard.topology = guard.topology or plan.topology
        if path.base.transport.rank == 0 and not plan.spares:
            import_planner()  # now, since all ranks wait for the plan after a fault

    outlives_links = True

    def exchange(self, value: object) -> list[Any]:
        """Return all ranks' values in rank order, whatever links are lost. Collective."""
        return self.guard.exchange(value)

    @property
    def base(self) -> Dispatcher:
        """The dispatcher, which picks the schedule of a call, of the plan now in use."""
        return self.path.base

    @property
    def plan(self) -> Plan:
        """The plan that carried out calls before any fault."""
        return self._first.plan

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank has sent by schedules so far."""
        return self._sent_before + self.path.sent_bytes

    def run(self, users: Buffers, number: int | None = None) -> None:
        """Run the collective on the user's buffers, `users`, by another plan if a link is lost.

        They are written once the call has ended here. `number` is not used: the guard's transport
        counts its calls by itself. Raise ExecutionError if recovery is impossible.
        """
        in_inference_mode(self._run, users)

    def bind(self, buffers: Buffers) -> Play | None:
        """Return None: no call can be prepared, since each runs on private buffers in a thread."""
        return None

    def is_settled(self, buffers: Buffers) -> bool:
        """Return whether the schedule for calls of this size has been chosen."""
        return self.path.is_settled(buffers)

    def can_start_stock(self, buffers: Buffers) -> bool:
        """Return False: stock collectives are not used, since a wait in one cannot be abandoned."""
        return False

    def _run(self, users: Buffers) -> None:
        private = self.guard.run_call(partial(self._prepare, users))
        assert isinstance(private, _Private)
        if users.target.numel():
            users.target.copy_(private.buffers.target)
        if users.residual is not None and private.buffers.residual is not None:
            users.residual.copy_(private.buffers.residual)

    # Private buffers

    def _prepare(self, users: Buffers) -> _Private:
        """Return private buffers with the input of a call."""
        shape = (
            users.numel,
            users.source.numel(),
            users.target.numel(),
            users.target.dtype,
            users.op,
            users.residual is None,
        )
        free = self._free[shape]
        private = free.pop() if free else self._make_private(users, shape)
        if private.buffers.source.numel():
            private.buffers.source.copy_(users.source)
        if private.kept is not None:
            private.kept.copy_(users.source)
        if users.residual is not None and private.buffers.residual is not None:
            private.buffers.residual.copy_(users.residual)
        return private

    def _make_private(self, users: Buffers, shape: _Shape) -> _Private:
        target = torch.empty_like(users.target)
        source = target if self.name in IN_PLACE else torch.empty_like(users.source)
        residual = None if users.residual is None else torch.empty_like(users.residual)
        buffers = Buffers(users.numel, source, target, users.op, residual, make_bindings(target))
        return _Private(
            self, shape, buffers, torch.empty_like(source) if self.name == "reduce" else None
        )

    def take_back(self, private: _Private) -> None:
        """Keep the private buffers of an ended call for later calls of the same shape."""
        if len(self._free) > _MAX_SHAPES:
            self._free.clear()
        self._free[private.shape].append(private)

    # After a fault

    def foresee(self, decision: Decision) -> None:
        """Begin to plan without the links and pairs that `decision` says are lost.

        Call it on rank 0, before the decision is certain. If the plan has a spare for the loss, do
        nothing.
        """
        if self._first.plan.find_spare(decision.links, decision.unreached) is None:
            self._replanner.begin(decision.links, decision.unreached)

    def renew(self, transport: Transport) -> None:
        """Switch to a plan for the connections that are left over `transport`.

        Collective if a new plan is made. Raise InfeasibleError if there is no such plan,
        ExecutionError if another link was lost meanwhile.
        """
        if self.base.transport is transport:
            return
        decision, whole = self.guard.decision, self._first.plan
        plan: Plan | None = whole
        if decision.unreached:
            plan = whole.find_spare(decision.links, decision.unreached)
        self.uses_spare = bool(decision.unreached) and plan is not None
        with transport.faults.stock("the plan for what is left"):
            if plan is None:
                plan = self._await_plan(transport)
            if plan is not whole:
                plan.verify()
            try:
                path = self._make_path(plan, transport, self._find_worth)
            except InputError as error:  # such as a codec by which ranks would get different sums
                raise InfeasibleError(
                    f"without {self.guard.name_lost()} there is no plan that can be used: {error}"
                ) from error
        path.base.race_on_calls()
        for observer in self._first.observers:
            path.base.observe(observer)
        if self.guard.transport is not transport:
            raise ExecutionError("another link was lost meanwhile")
        self._sent_before, self.path = self.sent_bytes, path

    def _await_plan(self, transport: Transport) -> Plan:
        """Return the plan that rank 0 makes. Collective."""
        decision, mine = self.guard.decision, None
        if transport.rank == 0:
            mine = self._replanner.begin(decision.links, decision.unreached).result()
        plan: Plan | str = transport.control.exchange(mine)[0]
        if isinstance(plan, str):
            raise InfeasibleError(f"without {self.guard.name_lost()} there is no plan: {plan}")
        return plan

    def _find_worth(self, candidates: Candidates, size_bytes: int) -> list[Candidate]:
        """Return what to try on a job's own calls, the most promising first.

        There is no time for predictions and races: these are the plan's own in three segmentations,
        and what won before the fault, made for what is left.
        """
        plan, before = candidates.plan, self._first.choices.find(size_bytes)
        own = plan.entry_for(int(size_bytes * self._find_slowness(plan))).schedule
        segments = choose_segments(own, size_bytes)
        wanted = [(own, segments), (own, 4 * segments), (own, max(1, segments // 4))]
        if before is not None:
            won = before.own.schedule
            alike = [x.schedule for x in plan.entries if x.schedule.strategy == won.strategy]
            wanted = [(schedule, won.segments) for schedule in alike[-1:]] + wanted
        sent = [candidate.schedule for candidate in candidates.sent]
        nearest = dict.fromkeys(find_nearest(*each, sent) for each in wanted)
        return [candidates.send(schedule) for schedule in nearest]

    def _find_slowness(self, plan: Plan) -> Fraction:
        """Return how many times slower the machine's links are than those of the plan.

        Buffers are planned for as if they were as many times larger. 1 unless the machine has other
        rates than the plan, as an emulated one has.
        """
        machine = self._first.machine.topology
        there = {} if machine is None else machine.capacity_GBps
        rates = plan.topology.capacity_GBps.items()
        return min(
            (rate / there[link] for link, rate in rates if link in there), default=Fraction(1)
        )


def _pass_on(path: CallPath, server: int, tensor: torch.Tensor) -> None:
    """Give all ranks the bits of the `server`'s tensor."""
    base = path.base
    if not tensor.numel():
        return
    data = tensor.view(torch.uint8)
    mine = data.clone() if base.rank == server else torch.zeros_like(data)
    if (
        base.messages.codec is None
    ):  # the plan carries it fastest: a sum of bytes that others have as 0
        path.run(Buffers(mine.numel(), mine, mine))
    else:
        texts = base.transport.control.exchange(
            mine.numpy().tobytes() if base.rank == server else b""
        )
        text = bytearray(texts[base.transport.control.number_of(server)])
        mine = torch.frombuffer(text, dtype=torch.uint8)
    data.copy_(mine)
