"""Fit host costs (synth/cost/host_costs.py) so that simulated times match measured ones.

Host costs are the processor time per message, byte and call, in addition to the links' time. A few
of a plan's schedules are run. Schedules with few and with many messages, at small and large sizes,
separate the cost of a message from that of a byte and of a call. Bandwidths and latencies of links
stay unchanged.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ....synth.cost.affine import bandwidth_s_per_GB
from ....synth.cost.host_costs import HostCosts
from ....synth.cost.simulate import predict_us, shape_of
from ....synth.ir.schedule import Schedule
from ...communicator import Communicator
from ...program.layout import IN_PLACE
from ...ranks.timing import find_slowest_s, time_call_s

# Probes with a single run predicted to take longer than this are left out.
_PATIENCE_S = 1.0
# Fewest and most runs of a probe.
_MIN_REPEATS, _MAX_REPEATS = 7, 41
# Approximate duration of all runs of a probe.
_PROBE_S = 0.25
_FLOOR = 0.05  # us, so that logarithms of times stay finite
# Weight of the initial costs, which decide the costs that the probes leave open.
_PRIOR = 0.05

Probe = tuple[Schedule, int]


def choose_probes(communicator: Communicator) -> list[Probe]:
    """Return the (schedule, size in bytes) to time: few and many messages, small and large.

    Empty if all schedules of the communicator's plan have too many messages to simulate.
    """
    dispatcher, topology = communicator.dispatcher, communicator.plan.topology
    playable = [
        base
        for base in dict.fromkeys(x.schedule.uncut for x in dispatcher.candidates.sent)
        if shape_of(base, dispatcher.machine.topology) is not None
    ]
    if not playable:
        return []
    few = min(playable, key=_count_messages)
    fast = min(playable, key=lambda b: (bandwidth_s_per_GB(b, topology), _count_messages(b)))
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
    """Fit the host costs to measured times, use them for later predictions, and return them.

    `say` is given lines about the progress. Collective; all ranks return the same costs. If one
    rank fails, all raise ExecutionError.
    """
    dispatcher = communicator.dispatcher
    on = dispatcher.machine.topology
    rows: list[tuple[Probe, float]] = []
    for schedule, size in choose_probes(communicator):
        floor = 0.0 if on is None else float(bandwidth_s_per_GB(schedule, on)) * size * 1e-9
        if floor <= _PATIENCE_S:
            say(f"calibrating: {schedule.label} at {size} bytes ...")
            rows.append(((schedule, size), _measure_us(communicator, schedule, size)))
    # Rank 0 fits for all, so that all ranks predict with the same costs.
    costs: list[object] = [None]
    if dispatcher.transport.rank == 0:
        costs = [(_fit(rows, communicator) if rows else dispatcher.machine.host).to_json()]
    with dispatcher.transport.faults.stock("the fitted host costs"):
        dist.broadcast_object_list(
            costs, dist.get_global_rank(dispatcher.group, 0), dispatcher.group, dispatcher.device
        )
    host = HostCosts.from_json(costs[0])
    dispatcher.set_host_costs(host)
    return host


def _measure_us(communicator: Communicator, schedule: Schedule, size: int) -> float:
    """Return the median over the runs of the slowest rank's time."""
    dispatcher = communicator.dispatcher
    group, device, transport = dispatcher.group, dispatcher.device, dispatcher.transport
    numel = size // 4
    if communicator.plan.collective.name not in IN_PLACE:
        numel = max(1, numel // communicator.size) * communicator.size
    play = dispatcher.make_play(
        dispatcher.candidates.send(schedule), dispatcher.make_scratch(numel, torch.float32)
    )

    call = f"calibrating with {schedule.label} at {size} bytes"

    def run_once() -> float:
        with dispatcher.transport.faults.stock(call):
            # An unrelated call first: in training one seldom comes alone.
            transport.links.call_between(transport.control.timeout_s)
            return time_call_s(play, transport.meet, device)

    run_once()  # connects the ranks and fills caches
    elapsed = run_once()
    # The slowest rank's time decides how often to run, so that all ranks agree on it.
    with dispatcher.transport.faults.stock(f"{call}: how often"):
        (first,) = find_slowest_s([elapsed], group, device)
    repeats = min(max(int(_PROBE_S / first), _MIN_REPEATS), _MAX_REPEATS)
    times = [run_once() for _ in range(repeats)]
    with dispatcher.transport.faults.stock(f"{call}: the times"):
        return statistics.median(find_slowest_s(times, group, device)) * 1e6


def _fit(rows: list[tuple[Probe, float]], communicator: Communicator) -> HostCosts:
    machine, start = communicator.dispatcher.machine, communicator.dispatcher.machine.host

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
        predicted = (
            predict_us(schedule, machine.topology, costs, size, batched=machine.batched)
            for (schedule, size), _ in rows
        )
        # Logarithms, so that small and large messages count equally.
        errors = (
            math.log(max(us or measured, _FLOOR) / max(measured, _FLOOR))
            for us, (_, measured) in zip(predicted, rows, strict=True)
        )
        return np.array([*errors, *(_PRIOR * x)])

    # The simulation is a maximum of many sums, flat in most places: small steps would see no
    # gradient.
    return host(
        least_squares(
            residuals,
            np.zeros(4),
            diff_step=0.05,
            max_nfev=40,  # simulations of all probes: chosen, not measured
            loss="soft_l1",
        ).x
    )
