"""Send and receive between the ranks of a group: posted together and counted.

Messages between two ranks arrive in the order in which both post them. Over NCCL, messages posted
together are one batch. Errors name the culprit.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError, TopoplanError
from ..ranks.faults import Call, Faults, first_line
from ..ranks.groups import uses_nccl
from ..ranks.half_messages import Waiting, check_arrived, watch

# A peer (its rank in the group), and the contiguous tensor to send or to receive into, not to be
# used before `wait`.
Message = tuple[int, torch.Tensor]


class PointToPoint:
    """Sends and receives of one rank of `group`; `bytes_sent` counts the payload.

    With `faults`, a failure is reported to all ranks, and the error names the rank that caused it.
    """

    def __init__(self, group: dist.ProcessGroup, faults: Faults | None = None) -> None:
        self.group, self.faults = group, faults
        self.rank = dist.get_rank(group)
        self.batched = uses_nccl(group)
        self.bytes_sent = 0
        self._posted: Counter[str] = Counter()
        self._call: Call | None = None
        self._waiting = Waiting(None if self.batched else group._get_backend(torch.device("cpu")))

    def begin(self, call: str) -> None:
        """Begin a call, described by the text `call`; its deadline starts now.

        All ranks of the group begin the same calls in the same order.
        """
        self._posted.clear()
        if self.faults is not None:
            self._call = self.faults.begin(call)

    def post(
        self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()
    ) -> Callable[[], None]:
        """Start sends and receives, given as (peer's rank in the group, tensor).

        Tensors without elements are skipped. Return a function that waits until all are sent and
        received, to be called once; until then the tensors must not be used. Over NCCL only the
        current stream waits. Raise ExecutionError if one fails.
        """
        messages = [
            (kind, peer, tensor)
            for kind, posted in (("receive", receives), ("send", sends))
            for peer, tensor in posted
            if len(tensor)
        ]
        operations = [
            dist.P2POp(
                dist.isend if kind == "send" else dist.irecv,
                tensor,
                dist.get_global_rank(self.group, peer),
                self.group,
            )
            for kind, peer, tensor in messages
        ]
        works: list[dist.Work] = []
        pending: list[tuple[str, int, int]] = []
        try:
            # One batch: over NCCL, separate sends and receives could wait for each other.
            if self.batched:
                works = list(dist.batch_isend_irecv(operations)) if operations else []
            for (kind, peer, _), operation in zip(messages, operations, strict=True):
                pending.append((kind, peer, self._posted[f"{kind} {peer}"]))
                if not self.batched:
                    works.append(operation.op(operation.tensor, operation.peer, group=self.group))
                self._posted[f"{kind} {peer}"] += 1
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise self.explain(*pending[-1], error) from error
        self.bytes_sent += sum(tensor.nbytes for _, tensor in sends)
        return partial(self._wait, works, pending)

    def exchange(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """Send and receive as `post` does, and wait for completion."""
        self.post(sends, receives)()

    def explain(self, kind: str, peer: int, number: int, error: Exception) -> ExecutionError:
        """Return the error to raise after a message with `peer` failed with `error`.

        It was the `number`-th of its `kind`, "send" or "receive", with that peer in this call.
        """
        if self.faults is not None and self._call is not None:
            return self.faults.stuck(self._call, kind, peer, number, 0, error, dict(self._posted))
        return ExecutionError(
            f"rank {self.rank}: {'sending to' if kind == 'send' else 'receiving from'} rank {peer} "
            f"failed: {first_line(error)}"
        )

    def _wait(self, works: list[dist.Work], pending: list[tuple[str, int, int]]) -> None:
        """Wait for posted messages, the (kind, peer, number between the two ranks) of each."""
        watch.begin(self._waiting)
        number = 0
        try:
            for number, work in enumerate(works):
                # Over NCCL the host does not wait, so a deadline would say nothing.
                if self.batched:
                    work.wait()
                    continue
                self._waiting.awaited = work, pending[number][1]
                if not work.wait(*self._list_limits()):
                    check_arrived(work)
        except TopoplanError:
            raise
        except RuntimeError as error:
            # NCCL has one work for the whole batch.
            raise self.explain(*pending[min(number, len(pending) - 1)], error) from error
        finally:
            watch.end(self._waiting)
        works.clear()  # waited for once, and freed before the next messages

    def _list_limits(self) -> tuple[timedelta, ...]:
        """Return what is left of the call's deadline; () without one."""
        if self._call is None:
            return ()
        # At least 1 ms: torch takes 0 for no timeout.
        return (timedelta(seconds=max(0.001, self._call.deadline - monotonic())),)
