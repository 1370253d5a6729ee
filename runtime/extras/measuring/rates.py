"""Time messages between ranks: round trips and rates of one pair, and of simultaneous flows.

A flow is a row of equally long messages, its chunks, from one rank to another.
Every Work is awaited exactly once, since a second wait blocks over gloo; deadlines are the process
group's. Over NCCL everything a rank sends and receives at a time is one batch (separate batches
wait for each other), and the host waits for the stream.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ....topo.extras.measured.flows import Pair
from ...ranks.cabled import find_cabling

# Round trips of a small message, of which the median counts: chosen, not measured.
_PINGS = 15
_SMALL_BYTES = 8  # one number: time in which size plays no part
# Sizes start here and double until a message takes long enough.
_FIRST_BYTES = 64 << 10
# Granularity and least size of chunks: chosen, not measured.
_CHUNK_STEP_BYTES = 4 << 10
# A message that takes longer than this is measured once.
_PATIENCE_S = 0.5
# Sent right before a timed message, so that the TCP window is open.
_LEAD_BYTES = 128 << 10
_MIN_REPEATS, _MAX_REPEATS = 3, 7
# Repeats end once a fit's residual is below this fraction of the longest time.
_QUIET = 0.01
# The largest message takes at least this many latencies, so that its time shows the bandwidth.
_OVER_LATENCY = 20
# A fit whose residual is a larger fraction of the longest time is not used.
_FITS = 0.03
# The constant part of a fit is at most this fraction of the longest time, or the fit follows a
# disturbance: it is below a latency, and the time at least twenty. It may be negative, since a
# token bucket lets a first part through for free.
_MAX_ALPHA = 0.1
# Chunks of a flow, each of which gives a point of the arrival curve.
CHUNKS = 16
# Simultaneous flows last four times as long as a message alone: their rates come from one run, not
# from a fit, so a free burst at some time (a token bucket's, a buffer's) must be a small part.
_FLOW = 4
# Rates of simultaneous flows are taken from this fraction of the shortest flow's time on: free
# bursts come first.
_SETTLED = 0.3


@dataclass(frozen=True)
class MessageLimits:
    """How large test messages get: until one takes `target_s` seconds or has `max_bytes` bytes.

    Each of several simultaneous flows takes four times `target_s`.
    """

    target_s: float
    max_bytes: int


@dataclass(frozen=True)
class PairRate:
    """The measured rate from rank `src` to `dst` while nothing else is sent.

    The time of a message is fitted as `alpha_us + bytes * beta_us`, in microseconds. `latency_us`
    is half a round trip. `sizes` are the fitted sizes in bytes; `residual` is the fit's largest
    error as a fraction of the longest time. `GBps` is 1 / beta, or, if the fit is not good, the
    largest message over its time (and never far from that).
    """

    src: int
    dst: int
    latency_us: float
    alpha_us: float
    beta_us: float
    residual: float
    GBps: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Arrivals:
    """The times at which the chunks of one flow arrived, each of `chunk_bytes`.

    `pair` is (source, destination); `seconds` count from the start of the experiment.
    """

    pair: Pair
    chunk_bytes: int
    seconds: tuple[float, ...]


class Endpoint:
    """One rank's side of all measurements: sends data on `device` over `group` (None: all ranks).

    Ranks are those of the default group. `limits` are those of its messages' sizes; it holds two
    buffers of the largest. Making it is collective over NCCL. `cables` sends messages over the
    cables between hosts, if these have any, else None.
    """

    def __init__(
        self, device: torch.device, limits: MessageLimits, group: dist.ProcessGroup | None = None
    ) -> None:
        self.device, self.limits, self.group = device, limits, group
        self.batched = device.type == "cuda"
        world, cabling = dist.group.WORLD, find_cabling()
        self.cables = (
            None
            if self.batched or world is None or cabling is None
            else cabling.find_messages(world._get_backend(device))
        )
        self.outgoing = torch.zeros(limits.max_bytes, dtype=torch.uint8, device=device)
        self.incoming = torch.zeros(limits.max_bytes, dtype=torch.uint8, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._seconds = torch.zeros(1, dtype=torch.float64, device=device)
        if self.batched:  # a batch must not be the first thing that a group does
            dist.all_reduce(self._number, group=group)

    def measure_to(self, me: int, peer: int) -> PairRate:
        """Measure the rate from this rank, `me`, to `peer`.

        Meanwhile `peer` must run `answer_measurement(me)`.
        """
        latency_s = statistics.median(self._ping(peer) for _ in range(_PINGS + 2)) / 2
        size = _FIRST_BYTES
        self._time_message(peer, size)  # the first one opens the window
        seconds = self._time_message(peer, size)
        while (
            seconds < max(self.limits.target_s, _OVER_LATENCY * latency_s)
            and size < self.limits.max_bytes
        ):
            size = min(2 * size, self.limits.max_bytes)
            seconds = self._time_message(peer, size)
        times: dict[int, list[float]] = {size // 2: [], size * 3 // 4: [], size: []}
        for repeat in range(1 if seconds > _PATIENCE_S else _MAX_REPEATS):
            for s, so_far in times.items():
                so_far.append(self._time_message(peer, s))
            rate = fit_rate(
                me, peer, latency_s, [(s, statistics.median(so_far)) for s, so_far in times.items()]
            )
            if repeat + 1 >= _MIN_REPEATS and rate.residual <= _QUIET:
                break
        self._send(self._number.fill_(0), peer)  # no further messages
        return rate

    def answer_measurement(self, peer: int) -> None:
        """Answer the measurement that `peer` makes of its link to this rank.

        For each message, send `peer` the seconds from the arrival of a short one to that of the
        full one.
        """
        for _ in range(_PINGS + 2):
            self._receive(self.incoming[:_SMALL_BYTES], peer)
            self._send(self.outgoing[:_SMALL_BYTES], peer)
        while size := int(self._receive(self._number, peer).item()):
            lead, rest = self._run(
                [[self._in(self.incoming[:n], peer)] for n in (_LEAD_BYTES, size)]
            )
            self._send(self._seconds.fill_(rest - lead), peer)

    def _ping(self, peer: int) -> float:
        started = time.perf_counter()
        self._send(self.outgoing[:_SMALL_BYTES], peer)
        self._receive(self.incoming[:_SMALL_BYTES], peer)
        return time.perf_counter() - started

    def _time_message(self, peer: int, size: int) -> float:
        """Return the seconds from a short message's arrival to that of the next, of `size` bytes.

        The receiver's clock counts. After the first message both sides are ready and the TCP window
        is open.
        """
        self._send(self._number.fill_(size), peer)
        self._run([[self._out(self.outgoing[:n], peer)] for n in (_LEAD_BYTES, size)])
        return float(self._receive(self._seconds, peer).item())

    def _send(self, data: torch.Tensor, peer: int) -> None:
        self._run_operation(self._out(data, peer))

    def _receive(self, data: torch.Tensor, peer: int) -> torch.Tensor:
        self._run_operation(self._in(data, peer))
        return data

    def _run_operation(self, operation: dist.P2POp) -> None:
        for work in self._post([operation]):
            work.wait()
        if self.batched:
            torch.cuda.synchronize(self.device)

    def _out(self, data: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.isend, data, peer, group=self.group)

    def _in(self, data: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, data, peer, group=self.group)

    def _post(self, operations: list[dist.P2POp]) -> list[dist.Work]:
        if self.cables is not None:
            starts = {dist.isend: self.cables.send, dist.irecv: self.cables.recv}
            return [starts[x.op]([x.tensor], x.peer, 0) for x in operations]
        return (
            list(dist.batch_isend_irecv(operations))
            if self.batched
            else [x.op(x.tensor, x.peer, group=self.group) for x in operations]
        )

    def run_flows(self, me: int, flows: Sequence[tuple[Pair, int]]) -> Arrivals | None:
        """Run simultaneous flows, each ((source, destination), bytes of a chunk). Collective.

        Return the arrivals at this rank, `me`; None if it receives nothing. Each rank sends to at
        most one and receives from at most one.
        """
        # Receives first; each step has one chunk of every flow of this rank.
        own = sorted((flow for flow in flows if me in flow[0]), key=lambda flow: flow[0][0] == me)
        seconds = self._run(
            [[self._make_chunk(me, flow, number) for flow in own] for number in range(CHUNKS)]
        )
        received = next(((pair, size) for pair, size in own if pair[1] == me), None)
        return None if received is None else Arrivals(*received, tuple(seconds))

    def run_fan(self, me: int, flows: Sequence[tuple[Pair, int]]) -> list[Arrivals]:
        """Take part in flows like `run_flows`, of which a rank may send or receive several.

        Return the arrivals of all that this rank receives; over NCCL they end together. What
        arrives at once shares its place in memory: only when it arrives counts.
        """
        into = [flow for flow in flows if flow[0][1] == me]
        own = [*into, *(flow for flow in flows if flow[0][0] == me)]
        seconds = self._run(
            [[self._make_chunk(me, flow, number) for flow in own] for number in range(CHUNKS)]
        )
        each = 1 if self.batched else len(into)
        return [
            Arrivals(pair, size, tuple(seconds[place % each :: each]))
            for place, (pair, size) in enumerate(into)
        ]

    def _make_chunk(self, me: int, flow: tuple[Pair, int], number: int) -> dist.P2POp:
        (src, dst), size = flow
        part = slice(number * size, (number + 1) * size)
        return (
            self._in(self.incoming[part], src) if dst == me else self._out(self.outgoing[part], dst)
        )

    def _run(self, steps: list[list[dist.P2POp]]) -> list[float]:
        """Post all steps in order; return when each step's receive arrived, in seconds."""
        if self.batched:
            return self._run_batched(steps)
        started = time.perf_counter()
        works = [
            (x.op is dist.irecv, work) for step in steps for x in step for work in self._post([x])
        ]
        seconds = []
        # All receives first: waiting for a send would delay the reading of the clock.
        for arrives, work in sorted(works, key=lambda x: not x[0]):
            work.wait()
            if arrives:
                seconds.append(time.perf_counter() - started)
        return seconds

    def _run_batched(self, steps: list[list[dist.P2POp]]) -> list[float]:
        """Run each step as one batch, so that a rank's flows stay in step; time it by events."""
        make_event: Any = torch.cuda.Event
        marks = [make_event(enable_timing=True) for _ in range(len(steps) + 1)]
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            for work in self._post(step) if step else []:
                work.wait()
            mark.record()
        torch.cuda.synchronize(self.device)
        return [marks[0].elapsed_time(mark) * 1e-3 for mark in marks[1:]]


def fit_rate(src: int, dst: int, latency_s: float, times: Sequence[tuple[int, float]]) -> PairRate:
    """Return the rate from rank `src` to `dst` by a line through `times`, (bytes, seconds).

    The line is a least-squares fit over two or more sizes of messages, the largest last;
    `latency_s` is half a round trip in seconds.
    """
    sizes, seconds = np.array(times, dtype=np.float64).T
    (alpha, beta), *_ = np.linalg.lstsq(
        np.stack([np.ones_like(sizes), sizes], axis=1), seconds, rcond=None
    )
    residual = float(np.abs(alpha + beta * sizes - seconds).max() / seconds.max())
    rate = sizes[-1] / seconds[-1]
    if beta > 0 and residual <= _FITS:
        rate = min(1 / beta, rate / (1 - _MAX_ALPHA))
    return PairRate(
        src,
        dst,
        latency_s * 1e6,
        float(alpha) * 1e6,
        float(beta) * 1e6,
        residual,
        float(rate) * 1e-9,
        tuple(map(int, sizes)),
    )


def estimate_rates_GBps(arrivals: Sequence[Arrivals]) -> dict[Pair, Fraction]:
    """Return each simultaneous flow's rate in GB/s, by (source, destination), while all ran.

    It is the slope of a least-squares line through the bytes arrived, from the moment when the
    shortest flow had settled.
    """
    end = min(x.seconds[-1] for x in arrivals)
    moments = np.linspace(_SETTLED * end, end, 4 * CHUNKS)
    out = {}
    for x in arrivals:
        arrived = np.interp(
            moments, [0.0, *x.seconds], np.arange(len(x.seconds) + 1) * float(x.chunk_bytes)
        )
        slope = float(np.polyfit(moments - moments[0], arrived, 1)[0])
        out[x.pair] = Fraction(max(1.0, slope)) / 10**9  # at least 1 byte/s: a rate is positive
    return out


def choose_chunk_bytes(pair_GBps: float, limits: MessageLimits) -> int:
    """Return the bytes of a flow's chunk, so that the flow alone takes four times `target_s`.

    `pair_GBps` is its pair's rate alone. `max_bytes` limits the whole flow.
    """
    whole = min(pair_GBps * 1e9 * limits.target_s * _FLOW, limits.max_bytes)
    return max(_CHUNK_STEP_BYTES, int(whole) // CHUNKS // _CHUNK_STEP_BYTES * _CHUNK_STEP_BYTES)
