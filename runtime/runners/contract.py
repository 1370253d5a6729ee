"""The contract of runners, and how those that extras and other packages add are opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from ...extras import RUNNERS, Names
from ...synth.ir.schedule import Schedule
from ...synth.plan import Plan
from ...topo.errors import TopoplanError
from ..candidates import Candidate
from ..compiled import describe_call
from ..program.contract import Observed, ObservedCalls
from ..ranks.transport import Transport
from ..reductions import ReduceOp

if TYPE_CHECKING:
    from ..compiled import Buffers

# Carries out a call; it takes the call's number in its group (None: the next one).
Play = Callable[..., None]


class Runner(Observed, ABC):
    """Carries out candidates on the buffers of calls; `sent_bytes` counts what this rank sends.

    All ranks of a group have the same runners, and give the same answers, which depend on nothing
    but what they have agreed on.
    """

    name: ClassVar[str]
    stages: ClassVar[bool] = False
    """Whether a call takes the staging memory that the schedule's messages need."""
    binds: ClassVar[bool] = True
    """Whether `bind` may return something."""
    sent_bytes: int = 0

    @abstractmethod
    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return what this runner may carry out; `sent` are those that are sent as messages."""

    @abstractmethod
    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return how one of the plan's schedules is carried out, None if it cannot be."""

    @abstractmethod
    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return those of its candidates worth trying for a size, the most promising first.

        `sent` are those worth sending as messages, in this order; if `is_alone`, they are not
        tried themselves.
        """

    @abstractmethod
    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """Return why a call cannot be carried out, so that it has to be sent as messages; or None.

        It may make the program of the call.
        """

    @abstractmethod
    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call that `can` allows.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        Raise ExecutionError, naming the rank to blame, if a peer fails or the deadline passes.
        """

    @abstractmethod
    def bind(self, candidate: Candidate, buffers: Buffers) -> Play | None:
        """Return a function that repeats `run` on buffers with `bindings`, quickly.

        None if a call takes more than running one program.
        """

    # A runner may keep nothing.
    def forget(self, numel: int, dtype: torch.dtype, keep: Candidate | None) -> None:
        """Free what is kept for calls of a number of elements, except those of `keep`."""


@dataclass(frozen=True)
class Opening:
    """What a runner is opened for: the calls of a plan over a transport.

    If it `keeps_bits`, results must be those of messages, bit for bit.
    """

    plan: Plan
    transport: Transport
    keeps_bits: bool


class RunnerKind(Protocol):
    """How a runner is opened; the answers are the same on all ranks."""

    def prepare(self, transport: Transport, /) -> str | None:
        """Return why a transport's ranks cannot have the runner, None if they can.

        Collective the first time.
        """

    def open(self, opening: Opening, /) -> Runner | str:
        """Return the runner, or why there is none. Collective like `prepare`, which it may call."""


class WholeCalls(Runner):
    """A runner that carries out whole calls by itself, whatever the plan's schedules.

    It is its own RunnerKind, so that a package names the class in its entry point. `way` names it
    in tables, beside a schedule that stands for all. It takes plans for the `collectives` alone,
    calls that reduce by one of `ops` (None: all calls), and is worth trying for those of up to
    `most_bytes` (None: for all).
    """

    way: ClassVar[str]
    collectives: ClassVar[tuple[str, ...]]
    ops: ClassVar[tuple[ReduceOp, ...] | None] = None
    most_bytes: ClassVar[int | None] = None

    def __init__(self, opening: Opening) -> None:
        self.transport = opening.transport
        self._collective = opening.plan.collective
        self._candidates: list[Candidate] = []

    @classmethod
    def prepare(cls, transport: Transport, /) -> str | None:
        """Return why a transport's ranks cannot have the runner, None if they can.

        Nothing is prepared.
        """
        return None

    @classmethod
    def open(cls, opening: Opening, /) -> Runner | str:
        """Return the runner, or why there is none.

        There is none where bits have to be those of messages.
        """
        return "its sums have other bits than messages'" if opening.keeps_bits else cls(opening)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return what this runner may carry out; `sent` are those that are sent as messages."""
        first = sent[: self._collective.name in self.collectives]
        self._candidates = [Candidate(x.schedule, self.name, self.way) for x in first]
        return self._candidates

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return None: a schedule that is asked for is sent as messages."""
        return None

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return those of its candidates worth trying for a size, the most promising first."""
        is_worth = self.most_bytes is None or size_bytes <= self.most_bytes
        return self._candidates if is_worth else []

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """See Runner."""
        is_fit = self.ops is None or buffers.op in self.ops
        return None if is_fit else f"{self.way}: it does not reduce so"

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call that `can` allows."""
        self.bind(candidate, buffers)(number)

    def bind(self, candidate: Candidate, buffers: Buffers) -> Play:
        """Return a function that repeats `run` on buffers with `bindings`, quickly.

        Observers hear of the calls.
        """
        collective, dtype = self._collective, buffers.target.dtype
        op = buffers.op if collective.reduces else None
        call = describe_call(collective.name, op, collective.root, buffers.numel, dtype)
        size_bytes = buffers.numel * dtype.itemsize
        listeners = self.listen(ObservedCalls(call, candidate.label, size_bytes))
        play = self.make(buffers)

        def run(number: int | None = None) -> None:
            play(number)
            for listener in listeners:
                listener.end(number)

        return run

    @abstractmethod
    def make(self, buffers: Buffers) -> Play:
        """Return a function that carries out a call on buffers, again and again.

        It takes the number of the call, and adds to `sent_bytes`. Raise like `run`.
        """


@dataclass
class _Found:
    """Why some rank lacks a runner, by its name; None where all have it."""

    why_not: dict[str, str | None] = field(default_factory=dict)


def open_runner(name: str, opening: Opening) -> Runner | str:
    """Return the runner that has a name in the group `runners` of extras, or why there is none.

    What one rank lacks, none uses. Collective.
    """
    kind = _find_kind(name, opening.transport)
    return kind if isinstance(kind, str) else kind.open(opening)


def prepare_runner(name: str, transport: Transport) -> None:
    """Let a runner of a transport's ranks be prepared, before a plan is at hand. Collective."""
    kind = _find_kind(name, transport)
    if not isinstance(kind, str):
        kind.prepare(transport)


def _find_kind(name: str, transport: Transport) -> RunnerKind | str:
    """Return how a runner is opened, or why some rank lacks it. Collective the first time."""
    found = transport.find_part(_Found) or _Found()
    transport.attach(found)
    kind: RunnerKind | None = None
    why_not: str | None = None
    try:
        kind = Names(RUNNERS).find(name)
    except TopoplanError as error:
        why_not = str(error)
    if name not in found.why_not:
        found.why_not[name] = transport.control.agree(why_not)
    agreed = found.why_not[name]
    if kind is None or agreed is not None:
        return agreed or why_not or name
    return kind
