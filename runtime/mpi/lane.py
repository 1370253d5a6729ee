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

# The largest tag that the MPI standard guarantees.
_GUARANTEED_TAG = 32767
# Tags needed: a message's number between two ranks takes 16 bits.
_MIN_TAGS = 1 << 16
# Environment variables in which launchers name the job.
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID", "SLURM_STEP_ID")


@dataclass(frozen=True)
class Seat:
    """A rank's place in an MPI launch.

    That is its number in the MPI world, the size of that world, the launcher's name for it, the
    rank's host, and the cores it may use.
    """

    world_rank: int
    world_size: int
    world: str
    host: str
    cores: frozenset[int]


def find_own_seat(host: str, cores: frozenset[int]) -> Seat:
    """Return this process's seat; raise InputError without MPI."""
    world = load_mpi().COMM_WORLD
    name = next((os.environ[key] for key in _JOBS if key in os.environ), "")
    return Seat(world.rank, world.size, name, host, cores)


class Lane:
    """An MPI communicator over the ranks at `seats`, by their numbers in the group named `name`.

    Construction is collective over these ranks alone. `yields` is set if ranks share cores: a
    waiting rank then yields to others. Raise InputError if the ranks are not of one MPI world.
    """

    def __init__(self, seats: Sequence[Seat], rank: int, name: str, *, yields: bool) -> None:
        mpi = load_mpi()
        check_seats(seats)
        world = mpi.COMM_WORLD
        self.most_in_tags = int(world.Get_attr(mpi.TAG_UB))
        if self.most_in_tags < _MIN_TAGS:
            raise InputError(
                f"transport mpi: tags of {describe_mpi()} end at {self.most_in_tags}, expected "
                f"{_MIN_TAGS} at least; "
                "go over gloo"
            )
        members = world.Get_group().Incl([seat.world_rank for seat in seats])
        self.mpi = mpi
        self.comm = world.Create_group(members, zlib.crc32(name.encode()) % _GUARANTEED_TAG)
        members.Free()
        self.rank, self.size = rank, len(seats)
        self.yields = yields
        self.what = describe_mpi()
        self._own = mpi.COMM_SELF.Dup()
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
        return tag % self.most_in_tags

    def barrier(self, deadline: float) -> None:
        """Wait for all ranks; raise RuntimeError if one is not there by `deadline`.

        `deadline` is a time.monotonic.
        """
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
            self.wake_up_request.Cancel()
            self.wake_up_request.Wait()
            self.comm.Free()
            self._own.Free()


def check_seats(seats: Sequence[Seat]) -> None:
    """Raise InputError unless all ranks are different ones of one MPI world."""
    alone = [number for number, seat in enumerate(seats) if seat.world_size < len(seats)]
    if alone:
        raise InputError(
            f"transport mpi: rank {alone[0]} is in an MPI world of {seats[alone[0]].world_size}, "
            "and the group has "
            f"{len(seats)} ranks; start them by one mpirun (or srun --mpi=pmix)"
        )
    other = [number for number, seat in enumerate(seats) if seat.world != seats[0].world]
    if other:
        raise InputError(
            f"transport mpi: ranks 0 and {other[0]} were started by two mpirun; start all of them "
            "by one"
        )
    numbers = [seat.world_rank for seat in seats]
    if len(set(numbers)) < len(numbers):
        raise InputError(
            "transport mpi: two ranks of the group are the same rank of MPI; set RANK once a "
            "process"
        )
