"""Define the contract of the classic systems; see the package's docstring."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
import torch.distributed as dist

from topoplan import InputError, Plan, Topology, TopoplanError

from .buckets import DTYPES, Buckets, Flats, average_in_order
from .point_to_point import PointToPoint

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What all ranks agreed on: workers and helpers (ranks of `group`), and `make`'s arguments.

    Workers train; helpers are ranks without a model. `rank` is this one's in `group`; `layout` has
    (elements, dtype) of each bucket.
    """

    group: dist.ProcessGroup
    rank: int
    workers: tuple[int, ...]
    helpers: tuple[int, ...]
    device: torch.device
    timeout: timedelta
    model: torch.nn.Module | None
    buckets: Buckets | None
    layout: tuple[tuple[int, str], ...]
    make_optimizer: MakeOptimizer
    plan: Plan | str | Path | None = None
    topology: Topology | None = None
    helper_devices: tuple[str, ...] = ()
    choose: str = "race"

    @property
    def first(self) -> int:
        """The rank of the worker that decides for all: initial parameters, the end of training."""
        return self.workers[0]

    def compute_on_rank_0(self, compute: Callable[[], T]) -> T:
        """Call `compute` on the group's rank 0 and return its result on all ranks. Collective.

        If it raises a TopoplanError, all ranks raise it.
        """
        outcome: list[Any] = [None]
        if self.rank == 0:
            try:
                outcome[0] = compute()
            except TopoplanError as error:
                outcome[0] = error
        dist.broadcast_object_list(
            outcome, dist.get_global_rank(self.group, 0), self.group, self.device
        )
        if isinstance(outcome[0], TopoplanError):
            raise outcome[0]
        return cast("T", outcome[0])

    def check_gpus(self, topology: Topology) -> None:
        """Raise InputError unless `topology` has as many GPUs as there are workers."""
        if len(topology.ranks) != len(self.workers):
            raise InputError(
                f"topology {topology.name!r} has {len(topology.ranks)} GPUs, there are "
                f"{len(self.workers)} workers"
            )


class System(ABC):
    """One rank's part in a system of training with several workers; `classic.make` creates it.

    Workers train replicas of a model; helpers hold none, and serve them. `only_cpu` is the reason
    why the system cannot run over NCCL; empty where it can.
    """

    name: ClassVar[str]
    promise: ClassVar[str]
    source: ClassVar[str]
    takes_helpers: ClassVar[bool] = False
    needs_helpers: ClassVar[bool] = False
    takes_plan: ClassVar[bool] = False
    only_cpu: ClassVar[str] = ""
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rank, self.workers, self.helpers = setting.rank, setting.workers, setting.helpers
        self.p2p = PointToPoint(setting.group)
        self.optimizer: torch.optim.Optimizer | None = None
        self.steps = 0
        self._finished = False
        if setting.model is not None:
            self._copy_initial_model(setting.model)

    @property
    def is_helper(self) -> bool:
        """Whether this rank holds no model and has to call `serve`."""
        return self.rank in self.helpers

    @property
    def bytes_sent(self) -> int | None:
        """Payload bytes that this rank has sent to others since `make` returned."""
        return self.p2p.bytes_sent

    def step(self) -> None:
        """Communicate, update the parameters and clear the gradients; call it after backward.

        All workers must call it equally often (in the asynchronous system, each as often as it
        likes).
        """
        self._check_worker("step")
        self._advance()
        self.steps += 1
        self.buckets.clear_gradients()

    def finish(self) -> None:
        """End training with the same model on all workers, which all call it once.

        Helpers then return from `serve`.
        """
        self._check_worker("finish")
        self._end()
        self._finished = True

    def serve(self) -> None:
        """Work for the workers until all have called `finish`; for helpers only.

        Raise ExecutionError if a worker is lost.
        """
        if not self.is_helper:
            raise InputError(
                f"rank {self.rank} holds a model: it calls step() and finish(); serve() is for "
                "helpers"
            )
        if self._finished:
            raise InputError(f"rank {self.rank}: serve() has ended; make a new system")
        self._serve()
        self._finished = True

    def report(self) -> dict[str, object]:
        """Return further figures on this rank's part by name; which ones depends on the system."""
        return {}

    @abstractmethod
    def _advance(self) -> None:
        """Make a worker's step: communicate and update the parameters."""

    def _end(self) -> None:  # noqa: B027
        """Make a worker's part of `finish`; nothing if replicas are equal anyway."""

    def _serve(self) -> None:
        raise InputError(f"{self.name} has no helpers")

    @property
    def buckets(self) -> Buckets:
        """The worker's parameters as flat buckets."""
        assert self.setting.buckets is not None
        return self.setting.buckets

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks of all workers but this one."""
        return tuple(w for w in self.workers if w != self.rank)

    def _check_worker(self, what: str) -> None:
        if self.is_helper:
            raise InputError(
                f"{what}() on rank {self.rank}, which is a helper and holds no model; helpers "
                "call serve()"
            )
        if self._finished:
            raise InputError(
                f"{what}() on rank {self.rank} after finish(); make a new system to train on"
            )

    @torch.no_grad()
    def _copy_initial_model(self, model: torch.nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        flats = [t.detach().reshape(-1).contiguous() for t in tensors]
        self._broadcast_first(flats)
        if self.rank != self.setting.first:
            for t, flat in zip(tensors, flats, strict=True):
                t.copy_(flat.view(t.shape))
        # `bytes_sent` counts from the end of `make` on.
        self.p2p.bytes_sent = 0

    def _broadcast_first(self, flats: Flats) -> None:
        if self.rank == self.setting.first:
            self.p2p.exchange(sends=[(w, flat) for w in self.others for flat in flats])
        else:
            self.p2p.exchange(receives=[(self.setting.first, flat) for flat in flats])

    def _average_at_first(self, flats: Flats) -> None:
        """Replace only the first worker's `flats` by the mean over all workers."""
        first = self.setting.first
        if self.rank != first:
            self.p2p.exchange(sends=[(first, flat) for flat in flats])
            return
        # Everything arrives before the sum, which is in rank order for the same bits every time.
        received = {w: [torch.empty_like(flat) for flat in flats] for w in self.others}
        self.p2p.exchange(receives=[(w, flat) for w, copies in received.items() for flat in copies])
        for number, flat in enumerate(flats):
            average_in_order(
                [flat if w == first else received[w][number] for w in self.workers], flat
            )


class Averaging(System):
    """A system in which every worker updates its own replica with the mean of all gradients.

    Replicas stay bitwise equal, because `average` gives all workers the same bits.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.buckets is not None:
            self.optimizer = setting.make_optimizer(setting.buckets.parameters)
            self._flats = setting.buckets.allocate()

    def _advance(self) -> None:
        # In flat buckets, as a few large messages cost less than one for each parameter.
        self.buckets.copy_gradients(self._flats)
        self.average(self._flats)
        self.buckets.set_gradients(self._flats)
        assert self.optimizer is not None
        self.optimizer.step()

    @abstractmethod
    def average(self, flats: Flats) -> None:
        """Replace flat tensors, one per bucket, by their means over the workers.

        All workers get the same bits. `step` calls this with the gradients. Collective among
        workers.
        """
