"""Time a plan and the stock collective like nccl-tests, and check every element.

The stock collective is the backend's own (gloo's, NCCL's, MPI's). A communicator runs a plan over a
transport, a group of ranks with what carries their messages. Members make the calls of a plan,
helpers pass on data for them. A time is the slowest rank's, from a barrier on; the median over the
iterations, in which plan and stock take turns. Results are compared with float64 sums of the same
random data, which every rank can compute for every other.
"""

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from ...topo.errors import ExecutionError, InputError, TopoplanError
from ..communicator import Communicator
from ..ranks.faults import first_line
from ..ranks.groups import device_of
from ..ranks.launch import announce_ready, announce_step
from ..ranks.timing import time_call_s
from ..ranks.transport import Transport
from .bench_data import OPS, BenchBuffers, BenchSettings


@dataclass(frozen=True)
class BenchRow:
    """One row of the table: median times in microseconds, None without a plan or stock collective.

    `size_bytes` is that of the collective's buffer, `schedule` names what the plan's calls used
    ("stock" without a plan), `predicted_us` is its predicted time, `ratio` is `stock_us` /
    `plan_us`, `algbw_GBps` the size by time, `busbw_GBps` nccl-tests' bus bandwidth of it,
    `bound_fraction` the share of the plan's bound that is reached, `wrong` the number of wrong
    elements. `wire_bytes` is the total that all ranks send in one call of the plan's schedule, and
    `relayed_bytes` what each rank of a topology sends in it for others as a helper, None if all
    ranks are members. `rms_error` is the root mean square error of the elements over their root
    mean square. `place` is "in" if results replaced the input, else "out".
    """

    size_bytes: int
    schedule: str
    plan_us: float | None
    stock_us: float | None
    ratio: float | None
    predicted_us: float | None
    algbw_GBps: float
    busbw_GBps: float
    bound_fraction: float | None
    wrong: int
    wire_bytes: int | None
    rms_error: float
    place: str = ""
    relayed_bytes: list[int] | None = None


def run_benchmark(
    settings: BenchSettings,
    communicator: Communicator | None,
    say: Callable[[str], None],
    transport: Transport,
) -> list[BenchRow]:
    """Measure all sizes over a transport (the communicator's, if given) and return the rows.

    `settings` say what to measure; `say` is called with each line of progress. Collective over the
    plan's members; all of them return the same rows. Without a communicator only the stock
    collective is timed. Raise InputError if the collective is for another number of ranks,
    ExecutionError if a rank fails.
    """
    if communicator is not None:
        transport = communicator.dispatcher.transport  # the members'
    rank, device = transport.rank, device_of(None)
    if settings.collective.ranks != transport.size:
        raise InputError(
            f"{settings.collective.ranks} ranks are asked for, {transport.size} are running"
        )
    announce_ready()  # without a plan, there has been no communicator
    rows = []
    for size in settings.options.list_sizes():
        say(f"{size} bytes ...")
        for in_place in settings.list_places():
            buffers = BenchBuffers(settings, rank, size, device, in_place)
            try:
                rows.append(_measure_size(buffers, communicator, transport))
            except TopoplanError:
                raise
            except RuntimeError as error:
                raise ExecutionError(
                    f"rank {rank}: at {size} bytes the ranks could not go on: "
                    f"{first_line(error)}; is one of them gone?"
                ) from error
    return rows


def list_recoveries(communicator: Communicator) -> list[dict[str, Any]]:
    """Return the lost or slowed links after which calls went on, as rank 0 saw them.

    The bytes sent again are those of all ranks. Collective.
    """
    parts = communicator.path.exchange(communicator.recoveries)
    resent: Counter[int] = Counter()
    for row in (row for rows in parts for row in rows if "recovery" in row):
        resent[row["recovery"]] += row["resent_bytes"]
    return [
        row | ({"resent_bytes": resent[row["recovery"]]} if "recovery" in row else {})
        for row in parts[0]
    ]


def _measure_size(
    buffers: BenchBuffers, communicator: Communicator | None, transport: Transport
) -> BenchRow:
    settings, options = buffers.settings, buffers.settings.options
    # Calls may go on after a lost link, over which the stock collective could not.
    goes_on = communicator is not None and communicator.path.outlives_links
    exchange = transport.control.exchange if communicator is None else communicator.path.exchange
    meet = partial(exchange, None) if goes_on else transport.meet
    calls = [
        (None if call is None else buffers.call_in_its_place(call), list[float]())
        for call in (
            None if communicator is None else choose_plan_call(buffers, communicator),
            None if goes_on else prepare_stock(buffers, transport),
        )
    ]
    # Plan and stock take turns, so that other load on the machine affects both.
    for turn in range(options.warmup + options.iterations):
        for call, times in calls:
            if call is not None:
                buffers.reset()
                seconds = time_call_s(call, meet, buffers.device)
                if turn >= options.warmup:
                    times.append(seconds)
        if turn >= options.warmup:
            announce_step()
    wrong, rms_error, sent_bytes, relayed_bytes = _check_result(
        buffers, communicator, calls[0][0] or calls[1][0], exchange
    )
    plan_us, stock_us = (
        statistics.median(map(max, zip(*exchange(times), strict=True))) * 1e6 if times else None
        for _, times in calls
    )
    best_us = plan_us if plan_us is not None else stock_us
    algbw = buffers.bytes / best_us * 1e-3 if best_us else 0.0
    # Nothing is predicted or claimed of the stock collective.
    schedule, predicted, fraction = "stock", None, None
    if communicator is not None:
        sent = communicator.dispatcher.wire_size(buffers.numel, settings.dtype)
        choice = communicator.choice(sent)
        if choice is not None:
            schedule, predicted = choice.label, choice.predict_us(sent)
        scale = find_scale(communicator)
        if scale is not None:
            plan = communicator.dispatcher.plan  # another one after a lost link
            fraction = algbw / (float(plan.bound_one_way.algbw_GBps) * scale)
    return BenchRow(
        size_bytes=buffers.bytes,
        schedule=schedule,
        plan_us=plan_us,
        stock_us=stock_us,
        ratio=stock_us / plan_us if plan_us and stock_us else None,
        predicted_us=predicted,
        algbw_GBps=algbw,
        busbw_GBps=algbw * float(settings.collective.bus_factor()),
        bound_fraction=fraction,
        wrong=wrong,
        wire_bytes=sent_bytes or None,
        rms_error=rms_error,
        place="in" if buffers.in_place else "out",
        relayed_bytes=relayed_bytes,
    )


def _check_result(
    buffers: BenchBuffers,
    communicator: Communicator | None,
    call: Callable[[], object] | None,
    exchange: Callable[[object], list[Any]],
) -> tuple[int, float, int, list[int] | None]:
    """Call once more and check.

    Return wrong elements, RMS error, the bytes sent over all ranks, and by each helper.
    """
    if call is None:
        return 0, 0.0, 0, None
    buffers.output.zero_()
    buffers.reset()
    before = _count_sent(communicator)
    call()
    sent, relayed = (
        {rank: count - before[kind].get(rank, 0) for rank, count in counts.items()}
        for kind, counts in enumerate(_count_sent(communicator))
    )
    errors = (
        buffers.count_errors()
        if communicator is None
        else buffers.count_errors(
            communicator.dispatcher.messages.codec,
            communicator.dispatcher.messages.count_roundings(communicator.dispatcher.plan),
        )
    )
    by_rank_of_all = exchange([*errors, *sent.values()])
    wrong, error2, reference2, *sent_bytes = map(sum, zip(*by_rank_of_all, strict=True))
    rms_error = (error2 / reference2) ** 0.5 if reference2 else 0.0
    relayed_by_rank = None
    if communicator is not None and not communicator.plan.collective.has_all_gpus:
        relayed_by_rank = [
            relayed.get(rank, 0) for rank in range(len(communicator.plan.topology.ranks))
        ]
    return int(wrong), rms_error, int(sum(sent_bytes)) + sum(relayed.values()), relayed_by_rank


def _count_sent(communicator: Communicator | None) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes that this rank and each helper have sent so far, by rank. Collective."""
    if communicator is None:
        return {}, {}
    return {communicator.rank: communicator.wire_bytes}, communicator.count_relayed_bytes()


def choose_plan_call(buffers: BenchBuffers, communicator: Communicator) -> Callable[[], object]:
    """Return a function that makes one call of the communicator's collective on the buffers."""
    op, is_root = OPS[buffers.settings.op], buffers.rank == buffers.root
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: communicator.allreduce(buffers.output, op),
        "reduce": lambda: communicator.reduce(buffers.output, op),
        "broadcast": lambda: communicator.broadcast(buffers.output),
        "allgather": lambda: communicator.allgather(buffers.output, buffers.input),
        "reduce-scatter": lambda: communicator.reduce_scatter(buffers.output, buffers.input, op),
        "gather": lambda: communicator.gather(buffers.output if is_root else None, buffers.input),
        "scatter": lambda: communicator.scatter(buffers.output, buffers.input if is_root else None),
        "alltoall": lambda: communicator.alltoall(buffers.output, buffers.input),
    }
    return calls[buffers.name]


def prepare_stock(buffers: BenchBuffers, transport: Transport) -> Callable[[], object] | None:
    """Return a call of the stock collective, or None on all ranks if it lacks the dtype.

    gloo and MPI have no AVG, so the call sums and divides.
    """
    settings, links, op = buffers.settings, transport.links, OPS[buffers.settings.op]
    if buffers.numel == 0 or not links.has_stock(settings.collective, settings.dtype, op):
        return None
    # Stock collectives are those of the default group, or of some ranks' own.
    group = dist.group.WORLD if transport.size == dist.get_world_size() else None
    call = links.make_stock(settings.collective, buffers.input, buffers.output, op, group)

    def run() -> None:
        call()
        if settings.op == "avg":
            buffers.output.div_(buffers.ranks)

    buffers.reset()
    return run


def find_scale(communicator: Communicator) -> float | None:
    """Return how many times as fast the emulated machine's links are as the plan's.

    topo-emulate makes such a machine, for ranks to run on, out of network namespaces. 1.0 if the
    communicator's ranks run on the plan's machine, None if they run on one with other links.
    """
    at_hand, plan = communicator.dispatcher.machine.topology, communicator.plan.topology
    if at_hand is None or at_hand is plan:
        return 1.0
    ratios = {
        float(at_hand.capacity_GBps[k] / plan.capacity_GBps[k])
        for k in at_hand.capacity_GBps
        if k in plan.capacity_GBps
    }
    is_scaled = at_hand.ranks == plan.ranks and ratios and max(ratios) <= min(ratios) * 1.0001
    return min(ratios) if is_scaled else None
