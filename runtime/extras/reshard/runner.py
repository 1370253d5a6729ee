"""Run a transfer: a schedule of demands, in as many rounds as keep scratch memory small.

Demands say which elements go from which ranks to which. A bundle has the boxes (ranges of indices)
of all tensors that the same ranks hold and the same ranks need (bundles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

import torch

from ....synth.ir.demands import Demands
from ....synth.ir.schedule import Schedule
from ....topo.graph import Topology
from ...candidates import Candidate
from ...compiled import Buffers
from ...program.lowering import lower
from ...ranks.transport import Transport
from ...runners.programs import Messages
from .bundles import Bundle
from .copying import Ends
from .rounds import Round, RoundBuffers, list_rounds
from .shards import Shards

# Scratch memory of a call, in multiples of the largest shard; arenas are up to an eighth larger.
_SCRATCH: Final = Fraction(3, 2)
# Less scratch memory than this is not worth another round.
_MIN_SCRATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, eq=False, kw_only=True)
class TransferBuffers(Buffers):
    """The memory of one transfer: this rank's shards, `ends`."""

    ends: Ends


class InRounds(Messages):
    """Moves tensors by a schedule of `demands`; all terms of an element's sum move in one round.

    `tensors` has each tensor's shards before and after, `bundles` what of them moves or stays.
    `rounds` is the number of rounds of the last call.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        demands: Demands,
        bundles: Sequence[Bundle],
        tensors: Sequence[tuple[Shards, Shards]],
    ) -> None:
        super().__init__(transport, topology)
        self._demands, self._bundles, self._tensors = demands, bundles, tensors
        self._divided: dict[Candidate, list[Round]] = {}
        self.rounds = 0

    def run(self, candidate: Candidate, buffers: Buffers, number: int | None = None) -> None:
        """Run a transfer by a candidate schedule.

        Each round is a call with a number of its own, so `number` is not used. On GPUs it returns
        after the last copy. Raise ExecutionError if a rank fails or the deadline passes.
        """
        assert isinstance(buffers, TransferBuffers)
        if candidate not in self._divided:
            self._divided[candidate] = self._divide(candidate.schedule, buffers.target.dtype)
        rounds = self._divided[candidate]
        self.rounds = len(rounds)
        like = buffers.target
        for part in rounds:
            of_round = RoundBuffers(
                part.numel,
                like,
                like,
                ends=buffers.ends,
                bundles=self._bundles,
                ranges=part.ranges,
            )
            super().run(Candidate(part.schedule), of_round)
        if like.is_cuda:
            torch.cuda.current_stream(like.device).synchronize()

    def _divide(self, schedule: Schedule, dtype: torch.dtype) -> list[Round]:
        """Return the rounds that scratch memory allows. Collective."""
        width, transport = dtype.itemsize, self.transport
        program = lower(
            schedule, transport.rank, self._demands.size, batched=transport.links.is_batched
        )
        largest = max(
            shards.numel_of(rank)
            for both in self._tensors
            for shards in both
            for rank in shards.coordinates
        )
        limit = max(int(_SCRATCH * largest * width), _MIN_SCRATCH_BYTES)
        scratch_bytes = (program.work_numel + program.staging_numel) * width
        with transport.faults.stock("the scratch memory of a transfer"):
            needed = max(transport.control.exchange(scratch_bytes))
        return list_rounds(schedule, self._bundles, ceil(Fraction(needed, limit)))
