"""The contract of runners, and how those that extras and other packages add are opened.

A runner carries out candidates: schedules of a plan, each with a way to carry it out. Most runners
send messages or read shared memory. Buffers are what a call works on: its input and output, and its
reduction. A transport is a group of ranks with what carries their messages. Observers are told of
calls.
"""

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
    """What carries out candidates on the buffers of calls, alike on all ranks of a group.

    `name` is what candidates name it by, `sent_bytes` counts what this rank has sent so far. All
    ranks have the same runners, and these give the same answers, which depend on nothing but what
    the ranks have agreed on.
    """

    name: ClassVar[str]
    stages: ClassVar[bool] = False
    """Whether a call takes the staging memory that the schedule's messages need."""
    binds: ClassVar[bool] = True
    """Whether `bind` may return something."""
    sent_bytes: int = 0

    @abstractmethod
    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return all candidates of this runner for its plan.

        `sent` are those that can be sent as messages.
        """

    @abstractmethod
    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return this runner's candidate for one of the plan's schedules, None if it has none."""

    @abstractmethod
    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return its candidates worth trying at a size in bytes, the most promising first.

        `sent` are those worth sending as messages, in this order; if `is_alone`, they are not tried
        themselves.
        """

    @abstractmethod
    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """Return why a candidate cannot carry out a call on buffers, None if it can.

        It is then sent as messages. This may compile the program of the call.
        """

    @abstractmethod
    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call on buffers by a candidate that `can` allows.

        `number` is the call's number in its group if it was drawn before (None: the next one).
        Raise ExecutionError, naming the rank to blame, if a peer fails or the deadline passes.
        """

    @abstractmethod
    def bind(self, candidate: Candidate, buffers: Buffers) -> Play | None:
        """Return a function that repeats `run` quickly on buffers whose memory stays, or None.

        None if a call takes more than running one program. The function takes the call's number.
        """

    # A runner may keep nothing.
    def forget(self, numel: int, dtype: torch.dtype, keep: Candidate | None) -> None:
        """Free what is cached for calls on `numel` elements of a dtype, except that for `keep`.

        Here nothing is cached.
        """


@dataclass(frozen=True)
class Opening:
    """What a runner is opened for: the calls of `plan` over `transport`.

    With `keeps_bits`, results must be those of messages, bit for bit.
    """

    plan: Plan
    transport: Transport
    keeps_bits: bool


class RunnerKind(Protocol):
    """What an extra registers under a runner's name; its answers are the same on all ranks."""

    def prepare(self, transport: Transport, /) -> str | None:
        """Return why a transport's ranks cannot use the runner, None if they can.

        Collective the first time.
        """

    def open(self, opening: Opening, /) -> Runner | str:
        """Return a new runner, or the reason why there is none. Collective."""


class WholeCalls(Runner):
    """The base of runners of other packages: each carries out whole calls, whatever the schedules.

    The class is its own RunnerKind, so that a package names it in its entry point. `way` names it
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
        """Return None: such a runner needs nothing of the ranks."""
        return None

    @classmethod
    def open(cls, opening: Opening, /) -> Runner | str:
        """Return a new runner, or a reason against it if results must have the bits of messages."""
        return "its sums have other bits than messages'" if opening.keeps_bits else cls(opening)

    def list_candidates(self, sent: Sequence[Candidate]) -> list[Candidate]:
        """Return one candidate, for the first of `sent`; none for other collectives."""
        first = sent[: self._collective.name in self.collectives]
        self._candidates = [Candidate(x.schedule, self.name, self.way) for x in first]
        return self._candidates

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Return None: a schedule that is asked for by itself is sent as messages."""
        return None

    def list_worth(
        self, sent: Sequence[Candidate], size_bytes: int, *, is_alone: bool
    ) -> list[Candidate]:
        """Return its candidate, or none for sizes above `most_bytes`, whatever else is tried."""
        is_worth = self.most_bytes is None or size_bytes <= self.most_bytes
        return self._candidates if is_worth else []

    def can(self, candidate: Candidate, buffers: Buffers) -> str | None:
        """Return why the buffers' reduction is not supported, None if it is, by any candidate."""
        is_fit = self.ops is None or buffers.op in self.ops
        return None if is_fit else f"{self.way}: it does not reduce so"

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call on buffers; `number` is the call's in its group (None: the next one)."""
        self.bind(candidate, buffers)(number)

    def bind(self, candidate: Candidate, buffers: Buffers) -> Play:
        """Return a function that makes the call on buffers repeatedly, and tells observers of it.

        It takes the call's number (None: the next one).
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

        It takes the number of the call, adds the bytes it sends to `sent_bytes`, and raises
        ExecutionError if a rank fails.
        """


@dataclass
class _Found:
    """Why some rank lacks a runner, by its name; None where all have it."""

    why_not: dict[str, str | None] = field(default_factory=dict)


def open_runner(name: str, opening: Opening) -> Runner | str:
    """Return the runner registered under a name, or the reason why the ranks cannot use it.

    If one rank cannot, none does. Collective.
    """
    kind = _find_kind(name, opening.transport)
    return kind if isinstance(kind, str) else kind.open(opening)


def prepare_runner(name: str, transport: Transport) -> None:
    """Let the runner registered under a name prepare a transport's ranks, before there is a plan.

    Collective.
    """
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
