"""Fit host costs (synth/cost/host_costs.py) so that simulated times match measured ones.

A few of a plan's schedules are run. Schedules with few and with many messages, at small and large
sizes, separate the cost of a message from that of a byte and of a call. Bandwidths and latencies of
links stay as they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ...synth.cost.affine import bandwidth_s_per_GB
from ...synth.cost.host_costs import HostCosts
from ...synth.cost.simulate import predict_us, shape_of
from ...synth.ir.schedule import Schedule
from ..communicator import Communicator
from ..program.layout import IN_PLACE
from ..ranks.timing import find_slowest_s, time_call_s

# Probes with a single run predicted to take longer than this are left out.
_PATIENCE_S = 1.0
# Fewest and most runs of a probe.
_REPEATS = (7, 41)
# Approximate duration of all runs of a probe.
_PROBE_S = 0.25
_FLOOR = 0.05  # us, so that logarithms of times stay finite
_EVALUATIONS = 40  # of the simulation; more changes costs by less than runs differ
# Weight of the initial costs, which decide what the probes leave open.
_PRIOR = 0.05

Probe = tuple[Schedule, int]


def choose_probes(communicator: Communicator) -> list[Probe]:
    """Return schedules and sizes in bytes to run: few messages and many, small and large."""
    plan = communicator.plan
    bases = list(dict.fromkeys(s.uncut for s in communicator.engine.variants))
    playable = [b for b in bases if shape_of(b, communicator.engine.machine.topology) is not None]
    if not playable:
        return []
    few = min(playable, key=_count_messages)
    fast = min(playable, key=lambda b: (bandwidth_s_per_GB(b, plan.topology), _count_messages(b)))
    cut = replace(fast, segments=4, stepwise=True)
    return [
        (few, 4 << 10),
        (fast, 16 << 10),
        (cut, 64 << 10),
        (fast, 256 << 10),
        (few, 128 << 10),
        (cut, 1 << 20),
    ]


def _count_messages(base: Schedule) -> int:
    shape = shape_of(base, None)
    return len(shape.groups) if shape is not None else len(base.transfers)


def calibrate(communicator: Communicator, say: Callable[[str], None] = lambda _: None) -> HostCosts:
    """Fit the host costs, predict with them from now on, and return them.

    Collective; all ranks return the same costs. If one rank fails, all raise ExecutionError.
    """
    machine = communicator.engine.machine
    rows: list[tuple[Probe, float]] = []
    for schedule, size in choose_probes(communicator):
        floor = 0.0
        if machine.topology is not None:
            floor = float(bandwidth_s_per_GB(schedule, machine.topology)) * size * 1e-9
        if floor > _PATIENCE_S:
            continue
        say(f"calibrating: {schedule.label} at {size} bytes ...")
        rows.append(((schedule, size), _measure_us(communicator, schedule, size)))
    costs: list[object] = [None]
    if communicator.rank == 0:
        costs = [_fit(rows, communicator).to_json() if rows else machine.host.to_json()]
    group = communicator.engine.group
    with communicator.engine.guard("the fitted host costs"):
        dist.broadcast_object_list(
            costs, dist.get_global_rank(group, 0), group, communicator.engine.device
        )
    host = HostCosts.from_json(costs[0])
    communicator.engine.set_host_costs(host)
    return host


def _measure_us(communicator: Communicator, schedule: Schedule, size: int) -> float:
    """Return the median over the runs of the slowest rank's time."""
    group, device, transport = (
        communicator.engine.group,
        communicator.engine.device,
        communicator.engine.transport,
    )
    numel = size // 4
    if communicator.plan.collective.name not in IN_PLACE:
        numel = max(1, numel // communicator.size) * communicator.size
    buffers = communicator.engine.make_scratch(numel, torch.float32)
    play = communicator.engine.make_play(schedule, buffers)
    unrelated = torch.zeros(1024, device=device)

    def call_another() -> None:
        """Make an unrelated call: in training one seldom comes alone."""
        if transport.mpi is None:
            dist.all_reduce(unrelated, group=group)
        else:
            transport.find_slowest_s([0.0])

    call = f"calibrating with {schedule.label} at {size} bytes"

    def run_once() -> float:
        with communicator.engine.guard(call):
            call_another()
            return time_call_s(play, transport.meet, device)

    run_once()
    elapsed = run_once()
    with communicator.engine.guard(
        f"{call}: how often"
    ):  # agreed on by all: the slowest rank's time decides
        (first,) = find_slowest_s([elapsed], group, device)
    times = [run_once() for _ in range(max(_REPEATS[0], min(_REPEATS[1], int(_PROBE_S / first))))]
    with communicator.engine.guard(f"{call}: the times"):
        return statistics.median(find_slowest_s(times, group, device)) * 1e6


def _fit(rows: list[tuple[Probe, float]], communicator: Communicator) -> HostCosts:
    """Return the costs whose predicted times are nearest to the measured ones."""
    machine, start = communicator.engine.machine, communicator.engine.machine.host

    def host(x: NDArray[np.float64]) -> HostCosts:
        message, wake, byte, call = (float(v) for v in np.exp(np.clip(x, -6, 6)))
        return replace(
            start,
            send_us=start.send_us * message,
            receive_us=start.receive_us * message,
            io_us=start.io_us * message,
            wake_us=start.wake_us * wake,
            byte_ns=start.byte_ns * byte,
            add_ns=start.add_ns * byte,
            call_us=start.call_us * call,
            source="topo-run --calibrate",
        )

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        costs = host(x)
        out = []
        for (schedule, size), measured in rows:
            predicted = (
                predict_us(schedule, machine.topology, costs, size, batched=machine.batched)
                or measured
            )
            out.append(math.log(max(predicted, _FLOOR) / max(measured, _FLOOR)))
        return np.array([*out, *(_PRIOR * x)])

    # The simulation is a maximum of many sums, flat in most places: small steps would see no
    # gradient.
    fit = least_squares(
        residuals, np.zeros(4), diff_step=0.05, max_nfev=_EVALUATIONS, loss="soft_l1"
    )
    return host(fit.x)
