"""The contract of the classic systems; see the package's docstring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore

from ...synth.plan import Plan
from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from ..ranks.faults import Faults
from .buckets import DTYPES, Buckets, Flats, mean_of
from .mail import Mail

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What all ranks agreed on: who works, who helps, and what was asked for. Ranks are those of `group`."""

    group: dist.ProcessGroup
    rank: int
    workers: tuple[int, ...]
    helpers: tuple[int, ...]
    device: torch.device
    timeout: timedelta
    model: nn.Module | None
    buckets: Buckets | None
    layout: tuple[tuple[int, str], ...]
    make_optimizer: MakeOptimizer
    plan: Plan | str | Path | None = None
    topology: Topology | None = None
    helper_devices: tuple[str, ...] = ()
    choose: str = "race"

    @property
    def first(self) -> int:
        """The worker that is asked where one must be."""
        return self.workers[0]

    def told(self, find: Callable[[], T]) -> T:
        """What `find` returns on the group's rank 0, on all ranks; where it raises a TopoplanError there, all raise it."""
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box[0] = find()
            except TopoplanError as error:
                box[0] = error
        dist.broadcast_object_list(box, dist.get_global_rank(self.group, 0), self.group, self.device)
        if isinstance(box[0], TopoplanError):
            raise box[0]
        found: T = box[0]
        return found


class System(ABC):
    """One rank's part in a system; made by `classic.make`, on all ranks of a group."""

    name: ClassVar[str]
    promise: ClassVar[str]
    source: ClassVar[str]
    takes_helpers: ClassVar[bool] = False
    needs_helpers: ClassVar[bool] = False
    takes_plan: ClassVar[bool] = False
    only_cpu: ClassVar[str] = ""
    """Why it cannot run over NCCL, if it cannot."""
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rank, self.workers, self.helpers = setting.rank, setting.workers, setting.helpers
        store = PrefixStore(f"topoplan-classic/{setting.group.group_name}", dist.distributed_c10d._get_default_store())
        self.faults = Faults(setting.group, None, setting.timeout, store)
        self.mail = Mail(setting.group, self.faults)
        self.optimizer: torch.optim.Optimizer | None = None
        self.steps = 0
        self._finished = False
        self.mail.begin(f"{self.name}, the start")
        if setting.model is not None:
            self._begin_alike(setting.model)

    # -- what users call -----------------------------------------------------------------------------------------

    @property
    def is_helper(self) -> bool:
        """Whether this rank holds no model and has to call `serve`."""
        return self.rank in self.helpers

    @property
    def bytes_sent(self) -> int | None:
        """Payload of the messages that this rank has sent to others since `make` returned."""
        return self.mail.bytes_sent

    def step(self) -> None:
        """After backward: communicate, update the parameters, clear the gradients. Every worker calls it equally often
        (in the asynchronous system: as often as it likes).
        """
        self._check_worker("step")
        self.mail.begin(f"{self.name}, step {self.steps}")
        self._advance()
        self.steps += 1
        self.buckets.clear_gradients()

    def finish(self) -> None:
        """Every worker calls it once, after its last step: all of them end with the same model, and helpers with serve()."""
        self._check_worker("finish")
        self.mail.begin(f"{self.name}, the end after {self.steps} steps")
        self._end()
        self._finished = True

    def serve(self) -> None:
        """On helpers: work for the workers until all of them have called `finish`. ExecutionError where one is lost."""
        if not self.is_helper:
            raise InputError(f"rank {self.rank} holds a model: it calls step() and finish(); serve() is for helpers")
        if self._finished:
            raise InputError(f"rank {self.rank}: serve() has ended; make a new system")
        self._serve()
        self._finished = True

    def report(self) -> dict[str, object]:
        """What else is worth telling of this rank's part."""
        return {}

    # -- what systems fill in ------------------------------------------------------------------------------------

    @abstractmethod
    def _advance(self) -> None:
        """A worker's step, up to the update."""

    def _end(self) -> None:  # noqa: B027
        """A worker's part in `finish`: nothing where replicas are alike anyway."""

    def _serve(self) -> None:
        """A helper's part."""
        raise InputError(f"{self.name} has no helpers")

    # -- what they share -----------------------------------------------------------------------------------------

    @property
    def buckets(self) -> Buckets:
        """The worker's parameters."""
        assert self.setting.buckets is not None
        return self.setting.buckets

    @property
    def others(self) -> tuple[int, ...]:
        """The workers without this rank."""
        return tuple(w for w in self.workers if w != self.rank)

    def _check_worker(self, what: str) -> None:
        if self.is_helper:
            raise InputError(
                f"{what}() on rank {self.rank}, which is a helper and holds no model; helpers call serve()"
            )
        if self._finished:
            raise InputError(f"{what}() on rank {self.rank} after finish(); make a new system to train on")

    def _begin_alike(self, model: nn.Module) -> None:
        """Parameters and buffers of the first worker go to all workers."""
        with torch.no_grad():
            held = list(chain(model.parameters(), model.buffers()))
            flats = [t.detach().reshape(-1).contiguous() for t in held]
            self._from_first(flats)
            if self.rank != self.setting.first:
                for t, flat in zip(held, flats, strict=True):
                    t.copy_(flat.view(t.shape))
        self.mail.bytes_sent = 0

    def _from_first(self, flats: Flats) -> None:
        """The first worker's `flats` go to all workers."""
        first = self.setting.first
        if self.rank == first:
            self.mail.exchange(sends=[(w, flat) for w in self.others for flat in flats])
        else:
            self.mail.exchange(receives=[(first, flat) for flat in flats])

    def _mean_at_first(self, flats: Flats) -> None:
        """The first worker's `flats` become the mean of all workers'; the others' stay."""
        first = self.setting.first
        if self.rank != first:
            self.mail.exchange(sends=[(first, flat) for flat in flats])
            return
        theirs = {w: [torch.empty_like(flat) for flat in flats] for w in self.others}
        self.mail.exchange(receives=[(w, flat) for w, flats_of in theirs.items() for flat in flats_of])
        for number, flat in enumerate(flats):
            mean_of([flat if w == first else theirs[w][number] for w in self.workers], flat)


class Averaging(System):
    """Systems in which every worker gets the mean of all workers' gradients and makes the update itself.

    Replicas stay bitwise equal, since all get the same bits.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.buckets is not None:
            self.optimizer = setting.make_optimizer(setting.buckets.parameters)
            self._flats = setting.buckets.empty()

    def _advance(self) -> None:
        self.buckets.gradients(self._flats)
        self.average(self._flats)
        self.buckets.set_gradients(self._flats)
        assert self.optimizer is not None
        self.optimizer.step()

    @abstractmethod
    def average(self, flats: Flats) -> None:
        """Flat tensors, alike in size on all workers, become the means over the workers in place, the same bits on all."""
