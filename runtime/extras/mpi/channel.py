"""Make an MPI communicator for a group's messages, with ranks in any order of MPI's world.

MPI's own collectives are called over it on flat tensors, to race against plans.
"""

import os
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ....synth.ir.collective import Collective
from ....topo.errors import InputError
from .library import describe_mpi, load_mpi, name_job

# Tags needed: a message's number between two ranks takes 16 bits.
_MIN_TAGS = 1 << 16
ReduceOp = dist.ReduceOp.RedOpType


@dataclass(frozen=True)
class MpiRank:
    """A process as MPI knows it.

    `world_rank` is its number in MPI's world of `world_size` ranks; `world` is the launcher's name
    of the job ("" if none). It runs on `host`, and may use the `cores` with these numbers.
    """

    world_rank: int
    world_size: int
    world: str
    host: str
    cores: frozenset[int]


def find_own_mpi_rank(host: str, cores: frozenset[int]) -> MpiRank:
    """Return this process as an MPI rank on `host` that may use `cores`.

    Raise InputError without MPI.
    """
    world = load_mpi().COMM_WORLD
    return MpiRank(world.rank, world.size, name_job(), host, cores)


class MpiChannel:
    """An MPI communicator over the processes `ranks`, numbered as in the group `name`.

    `rank` is this one's number. Construction is collective over these ranks alone. `yields` is set
    if ranks share cores: a waiting rank then yields to others. Raise InputError if the ranks are
    not of one MPI world.
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
        """Post a new `wake_up_request`, a receive that completes when `wake_up` is called."""
        self.wake_up_request = self._own.Irecv([None, 0, self.mpi.BYTE])

    def wake_up(self) -> None:
        """Complete `wake_up_request`, to end another thread's wait for it."""
        self._own.Send([None, 0, self.mpi.BYTE], 0)

    def barrier(self, deadline: float) -> None:
        """Wait for all ranks; raise RuntimeError if one is missing at `deadline` (monotonic)."""
        self._await(self.comm.Ibarrier(), deadline)

    def find_largest(self, values: list[float], deadline: float) -> list[float]:
        """Return, for each item of `values`, the maximum over all ranks. Collective.

        Raise RuntimeError if a rank is missing at `deadline` (time.monotonic).
        """
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
    """Raise InputError unless all ranks are of the same MPI world, and no two the same."""
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


def has_collective(
    channel: MpiChannel, collective: Collective, dtype: torch.dtype, op: ReduceOp
) -> bool:
    """Return whether MPI has a collective for a dtype and reduction; it has no half precision."""
    return not collective.reduces or (
        dtype in _name_types(channel.mpi) and op in _name_operations(channel.mpi)
    )


def make_collective(
    channel: MpiChannel,
    collective: Collective,
    source: torch.Tensor,
    target: torch.Tensor,
    op: ReduceOp,
) -> Callable[[], None]:
    """Return a function that calls MPI's collective on the flat tensors `source` and `target`.

    For allreduce, reduce and broadcast both must be the same tensor. For AVG the result is the sum,
    and the caller divides. The function returns when this rank is done, and has no deadline. Raise
    KeyError if there is no such collective (see `has_collective`).
    """
    mpi, comm, root = channel.mpi, channel.comm, collective.root or 0
    given, got = _view(channel, source, collective), _view(channel, target, collective)
    mine = channel.rank == root
    operation = _name_operations(channel.mpi)[op] if collective.reduces else None
    calls: dict[str, Callable[[], None]] = {
        "allreduce": lambda: comm.Allreduce(mpi.IN_PLACE, got, operation),
        # In place on the root; the other ranks' tensors stay unchanged.
        "reduce": lambda: comm.Reduce(
            mpi.IN_PLACE if mine else got, got if mine else None, operation, root
        ),
        "broadcast": lambda: comm.Bcast(got, root),
        "allgather": lambda: comm.Allgather(given, got),
        "reduce-scatter": lambda: comm.Reduce_scatter_block(given, got, operation),
        "gather": lambda: comm.Gather(given, got if mine else None, root),
        "scatter": lambda: comm.Scatter(given if mine else None, got, root),
        "alltoall": lambda: comm.Alltoall(given, got),
    }
    call = calls[collective.name]
    if target.device.type != "cuda":
        return call

    def call_on_gpu() -> None:
        torch.cuda.current_stream(target.device).synchronize()  # MPI knows nothing of streams
        call()

    return call_on_gpu


def _view(channel: MpiChannel, tensor: torch.Tensor, collective: Collective) -> Any:
    """Return a tensor's memory and the MPI type of its elements, as mpi4py takes them.

    Without additions the elements are bytes.
    """
    mpi = channel.mpi
    return [
        mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes),
        _name_types(mpi)[tensor.dtype] if collective.reduces else mpi.BYTE,
    ]


@cache
def _name_types(mpi: Any) -> dict[torch.dtype, Any]:
    return {
        torch.float32: mpi.FLOAT,
        torch.float64: mpi.DOUBLE,
        torch.uint8: mpi.UINT8_T,
        torch.int8: mpi.INT8_T,
        torch.int16: mpi.INT16_T,
        torch.int32: mpi.INT32_T,
        torch.int64: mpi.INT64_T,
    }


@cache
def _name_operations(mpi: Any) -> dict[ReduceOp, Any]:
    return {
        dist.ReduceOp.SUM: mpi.SUM,
        dist.ReduceOp.AVG: mpi.SUM,
        dist.ReduceOp.PRODUCT: mpi.PROD,
        dist.ReduceOp.MAX: mpi.MAX,
        dist.ReduceOp.MIN: mpi.MIN,
    }
