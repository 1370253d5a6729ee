"""Launchers other than torchrun, and the environment variables by which they number ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """A launcher of MPI ranks (`name`), and the environment variables that it sets for each.

    `rank`, `ranks` and `on_host` name the variables for a process's rank, the number of ranks, and
    the number on its host. `rank_on_host` names the one for its rank among these, where `mpirun`
    also lets ranks look up names that they publish, so that they can meet without messages; else it
    is "". `links` is the name of the links that carry messages ("mpi").
    """

    name: str
    rank: str
    ranks: str
    on_host: str
    rank_on_host: str = ""
    links: str = "mpi"


# srun sets the rank in a batch script as well, but the number of a step's tasks only in the tasks
# of a step
LAUNCHERS = (
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


def find_launcher() -> Launcher | None:
    """Return the launcher that started this process as an MPI rank, or None.

    None too if torch's own variables are set, which take precedence.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return None
    return next((x for x in LAUNCHERS if x.rank in os.environ and x.ranks in os.environ), None)


def find_global_rank() -> int:
    """Return this process's global rank as its launcher set it (RANK, or MPI's); 0 if none did."""
    launcher = find_launcher()
    return int(os.environ.get("RANK" if launcher is None else launcher.rank, "0"))


def join_launch() -> str | None:
    """Set torchrun's variables in a process that another launcher started as a rank.

    Return the name of the links that join the ranks, or None, and do nothing, if no launcher of the
    table started this process, or torchrun's variables are set. Collective over all ranks of the
    launch. Raise InputError if the links are missing or do not suit the launcher.
    """
    launcher = find_launcher()
    if launcher is None:
        return None
    from .links import find_named  # imports torch, without which commands can plan

    return launcher.links if find_named(launcher.links).join_launch() else None
