"""Run one rank: `python -m topoplan.runtime.lab.training.rank FOLDER`, started by lab/runs.py.

All systems of a run are trained in the same processes, taking turns by epoch, so that other load on
the machine affects all of them equally. Rank 0 writes progress and results into the run's folder.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ....topo.errors import ExecutionError, TopoplanError
from ....topo.graph import Topology
from ...ranks.faults import first_line
from ...ranks.launch import init_method
from ..run_folder import RunFolder, TrainingJob
from ..settings import Settings
from ..systems import SYSTEMS
from .dataset import Dataset
from .system_run import SystemRun, fit_host_costs, serve_as_helper
from .trainer import Trainer
from .workers import Workers

_TIMEOUT = timedelta(seconds=120)


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
        settings = Settings(**{**job["settings"], "hidden": tuple(job["settings"]["hidden"])})
        topology = None if job["topology"] is None else Topology.load(job["topology"])
        workers = Workers(self.rank, self.world, job["helpers"])
        if workers.is_helper and topology is not None:
            for self.system in job["systems"]:
                serve_as_helper(
                    SYSTEMS[self.system],
                    workers,
                    topology,
                    settings,
                    settings.steps(len(data.train_x)),
                )
            return []
        # Host costs are a property of the machine, not of a plan: they are fitted once, for all
        # systems.
        planned = [name for name in job["systems"] if name in job["plans"]]
        self.system = planned[-1] if planned else ""
        host = fit_host_costs(job["plans"][self.system]) if planned else None
        runs = []
        for self.system in job["systems"]:
            trainer = Trainer(data, settings, self.rank, workers.count)
            plan = job["plans"].get(self.system)
            runs.append(SystemRun(SYSTEMS[self.system], trainer, workers, topology, plan, host))
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
                self.folder.write_results(results)
            if self.world > 1:
                dist.barrier()
        except (TopoplanError, RuntimeError) as error:
            known = isinstance(error, TopoplanError)
            why = str(error) if known else f"rank {self.rank}: {first_line(error)}"
            self.folder.write_fault(self.rank, self.system or self.job["systems"][0], why, known)
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
    code = Rank(folder, folder.read_job(), rank, world).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo may abort an interpreter that ends while models still hold on to its groups.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
