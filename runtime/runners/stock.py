"""The runner of the stock collective, the backend's own, which races against a plan.

Buffers are what a call works on: its input and output, and its reduction. A transport is a group of
ranks with links, which carry messages and stock collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from ...synth.ir.collective import Collective
from ..candidates import STOCK
from ..compiled import Buffers, describe_call
from ..program.contract import Listener, Observed, ObservedCalls
from ..program.layout import ends_with_result
from ..ranks.stock import StartedStock, make_stock_call
from ..ranks.transport import Transport
from ..reductions import in_inference_mode
from .contract import Play


class Stock(Observed):
    """Carries out a collective by the backend's own; averages come divided.

    `wire_size(buffers)` returns the bytes of a buffer as plans send it, for observers. With
    `is_left_out` it carries out nothing: a stock collective could not be left when a connection is
    lost.
    """

    def __init__(
        self,
        collective: Collective,
        transport: Transport,
        wire_size: Callable[[Buffers], int],
        *,
        is_left_out: bool = False,
    ) -> None:
        self._collective, self._transport = collective, transport
        # As the members' group numbers its ranks.
        self._of_members = collective.among(collective.members)
        self._wire_size, self._is_left_out = wire_size, is_left_out

    def can(self, buffers: Buffers) -> bool:
        """Return whether the links have the collective for a dtype and reduction.

        The answer is the same on all ranks, and needs no communication.
        """
        if self._is_left_out:
            return False
        links, dtype = self._transport.links, buffers.target.dtype
        return links.has_stock(self._collective, dtype, buffers.op)

    def make(self, buffers: Buffers) -> Play:
        """Return a function that makes the call on buffers; it takes the call's number."""
        links, what = self._transport.links, self._describe(buffers)
        listeners = self._find_listeners(buffers, what)
        call = links.make_stock(self._of_members, buffers.source, buffers.target, buffers.op)

        def finish() -> None:
            self._divide(buffers)
            for listener in listeners:
                listener.end(None)

        return links.run_stock(call, what, finish)

    def bind(self, buffers: Buffers) -> Play | None:
        """Return a function that makes calls on one buffer one by one, where that is faster.

        None where `start` lets several be in progress at once.
        """
        if self._transport.links.leaves_stock or not self.can(buffers):
            return None
        play = self.make(buffers)
        averages = buffers.op == dist.ReduceOp.AVG  # which torch divides
        return partial(in_inference_mode, play) if averages else play

    def start(
        self, buffers: Buffers, finish: Callable[[], None], number: int | None = None
    ) -> StartedStock:
        """Start the collective on buffers, and return without waiting; an average comes divided.

        The caller must handle the end by the StartedStock that is returned. `finish` is called when
        it has ended well. `number` is the call's number in its group if it was drawn before (None:
        the next one).
        """
        faults, what = self._transport.faults, self._describe(buffers)
        call = faults.begin(what, number=number)
        work = make_stock_call(
            self._of_members, self._transport.group, buffers.source, buffers.target, buffers.op
        )(asynchronous=True)
        assert work is not None
        for listener in self._find_listeners(buffers, what):
            listener.end(number)  # now: several may be in progress at once

        def end() -> None:
            self._divide(buffers)
            finish()

        return StartedStock(faults, call, work, end)

    def _find_listeners(self, buffers: Buffers, what: str) -> tuple[Listener, ...]:
        return self.listen(ObservedCalls(what, STOCK, self._wire_size(buffers)))

    def _divide(self, buffers: Buffers) -> None:
        """Divide a sum for an average, if this rank has the sum."""
        ends_here = ends_with_result(self._collective, self._transport.control.label)
        if buffers.op == dist.ReduceOp.AVG and ends_here:
            buffers.target.div_(self._of_members.ranks)

    def _describe(self, buffers: Buffers) -> str:
        collective = self._collective
        name, op = collective.name, buffers.op if collective.reduces else None
        call = describe_call(name, op, collective.root, buffers.numel, buffers.target.dtype)
        return f"{call} by the stock {name}"
