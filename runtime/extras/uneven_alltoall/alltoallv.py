"""Run all_to_all_single with parts of different sizes by a plan for the announced sizes.

The option expected_splits of a group announces them (splits.py).

Only all ranks together know whether their parts have these sizes: before each call that may use the
plan they ask each other, by a small reduction over gloo in the queue. Calls with other sizes use
the stock alltoall, and so do all calls if that has won the race; then they ask no more.

A stock collective is gloo's, NCCL's or MPI's own, without a plan; demands say which elements go
from which ranks to which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from ....synth.ir.demands import Demand, Demands
from ....topo.errors import InputError
from ...backend.call_check import CallCheck
from ...backend.communicators import Communicators
from ...backend.options import AUTO
from ...compiled import Buffers
from ...persistent_calls import PersistentCall
from ...program.layout import Move
from ...ranks.store import put, take
from .splits import ExpectedSplits

NAME: Final = "alltoallv"
# After so many calls in a row that went by stock, ranks ask each other only at every so many: the
# question costs as much as a small call.
_PATIENCE = 16


@dataclass(frozen=True, eq=False)
class UnevenBuffers(Buffers):
    """The memory of an alltoall with uneven parts.

    `own` are the slices of the source and the target of the part that a rank keeps.
    """

    own: tuple[slice, slice] = (slice(0), slice(0))

    def drain(self, work: torch.Tensor, drains: Sequence[Move]) -> None:
        """Copy what arrived in `work`, and the part that this rank keeps, to the output."""
        super().drain(work, drains)
        self.target[self.own[1]].copy_(self.source[self.own[0]])


class UnevenAlltoall:
    """Runs a group's calls of all_to_all_single by a plan for announced part sizes.

    `expected` are the sizes, a matrix of all ranks' or this rank's row; it is number `rank` of
    `size`. `planned` are the group's communicators, which run plans.
    """

    def __init__(
        self, expected: ExpectedSplits, planned: Communicators, rank: int, size: int
    ) -> None:
        self._expected, self._planned, self._rank, self._size = expected, planned, rank, size
        # The same on all ranks: calls that might use the plan, and those in a row that did not.
        self._calls = self._misses = 0
        self._demands: Demands | None = None
        self._has_agreed = False

    def agree_on_demands(self) -> Demands | None:
        """Return the parts to move as demands, with those that ranks keep; or None.

        None if nothing moves, or the sizes are for a group of another size or with other members.
        Collective the first time if each rank has announced its own. Raise InputError if they are
        not for as many ranks.
        """
        rows = self._gather_rows() if isinstance(self._expected[0], int) else self._expected
        if len(rows) != self._size or any(len(row) != self._size for row in rows):
            scope = self._planned.plans.scope
            if not (scope.whole and scope.insists):
                return None
            raise InputError(
                f"expected_splits of {len(rows)} rows for {self._size} ranks; expected a row for "
                "each rank, of a size for each rank"
            )
        pieces = [
            Demand(size, (source,), (target,))
            for source, row in enumerate(rows)
            for target, size in enumerate(row)
            if size
        ]
        if not any(piece.missing for piece in pieces):
            return None
        return Demands.of(
            pieces, self._size, name=NAME, members=range(self._size), where="expected_splits"
        )

    def _gather_rows(self) -> list[list[int]]:
        plans = self._planned.plans
        put(plans.store, f"splits/{self._rank}", list(self._expected))
        return [
            take(plans.store, f"splits/{rank}", plans.timeout, plans.stop)
            for rank in range(self._size)
        ]

    def find_call(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        splits: Sequence[Sequence[int]],
        number: int,
        check: CallCheck,
    ) -> PersistentCall | None:
        """Return the planned call for these tensors; None to use the stock alltoall. Collective.

        `splits` are the sizes of the output's parts and of the input's; `number` is the call's.
        Only the group's queue may call it. `check` compares the ranks' calls.
        """
        if not self._has_agreed:
            self._demands, self._has_agreed = self.agree_on_demands(), True
        planned, demands, key = self._planned, self._demands, (NAME, None, input.device.type)
        if demands is None or planned.by_key.get(key, planned) is None:
            return None
        width = prod(input.shape[1:])
        numel = demands.size * width
        if not numel or planned.why_plain(NAME, input.new_empty(1), numel):
            return None
        communicator = planned.by_key.get(key)
        if communicator is not None:
            dispatcher = communicator.dispatcher
            choice = dispatcher.choices.find(dispatcher.wire_size(numel, input.dtype))
            if choice is not None and choice.candidate is None:
                return None
        planned.plans.scope.listed[NAME] = demands
        is_ready = planned.begin_search(key, input.device) or planned.options.plans != AUTO
        self._calls += 1
        if self._misses >= _PATIENCE and self._calls % _PATIENCE:
            return None
        if not self._is_expected(demands, output, input, splits, is_ready=is_ready):
            self._misses += 1
            return None
        self._misses = 0
        communicator = planned.open(key, number, check)
        if communicator is None:
            return None
        own = tuple(
            slice(start * width, (start + size) * width)
            for start, size in (self._find_own(demands, end) for end in range(2))
        )
        buffers = UnevenBuffers(numel, input.view(-1), output.view(-1), own=(own[0], own[1]))
        return PersistentCall(communicator.path, buffers)

    def _find_own(self, demands: Demands, end: int) -> tuple[int, int]:
        """Return where this rank's own part begins in its input (output: `end` 1), and its size."""
        listed = (demands.list_held, demands.list_needed)[end](self._rank)
        start = 0
        for piece in (demands.pieces[number] for number in listed):
            if piece.holders == piece.receivers:
                return start, piece.size
            start += piece.size
        return 0, 0

    def _is_expected(
        self,
        demands: Demands,
        output: torch.Tensor,
        input: torch.Tensor,
        splits: Sequence[Sequence[int]],
        *,
        is_ready: bool,
    ) -> bool:
        """Return whether all ranks have the expected sizes and the plan. Collective."""
        sizes = {(p.holders[0], p.receivers[0]): p.size for p in demands.pieces}
        mine = (
            [sizes.get((other, self._rank), 0) for other in range(self._size)],
            [sizes.get((self._rank, other), 0) for other in range(self._size)],
        )
        fits = all(
            list(given or [len(tensor) // self._size] * self._size) == expected
            and len(tensor) == sum(expected)
            and tensor.is_contiguous()
            for given, expected, tensor in zip(splits, mine, (output, input), strict=True)
        )
        answer = torch.tensor([int(fits and is_ready)], dtype=torch.int32)
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        gloo: Any = self._planned.plain._get_backend(torch.device("cpu"))
        gloo.allreduce([answer], options).wait()
        return bool(answer.item())
