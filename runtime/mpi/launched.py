"""Set torchrun's variables in ranks that mpirun or srun started."""

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ...topo.errors import ExecutionError, InputError
from .library import describe_mpi, load_mpi


@dataclass(frozen=True)
class Launcher:
    """A launcher of MPI ranks.

    `rank`, `ranks` and `on_host` are the names of the environment variables that hold a process's
    rank, the number of ranks, and that of the ranks on its host.
    """

    name: str
    rank: str
    ranks: str
    on_host: str


# srun sets the rank in a batch script as well, but the number of a step's tasks only in the tasks
# of a step
LAUNCHERS = (
    Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
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


def number_of_launch() -> int:
    """Return this process's global rank as its launcher set it (RANK, or MPI's); 0 if none did."""
    launcher = find_launcher()
    return int(os.environ.get("RANK" if launcher is None else launcher.rank, "0"))


def count_hosts() -> tuple[int, str]:
    """Return the number of equal hosts of this process's job, and the variables that say so.

    They are torchrun's, then the launchers'. One host, by no variable, if none are set.
    """
    names = [("WORLD_SIZE", "LOCAL_WORLD_SIZE"), *((x.ranks, x.on_host) for x in LAUNCHERS)]
    for pair in names:
        # Slurm's is a list such as 8(x2), of as many ranks on two hosts.
        numbers = [re.match(r"\d{1,9}", os.environ.get(name, "")) for name in pair]
        if all(numbers):
            ranks, on_host = (int(match[0]) for match in numbers if match)
            if on_host:
                texts = (f"{name}={os.environ[name]}" for name in pair)
                return max(-(-ranks // on_host), 1), ", ".join(texts)
    return 1, ""


def join_mpi() -> bool:
    """Set the variables that init_process_group reads, in a process that mpirun or srun started.

    These are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; those
    already set stay. Collective over all ranks of the launch. Return False, and do nothing, if no
    MPI launcher started this process, or RANK and WORLD_SIZE are set. Raise InputError if mpi4py is
    missing, or uses another MPI than the launcher.
    """
    launcher = find_launcher()
    if launcher is None:
        return False
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    if world.size != int(os.environ[launcher.ranks]):
        raise InputError(
            f"{launcher.name} started {os.environ[launcher.ranks]} ranks, but mpi4py, which works "
            f"with {describe_mpi()}, sees {world.size}: the launcher belongs to another MPI (or "
            "srun needs --mpi=pmix); take the mpirun of the same MPI"
        )
    on_host = world.Split_type(mpi.COMM_TYPE_SHARED, key=world.rank)
    defaults = {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(on_host.rank),
        "LOCAL_WORLD_SIZE": str(on_host.size),
    }
    if on_host.size == world.size:  # on one host, gloo needs no network
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    on_host.Free()
    hosts = world.gather(mpi.Get_processor_name())
    # Every rank gets the answer, also if there is none: all raise the same error.
    meeting = world.bcast(_choose_meeting(hosts) if world.rank == 0 else None)
    if isinstance(meeting, str):
        raise ExecutionError(meeting)
    for key, value in (defaults | meeting).items():
        os.environ.setdefault(key, value)
    return True


def _choose_meeting(hosts: Sequence[str]) -> dict[str, str] | str:
    """Return rank 0's address and a free port, or why there is none; it is on the first host."""
    other = next((host for host in hosts if host != hosts[0]), None)
    try:
        address = "127.0.0.1" if other is None else _find_address_towards(other)
        with socket.socket() as free:
            free.bind((address, 0))
            return {"MASTER_ADDR": address, "MASTER_PORT": str(free.getsockname()[1])}
    except OSError as error:
        return (
            f"rank 0 has no address ({error}); set MASTER_ADDR and MASTER_PORT to where it can be "
            "reached"
        )


def _find_address_towards(host: str) -> str:
    """Return this host's address on the route to another; its name often means the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])
