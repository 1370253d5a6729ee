"""Train through one system of a report, on one rank."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ....synth.cost.host_costs import HostCosts
from ....topo.graph import Topology
from ... import classic
from ...communicator import Communicator
from ...ddp import ddp_hook
from ...measuring.calibrate import calibrate
from ..settings import Settings
from ..systems import SERIAL, LabSystem
from .trainer import Trainer, make_falling_sgd
from .workers import Workers, received_bytes

_TIMEOUT = timedelta(seconds=120)


class SystemRun:
    """A model that a worker trains through one system.

    Construction, `train_epoch` and `result` are collective.
    """

    def __init__(
        self,
        system: LabSystem,
        trainer: Trainer,
        workers: Workers,
        topology: Topology | None = None,
        plan: str | None = None,
        host: HostCosts | None = None,
    ) -> None:
        self.system, self.trainer, self.workers = system, trainer, workers
        self.communicator: Communicator | None = None
        self.classic: classic.System | None = None
        self.buckets: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.loss = 0.0
        if system.name == SERIAL:
            return
        if system.classic:
            self.classic = make_classic(
                system, workers, trainer, topology, trainer.settings, trainer.steps
            )
            trainer.update = self.classic.step  # it communicates before it updates
            return
        trainer.model = model = DistributedDataParallel(trainer.net)
        if plan is not None:
            model.register_comm_hook(None, self._make_hook(plan, host))

    def _make_hook(self, plan: str, host: HostCosts | None) -> Any:
        """Return the DDP hook of a plan, which also counts the sizes of its buckets."""
        hook: Any = ddp_hook(
            plan,
            timeout=_TIMEOUT,
            choose=self.system.choose,
            compress=self.system.compress,
            error_feedback=self.system.compress is not None,
        )
        self.communicator = hook.communicator
        if host is not None:
            hook.communicator.engine.set_host_costs(host)

        def count_and_average(
            state: object,
            bucket: dist.GradBucket,  # type: ignore[name-defined]
        ) -> torch.futures.Future[torch.Tensor]:
            self.buckets[bucket.buffer().numel()] += 1
            averaged: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return averaged

        # DDP compares annotations with the types themselves; this module's are text.
        count_and_average.__annotations__ = {
            "bucket": dist.GradBucket,  # type: ignore[attr-defined]
            "return": torch.futures.Future[torch.Tensor],
        }
        return count_and_average

    def train_epoch(self, number: int) -> None:
        """Train for one epoch; record the slowest worker's time, all workers' bytes, and loss."""
        self.workers.barrier()
        before = received_bytes()
        self.workers.barrier()  # no worker sends before all have read their counters
        started = time.perf_counter()
        loss = self.trainer.train_epoch(number)
        seconds = time.perf_counter() - started
        # Read before the gathers below, whose own bytes must not count.
        received = _subtract(received_bytes(), before)
        self.seconds.append(max(self.workers.gather(seconds)))
        self.bytes.append(int(sum(self.workers.gather(received))))
        self.loss = sum(self.workers.gather(loss))

    def find_schedule(self) -> str:
        """Return the label of the schedule that most gradients used, empty without a plan."""
        if self.communicator is None:
            return ""
        codec = self.communicator.engine.codec
        used: Counter[str] = Counter()
        # Weighted by elements, as small buckets move few of the gradients.
        for numel, times in self.buckets.items():
            size = numel * 4 if codec is None else codec.nbytes(codec.padded(numel))
            choice = self.communicator.choice(size)
            used["" if choice is None else choice.label] += times * numel
        return used.most_common(1)[0][0] if used else ""

    def result(self) -> dict[str, Any]:
        """End the training; return the measurements as lab/results.py reads them."""
        if self.classic is not None:
            self.classic.finish()
        # Helpers count all epochs together.
        helper_bytes = self.workers.add_over_all(0.0) / len(self.bytes)
        are_counted = min(self.bytes) >= 0
        return {
            "system": self.system.name,
            "schedule": self.find_schedule(),
            "seconds": self.seconds,
            "bytes": [round(x + helper_bytes) for x in self.bytes] if are_counted else None,
            "loss": self.loss,
            "correct": self.trainer.count_correct(),
            "replicas_equal": self.workers.have_same(
                hashlib.sha256(self.trainer.flat().numpy().tobytes()).hexdigest()
            ),
        }


def fit_host_costs(plan: str) -> HostCosts:
    """Fit the host costs of a message and a byte, like topo-run's calibration. Collective."""
    return calibrate(Communicator(plan, timeout=_TIMEOUT))


def make_classic(
    system: LabSystem,
    workers: Workers,
    trainer: Trainer | None,
    topology: Topology | None,
    settings: Settings,
    steps: int,
) -> classic.System:
    """Create this rank's part in a classic system; helpers have no trainer. Collective."""
    # An asynchronous server updates once for each worker's gradients, a synchronous one once for
    # all.
    updates_a_step = workers.count if system.name == "async-parameter-server" else 1
    return classic.make(
        system.name,
        None if trainer is None else trainer.net,
        lambda parameters: make_falling_sgd(
            parameters, settings, steps * updates_a_step, updates_a_step
        ),
        topology=topology,
        helpers=workers.helpers,
        timeout=_TIMEOUT,
    )


def serve_as_helper(
    system: LabSystem, workers: Workers, topology: Topology, settings: Settings, steps: int
) -> None:
    """Serve the workers until they call `result`. Collective."""
    helper = make_classic(system, workers, None, topology, settings, steps)
    before = received_bytes()
    helper.serve()
    workers.add_over_all(_subtract(received_bytes(), before))


def _subtract(after: int | None, before: int | None) -> float:
    """Return the bytes received between two readings; far below zero if they are not counted."""
    # Larger than any sum of counts, so that a sum over ranks is negative if one has no counter.
    return float("-1e18") if before is None or after is None else float(after - before)
