"""What one rank of a report does: `python -m topoplan.runtime.lab.rank FOLDER`, started by runs.py.

All systems of a run are trained in the same processes, an epoch each in turns, so that whatever else the machine does
meets all of them alike. Rank 0 says in the folder how far it is, and in the end what came of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...topo.errors import ExecutionError, TopoplanError
from ..communicator import Communicator
from ..ddp import ddp_hook
from ..faults import first_line
from ..launch import init_method
from .dataset import Dataset
from .job import EVENTS, FAULT, JOB, LOG, ROWS
from .settings import Settings
from .systems import SERIAL, SYSTEMS, System
from .traffic import received_bytes
from .training import Trainer

_TIMEOUT = timedelta(seconds=120)


class Contender:
    """One system, in training on this rank."""

    def __init__(self, system: System, trainer: Trainer, plan: str | None) -> None:
        self.system, self.trainer = system, trainer
        self.communicator: Communicator | None = None
        self.buckets: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.loss = 0.0
        if system.name == SERIAL:
            return
        model = DistributedDataParallel(trainer.net)
        if plan is not None:
            model.register_comm_hook(None, self._hook(plan))
        trainer.model = model

    def _hook(self, plan: str) -> Any:
        system = self.system
        hook: Any = ddp_hook(
            plan,
            timeout=_TIMEOUT,
            choose=system.choose,
            **({} if system.compress is None else {"compress": system.compress, "error_feedback": True}),
        )
        self.communicator = getattr(hook, "communicator", None)

        def noting(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
            self.buckets[bucket.buffer().numel()] += 1
            found: torch.futures.Future[torch.Tensor] = hook(state, bucket)
            return found

        # DDP compares annotations with the types themselves; this module's are text
        noting.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return noting

    def epoch(self, number: int) -> None:
        """Train for one; time, bytes and loss of all ranks are kept."""
        # Nobody sends before everybody has looked at the count of bytes.
        _barrier()
        before = received_bytes()
        _barrier()
        started = time.perf_counter()
        loss = self.trainer.epoch(number)
        seconds = time.perf_counter() - started
        after = received_bytes()
        moved = -1.0 if before is None or after is None else float(after - before)
        self.seconds.append(max(_everyones(seconds)))
        self.bytes.append(int(sum(_everyones(moved))))
        self.loss = sum(_everyones(loss))

    def schedule(self) -> str:
        """What most bytes of gradients went through, as tables show it."""
        if self.communicator is None:
            return ""
        codec = self.communicator.codec
        used: Counter[str] = Counter()
        for numel, times in self.buckets.items():
            size = numel * 4 if codec is None else codec.nbytes(codec.padded(numel))
            choice = self.communicator.choice(size)
            used["" if choice is None else choice.label] += times * numel
        return used.most_common(1)[0][0] if used else ""

    def row(self) -> dict[str, Any]:
        """What came of it; collective."""
        digest = hashlib.sha256(self.trainer.flat().numpy().tobytes()).hexdigest()
        there: list[Any] = [digest]
        if dist.is_initialized():
            there = [None] * dist.get_world_size()
            dist.all_gather_object(there, digest)
        return {
            "system": self.system.name,
            "schedule": self.schedule(),
            "seconds": self.seconds,
            "bytes": None if min(self.bytes) < 0 else self.bytes,
            "loss": self.loss,
            "correct": self.trainer.correct(),
            "replicas_equal": len(set(there)) == 1,
        }


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _everyones(value: float) -> list[float]:
    if not dist.is_initialized():
        return [value]
    boxes = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, torch.tensor([value], dtype=torch.float64))
    return [float(box) for box in boxes]


def train(folder: Path, job: dict[str, Any], rank: int, world: int, now: list[str]) -> list[dict[str, Any]]:
    """All systems of the job; `now[0]` is always the one at hand."""
    data = Dataset.mapped(job["dataset"], job["classes"], Path(job["data"]))
    settings = Settings(**{**job["settings"], "hidden": tuple(job["settings"]["hidden"])})
    contenders = []
    for name in job["systems"]:
        now[0] = name
        plan = job["plans"].get(name)
        trainer = Trainer(data, settings, rank, world)
        contenders.append(Contender(SYSTEMS[name], trainer, plan))
    for number in range(settings.epochs):
        for contender in contenders:
            now[0] = contender.system.name
            if rank == 0:
                with (folder / EVENTS).open("a", encoding="utf-8") as events:
                    events.write(f"{now[0]}\n")
            contender.epoch(number)
    return [contender.row() for contender in contenders]


def main() -> int:
    """Returns the exit code."""
    folder = Path(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = os.open(folder / LOG.format(rank=rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):  # what libraries print is kept for when something goes wrong
        os.dup2(log, stream)
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    now = [job["systems"][0]]
    try:
        if world > 1:
            dist.init_process_group("gloo", init_method=init_method(), rank=rank, world_size=world, timeout=_TIMEOUT)
        rows = train(folder, job, rank, world, now)
        if rank == 0:
            (folder / ROWS).write_text(json.dumps(rows), encoding="utf-8")
        _barrier()
    except (TopoplanError, RuntimeError) as error:
        why = error if isinstance(error, TopoplanError) else ExecutionError(f"rank {rank}: {first_line(error)}")
        fault = {"system": now[0], "why": str(why), "first": isinstance(error, TopoplanError)}
        (folder / FAULT.format(rank=rank)).write_text(json.dumps(fault), encoding="utf-8")
        return why.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo may abort an interpreter that ends while models still hold on to its groups
