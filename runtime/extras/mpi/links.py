"""Send a group's messages over MPI, and race plans against MPI's own collectives.

A stock collective is gloo's, NCCL's or MPI's own, without a plan; a player runs a program on fixed
buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ....synth.cost.host_costs import OVER_MPI
from ....synth.ir.collective import Collective
from ....topo.errors import InputError
from ...environment import TRANSPORT
from ...program.contract import Operation, Player
from ...program.instructions import Program
from ...ranks.cabled import find_cabling
from ...ranks.control import find_first
from ...ranks.links import MakePlayer, NamedLinks
from ...ranks.machine import are_crowded, find_own_cores
from ...ranks.transport import Transport
from .channel import MpiChannel, find_own_mpi_rank, has_collective, make_collective
from .dependencies import Wave, find_dependencies, find_waves
from .launched import join_mpi
from .library import describe_mpi, takes_gpu_memory
from .native_player import NativePlayerOverMpi, can_play_natively, encode
from .player import (
    CollectivePlayer,
    PlayerAsTheyCome,
    PlayerInWaves,
    Requests,
    can_play_in_waves,
)

ReduceOp = dist.ReduceOp.RedOpType


class MpiLinks(NamedLinks):
    """A group's connections by MPI, on the communicator `channel`."""

    name = "mpi"
    costs = OVER_MPI
    # MPI's collectives progress only inside MPI calls.
    leaves_stock = False
    why_links_must_hold = "MPI ends the job when a connection is lost; use gloo"
    why_fixed = "the ranks of an MPI launch are fixed"
    why_no_host_memory = "the ranks are on several hosts, within which MPI shares memory by itself"

    def __init__(self, transport: Transport, channel: MpiChannel) -> None:
        super().__init__(transport.group, transport.device, transport.faults)
        self.channel, self.carrier = channel, channel.what
        self._collectives = CollectivePlayer(transport.faults)

    @classmethod
    def open(cls, transport: Transport, name: str) -> MpiLinks:
        """Connect the ranks of a transport by MPI, for the group `name`. Collective.

        Raise InputError, on all ranks, if one of them cannot.
        """
        try:
            cabling = find_cabling()
            if cabling is not None:
                cabling.check_mpi(describe_mpi())
            mine: Any = find_own_mpi_rank(*find_own_cores())
            if transport.device.type == "cuda" and not takes_gpu_memory():
                mine = (
                    f"transport mpi: {describe_mpi()} does not say that it takes GPU memory; load "
                    f"a CUDA-aware build, or leave {TRANSPORT} out"
                )
        except InputError as error:
            mine = str(error)
        answers = transport.control.exchange(mine)
        if refused := find_first(x if isinstance(x, str) else None for x in answers):
            raise InputError(mine if isinstance(mine, str) else refused)
        yields = are_crowded([(answer.host, answer.cores) for answer in answers])
        return cls(transport, MpiChannel(answers, transport.rank, name, yields=yields))

    @classmethod
    def takes_gpu_memory(cls) -> bool:
        """Return whether this MPI can send from and receive into GPU memory."""
        return takes_gpu_memory()

    @classmethod
    def join_launch(cls) -> bool:
        """Set torchrun's variables if mpirun or srun started this process; return if it did."""
        return join_mpi()

    def prepare(
        self,
        program: Program,
        ranks: int,
        dtype: torch.dtype,
        op: ReduceOp | None,
        *,
        encodes: bool,
    ) -> MakePlayer:
        """Return a function that makes a program's players, which run it on given buffers.

        `ranks` is the number of ranks; `dtype` and `op` are of its elements and reduction (None: it
        reduces nothing); `encodes` says whether it compresses messages.
        """
        return _Players(self.channel, program, ranks, dtype, op, encodes=encodes)

    def uses_torch(self, *, is_numpys: bool) -> bool:
        """Return whether torch adds CPU tensors in programs: unless NumPy does (`is_numpys`)."""
        return not is_numpys

    def has_stock(self, collective: Collective, dtype: torch.dtype, op: ReduceOp) -> bool:
        """Return whether MPI has this collective for a dtype and reduction; same on all ranks."""
        return has_collective(self.channel, collective, dtype, op)

    def make_stock(
        self,
        collective: Collective,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        group: Any = None,
    ) -> Callable[[], object]:
        """Return a function that runs MPI's collective from `source` to `target`.

        For AVG the result is the sum, and the caller divides. `group` is not used.
        """
        return make_collective(self.channel, collective, source, target, op)

    def run_stock(
        self, call: Callable[[], object], what: str, finish: Callable[[], object]
    ) -> Callable[..., None]:
        """Return a function that runs `call`, a collective of MPI, then `finish`.

        `what` describes the call in errors. The function takes the call's number in the group.
        """
        run_collective = self._collectives.run_collective

        def run(number: int | None = None) -> None:
            run_collective(call, what, finish, number)

        return run

    @property
    def stock_engine(self) -> str:
        """The name of the library that has the stock collectives: "mpi"."""
        return self.name

    def meet(self, timeout_s: float) -> None:
        """Wait for all ranks, so that they go on at nearly the same time.

        Raise RuntimeError if one is missing after `timeout_s` seconds.
        """
        self.channel.barrier(time.monotonic() + timeout_s)

    def find_largest(self, values: list[float], timeout_s: float) -> list[float]:
        """Return, for each item of `values`, the maximum over all ranks. Collective.

        Raise RuntimeError if a rank is missing after `timeout_s` seconds.
        """
        return self.channel.find_largest(values, time.monotonic() + timeout_s)

    def call_between(self, timeout_s: float) -> None:
        """Make one small collective, to put other traffic between timed calls of plans."""
        self.find_largest([0.0], timeout_s)

    def close(self, *, is_private: bool) -> None:
        """Free the communicator, whether the group is private to these links or not."""
        self.channel.close()


class _Players:
    """Makes the players of a program: by the library in C++ where it can play it, else in waves if
    it is small, else as messages come.
    """

    def __init__(
        self,
        channel: MpiChannel,
        program: Program,
        ranks: int,
        dtype: torch.dtype,
        op: ReduceOp | None,
        *,
        encodes: bool,
    ) -> None:
        self._channel, self._program, self._ranks = channel, program, ranks
        self._dtype, self._op, self._encodes = dtype, op, encodes

    def __call__(self, operations: list[Operation], buffers: dict[str, torch.Tensor]) -> Player:
        requests = Requests(self._channel, self._program, operations)
        as_they_come = PlayerAsTheyCome(requests, self._dependencies)
        if not self._encodes and can_play_natively(requests, self._dtype, self._op):
            return NativePlayerOverMpi(requests, self._words, buffers, self._op, as_they_come)
        waves = self._waves if can_play_in_waves(requests) else None
        return as_they_come if waves is None else PlayerInWaves(requests, waves, as_they_come)

    @cached_property
    def _dependencies(self) -> list[tuple[int, ...]]:
        return find_dependencies(self._program)

    @cached_property
    def _waves(self) -> list[Wave] | None:
        return find_waves(self._program, self._dependencies)

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        """The program as the library in C++ plays it (see `encode`)."""
        return encode(self._program, self._dependencies, self._ranks, self._dtype.itemsize)
