"""Layers: code around all calls of a communicator or group, such as one that survives a lost link.

An option of a Policy asks for a layer by its name; extras add them to the group `layers`. The core
knows none of them. A dispatcher carries out the calls of one plan; a path is a dispatcher or layers
around one. Buffers are what a call works on: its input and output, and its reduction. Links carry
messages between ranks; a transport is a group of ranks with its links. The stock collective is the
backend's own, without a plan.
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

# Makes a path for another plan over another transport, within all inner layers, given what is worth
# trying there.
MakePath = Callable[[Plan, Transport, FindWorth], CallPath]


class Layer(ABC):
    """A layer around calls over `first`, a transport, which it may replace by another.

    `transport` is the one in use. `history` has a row for each event that users see, with `at`, the
    seconds from the making of this layer to the event.
    """

    def __init__(self, transport: Transport) -> None:
        self.first = self.transport = transport
        self.history: list[dict[str, Any]] = []
        self.on_give_up: list[Callable[[ExecutionError], object]] = []
        """Called with the error for which no call of a group can be made any more."""

    @abstractmethod
    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return a path that carries out one plan's calls by `path`, within this layer.

        `make_path` makes a path like `path` for another plan, if the layer changes plans.
        """

    def exchange(self, value: object) -> list[Any]:
        """Return the values that all ranks pass, by rank. Collective."""
        return self.transport.control.exchange(value)

    def explain_stock(self) -> str | None:
        """Return why the backend's plain group cannot run collectives any more; None if it can."""
        return None

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls fail with `error`, the one in progress too, and those of other ranks."""
        self.transport.faults.break_off(error)

    def close(self, seconds: float | None = None) -> None:  # noqa: B027 (most keep nothing)
        """End the layer once other ranks no longer need this one.

        `seconds` limits the wait (None: no limit).
        """


class LayerKind(Protocol):
    """What an extra registers under a layer's name: what the layer excludes, and how it is opened.

    With `leaves_stock` the stock collective may run within it. `why_no_group` says why a whole
    process group cannot have it, None if it can. Reasons are parts of messages ("plans with
    helpers: ...").
    """

    leaves_stock: bool
    """Whether stock collectives may run within the layer."""
    why_no_group: str | None
    """Why all calls of a group of the backend cannot go through one, None if they can."""

    def why_not(self, links: Links | type[Links]) -> str | None:
        """Return why calls over links, or a class of links, cannot have the layer; else None."""

    def why_not_plan(self, plan: Plan) -> str | None:
        """Return why calls of a plan cannot have the layer, None if they can."""

    def prepare(self) -> object:
        """Return what `open` needs to know from before a group's links are opened."""

    def open(self, transport: Transport, prepared: object) -> Layer:
        """Return a layer for calls over a transport; `prepared` is from `prepare`. Collective."""


class PlainLayer(Layer):
    """The base of layers of other packages: each call goes through `run`, and nothing is excluded.

    The class is its own LayerKind, so that a package names it in its entry point.
    """

    leaves_stock: ClassVar[bool] = True
    why_no_group: ClassVar[str | None] = None

    @classmethod
    def why_not(cls, links: Links | type[Links]) -> str | None:
        """Return None: such a layer works over all links."""
        return None

    @classmethod
    def why_not_plan(cls, plan: Plan) -> str | None:
        """Return None: such a layer works with all plans."""
        return None

    @classmethod
    def prepare(cls) -> object:
        """Return None: such a layer needs nothing before links are opened."""
        return None

    @classmethod
    def open(cls, transport: Transport, prepared: object) -> Layer:
        """Return a new layer for calls over a transport; `prepared` is not used."""
        return cls(transport)

    @abstractmethod
    def run(self, path: CallPath, buffers: Buffers, number: int | None = None) -> None:
        """Carry out a call by `path.run(buffers, number)`, and do what the layer is for.

        `number` is the call's number in its group (None: the next one).
        """

    def wrap(self, path: CallPath, make_path: MakePath) -> CallPath:
        """Return a path whose calls go to this layer's `run` with `path`.

        `make_path` is not used.
        """
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

    It is kept with the transport (Transport.attach). With `leaves_stock` stock collectives may run
    within all of them.
    """

    layers: tuple[Layer, ...]
    leaves_stock: bool


def refuse(spelled: str, why_not: str | None) -> None:
    """Raise InputError if `why_not`, a reason against a layer, is not None.

    `spelled` is how the user asked for the layer: "on_fault='replan'".
    """
    if why_not is not None:
        raise InputError(f"{spelled} excludes {why_not}")


def wrap_all(path: CallPath, layers: Sequence[Layer], make_path: MakePath) -> CallPath:
    """Return the path of calls within `layers`, the first of them innermost, around `path`.

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
    """Return what is registered under a layer's name; raise InputError if nothing is."""
    kind: LayerKind = Names(LAYERS).find(name)
    return kind
