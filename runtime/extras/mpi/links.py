"""MPI between the ranks of a group, as links of a transport: it carries the messages of plans, and
its own collectives race against them.
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
    """MPI's own connections, on the communicator `channel`."""

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
        """Connect the ranks of a transport, for messages of the group `name`."""
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
        """Return whether messages may be in the memory of GPUs."""
        return takes_gpu_memory()

    @classmethod
    def join_launch(cls) -> bool:
        """Join the ranks that another launcher started, as ranks/launchers.py says."""
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
        """Return what makes the players of a program; None: it is played in its own order."""
        return _Players(self.channel, program, ranks, dtype, op, encodes=encodes)

    def uses_torch(self, *, is_numpys: bool) -> bool:
        """Return whether torch carries out additions of programs in place on CPU tensors."""
        return not is_numpys

    def has_stock(self, collective: Collective, dtype: torch.dtype, op: ReduceOp) -> bool:
        """Return whether there is a stock collective; ranks need not ask each other."""
        return has_collective(self.channel, collective, dtype, op)

    def make_stock(
        self,
        collective: Collective,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        group: Any = None,
    ) -> Callable[[], object]:
        """Return a function that runs the stock collective; for AVG the result is the sum."""
        return make_collective(self.channel, collective, source, target, op)

    def run_stock(
        self, call: Callable[[], object], what: str, finish: Callable[[], object]
    ) -> Callable[..., None]:
        """Return a function that runs a stock collective, then `finish`."""
        run_collective = self._collectives.run_collective

        def run(number: int | None = None) -> None:
            run_collective(call, what, finish, number)

        return run

    @property
    def stock_engine(self) -> str:
        """The engine of the stock collectives: always "mpi"."""
        return self.name

    def meet(self, timeout_s: float) -> None:
        """Wait for all ranks at a barrier, with as little skew as there can be."""
        self.channel.barrier(time.monotonic() + timeout_s)

    def find_largest(self, values: list[float], timeout_s: float) -> list[float]:
        """Return, for each item of `values`, the maximum over all ranks; raises like `meet`."""
        return self.channel.find_largest(values, time.monotonic() + timeout_s)

    def call_between(self, timeout_s: float) -> None:
        """Make a small call that is not a plan's."""
        self.find_largest([0.0], timeout_s)

    def close(self, *, is_private: bool) -> None:
        """Free what is the links' own, if `is_private` with the group, which is then closed too."""
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
