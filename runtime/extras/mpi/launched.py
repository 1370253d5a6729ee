"""Set torchrun's environment variables in ranks that mpirun or srun started."""

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from ....topo.errors import ExecutionError, InputError
from ...ranks.launchers import Launcher, find_launcher
from .library import describe_mpi, load_mpi, name_job

# More ranks than people wire to each other; mpirun answers look-ups of names one by one.
_MAX_NAMED_RANKS = 256
# Time for all ranks to publish their names (MPI_Init is behind them), and polling interval.
_NAMES_s, _NAMES_POLL_s = 30.0, 0.01


def join_mpi() -> bool:
    """Set the variables that init_process_group reads, in a process that mpirun or srun started.

    These are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; those
    already set stay. Collective over all ranks of the launch. Return False, and do nothing, if no
    MPI launcher started this process, or RANK and WORLD_SIZE are set. Raise InputError if mpi4py is
    missing, or uses another MPI than the launcher, ExecutionError if the ranks find no place to
    meet.
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
    place, meeting = _meet_by_names(mpi, launcher) or _meet_by_messages(mpi)
    defaults = {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(place[0]),
        "LOCAL_WORLD_SIZE": str(place[1]),
    }
    if place[1] == world.size:  # on one host, gloo needs no network
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    # Every rank gets the answer, also if there is none: all raise the same error.
    if isinstance(meeting, str):
        raise ExecutionError(meeting)
    for key, value in (defaults | meeting).items():
        os.environ.setdefault(key, value)
    return True


# The rank's number on its host and the number of ranks there; and the variables that say where the
# ranks meet, or why they cannot.
_Meeting = tuple[tuple[int, int], dict[str, str] | str]


def _meet_by_messages(mpi: Any) -> _Meeting:
    world = mpi.COMM_WORLD
    on_host = world.Split_type(mpi.COMM_TYPE_SHARED, key=world.rank)
    place = on_host.rank, on_host.size
    on_host.Free()
    hosts = world.gather(mpi.Get_processor_name())
    return place, world.bcast(_choose_meeting(hosts) if world.rank == 0 else None)


def _meet_by_names(mpi: Any, launcher: Launcher) -> _Meeting | None:
    """Find the same without a message between ranks, by names that mpirun looks up.

    On hosts that cables join, MPI's messages may reach neighbours only, or end the job. Return None
    on all ranks if this launch need not, or cannot, do without messages.
    """
    world, names = mpi.COMM_WORLD, (launcher.rank_on_host, launcher.on_host)
    if world.size > _MAX_NAMED_RANKS or not all(name in os.environ for name in names):
        return None
    own, on_host = (int(os.environ[name]) for name in names)
    if on_host == world.size:
        return None
    job = name_job()
    host = mpi.Get_processor_name()
    try:
        mpi.Publish_name(f"topoplan/{job}/{world.rank}", host)
    except mpi.Exception:  # it publishes nothing for any rank
        return None
    ends = time.monotonic() + _NAMES_s

    def look_up(name: str | int) -> str:
        while True:
            try:
                return str(mpi.Lookup_name(f"topoplan/{job}/{name}"))
            except mpi.Exception as error:
                if time.monotonic() > ends:
                    raise ExecutionError(
                        f"rank {world.rank}: mpirun has no name of rank "
                        f"{0 if name == 'meeting' else name} after {_NAMES_s:g} s ({error}); start "
                        "the ranks by torchrun"
                    ) from error
                time.sleep(_NAMES_POLL_s)

    if world.rank == 0:
        others = (look_up(rank) for rank in range(1, world.size))
        other = next((name for name in others if name != host), host)
        mpi.Publish_name(f"topoplan/{job}/meeting", json.dumps(_choose_meeting([host, other])))
    meeting: dict[str, str] | str = json.loads(look_up("meeting"))
    return (own, on_host), meeting


def _choose_meeting(hosts: Sequence[str]) -> dict[str, str] | str:
    """Return rank 0's address and a free port, or why there is none; it is on the first host."""
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return {}
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
