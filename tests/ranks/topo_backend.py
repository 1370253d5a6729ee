"""The backend "topo" in place of gloo, and a count of what went through plans."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch.distributed as dist
from rank_process import init

from topoplan.runtime.backend.options import backend_options
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.runners.programs import ProgramRunner

# Collective and number of ranks of each call that went through a plan.
Calls = list[tuple[str, int]]
_numbers = count()


def start(quiet_s: float = 60, **options: Any) -> None:
    """Make the default group one of the backend; the plan's own schedules are used where options do
    not say otherwise.
    """
    if dist.is_initialized():
        end()
    init(
        f"-topo{next(_numbers)}",
        backend="topo",
        quiet_s=quiet_s,
        options=backend_options(**{"choose": "plan", **options}),
    )


def end() -> None:
    """Destroy the default group, once all ranks are through."""
    dist.barrier()
    dist.destroy_process_group()


def count_planned() -> Calls:
    """Return a list to which every call that goes through a plan is added from now on."""
    calls: Calls = []
    run = ProgramRunner.run

    def counted(runner: ProgramRunner, candidate: Candidate, *args: Any) -> Any:
        collective = candidate.schedule.collective
        calls.append((collective.name, collective.ranks))
        return run(runner, candidate, *args)

    ProgramRunner.run = counted  # type: ignore[assignment,method-assign]
    return calls
