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

from ..synth.collective import Collective
from ..topo.errors import ExecutionError, InputError
from .communicator import Communicator
from .faults import first_line
from .layout import IN_PLACE, ends_numel
from .stock import stock, works
from .timing import slowest_s, timed_s

_TILE = 1_048_573
"""Random data repeats after this many elements, a prime, so that no chunk boundary falls together with it."""
OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
       "min": dist.ReduceOp.MIN}  # fmt: skip
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    )
}


@dataclass(frozen=True)
class Job:
    """What to measure: sizes from `min_bytes` to `max_bytes` by `factor`, `iterations` counted after `warmup`."""

    collective: Collective
    min_bytes: int
    max_bytes: int
    factor: int
    iterations: int
    warmup: int
    dtype: torch.dtype = torch.float32
    op: str = "sum"

    def sizes(self) -> list[int]:
        """Bytes of the buffer for each row."""
        out = [self.min_bytes]
        while out[-1] * self.factor <= self.max_bytes:
            out.append(out[-1] * self.factor)
        return out


@dataclass(frozen=True)
class Row:
    """One line of the table. Times in microseconds, medians; None where there is no plan or no stock collective."""

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


class _Case:
    """Buffers, data and reference of one size on one rank."""

    def __init__(self, job: Job, rank: int, size_bytes: int, device: torch.device) -> None:
        self.job, self.rank, self.ranks, self.device = job, rank, job.collective.ranks, device
        numel = size_bytes // torch.empty(0, dtype=job.dtype).element_size()
        self.parted = job.collective.name not in IN_PLACE
        self.numel = numel // self.ranks * self.ranks if self.parted else numel
        self.name, self.root = job.collective.name, job.collective.root
        self.part = self.numel // self.ranks
        sent, got = ends_numel(job.collective, rank, self.numel)
        self.input = self.data(rank, sent)
        self.output = torch.zeros(got, dtype=job.dtype, device=device)

    @property
    def bytes(self) -> int:
        return self.numel * self.output.element_size()

    def data(self, rank: int, numel: int) -> torch.Tensor:
        """The random input of a rank."""
        generator = torch.Generator().manual_seed(1000 + rank)
        length = max(1, min(numel, _TILE))
        if self.job.dtype.is_floating_point:
            tile = torch.randn(length, generator=generator).to(self.job.dtype)
        else:
            tile = torch.randint(0, 4, (length,), generator=generator).to(self.job.dtype)
        return tile.repeat(-(-numel // length))[:numel].to(self.device)

    def reset(self) -> None:
        """Bring the buffers back to where they were before the collective."""
        if not self.parted:
            self.output.copy_(self.input)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor | float] | None:
        """What this rank must hold in the end and how far off an element may be, or None if it holds nothing."""
        name, part = self.name, self.part
        if self.root is not None and self.rank != self.root and name in ("reduce", "gather"):
            return None
        if self.job.collective.reduces:
            total, slack = self._reduced()
            if name == "reduce-scatter":
                lo, hi = self.rank * part, (self.rank + 1) * part
                return total[lo:hi], slack[lo:hi] if isinstance(slack, torch.Tensor) else slack
            return total, slack
        if name == "broadcast":
            return self.data(self.root or 0, self.numel).double(), 0.0
        if name == "scatter":
            return self.data(self.root or 0, self.numel)[self.rank * part : (self.rank + 1) * part].double(), 0.0
        if name == "alltoall":
            mine = slice(self.rank * part, (self.rank + 1) * part)
            return torch.cat([self.data(r, self.numel)[mine] for r in range(self.ranks)]).double(), 0.0
        return torch.cat([self.data(r, part) for r in range(self.ranks)]).double(), 0.0

    def _reduced(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The reduction in float64, and the rounding that any order of it may have: (n + 1) eps sum |x|.

        Whole numbers are reduced in 64 bits and wrap as the dtype does.
        """
        op, n = self.job.op, self.ranks
        wide = torch.float64 if self.job.dtype.is_floating_point else torch.int64
        total = self.data(0, self.numel).to(wide)
        size = total.abs()
        for rank in range(1, n):
            other = self.data(rank, self.numel).to(wide)
            if op in ("sum", "avg"):
                total += other
                size += other.abs()
            elif op == "prod":
                total *= other
                size = total.abs()
            else:
                total = torch.maximum(total, other) if op == "max" else torch.minimum(total, other)
        if op == "avg":
            total, size = total / n, size / n
        if op in ("max", "min") or not self.job.dtype.is_floating_point:
            return total.to(self.job.dtype).double(), 0.0
        info = torch.finfo(self.job.dtype)
        return total, (n + 1) * info.eps * size + n * info.smallest_normal

    def wrong(self) -> int:
        """Elements that are not what they should be."""
        wanted = self.expected()
        if wanted is None:
            return 0
        reference, slack = wanted
        off = (self.output.double() - reference).abs()
        return int((~(off <= slack)).sum())


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
        case = _Case(job, rank, size, device)
        try:
            rows.append(_row(case, communicator))
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {rank}: at {size} bytes the ranks could not go on: {first_line(error)}; is one of them gone?"
            ) from error
    return rows


def _row(case: _Case, communicator: Communicator | None) -> Row:
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
    wrong = 0
    if planned is not None or stock is not None:
        case.reset()
        case.output.zero_() if case.parted else None
        (planned or stock or (lambda: None))()
        wrong = int(_everywhere(float(case.wrong()), dist.ReduceOp.SUM, case.device))
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
    )


def _everywhere(value: float, op: dist.ReduceOp.RedOpType, device: torch.device) -> float:
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box, op)
    return float(box.item())


def _median_us(times: list[float], device: torch.device) -> float | None:
    """Median over the iterations of the slowest rank's time."""
    if not times:
        return None
    return statistics.median(slowest_s(times, None, device)) * 1e6


def _planned(case: _Case, communicator: Communicator) -> Callable[[], object]:
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


def _stock(case: _Case) -> Callable[[], object]:
    """The collective of torch.distributed's own backend. gloo has no AVG: a sum, divided."""
    group = dist.group.WORLD
    assert group is not None
    call = stock(case.job.collective, group, case.input, case.output, OPS[case.job.op])

    def run() -> None:
        call()
        if case.job.op == "avg":
            case.output.div_(case.ranks)

    return run


def _works(case: _Case) -> bool:
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
