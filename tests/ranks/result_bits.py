"""Results of collectives by plans alone, as hashes: the bits that a call ends with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import patience
import torch
import torch.distributed as dist

from topoplan import Communicator

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
)
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
# One element, fewer than a rank has lanes, and an odd number over several segments.
NUMELS = (1, 37, 50_003)
# Of the other collectives, a rank's part.
_PART = 1003
CODECS = ("fp16", "bf16", "fp8", "fp8-e5m2", "int8")


def make_values(numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return this rank's values: of very different sizes, or whole numbers that overflow."""
    chance = torch.Generator().manual_seed(1000 + dist.get_rank())
    if not dtype.is_floating_point:
        return torch.randint(0, 120, (numel,), generator=chance).to(dtype)
    sizes = torch.randint(-3, 4, (numel,), generator=chance)
    return (torch.randn(numel, generator=chance) * 2.0**sizes).to(dtype)


def open_plan(path: str, executor: str | None = None, **options: Any) -> Communicator:
    """Return a communicator that uses the plan's own schedules."""
    return Communicator(
        path, timeout=patience.deadline(60), choose="plan", executor=executor, **options
    )


def hash_results(communicator: Communicator, tensor: torch.Tensor | None) -> str:
    """Return a hash of what all ranks, in their order, ended with; collective.

    All NaN count as one: which bits a sum of two has, processors decide.
    """
    if tensor is not None and tensor.is_floating_point():
        tensor = tensor.masked_fill(tensor.isnan(), float("nan"))
    own = b"" if tensor is None else tensor.contiguous().view(torch.uint8).numpy().tobytes()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(own).hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def reductions(path: str, executor: str) -> dict[str, str]:
    """Return the hash of allreduce's results for each dtype, op and size."""
    communicator, hashes = open_plan(path, executor), {}
    for dtype in DTYPES:
        for op_name, op in OPS.items():
            if op_name == "avg" and not dtype.is_floating_point:
                continue
            for numel in NUMELS:
                values = make_values(numel, dtype)
                communicator.allreduce(values, op)
                name = f"{str(dtype).removeprefix('torch.')} {op_name} {numel}"
                hashes[name] = hash_results(communicator, values)
    return hashes


def collectives(paths: Mapping[str, str], executor: str) -> dict[str, str]:
    """Return the hash of each collective's results."""
    hashes, world, is_root = {}, dist.get_world_size(), dist.get_rank() == 0
    for name, path in paths.items():
        communicator = open_plan(path, executor)
        part, whole = make_values(_PART), make_values(_PART * world)
        result: torch.Tensor | None = torch.zeros(_PART)
        if name in ("allreduce", "reduce", "broadcast"):
            method = getattr(communicator, name)
            result = method(whole) if name != "reduce" or is_root else (method(whole), None)[1]
        elif name in ("allgather", "alltoall"):
            given = part if name == "allgather" else whole
            result = getattr(communicator, name)(torch.zeros_like(whole), given)
        elif name == "gather":
            result = communicator.gather(torch.zeros_like(whole) if is_root else None, part)
        elif name == "scatter":
            result = communicator.scatter(torch.zeros_like(part), whole if is_root else None)
        else:
            result = communicator.reduce_scatter(torch.zeros_like(part), whole)
        hashes[name] = hash_results(communicator, result)
    return hashes


def compressed(path: str) -> dict[str, str]:
    """Return the hash of results and of what rounding left over, for each codec."""
    hashes = {}
    for codec in CODECS:
        for reduction in ("hops", "once"):
            communicator = open_plan(path, compress=codec, reduction=reduction)
            for numel in NUMELS:
                values, residual = make_values(numel), torch.zeros(numel)
                communicator.allreduce(values, residual=residual)
                name = f"{codec} {reduction} {numel}"
                hashes[name] = hash_results(communicator, values)
                hashes[f"{name} residual"] = hash_results(communicator, residual)
            half = make_values(NUMELS[-1], torch.bfloat16)
            communicator.allreduce(half, dist.ReduceOp.AVG)
            hashes[f"{codec} {reduction} bfloat16 avg"] = hash_results(communicator, half)
    return hashes
