"""Send and receive between the ranks of a group: posted together, and counted.

Messages between two ranks arrive in the order in which both post them. Each wait ends at the
group's timeout. Over NCCL, messages posted together are one batch. Errors name the peer.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from topoplan import ExecutionError

# A peer (its rank in the group), and the contiguous tensor to send or to receive into, not to be
# used before the wait.
Message = tuple[int, torch.Tensor]
# What is done with which ranks, and its work, or the error if it could not be started.
_Started = tuple[str, dist.Work | RuntimeError]


def explain_failure(rank: int, what: str, error: Exception) -> ExecutionError:
    """Return the error to raise after `what` failed on a rank, in one line."""
    # gloo says where in its sources, and gives advice: "[.../pair.cc:553] Connection closed by peer
    # [127.0.0.1]:7054. This is typically caused by ...".
    first_line = re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0])
    reason = first_line.partition(". This is typically")[0]
    return ExecutionError(f"rank {rank}: {what} failed: {reason}")


class PointToPoint:
    """Sends and receives of one rank of `group`; `bytes_sent` counts the payload."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.batched = dist.get_backend(group) == dist.Backend.NCCL
        self.bytes_sent = 0

    def post(
        self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()
    ) -> Callable[[], None]:
        """Start sends and receives, given as (peer's rank in the group, tensor).

        Tensors without elements are skipped. Return a function that waits until all are sent and
        received, to be called once; until then the tensors must not be used. Over NCCL only the
        current stream waits. If messages fail, that function raises the first one's ExecutionError
        when all have ended.
        """
        operations = [
            (f"{doing} rank {peer}", dist.P2POp(start, tensor, group=self.group, group_peer=peer))
            for doing, start, messages in (
                ("receiving from", dist.irecv, receives),
                ("sending to", dist.isend, sends),
            )
            for peer, tensor in messages
            if len(tensor)
        ]
        self.bytes_sent += sum(tensor.nbytes for _, tensor in sends)
        if self.batched and operations:
            # Separate sends and receives could wait for each other.
            what = ", ".join(name for name, _ in operations)
            works = dist.batch_isend_irecv([operation for _, operation in operations])
            return partial(self._wait, [(what, work) for work in works])
        return partial(self._wait, [(what, _start(operation)) for what, operation in operations])

    def exchange(self, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """Send and receive as `post` does, and wait for completion."""
        self.post(sends, receives)()

    def _wait(self, started: list[_Started]) -> None:
        failures = []
        for what, work in started:
            try:
                if isinstance(work, RuntimeError):
                    raise work
                work.wait()
            except RuntimeError as error:
                failures.append(explain_failure(self.rank, what, error))
        started.clear()  # waited for once, and freed before the next messages
        if failures:
            raise failures[0]


def _start(operation: dist.P2POp) -> dist.Work | RuntimeError:
    """Start a message; return its work, or the error if its peer is known to be gone.

    Messages to others are started all the same: they would blame a rank that sends them nothing.
    """
    try:
        work: dist.Work = operation.op(operation.tensor, operation.peer, group=operation.group)
        return work
    except RuntimeError as error:
        return error
