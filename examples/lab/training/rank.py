"""Run one rank: `python -m examples.lab.training.rank FOLDER`, started by lab/runs.py.

All systems of a run are trained in the same processes, taking turns by epoch, so that other load on
the machine affects all of them equally. Rank 0 writes progress and results into the run's folder.
"""

import hashlib
import os
import socket
import stat
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import topoplan
from topoplan import ExecutionError, Topology, TopoplanError
from topoplan.runtime.ranks.launch import init_method

from ... import classic
from ..run_folder import Fault, RunFolder, TrainingJob
from ..settings import Settings
from ..systems import SERIAL, SYSTEMS, LabSystem
from .dataset import Dataset
from .trainer import Trainer, make_falling_sgd

_TIMEOUT = timedelta(seconds=120)
# The schedule's label while races go on.
_UNDECIDED = "undecided"
# Offset of tcpi_bytes_received in tcp_info, since Linux 4.1 (include/uapi/linux/tcp.h).
_RECEIVED_AT = 128
T = TypeVar("T")


class Workers:
    """The ranks that train: all but the last `helpers`, which hold no model.

    Construction is collective; a single process needs no process group.
    """

    def __init__(self, rank: int, world: int, helpers: int) -> None:
        self.rank, self.count = rank, world - helpers
        self.helpers = tuple(range(self.count, world))
        self.group: Any = dist.new_group(list(range(self.count))) if helpers else None

    def barrier(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            dist.barrier(self.group)

    def gather(self, value: T) -> list[T]:
        """Return every worker's value, by rank. Collective among workers."""
        values = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value, self.group)
        return values

    def add_over_all(self, value: float) -> float:
        """Return the sum over all ranks, including helpers. Collective among all."""
        if self.count + len(self.helpers) == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)


def received_bytes() -> int | None:
    """Return the bytes received over all open TCP connections; None if the kernel does not count.

    The count is exact, needs no privileges, and is the same measure for every system: it includes
    gloo's headers, not those of TCP and IP. All ranks together have received what they have sent.
    """
    descriptors = Path("/proc/self/fd")
    if sys.platform != "linux" or not descriptors.is_dir():
        return None
    return sum(_received(int(path.name)) for path in descriptors.iterdir())


def _received(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        # A duplicate, because closing the socket object must not close the connection.
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if (
                connection.family not in (socket.AF_INET, socket.AF_INET6)
                or connection.type != socket.SOCK_STREAM
            ):
                return 0
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    except OSError:  # the connection has been closed since the folder was listed
        return 0
    # Older kernels return a shorter structure, without this counter.
    return (
        int(struct.unpack_from("Q", tcp_info, _RECEIVED_AT)[0])
        if len(tcp_info) >= _RECEIVED_AT + 8
        else 0
    )


class SystemRun:
    """A model that a worker trains through one system.

    Construction, `train_epoch` and `result` are collective.
    """

    def __init__(
        self,
        system: LabSystem,
        trainer: Trainer,
        workers: Workers,
        topology: Topology,
        plan: str | None,
    ) -> None:
        self.system, self.trainer, self.workers = system, trainer, workers
        self.hook: topoplan.DdpHook | None = None
        self.classic: classic.System | None = None
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.loss = 0.0
        if system.classic:
            self.classic = make_classic(
                system, workers, trainer.net, topology, trainer.settings, trainer.steps
            )
            trainer.update = self.classic.step  # it communicates before it updates
        elif system.name != SERIAL:
            trainer.model = model = DistributedDataParallel(trainer.net)
            if plan is not None:
                self.hook = topoplan.ddp_hook(
                    plan,
                    timeout=_TIMEOUT,
                    choose=system.choose,
                    compress=system.compress,
                    error_feedback=system.compress is not None,
                    # Like the other systems: on loopback, too, they are compared by what they send.
                    executor="point-to-point",
                )
                model.register_comm_hook(None, self.hook)

    def train_epoch(self, number: int) -> None:
        """Train for epoch `number`; record its time, bytes and loss over all workers.

        The time is the slowest worker's, in seconds.
        """
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
        """Return the label of the schedule that most gradients used, empty without a plan.

        "undecided" if no race has ended.
        """
        if self.hook is None:
            return ""
        used: Counter[str] = Counter()
        # Weighted by bytes, as small buckets move few of the gradients.
        for group in self.hook.summary().groups:
            for size in group.sizes:
                used[size.schedule] += size.calls * size.size_bytes
        return used.most_common(1)[0][0] if used else _UNDECIDED

    def result(self) -> dict[str, Any]:
        """End the training; return the measurements as lab/results.py reads them."""
        if self.classic is not None:
            self.classic.finish()
        # Helpers count all epochs together.
        helper_bytes = self.workers.add_over_all(0.0) / len(self.bytes)
        replica = hashlib.sha256(self.trainer.flat().numpy().tobytes()).hexdigest()
        return {
            "system": self.system.name,
            "schedule": self.find_schedule(),
            "seconds": self.seconds,
            "bytes": [round(x + helper_bytes) for x in self.bytes]
            if min(self.bytes) >= 0
            else None,
            "loss": self.loss,
            "correct": self.trainer.count_correct(),
            "replicas_equal": len(set(self.workers.gather(replica))) == 1,
        }


def make_classic(
    system: LabSystem,
    workers: Workers,
    net: torch.nn.Module | None,
    topology: Topology,
    settings: Settings,
    steps: int,
) -> classic.System:
    """Create this rank's part in a classic system; helpers have no net. Collective."""
    # An asynchronous server updates once for each worker's gradients, a synchronous one once for
    # all.
    updates_a_step = workers.count if system.name == "async-parameter-server" else 1
    return classic.make(
        system.name,
        net,
        lambda parameters: make_falling_sgd(
            parameters, settings, steps * updates_a_step, updates_a_step
        ),
        topology=topology,
        helpers=workers.helpers,
        timeout=_TIMEOUT,
    )


def _subtract(after: int | None, before: int | None) -> float:
    """Return the bytes received between two readings; far below zero if they are not counted."""
    # Larger than any sum of counts, so that a sum over ranks is negative if one has no counter.
    return float("-1e18") if before is None or after is None else float(after - before)


@dataclass
class Rank:
    """One process of a run; `system` is the name of the current one."""

    folder: RunFolder
    job: TrainingJob
    rank: int
    world: int
    system: str = ""

    def train(self) -> list[dict[str, Any]]:
        """Train through every system of the job and return the measurements; none on a helper."""
        job = self.job
        data = Dataset.open_saved(job["dataset"], job["classes"], Path(job["data"]))
        settings = Settings.from_json(job["settings"])
        topology = Topology.load(job["topology"])
        workers = Workers(self.rank, self.world, job["helpers"])
        if self.rank in workers.helpers:
            for self.system in job["systems"]:
                helper = make_classic(
                    SYSTEMS[self.system],
                    workers,
                    None,
                    topology,
                    settings,
                    settings.steps(len(data.train_x)),
                )
                before = received_bytes()
                helper.serve()
                workers.add_over_all(_subtract(received_bytes(), before))
            return []
        runs = []
        for self.system in job["systems"]:
            runs.append(
                SystemRun(
                    SYSTEMS[self.system],
                    Trainer(data, settings, self.rank, workers.count),
                    workers,
                    topology,
                    job["plans"].get(self.system),
                )
            )
        for epoch in range(settings.epochs):
            for run in runs:
                self.system = run.system.name
                if self.rank == 0:
                    self.folder.note_epoch(self.system)
                run.train_epoch(epoch)
        return [run.result() for run in runs]

    def run(self) -> int:
        """Join the other ranks, train, and write results or a fault; return the exit code."""
        try:
            if self.world > 1:
                dist.init_process_group("gloo", init_method(), _TIMEOUT, self.world, self.rank)
            results = self.train()
            if self.rank == 0:
                self.folder.write("results", results)
            if self.world > 1:
                dist.barrier()
        except (TopoplanError, RuntimeError) as error:
            known = isinstance(error, TopoplanError)
            reason = str(error).partition("\n")[0]
            self.folder.write(
                f"fault{self.rank}",
                Fault(
                    system=self.system or self.job["systems"][0],
                    why=str(error) if known else f"rank {self.rank}: {reason}",
                    known=known,
                ),
            )
            return error.exit_code if isinstance(error, TopoplanError) else ExecutionError.exit_code
        return 0


def main(arguments: list[str]) -> NoReturn:
    """Run one rank of the run in the folder that is the only argument, and exit with its code."""
    folder = RunFolder(Path(arguments[0]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = os.open(folder.log(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):  # output of libraries is shown only if the run fails
        os.dup2(log, stream)
    # Ranks share the machine's cores; more threads of one would take them from the others.
    torch.set_num_threads(1)
    code = Rank(folder, folder.read("job"), rank, world).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo may abort an interpreter that ends while models still hold on to its groups.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
