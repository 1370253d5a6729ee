"""An MPI communicator for topoplan's messages alone, over ranks with any numbers in MPI's world."""

from __future__ import annotations

import os
import time
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...topo.errors import InputError
from .library import describe_mpi, load_mpi

# Tags needed: a message's number between two ranks takes 16 bits.
_MIN_TAGS = 1 << 16
# Environment variables in which launchers name the job.
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID", "SLURM_STEP_ID")


@dataclass(frozen=True)
class MpiRank:
    """A rank's number in its MPI world, the world's size and name, its host, and its cores.

    The launcher gives the world its name; the cores are those that the rank may use.
    """

    world_rank: int
    world_size: int
    world: str
    host: str
    cores: frozenset[int]


def find_own_mpi_rank(host: str, cores: frozenset[int]) -> MpiRank:
    """Return this process as an MPI rank; raise InputError without MPI."""
    world = load_mpi().COMM_WORLD
    job = next((os.environ[key] for key in _JOBS if key in os.environ), "")
    return MpiRank(world.rank, world.size, job, host, cores)


class MpiChannel:
    """An MPI communicator over `ranks`, by their numbers in the group named `name`.

    Construction is collective over these ranks alone. `yields` is set if ranks share cores: a
    waiting rank then yields to others. Raise InputError if the ranks are not of one MPI world.
    """

    def __init__(self, ranks: Sequence[MpiRank], rank: int, name: str, *, yields: bool) -> None:
        self.mpi = mpi = load_mpi()
        check_mpi_ranks(ranks)
        world = mpi.COMM_WORLD
        self.max_tag = int(world.Get_attr(mpi.TAG_UB))
        if self.max_tag < _MIN_TAGS:
            raise InputError(
                f"transport mpi: tags of {describe_mpi()} end at {self.max_tag}, expected at least "
                f"{_MIN_TAGS}; use gloo"
            )
        members = world.Get_group().Incl([member.world_rank for member in ranks])
        # The tag keeps two groups that threads create at once apart; Create_group needs one. The
        # MPI standard guarantees tags up to 32767.
        self.comm = world.Create_group(members, zlib.crc32(name.encode()) % 32767)
        members.Free()
        self.rank, self.yields, self.what = rank, yields, describe_mpi()
        # A communicator with this process alone carries wake-ups, so that no message matches them.
        self._own = mpi.COMM_SELF.Dup()
        # `wake_up` sends from another thread while this one is inside MPI.
        self.can_wait = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self.wake_up_request: Any
        self.post_wake_up()

    def post_wake_up(self) -> None:
        """Make `wake_up_request` a request that completes when `wake_up` is called."""
        self.wake_up_request = self._own.Irecv([None, 0, self.mpi.BYTE])

    def wake_up(self) -> None:
        """End a wait for `wake_up_request`, from another thread."""
        self._own.Send([None, 0, self.mpi.BYTE], 0)

    def tag(self, tag: int) -> int:
        """Return a message's tag within this MPI's range, unique among the messages of a call."""
        return tag % self.max_tag

    def barrier(self, deadline: float) -> None:
        """Wait for all ranks; raise RuntimeError if one is missing at `deadline` (monotonic)."""
        self._await(self.comm.Ibarrier(), deadline)

    def find_largest(self, values: list[float], deadline: float) -> list[float]:
        """Return the maximum of each value over all ranks; raises like `barrier`."""
        mine, largest = array("d", values), array("d", values)
        self._await(self.comm.Iallreduce(mine, largest, self.mpi.MAX), deadline)
        return largest.tolist()

    def _await(self, request: Any, deadline: float) -> None:
        while not request.Test():
            if time.monotonic() > deadline:
                raise RuntimeError("the ranks did not meet in time")
            if self.yields:
                os.sched_yield()

    def close(self) -> None:
        """Free the communicator unless MPI has been finalized."""
        if not self.mpi.Is_finalized() and self.comm != self.mpi.COMM_NULL:
            # A request still posted when its communicator is freed would leak it.
            self.wake_up_request.Cancel()
            self.wake_up_request.Wait()
            self.comm.Free()
            self._own.Free()


def check_mpi_ranks(ranks: Sequence[MpiRank]) -> None:
    """Raise InputError unless all ranks are different ones of one MPI world."""
    for number, member in enumerate(ranks):
        if member.world_size < len(ranks):
            raise InputError(
                f"transport mpi: rank {number} is in an MPI world of {member.world_size}, and the "
                f"group has {len(ranks)} ranks; start them by one mpirun (or srun --mpi=pmix)"
            )
    for number, member in enumerate(ranks):
        if member.world != ranks[0].world:
            raise InputError(
                f"transport mpi: ranks 0 and {number} were started by two mpirun; start all of "
                "them by one"
            )
    if len({member.world_rank for member in ranks}) < len(ranks):
        raise InputError(
            "transport mpi: two ranks of the group are the same rank of MPI; set RANK once a "
            "process"
        )
