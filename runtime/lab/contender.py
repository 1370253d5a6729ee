"""One system of a report in training, on one rank."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...synth.cost.host_costs import HostCosts
from ...topo.graph import Topology
from .. import classic
from ..communicator import Communicator
from ..ddp import ddp_hook
from ..measuring.calibrate import calibrate
from .crew import Crew
from .settings import Settings
from .systems import SERIAL, System
from .traffic import received_bytes
from .training import Trainer, falling_sgd

_TIMEOUT = timedelta(seconds=120)


class Contender:
    """A system on a rank that trains. Making it is collective, as are `epoch` and `row`."""

    def __init__(
        self,
        system: System,
        trainer: Trainer,
        crew: Crew,
        topology: Topology | None = None,
        plan: str | None = None,
        host: HostCosts | None = None,
    ) -> None:
        self.system, self.trainer, self.crew = system, trainer, crew
        self.communicator: Communicator | None = None
        self.classic: classic.System | None = None
        self.buckets: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.loss = 0.0
        if system.name == SERIAL:
            return
        if system.classic:
            self.classic = made(system, crew, trainer, topology, trainer.settings, trainer.steps)
            trainer.update = self.classic.step
            return
        trainer.model = model = DistributedDataParallel(trainer.net)
        if plan is not None:
            model.register_comm_hook(None, self._hook(plan, host))

    def _hook(self, plan: str, host: HostCosts | None) -> Any:
        system = self.system
        compressed = system.compress is not None
        hook: Any = ddp_hook(
            plan, timeout=_TIMEOUT, choose=system.choose, compress=system.compress, error_feedback=compressed
        )
        self.communicator = hook.communicator
        if host is not None:
            hook.communicator.engine.set_host_costs(host)

        def noting(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
            self.buckets[bucket.buffer().numel()] += 1
            found: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return found

        # DDP compares annotations with the types themselves; this module's are text
        bucket_type = dist.GradBucket  # type: ignore[attr-defined]
        noting.__annotations__ = {"bucket": bucket_type, "return": torch.futures.Future[torch.Tensor]}
        return noting

    def epoch(self, number: int) -> None:
        """Train for one; time, bytes and loss of all ranks are kept."""
        self.crew.barrier()
        before = received_bytes()
        self.crew.barrier()  # nobody sends before everybody has looked
        started = time.perf_counter()
        loss = self.trainer.epoch(number)
        seconds = time.perf_counter() - started
        moved = _difference(before, received_bytes())
        self.seconds.append(max(self.crew.told(seconds)))
        self.bytes.append(int(sum(self.crew.told(moved))))
        self.loss = sum(self.crew.told(loss))

    def schedule(self) -> str:
        """What most gradients went through, as tables show it."""
        if self.communicator is None:
            return ""
        codec = self.communicator.engine.codec
        used: Counter[str] = Counter()
        for numel, times in self.buckets.items():
            size = numel * 4 if codec is None else codec.nbytes(codec.padded(numel))
            choice = self.communicator.choice(size)
            used["" if choice is None else choice.label] += times * numel
        return used.most_common(1)[0][0] if used else ""

    def row(self) -> dict[str, Any]:
        """What came of it."""
        if self.classic is not None:
            self.classic.finish()
        helped = self.crew.total(0.0) / len(self.bytes)
        return {
            "system": self.system.name,
            "schedule": self.schedule(),
            "seconds": self.seconds,
            "bytes": None if min(self.bytes) < 0 else [round(count + helped) for count in self.bytes],
            "loss": self.loss,
            "correct": self.trainer.correct(),
            "replicas_equal": self.crew.alike(hashlib.sha256(self.trainer.flat().numpy().tobytes()).hexdigest()),
        }


def host_costs(plan: str) -> HostCosts:
    """What a message and a byte cost the hosts here, as `topo-run --calibrate` fits it. Collective."""
    return calibrate(Communicator(plan, timeout=_TIMEOUT))


def made(
    system: System, crew: Crew, trainer: Trainer | None, topology: Topology | None, settings: Settings, steps: int
) -> classic.System:
    """This rank's part in one of runtime/classic; helpers have no trainer. Collective."""
    # where helpers make an update for each worker's gradients, there are so many more of them
    times = crew.workers if system.name == "async-parameter-server" else 1
    return classic.make(
        system.name,
        None if trainer is None else trainer.net,
        lambda parameters: falling_sgd(parameters, settings, steps * times, times),
        topology=topology,
        helpers=crew.helpers,
        timeout=_TIMEOUT,
    )


def serve(system: System, crew: Crew, topology: Topology, settings: Settings, steps: int) -> None:
    """A helper's part, from the start to `row`. Collective."""
    helper = made(system, crew, None, topology, settings, steps)
    before = received_bytes()
    helper.serve()
    crew.total(_difference(before, received_bytes()))


def _difference(before: int | None, after: int | None) -> float:
    """Bytes between two looks; much below zero where the system does not count them."""
    return float("-1e18") if before is None or after is None else float(after - before)
