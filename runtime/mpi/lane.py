"""The communicator of some ranks for topoplan's messages alone, whatever numbers they have in MPI's
world.
"""

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

# The largest tag that every MPI has.
_MOST_IN_TAGS = 32767
# Tags that are needed: a message's number between two ranks takes 16 bits of its tag.
_LEAST_TAGS = 1 << 16
# Environment variables by which launchers name what they have started.
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID", "SLURM_STEP_ID")


@dataclass(frozen=True)
class Seat:
    """A rank's number in its MPI world, how many ranks that has, the launcher's name for it, the
    rank's host, and the numbers of the cores that it may use.
    """

    world_rank: int
    world_size: int
    world: str
    host: str
    cores: frozenset[int]


def find_own_seat(host: str, cores: frozenset[int]) -> Seat:
    """Return this process's seat. Raises InputError where there is no MPI."""
    world = load_mpi().COMM_WORLD
    name = next((os.environ[key] for key in _JOBS if key in os.environ), "")
    return Seat(world.rank, world.size, name, host, cores)


class Lane:
    """An MPI communicator over ranks at `seats`, by their numbers in the group; `name` is the
    group's.

    Making it is collective over these ranks alone. `yields` says that ranks share cores: who waits
    lets others run. Raises InputError where the ranks are not of one MPI world.
    """

    def __init__(self, seats: Sequence[Seat], rank: int, name: str, *, yields: bool) -> None:
        mpi = load_mpi()
        check_seats(seats)
        world = mpi.COMM_WORLD
        self.most_in_tags = int(world.Get_attr(mpi.TAG_UB))
        if self.most_in_tags < _LEAST_TAGS:
            raise InputError(
                f"transport mpi: tags of {describe_mpi()} end at {self.most_in_tags}, expected "
                f"{_LEAST_TAGS} at least; "
                "go over gloo"
            )
        members = world.Get_group().Incl([seat.world_rank for seat in seats])
        self.mpi = mpi
        self.comm = world.Create_group(members, zlib.crc32(name.encode()) % _MOST_IN_TAGS)
        members.Free()
        self.rank, self.size = rank, len(seats)
        self.yields = yields
        self.what = describe_mpi()
        self._own = mpi.COMM_SELF.Dup()
        self.can_wait = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self.bell: Any
        self.hang_bell()

    def hang_bell(self) -> None:
        """Make `bell` a request that ends when `ring` is called."""
        self.bell = self._own.Irecv([None, 0, self.mpi.BYTE])

    def ring(self) -> None:
        """End a wait for `bell`, from another thread."""
        self._own.Send([None, 0, self.mpi.BYTE], 0)

    def tag(self, tag: int) -> int:
        """Return a message's tag among those that this MPI has: other ones for the messages of a
        call.
        """
        return tag % self.most_in_tags

    def barrier(self, deadline: float) -> None:
        """Wait for all ranks. Raises RuntimeError where one does not come before `deadline`
        (time.monotonic).
        """
        self._await(self.comm.Ibarrier(), deadline)

    def find_largest(self, values: list[float], deadline: float) -> list[float]:
        """Return, for each of the values, the largest of any rank; raises as `barrier`."""
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
        """Free the communicator, unless MPI has ended already."""
        if not self.mpi.Is_finalized() and self.comm != self.mpi.COMM_NULL:
            self.bell.Cancel()
            self.bell.Wait()
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
