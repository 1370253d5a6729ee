"""A transport over the pairs of ranks that still reach each other."""

import ctypes
import os
import pickle
import threading
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ....topo.errors import InputError
from ...ranks.control import Control
from ...ranks.faults import Faults
from ...ranks.groups import describe_place
from ...ranks.links import AUTO, Links
from ...ranks.transport import Transport
from ..sockets import find_listening_ports, list_sockets
from .connections import ConnectionWatch

# Tags of messages that are not a plan's.
_GREETING, _CONTROL = 1, 2
# Connecting and greeting takes a few milliseconds, on a busy host some hundred.
_GREET_S = 5.0
# Groups that recover at once must not take each other's sockets for their own.
_MAKING = threading.Lock()


class PartialGloo:
    """This rank's gloo in a group some of whose ranks cannot reach each other; not yet connected.

    `rank` is this rank's number in the group of `size` ranks, `timeout` limits gloo's waits. gloo
    connects two ranks at their first message, so pairs without messages need no connection. The
    other ranks' `connect` needs `address`; it listens at the TCP `ports`. `opened_since` are the
    names of the sockets that were open before it was made (`list_sockets`).
    """

    def __init__(self, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout, self.store = rank, size, timeout, HashStore()
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        with _MAKING:
            self.opened_since = frozenset(list_sockets().values())
            options._devices = _make_lazy_gloo_devices()
            options._threads = 2 * len(options._devices)
            self.backend: Any = dist.ProcessGroupGloo(self.store, rank, size, options)
            # Never freed: if a connection failed, gloo's destructor may wait for ever (torch 2.13),
            # in whatever thread happens to collect garbage.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.backend))
            self.ports = find_listening_ports(self.opened_since)
        self.address = {
            key: bytes(self.store.get(key)).hex() for key in map(str, self.store.list_keys())
        }

    def connect(
        self,
        addresses: Sequence[dict[str, str]],
        peers: Sequence[int],
    ) -> None:
        """Connect to the ranks `peers`; `addresses` has those of all ranks, by number.

        Raise RuntimeError if that fails.
        """
        for address in addresses:
            for key, value in address.items():
                self.store.set(key, bytes.fromhex(value))  # type: ignore[arg-type]
        mine, theirs = torch.tensor([self.rank]), [torch.empty(1, dtype=torch.int64) for _ in peers]
        works = [
            work
            for peer, buffer in zip(peers, theirs, strict=True)
            for work in (
                self.backend.send([mine], peer, _GREETING),
                self.backend.recv([buffer], peer, _GREETING),
            )
        ]
        for work in works:
            work.wait(timedelta(seconds=_GREET_S))


class PartialTransport(Transport):
    """A transport over gloo whose ranks do not all reach each other.

    Plans run over it as over any other; it has no stock collectives. `gloo` is connected to all
    ranks in reach. `lost` are the pairs of ranks without a connection, by number in the group;
    `before` is the transport that it replaces. `watch` notices lost connections; `name` is the
    group's for torch.
    """

    def __init__(
        self,
        before: Transport,
        gloo: PartialGloo,
        lost: Sequence[tuple[int, int]],
        watch: ConnectionWatch,
        name: str,
    ) -> None:
        old, cpu = before.faults, torch.device("cpu")
        place = describe_place(gloo.store, gloo.rank, gloo.size, gloo.timeout, name)
        group = dist.ProcessGroup(gloo.store, gloo.rank, gloo.size)
        kind = dist.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        group._register_backend(cpu, kind, gloo.backend)
        group._set_group_name(place.group_id)
        self._client: Any = None
        timeout = timedelta(seconds=before.control.timeout_s)
        by_number = {number: old.addresses[label] for number, label in enumerate(old.ranks)}
        faults = _PartialFaults(group, timeout, old.store, by_number, labels=[*old.ranks])
        faults.on_hang_up.append(watch.abort)
        faults.topology = old.topology
        self._is_private = False
        control = _TreeControl(group, faults, timeout, gloo.backend, lost)
        self._begin(control)
        self._named, self.links = AUTO, _PartialLinks(group, cpu, faults, control)
        self.unconnected = frozenset((min(pair), max(pair)) for pair in lost)


class _TreeControl(Control):
    """What ranks tell each other passes along a tree of pairs that reach each other."""

    def __init__(
        self,
        group: Any,
        faults: Faults,
        timeout: timedelta,
        gloo: Any,
        lost: Collection[tuple[int, int]],
    ) -> None:
        super().__init__(group, torch.device("cpu"), timeout, faults, owns_group=True)
        self._gloo = gloo
        tree = find_tree(range(self.size), lost)
        self._parent = tree[self.rank]
        self._children = [rank for rank, parent in tree.items() if parent == self.rank]

    @property
    def _wait(self) -> timedelta:
        return timedelta(seconds=self.faults.wait_s)

    def exchange(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank; raise RuntimeError if a rank does not answer."""
        known = {self.rank: value}
        for child in self._children:
            known |= self._receive(child)
        if self._parent is not None:
            self._send(self._parent, known)
            known = self._receive(self._parent)
        for child in self._children:
            self._send(child, known)
        return [known[rank] for rank in range(self.size)]

    def _send(self, peer: int, value: object) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        for message in (torch.tensor([data.numel()]), data):
            self._gloo.send([message], peer, _CONTROL).wait(self._wait)

    def _receive(self, peer: int) -> Any:
        length = torch.empty(1, dtype=torch.int64)
        self._gloo.recv([length], peer, _CONTROL).wait(self._wait)
        data = torch.empty(int(length), dtype=torch.uint8)
        self._gloo.recv([data], peer, _CONTROL).wait(self._wait)
        return pickle.loads(data.numpy().tobytes())


class _PartialLinks(Links):
    """gloo's connections where some are missing: nothing that all ranks do goes by them."""

    def __init__(self, group: Any, device: torch.device, faults: Faults, control: Control) -> None:
        super().__init__(group, device, faults)
        self._control = control

    def find_largest(self, values: list[float], timeout_s: float) -> list[float]:
        """Return, for each item of `values`, the maximum over all ranks; raise as `meet` does."""
        return [max(of_ranks) for of_ranks in zip(*self._control.exchange(values), strict=True)]

    def meet(self, timeout_s: float) -> None:
        """Wait for all ranks at a barrier, with as little skew as there can be.

        Raise RuntimeError if a rank does not come within the control's own limit; `timeout_s` is
        not used.
        """
        self._control.exchange(None)


class _PartialFaults(Faults):
    """The faults of a group that is not connected completely."""

    def hang_up(self) -> None:
        """Close the connections that there are: gloo would first make those that are missing."""
        for notify in self.on_hang_up:
            notify()


def find_tree(ranks: Sequence[int], lost: Collection[tuple[int, int]]) -> dict[int, int | None]:
    """Return a spanning tree over pairs of ranks that are still connected: the parent of each rank.

    `lost` are the pairs that are not. The first of `ranks` is the root, whose parent is None; ranks
    that cannot be reached from it are missing.
    """
    cut = {frozenset(pair) for pair in lost}
    parents: dict[int, int | None] = {ranks[0]: None}
    reached = [ranks[0]]
    for rank in reached:  # breadth first: it grows meanwhile
        near = [x for x in ranks if x not in parents and frozenset((rank, x)) not in cut]
        parents |= dict.fromkeys(near, rank)
        reached += near
    return parents


def _make_lazy_gloo_devices() -> list[Any]:
    """Return gloo's devices as torch chooses them, but such that connect at the first message.

    Raise InputError if this torch cannot make them.
    """
    gloo: Any = dist.ProcessGroupGloo
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    try:
        return [gloo.create_device(interface=name, lazy_init=True) for name in names] or [
            gloo.create_default_device(lazy_init=True)
        ]
    except TypeError:
        raise InputError(
            f"torch {torch.__version__} cannot make connections of gloo at the first message; use "
            "a newer torch"
        ) from None
