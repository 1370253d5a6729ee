"""Messages between the ranks of one group: posted at once, awaited once each, counted; errors name who failed.

Messages between two ranks arrive in the order in which both post them. Over NCCL what is posted together is one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError
from ..ranks.faults import Faults, first_line

Message = tuple[int, torch.Tensor]
"""A peer, as rank of the group, and the tensor that goes to it or comes from it: contiguous, left alone until awaited."""


class Mail:
    """One rank's messages over `group`; `bytes_sent` counts their payload. With `faults`, all ranks hear of a failure."""

    def __init__(self, group: dist.ProcessGroup, faults: Faults | None = None) -> None:
        self.group, self.faults = group, faults
        self.rank = dist.get_rank(group)
        self.batched = "nccl" in dist.get_backend(group)
        self.bytes_sent = 0
        self._posted: Counter[str] = Counter()

    def begin(self, call: str) -> None:
        """A call begins, the same on every rank: its deadline starts."""
        self._posted.clear()
        if self.faults is not None:
            self.faults.begin(call)

    def post(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> Posted:
        """Begin to send and to receive; messages without elements are none."""
        operations = [
            dist.P2POp(dist.irecv, tensor, self._global(peer), self.group) for peer, tensor in receives if len(tensor)
        ]
        operations += [
            dist.P2POp(dist.isend, tensor, self._global(peer), self.group) for peer, tensor in sends if len(tensor)
        ]
        ends = [("receive", peer) for peer, tensor in receives if len(tensor)]
        ends += [("send", peer) for peer, tensor in sends if len(tensor)]
        works: list[dist.Work] = []
        waiting: list[tuple[str, int, int]] = []
        try:
            if self.batched:
                works = list(dist.batch_isend_irecv(operations)) if operations else []
            for (kind, peer), operation in zip(ends, operations, strict=True):
                waiting.append((kind, peer, self._posted[f"{kind} {peer}"]))
                if not self.batched:
                    works.append(operation.op(operation.tensor, operation.peer, group=self.group))
                self._posted[f"{kind} {peer}"] += 1
        except RuntimeError as error:
            raise self.failed(*waiting[-1], error) from error
        self.bytes_sent += sum(tensor.nbytes for _, tensor in sends)
        return Posted(self, works, waiting)

    def exchange(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """Send and receive, to the end."""
        self.post(sends, receives).wait()

    def failed(self, kind: str, peer: int, number: int, error: Exception) -> ExecutionError:
        """The error for a rank that waited in vain."""
        if self.faults is not None:
            return self.faults.stuck(kind, peer, number, 0, error, dict(self._posted))
        doing = "sending to" if kind == "send" else "receiving from"
        return ExecutionError(f"rank {self.rank}: {doing} rank {peer} failed: {first_line(error)}")

    def left(self) -> timedelta | None:
        """What is left of the call's deadline; None: the group's own timeout counts."""
        return None if self.faults is None else timedelta(seconds=max(0.001, self.faults.deadline - monotonic()))

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)


class Posted:
    """Messages under way."""

    def __init__(self, mail: Mail, works: list[dist.Work], waiting: list[tuple[str, int, int]]) -> None:
        self._mail, self._works, self._waiting = mail, works, waiting

    def wait(self) -> None:
        """Until all have arrived and been sent (over NCCL: until the current stream may go on). Once."""
        works, self._works = self._works, []
        for number, work in enumerate(works):
            kind, peer, count = self._waiting[min(number, len(self._waiting) - 1)]
            try:
                left = self._mail.left()
                if left is None or self._mail.batched:
                    work.wait()
                else:
                    work.wait(left)
            except RuntimeError as error:
                raise self._mail.failed(kind, peer, count, error) from error
