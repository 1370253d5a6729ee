"""Timing messages between ranks: one pair's round trips and rate, and the rates of flows that go at the same time.

Every Work is awaited exactly once (twice blocks over gloo); deadlines are the process group's. Over NCCL what a rank sends
and receives at a time goes as one batch (separate ones wait for each other), and the host waits for the stream.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...topo.measured.flows import Pair

_PINGS = 15
_SMALL_BYTES = 8
_FIRST_BYTES = 64 << 10
_LEAST_BYTES = 4 << 10
_PATIENCE_S = 0.5
"""What takes longer than this is measured once."""
_LEAD_BYTES = 128 << 10
_LEAST_TURNS, _MOST_TURNS = 3, 7
_QUIET = 0.01
"""A fit of the median times so far whose residual is a smaller part of the longest one is good enough."""
_OVER_LATENCY = 20
_FITS = 0.03
"""A fit whose residual is a larger part of the longest time is none."""
_MOST_ALPHA = 0.1
"""What does not depend on the size is at most this part of the longest time, or the fit follows a disturbance: it is less
than a latency, and the time is at least twenty. It may be below nothing: a token bucket lets a first part through for free.
"""
CHUNKS = 16
_FLOW = 4
"""Flows that go at once last so many times longer than a message alone: their rates come from one run, not from a fit, so a
free burst at some time (a token bucket's, a buffer's) must be little of it."""
_SETTLED = 0.3
"""Of flows that go at the same time, the rates are taken from this part of the shortest one on: first come free bursts."""


@dataclass(frozen=True)
class Aim:
    """How long the largest message of a pair should take (`target_s`; flows of a group: four times that), and the most bytes
    at a time.
    """

    target_s: float
    most_bytes: int


@dataclass(frozen=True)
class Alone:
    """An ordered pair by itself: half a round trip, and the fit `alpha_us + bytes * beta_us` over `sizes`.

    `residual` is the fit's largest error as a part of the longest time. `GBps` is 1 / beta, or, where the fit is no good,
    the largest message over its time (and never far from that).
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
    """When each of a flow's equal chunks was there, in seconds from the start of the experiment."""

    pair: Pair
    chunk_bytes: int
    seconds: tuple[float, ...]


class Wire:
    """This rank's end of all links. `device` is where the data lies, `group` (None: all ranks') carries it."""

    def __init__(self, device: torch.device, aim: Aim, group: dist.ProcessGroup | None = None) -> None:
        self.device, self.aim, self.group = device, aim, group
        self.batched = device.type == "cuda"
        self.outgoing = torch.zeros(aim.most_bytes, dtype=torch.uint8, device=device)
        self.incoming = torch.zeros(aim.most_bytes, dtype=torch.uint8, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._seconds = torch.zeros(1, dtype=torch.float64, device=device)
        if self.batched:  # a batch must not be the first thing that a group does
            dist.all_reduce(self._number, group=group)

    # -- one pair alone ------------------------------------------------------------------------------------------

    def as_sender(self, me: int, peer: int) -> Alone:
        """Measure the way to `peer`, which must be in `as_receiver` for this rank."""
        latency_s = statistics.median(self._ping(peer) for _ in range(_PINGS + 2)) / 2
        size = _FIRST_BYTES
        self._message(peer, size)  # the first one opens the window
        took = self._message(peer, size)
        while took < max(self.aim.target_s, _OVER_LATENCY * latency_s) and size < self.aim.most_bytes:
            size = min(2 * size, self.aim.most_bytes)
            took = self._message(peer, size)
        times: dict[int, list[float]] = {size // 2: [], size * 3 // 4: [], size: []}
        for turn in range(1 if took > _PATIENCE_S else _MOST_TURNS):
            for s, so_far in times.items():
                so_far.append(self._message(peer, s))
            found = fitted(me, peer, latency_s, [(s, statistics.median(so_far)) for s, so_far in times.items()])
            if turn + 1 >= _LEAST_TURNS and found.residual <= _QUIET:
                break
        self._say(peer, 0)
        return found

    def as_receiver(self, peer: int) -> None:
        """Answer `peer`, which is in `as_sender` for this rank."""
        for _ in range(_PINGS + 2):
            self._receive(self.incoming[:_SMALL_BYTES], peer)
            self._send(self.outgoing[:_SMALL_BYTES], peer)
        while size := self._hear(peer):
            lead, rest = self._run([[self._in(self.incoming[:n], peer)] for n in (_LEAD_BYTES, size)])
            self._send(self._seconds.fill_(rest - lead), peer)

    def _ping(self, peer: int) -> float:
        started = time.perf_counter()
        self._send(self.outgoing[:_SMALL_BYTES], peer)
        self._receive(self.incoming[:_SMALL_BYTES], peer)
        return time.perf_counter() - started

    def _message(self, peer: int, size: int) -> float:
        """Seconds that a message of `size` bytes takes to come in right after another one, by the receiver's clock. With the
        one before it both sides are ready and the window is open.
        """
        self._say(peer, size)
        self._run([[self._out(self.outgoing[:n], peer)] for n in (_LEAD_BYTES, size)])
        self._receive(self._seconds, peer)
        return float(self._seconds.item())

    def _say(self, peer: int, number: int) -> None:
        self._number.fill_(number)
        self._send(self._number, peer)

    def _hear(self, peer: int) -> int:
        self._receive(self._number, peer)
        return int(self._number.item())

    def _send(self, data: torch.Tensor, peer: int) -> None:
        self._finish(self._post([self._out(data, peer)]))

    def _receive(self, data: torch.Tensor, peer: int) -> None:
        self._finish(self._post([self._in(data, peer)]))

    def _out(self, data: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.isend, data, peer, group=self.group)

    def _in(self, data: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, data, peer, group=self.group)

    def _post(self, operations: list[dist.P2POp]) -> list[dist.Work]:
        if self.batched:
            return list(dist.batch_isend_irecv(operations))
        return [x.op(x.tensor, x.peer, group=self.group) for x in operations]

    def _finish(self, works: Sequence[dist.Work]) -> None:
        for work in works:
            work.wait()
        if self.batched:
            torch.cuda.synchronize(self.device)

    # -- several flows at the same time --------------------------------------------------------------------------

    def flow(self, me: int, flows: Sequence[tuple[Pair, int]]) -> Arrivals | None:
        """Take part in flows that all ranks start at the same moment: (pair, bytes of a chunk). What arrived here, if
        anything does. Each rank sends to at most one and receives from at most one.
        """
        to = next(((pair[1], size) for pair, size in flows if pair[0] == me), None)
        back = next(((pair, size) for pair, size in flows if pair[1] == me), None)
        steps = [self._step(to, back, number) for number in range(CHUNKS)]
        seconds = self._run(steps)
        return None if back is None else Arrivals(back[0], back[1], tuple(seconds))

    def _step(self, to: tuple[int, int] | None, back: tuple[Pair, int] | None, number: int) -> list[dist.P2POp]:
        """The receive and the send of one chunk, as far as this rank has them."""
        out = []
        if back is not None:
            at = number * back[1]
            out.append(self._in(self.incoming[at : at + back[1]], back[0][0]))
        if to is not None:
            at = number * to[1]
            out.append(self._out(self.outgoing[at : at + to[1]], to[0]))
        return out

    def _run(self, steps: list[list[dist.P2POp]]) -> list[float]:
        """Steps one after the other, all under way at once; when what each receives was there, in seconds."""
        return self._batched_steps(steps) if self.batched else self._posted_steps(steps)

    def _posted_steps(self, steps: list[list[dist.P2POp]]) -> list[float]:
        started = time.perf_counter()
        works = [(x.op is dist.irecv, work) for step in steps for x in step for work in self._post([x])]
        seconds = []
        for arrives, work in works:
            if arrives:
                work.wait()
                seconds.append(time.perf_counter() - started)
        for arrives, work in works:
            if not arrives:
                work.wait()
        return seconds

    def _batched_steps(self, steps: list[list[dist.P2POp]]) -> list[float]:
        """A chunk's send and receive are one batch, so a rank's flows go in step; events on the stream tell when."""
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            for work in self._post(step) if step else []:
                work.wait()
            mark.record()
        torch.cuda.synchronize(self.device)
        return [marks[0].elapsed_time(mark) * 1e-3 for mark in marks[1:]]


def fitted(src: int, dst: int, latency_s: float, times: Sequence[tuple[int, float]]) -> Alone:
    """Least squares over (bytes, seconds), of at least two sizes."""
    sizes = np.array([size for size, _ in times], dtype=np.float64)
    seconds = np.array([s for _, s in times], dtype=np.float64)
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([np.ones_like(sizes), sizes], axis=1), seconds, rcond=None)
    residual = float(np.abs(alpha + beta * sizes - seconds).max() / seconds.max())
    plain = sizes[-1] / seconds[-1]
    good = beta > 0 and residual <= _FITS
    rate = min(1 / beta, plain / (1 - _MOST_ALPHA)) if good else plain
    return Alone(
        src,
        dst,
        latency_s * 1e6,
        float(alpha) * 1e6,
        float(beta) * 1e6,
        residual,
        float(rate) * 1e-9,
        tuple(map(int, sizes)),
    )


def rates_GBps(arrivals: Sequence[Arrivals]) -> dict[Pair, Fraction]:
    """What each of several simultaneous flows got while all of them were going, from where the shortest had settled: the
    slope of a line (least squares) through what had arrived.
    """
    end = min(x.seconds[-1] for x in arrivals)
    moments = np.linspace(_SETTLED * end, end, 4 * CHUNKS)
    out = {}
    for x in arrivals:
        there = np.interp(moments, [0.0, *x.seconds], np.arange(len(x.seconds) + 1) * float(x.chunk_bytes))
        out[x.pair] = Fraction(max(1.0, float(np.polyfit(moments - moments[0], there, 1)[0]))) / 10**9
    return out


def chunk_bytes(pair_GBps: float, aim: Aim) -> int:
    """Bytes of a chunk of a flow that should take the aimed time, all chunks together, if nothing is in its way."""
    whole = min(pair_GBps * 1e9 * aim.target_s * _FLOW, aim.most_bytes)
    return max(_LEAST_BYTES, int(whole) // CHUNKS // _LEAST_BYTES * _LEAST_BYTES)
