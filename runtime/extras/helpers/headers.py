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
    """What a header asks for: part in a call, the count of bytes sent so far, or the end."""

    CALL = 0
    COUNT = 1
    LEAVE = 2


@dataclass(frozen=True)
class Header:
    """A request to a helper.

    A call is the `number`-th of the participants: a collective on `numel` elements by schedule
    number `schedule` of plan number `plan`, cut into `segments`.
    """

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
        """Return the header as a tensor of integers."""
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
        """Return the header that `encode` made a tensor of."""
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

    `transport` is the participants'; ranks are given by its labels.
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
        """Start to send a header; raise RuntimeError if the connection is closed."""
        words = header.encode()
        work = self._gloo.send([words], self._transport.control.number_of(helper), _HEADER_TAG)
        self._in_flight.append((work, words))
        if len(self._in_flight) > _MAX_IN_FLIGHT:
            self._in_flight.popleft()[0].wait()

    def listen(self, member: int) -> None:
        """Post the receive of a member's next header, so that it arrives before `receive`."""
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
        """Answer a header that asks for a count."""
        words = torch.tensor([count])
        self._gloo.send([words], self._transport.control.number_of(member), _REPLY_TAG).wait()

    def hear_count(self, helper: int) -> int:
        """Return a helper's answer to a header that asks for a count."""
        words = torch.zeros(1, dtype=torch.int64)
        self._gloo.recv([words], self._transport.control.number_of(helper), _REPLY_TAG).wait()
        return int(words)

    def say_goodbye(self, helpers: Iterable[int]) -> None:
        """Let the helpers go, as far as they can be reached, once they have the calls' headers."""
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
