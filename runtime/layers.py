"""Layers: what goes around the dispatchers of a communicator, or of all communicators of a group.

An option of a Policy asks for a layer by its name; extras add them to the group `layers`. The core
knows none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from ..extras import LAYERS, Names
from ..synth.plan import Plan
from ..topo.errors import ExecutionError, InputError
from .choices import FindWorth
from .compiled import Buffers
from .dispatcher import CallPath, Dispatcher
from .ranks.links import Links
from .ranks.transport import Transport

# Makes a way of calls for another plan over another transport, within which all inner layers are,
# given what is worth trying there.
MakePath = Callable[[Plan, Transport, FindWorth], CallPath]


class Layer(ABC):
    """A layer over `first`, the transport that its calls are made over until it takes another.

    `transport` is the one in use. `history` has a row for each event that users see, with the
    seconds `at` which it came (Communicator.recoveries).
    """

    def __init__(self, transport: Transport) -> None:
        self.first = self.transport = transport
        self.history: list[dict[str, Any]] = []
        self.on_give_up: list[Callable[[ExecutionError], object]] = []
        """Called with the error for which no call of a group can be made any more."""

    @abstractmethod
    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return what carries out the calls of one plan, by `path` or others of `make_path`."""

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank. Collective."""
        return self.transport.control.exchange(value)

    def explain_stock(self) -> str | None:
        """Return why the plain group of the backend carries nothing any more; None if it does."""
        return None

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls fail with an error, the one in progress too, and those of other ranks."""
        self.transport.faults.break_off(error)

    def close(self, seconds: float | None = None) -> None:  # noqa: B027 (most keep nothing)
        """End the layer once other ranks no longer need this one.

        `seconds` limits the wait (None: no limit).
        """


class LayerKind(Protocol):
    """How a layer is asked for, and opened.

    Reasons say what it excludes, and why ("plans with helpers: ..."): see `refuse`.
    """

    leaves_stock: bool
    """Whether stock collectives may run within the layer."""
    why_no_group: str | None
    """Why all calls of a group of the backend cannot go through one, None if they can."""

    def why_not(self, links: Links | type[Links]) -> str | None:
        """Return why calls over links, or a class of links, cannot have the layer; else None."""

    def why_not_plan(self, plan: Plan) -> str | None:
        """Return why calls of a plan cannot go through one, None if they can."""

    def prepare(self) -> object:
        """Take note of what is, before the links of a group are opened; `open` gets the answer."""

    def open(self, transport: Transport, prepared: object) -> Layer:
        """Return a layer for calls over a transport. Collective."""


class PlainLayer(Layer):
    """A layer that all calls go through one by one, and that excludes nothing.

    It is its own LayerKind, so that a package names the class in its entry point.
    """

    leaves_stock: ClassVar[bool] = True
    why_no_group: ClassVar[str | None] = None

    @classmethod
    def why_not(cls, links: Links | type[Links]) -> str | None:
        """Return why calls over links, or a kind of them, cannot go through one; or None."""
        return None

    @classmethod
    def why_not_plan(cls, plan: Plan) -> str | None:
        """Return why calls of a plan cannot go through one, None if they can."""
        return None

    @classmethod
    def prepare(cls) -> object:
        """Take note of what is, before the links of a group are opened; `open` gets the answer.

        Nothing is to be noted.
        """
        return None

    @classmethod
    def open(cls, transport: Transport, prepared: object) -> Layer:
        """Return a layer for calls over a transport."""
        return cls(transport)

    @abstractmethod
    def run(self, path: CallPath, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call by `path.run`, and do what the layer is for; see Dispatcher.run."""

    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return what carries out the calls of one plan, by `path` or others of `make_path`."""
        return _PathWithin(self, path)


class _PathWithin:
    """A CallPath through a PlainLayer: no call is repeated quickly, or started and not awaited."""

    def __init__(self, layer: PlainLayer, path: CallPath) -> None:
        self._layer, self._path = layer, path
        self.exchange, self.is_settled = path.exchange, path.is_settled

    @property
    def base(self) -> Dispatcher:
        return self._path.base

    @property
    def sent_bytes(self) -> int:
        return self._path.sent_bytes

    @property
    def outlives_links(self) -> bool:
        return self._path.outlives_links

    def run(self, buffers: Buffers, number: int | None = None) -> None:
        self._layer.run(self._path, buffers, number)

    def bind(self, buffers: Buffers) -> None:
        return None

    def can_start_stock(self, buffers: Buffers) -> bool:
        return False


@dataclass(frozen=True)
class SharedLayers:
    """The layers that all communicators of a transport go through, the innermost first.

    With `leaves_stock` stock collectives may run within all of them.
    """

    layers: tuple[Layer, ...]
    leaves_stock: bool


def refuse(spelled: str, why_not: str | None) -> None:
    """Raise InputError if there is a reason why a layer, spelled so, cannot be asked for."""
    if why_not is not None:
        raise InputError(f"{spelled} excludes {why_not}")


def wrap_all(path: CallPath, layers: Sequence[Layer], make_path: MakePath) -> CallPath:
    """Return the path of calls within layers, the first of them innermost.

    `make_path` makes the innermost path for another plan.
    """
    for place, layer in enumerate(layers):
        path = layer.wrap(path, partial(_make_within, layers[:place], make_path))
    return path


def _make_within(
    layers: Sequence[Layer],
    make_path: MakePath,
    plan: Plan,
    transport: Transport,
    find_worth: FindWorth,
) -> CallPath:
    return wrap_all(make_path(plan, transport, find_worth), layers, make_path)


def find_layer(name: str) -> LayerKind:
    """Return the kind of layer that an option asks for; raise InputError if there is none."""
    kind: LayerKind = Names(LAYERS).find(name)
    return kind
