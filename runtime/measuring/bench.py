"""Times a plan beside the stock collective, in the manner of nccl-tests, and checks every element.

A time is the slowest rank's, from a barrier on; the median over the iterations, plan and stock taking turns. Results are
compared with sums in float64 of the same random data, which every rank can make for every other from its number.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError, InputError
from ..communicator import Communicator
from ..ranks.faults import first_line
from ..ranks.stock import stock, works
from ..ranks.timing import slowest_s, timed_s
from .bench_data import OPS, Case, Job


@dataclass(frozen=True)
class Row:
    """One line of the table. Times in microseconds, medians; None where there is no plan or no stock collective.

    `wire_bytes`: what all ranks together send in a call by a plan's schedule. `rms_error`: the root mean square of what
    elements are off by, as a part of that of the elements.
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


def measure(job: Job, communicator: Communicator | None, say: Callable[[str], None]) -> list[Row]:
    """All rows; every rank calls this and gets the same. Without a communicator only the stock collective is timed.

    Raises ExecutionError where a rank fails.
    """
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    if job.collective.ranks != dist.get_world_size():
        raise InputError(f"{job.collective.ranks} ranks are asked for, {dist.get_world_size()} are running")
    rows = []
    for size in job.sizes():
        say(f"{size} bytes ...")
        case = Case(job, rank, size, device)
        try:
            rows.append(_row(case, communicator))
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {rank}: at {size} bytes the ranks could not go on: {first_line(error)}; is one of them gone?"
            ) from error
    return rows


def _row(case: Case, communicator: Communicator | None) -> Row:
    job = case.job
    planned = None if communicator is None else _planned(case, communicator)
    stock = _stock(case) if _works(case) else None
    group = (
        None if communicator is None else communicator.group
    )  # its own connections: those that rest are slow to start
    plan_times: list[float] = []
    stock_times: list[float] = []
    for turn in range(job.warmup + job.iterations):
        for call, times in ((planned, plan_times), (stock, stock_times)):
            if call is not None:
                case.reset()
                seconds = timed_s(call, group, case.device)
                if turn >= job.warmup:
                    times.append(seconds)
    wrong, rms_error, sent_bytes = _checked(case, communicator, planned or stock)
    plan_us, stock_us = _median_us(plan_times, case.device), _median_us(stock_times, case.device)
    best_us = plan_us if plan_us is not None else stock_us
    algbw = case.bytes / best_us * 1e-3 if best_us else 0.0
    schedule, predicted, fraction = "stock", None, None  # the last two: nothing is claimed of the stock collective
    if communicator is not None:
        sent = communicator.wire_size(case.numel, job.dtype)
        choice = communicator.choice(sent)
        if choice is not None:
            schedule, predicted = choice.label, choice.predict_us(sent)
        scale = _scale(communicator)
        fraction = None if scale is None else algbw / (float(communicator.plan.bound.algbw_GBps) * scale)
    return Row(
        size_bytes=case.bytes,
        schedule=schedule,
        plan_us=plan_us,
        stock_us=stock_us,
        ratio=stock_us / plan_us if plan_us and stock_us else None,
        predicted_us=predicted,
        algbw_GBps=algbw,
        busbw_GBps=algbw * float(job.collective.bus_factor()),
        bound_fraction=fraction,
        wrong=wrong,
        wire_bytes=sent_bytes or None,
        rms_error=rms_error,
    )


def _checked(
    case: Case, communicator: Communicator | None, call: Callable[[], object] | None
) -> tuple[int, float, int]:
    """One more call, whose result is looked at: wrong elements, the root mean square error, and bytes sent, of all ranks."""
    if call is None:
        return 0, 0.0, 0
    case.reset()
    if case.parted:
        case.output.zero_()
    before = 0 if communicator is None else communicator.wire_bytes
    call()
    sent = 0 if communicator is None else communicator.wire_bytes - before
    codec, most = (None, 0) if communicator is None else (communicator.codec, communicator.most_roundings)
    found = case.judged(codec, most)
    box = torch.tensor([found.wrong, found.off2, found.reference2, sent], dtype=torch.float64, device=case.device)
    dist.all_reduce(box)
    wrong, off2, reference2, sent_bytes = box.tolist()
    return int(wrong), (off2 / reference2) ** 0.5 if reference2 else 0.0, int(sent_bytes)


def _median_us(times: list[float], device: torch.device) -> float | None:
    """Median over the iterations of the slowest rank's time."""
    if not times:
        return None
    return statistics.median(slowest_s(times, None, device)) * 1e6


def _planned(case: Case, communicator: Communicator) -> Callable[[], object]:
    name, op = case.name, OPS[case.job.op]
    is_root = case.rank == case.root
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: communicator.allreduce(case.output, op),
        "reduce": lambda: communicator.reduce(case.output, op),
        "broadcast": lambda: communicator.broadcast(case.output),
        "allgather": lambda: communicator.allgather(case.output, case.input),
        "reduce-scatter": lambda: communicator.reduce_scatter(case.output, case.input, op),
        "gather": lambda: communicator.gather(case.output if is_root else None, case.input),
        "scatter": lambda: communicator.scatter(case.output, case.input if is_root else None),
        "alltoall": lambda: communicator.alltoall(case.output, case.input),
    }
    return calls[name]


def _stock(case: Case) -> Callable[[], object]:
    """The collective of torch.distributed's own backend. gloo has no AVG: a sum, divided."""
    group = dist.group.WORLD
    assert group is not None
    call = stock(case.job.collective, group, case.input, case.output, OPS[case.job.op])

    def run() -> None:
        call()
        if case.job.op == "avg":
            case.output.div_(case.ranks)

    return run


def _works(case: Case) -> bool:
    """Whether the backend has the collective at all, for this dtype. The same on all ranks."""
    if case.numel == 0:
        return False
    case.reset()
    return works(_stock(case), None, case.device)


def _scale(communicator: Communicator) -> float | None:
    """How many times faster the links at hand are than the plan's: an emulated machine's. None: it is another machine."""
    here, plan = communicator.machine.topology, communicator.plan.topology
    if here is None or here is plan:
        return 1.0
    ratios = {
        float(here.capacity_GBps[k] / plan.capacity_GBps[k]) for k in here.capacity_GBps if k in plan.capacity_GBps
    }
    alike = here.ranks == plan.ranks and ratios and max(ratios) <= min(ratios) * 1.0001
    return min(ratios) if alike else None
