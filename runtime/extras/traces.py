"""Trace when each transfer of a schedule began and ended on running ranks, beside the prediction.

A traced call is run by a separate runner that records times, which costs some microseconds per
operation. A message begins when its sender has posted it and ends when its receiver has waited for
it. Over NCCL, where waiting does not stop the host, a tick's messages begin and end with their
batch, for which the host waits; a tick is a step of the schedule cut finer, in which a segment of a
chunk moves. Every rank's clock starts at a barrier before the call.

A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from ...synth.cost.segmentation import reroute
from ...synth.cost.transfer_times import MAX_TIMES, TransferTime, predict_times
from ...synth.extras.traces import chrome_trace
from ...synth.ir.schedule import Schedule
from ...topo.errors import ExecutionError, InputError, TopoplanError
from ...topo.hardware_rule import HARDWARE
from ..candidates import Candidate
from ..communicator import Communicator
from ..measuring.bench_data import BenchSettings
from ..program.contract import ObservedCalls
from ..program.instructions import Post
from ..program.layout import IN_PLACE, Layout
from ..program.messages import list_messages
from ..ranks.faults import first_line
from ..runners.programs import Messages

_WARMUP = 3  # calls before the traced one, which connect the ranks and fill caches
# Whether it was sent, the other rank, the message's number in that direction, microseconds.
Stamp = tuple[bool, int, int, float]


def trace_largest(settings: BenchSettings, communicator: Communicator) -> str | None:
    """Return a Chrome trace of a call of a benchmark's largest size, as JSON text, on rank 0.

    None on other ranks. Collective. The schedule is the one in use for the size, or, if that is the
    stock collective, the best of the plan's own. `communicator` makes the call; `settings` are the
    benchmark's. Raise InputError if there is too much to list, ExecutionError if the call fails.
    """
    numel, dtype = settings.options.list_sizes()[-1] // settings.dtype.itemsize, settings.dtype
    if settings.collective.name not in IN_PLACE:
        numel -= numel % settings.collective.ranks
    dispatcher, plan = communicator.dispatcher, communicator.plan
    size = dispatcher.wire_size(numel, dtype)
    schedule = _find_schedule(communicator, size)
    if len(schedule.transfers) * schedule.segments > MAX_TIMES:
        raise InputError(
            f"{schedule.label} at {size} bytes has more than {MAX_TIMES:,} transfers and segments; "
            "choose a smaller size"
        )
    sender = Messages(dispatcher.transport, plan.topology, dispatcher.messages.codec)
    stamps: list[Stamp] = []
    begin = stamp_into(sender, stamps)
    buffers = dispatcher.make_scratch(numel, dtype)
    try:
        for _ in range(_WARMUP):
            dispatcher.transport.meet()
            begin()
            began = time.perf_counter()
            sender.run(Candidate(schedule), buffers)
            took_us = (time.perf_counter() - began) * 1e6
        everybody: list[Any] = [None] * communicator.size
        dist.all_gather_object(everybody, (stamps, took_us), group=dispatcher.group)
    except TopoplanError:
        raise
    except RuntimeError as error:
        raise ExecutionError(
            f"rank {communicator.rank}: the traced call failed: {first_line(error)}"
        ) from error
    if communicator.rank != 0:
        return None
    machine = dispatcher.machine
    measured = pair_stamps(
        schedule,
        numel,
        lambda elements: dispatcher.wire_size(elements, dtype),
        [stamps for stamps, _ in everybody],
    )
    predicted = predict_times(
        schedule if machine.topology is None else reroute(schedule, HARDWARE.on(machine.topology)),
        machine.topology,
        size,
        machine.host,
    )
    about = chrome_trace.describe_run(schedule, plan.topology, size) | {
        "plan": plan.hash,
        "measured_us": max(took for _, took in everybody),
        "predicted_for": machine.what,
        "host_costs": machine.host.source,
    }
    return chrome_trace.write(
        plan.topology,
        {chrome_trace.PREDICTED: predicted, chrome_trace.MEASURED: measured},
        about,
    )


def _find_schedule(communicator: Communicator, size: int) -> Schedule:
    """Return the schedule in use for a size in bytes, or the best one if that is stock."""
    choice = communicator.choice(size)
    if choice is None:
        return communicator.plan.entry_for(size).schedule
    return (choice.candidate or choice.own).schedule


def stamp_into(sender: Messages, stamps: list[Stamp]) -> Callable[[], None]:
    """Make `sender` append to `stamps` when messages are sent and received, in microseconds.

    Times count from this call, or from the last call of the returned function, which empties
    `stamps`.
    """
    began = time.perf_counter()

    def begin() -> None:
        nonlocal began
        stamps.clear()
        began = time.perf_counter()

    def stamp(post: Post) -> None:
        stamps.append(
            (post.kind == "send", post.peer, post.number, (time.perf_counter() - began) * 1e6)
        )

    sender.observe(Stamping(stamp))
    return begin


class Stamping:
    """An observer that records the time of every message of every call.

    It calls `stamp` with each message.
    """

    def __init__(self, stamp: Callable[[Post], object]) -> None:
        self._stamp = stamp

    def listen(self, calls: ObservedCalls) -> Stamping:
        """Return this object, which observes calls of all kinds."""
        return self

    def begin_anew(self, size_bytes: int) -> None:
        """Do nothing: races between schedules are of no interest here."""

    def begin(self) -> Callable[[Post], object]:
        """Return the function that the player calls with each message of the call."""
        return self._stamp

    def end(self, number: int | None) -> None:
        """Do nothing at the end of a call."""


def pair_stamps(
    schedule: Schedule,
    numel: int,
    count_bytes: Callable[[int], int],
    stamps_of: Sequence[Sequence[Stamp]],
) -> list[TransferTime]:
    """Return when each transfer's non-empty segments began and ended, from the times on all ranks.

    stamps_of[r] are rank r's, for a buffer of `numel` elements; `count_bytes` returns the bytes
    sent for a number of elements. A message's time is divided among its segments by their lengths.
    """
    at_us = {
        (sent, (rank, peer, number) if sent else (peer, rank, number)): us
        for rank, stamps in enumerate(stamps_of)
        for sent, peer, number, us in stamps
    }
    route_of = {(t.step, t.src, t.dst, t.chunk): t.route for t in schedule.transfers}
    layout = Layout(schedule, numel)
    out: list[TransferTime] = []
    for rank in range(schedule.collective.ranks):
        for message in list_messages(layout, rank)[0]:
            key = rank, message.peer, message.number
            begin = at_us[True, key]
            # Ranks' clocks start at a barrier that they leave at slightly different times.
            took_us = max(0.0, at_us[False, key] - begin)
            before = 0
            for piece in message.pieces:
                length = piece.hi - piece.lo
                out.append(
                    TransferTime(
                        piece.step,
                        rank,
                        message.peer,
                        piece.chunk,
                        "reduce" if piece.adds else "copy",
                        route_of[piece.step, rank, message.peer, piece.chunk],
                        tick=message.tick,
                        segment=piece.part,
                        bytes=count_bytes(length),
                        begin_us=begin + took_us * before / message.length,
                        end_us=begin + took_us * (before + length) / message.length,
                    )
                )
                before += length
    return out
