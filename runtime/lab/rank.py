"""What one rank of a report does: `python -m topoplan.runtime.lab.rank FOLDER`, started by runs.py.

All systems of a run are trained in the same processes, an epoch each in turns, so that whatever else the machine does
meets all of them alike. Rank 0 says in the folder how far it is, and in the end what came of it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError, TopoplanError
from ...topo.graph import Topology
from ..ranks.faults import first_line
from ..ranks.launch import init_method
from .contender import Contender, host_costs, serve
from .crew import Crew
from .dataset import Dataset
from .job import EVENTS, FAULT, JOB, LOG, ROWS
from .settings import Settings
from .systems import SYSTEMS
from .training import Trainer

_TIMEOUT = timedelta(seconds=120)


@dataclass
class Rank:
    """One process of a run; `now` is always the system at hand."""

    folder: Path
    job: dict[str, Any]
    rank: int
    world: int
    now: str = ""

    def train(self) -> list[dict[str, Any]]:
        """All systems of the job; what came of each. A helper's list is empty."""
        job = self.job
        data = Dataset.mapped(job["dataset"], job["classes"], Path(job["data"]))
        settings = Settings.from_json(job["settings"])
        topology = None if job["topology"] is None else Topology.load(job["topology"])
        crew = Crew(self.rank, self.world, job["helpers"])
        if crew.is_helper and topology is not None:
            for self.now in job["systems"]:
                serve(SYSTEMS[self.now], crew, topology, settings, settings.steps(len(data.train_x)))
            return []
        contenders = []
        planned = [name for name in job["systems"] if name in job["plans"]]
        self.now = planned[-1] if planned else ""
        host = host_costs(job["plans"][self.now]) if planned else None
        for self.now in job["systems"]:
            trainer, plan = Trainer(data, settings, self.rank, crew.workers), job["plans"].get(self.now)
            contenders.append(Contender(SYSTEMS[self.now], trainer, crew, topology, plan, host))
        for number in range(settings.epochs):
            for contender in contenders:
                self.now = contender.system.name
                if self.rank == 0:
                    with (self.folder / EVENTS).open("a", encoding="utf-8") as events:
                        events.write(f"{self.now}\n")
                contender.epoch(number)
        return [contender.row() for contender in contenders]

    def run(self) -> int:
        """Join the others, train, and leave word of it; the exit code."""
        try:
            if self.world > 1:
                dist.init_process_group("gloo", init_method(), _TIMEOUT, self.world, self.rank)
            rows = self.train()
            if self.rank == 0:
                (self.folder / ROWS).write_text(json.dumps(rows), encoding="utf-8")
            if self.world > 1:
                dist.barrier()
        except (TopoplanError, RuntimeError) as error:
            known = isinstance(error, TopoplanError)
            why = (
                error if isinstance(error, TopoplanError) else ExecutionError(f"rank {self.rank}: {first_line(error)}")
            )
            fault = {"system": self.now or self.job["systems"][0], "why": str(why), "known": known}
            (self.folder / FAULT.format(rank=self.rank)).write_text(json.dumps(fault), encoding="utf-8")
            return why.exit_code
        return 0


def main() -> int:
    """Returns the exit code."""
    folder = Path(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = os.open(folder / LOG.format(rank=rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):  # what libraries print is kept for when something goes wrong
        os.dup2(log, stream)
    torch.set_num_threads(1)
    return Rank(folder, json.loads((folder / JOB).read_text(encoding="utf-8")), rank, world).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo may abort an interpreter that ends while models still hold on to its groups
