"""Headers: the messages by which a group's first member tells helpers what to do next.

A header has a fixed length and goes over gloo. A helper posts the receive of the next header before
it plays its part in a call, so nothing waits for a helper but that part, and the goodbye arrives
while it is busy.
"""

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from ...ranks.transport import Transport
from ...reductions import IN_PLACE_REDUCTIONS, REDUCIBLE_DTYPES, ReduceOp

# All reductions that headers can name, in one order on all ranks.
_OPS = tuple(IN_PLACE_REDUCTIONS)
# Headers and replies go between other pairs of ranks than each other, but in one group.
_HEADER_TAG, _REPLY_TAG = 1, 2
# Headers in flight to all helpers, which are long received when so many others have been sent.
_MAX_IN_FLIGHT = 64
# An idle helper waits for its next header without limit: gloo closes connections at a timeout.
_FOREVER = timedelta(days=365)


class HeaderKind(IntEnum):
    """What a header asks a helper for.

    CALL: take part in a call; COUNT: report the bytes sent so far; LEAVE: stop serving.
    """

    CALL = 0
    COUNT = 1
    LEAVE = 2


@dataclass(frozen=True)
class Header:
    """A request of a group's first member to a helper.

    For a CALL: the participants' call number `number`, a collective with reduction `op` on `numel`
    elements of `dtype`, by schedule number `schedule` of plan number `plan`, cut into `segments`
    pieces that are pipelined, or `stepwise`, one step of the schedule after the other.
    """

    # What the helper is asked for; other fields are for a CALL only.
    kind: HeaderKind
    plan: int = 0
    schedule: int = 0
    segments: int = 1
    stepwise: bool = False
    numel: int = 0
    dtype: torch.dtype = torch.float32
    op: ReduceOp = dist.ReduceOp.SUM
    number: int = 0

    def encode(self) -> torch.Tensor:
        """Return the header as a tensor of int64, of a fixed length."""
        fields = astuple(self)
        return torch.tensor(
            [
                *map(int, fields[:6]),
                REDUCIBLE_DTYPES.index(self.dtype),
                _OPS.index(self.op),
                self.number,
            ]
        )

    @classmethod
    def decode(cls, words: torch.Tensor) -> "Header":
        """Return the header that `encode` turned into the tensor `words`."""
        kind, plan, schedule, segments, stepwise, numel, dtype, op, number = words.tolist()
        return cls(
            HeaderKind(kind),
            plan,
            schedule,
            segments,
            bool(stepwise),
            numel,
            REDUCIBLE_DTYPES[dtype],
            _OPS[op],
            number,
        )


_WORDS = len(Header(HeaderKind.LEAVE).encode())


class HeaderChannel:
    """Sends headers to helpers, or receives them, over gloo among a transport's ranks.

    `transport` is the one over members and helpers; ranks are given by their numbers in the plan.
    """

    def __init__(self, transport: Transport) -> None:
        numbers = range(transport.size)
        # Over NCCL and MPI receives occupy a GPU or a core: headers have gloo connections there.
        self._control = (
            transport.narrow(numbers, transport.control.labels, "gloo")
            if transport.links.is_batched
            else transport
        )
        self._gloo: Any = self._control.group._get_backend(torch.device("cpu"))
        self._transport = transport
        self._in_flight: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._next: tuple[dist.Work, torch.Tensor] | None = None

    def send(self, header: Header, helper: int) -> None:
        """Start to send a header to the rank `helper`.

        Raise RuntimeError if the connection is closed.
        """
        words = header.encode()
        work = self._gloo.send([words], self._transport.control.number_of(helper), _HEADER_TAG)
        self._in_flight.append((work, words))
        if len(self._in_flight) > _MAX_IN_FLIGHT:
            self._in_flight.popleft()[0].wait()

    def listen(self, member: int) -> None:
        """Post the receive of a member's next header in advance; `receive` then waits for it."""
        words = torch.zeros(_WORDS, dtype=torch.int64)
        work = self._gloo.recv([words], self._transport.control.number_of(member), _HEADER_TAG)
        self._next = work, words

    def receive(self, member: int) -> Header:
        """Wait for the next header of a member; raise RuntimeError if the connection is closed."""
        if self._next is None:
            self.listen(member)
        assert self._next is not None
        work, words = self._next
        self._next = None
        work.wait(_FOREVER)
        header = Header.decode(words)
        if header.kind != HeaderKind.LEAVE:
            with suppress(RuntimeError):  # the next `receive` raises it, after this header's call
                self.listen(member)
        return header

    def reply(self, count: int, member: int) -> None:
        """Send the number `count` to a member that asked for it by a COUNT header."""
        words = torch.tensor([count])
        self._gloo.send([words], self._transport.control.number_of(member), _REPLY_TAG).wait()

    def hear_count(self, helper: int) -> int:
        """Wait for a helper's reply to a COUNT header and return it, in bytes."""
        words = torch.zeros(1, dtype=torch.int64)
        self._gloo.recv([words], self._transport.control.number_of(helper), _REPLY_TAG).wait()
        return int(words)

    def say_goodbye(self, helpers: Iterable[int]) -> None:
        """Send LEAVE headers to those `helpers` that can be reached, after earlier headers."""
        for helper in helpers:
            with suppress(RuntimeError):  # it has left, or is gone
                self.send(Header(HeaderKind.LEAVE), helper)
        # Until the deadline of a call: when a wait times out, gloo closes the connections of all
        # participants, and other members may still need the helpers in the last call.
        ends_at = time.monotonic() + self._transport.control.timeout_s
        while self._in_flight:
            left_s = max(0.001, ends_at - time.monotonic())
            with suppress(RuntimeError):
                self._in_flight.popleft()[0].wait(timedelta(seconds=left_s))
