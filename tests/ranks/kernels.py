"""One-sided programs by Triton's interpreter, in memory that the ranks share."""

from __future__ import annotations

import os
import random
import sys
from datetime import timedelta
from multiprocessing import shared_memory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import topoplan
from ranks.checks import refused
from topoplan.runtime.extras.one_sided.instructions import Mode
from topoplan.synth.plan import Plan
from topoplan.topo.errors import ExecutionError

if TYPE_CHECKING:
    from topoplan.runtime.extras.kernels.memory import KernelMemory

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
MODES: tuple[Mode, ...] = ("pull", "push")
REDUCTIONS = ("SUM", "MAX", "PRODUCT", "MIN")


def interpret() -> None:
    """Import Triton so that it interprets kernels; the process that ranks are forked from has
    imported it otherwise.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]


def share(name: str, timeout_s: float = 60.0, programs: int = 2) -> tuple[KernelMemory, Any]:
    """Return this rank's memory in a segment that rank 0 makes, and the segment."""
    from topoplan.runtime.extras.kernels.memory import Region, make_shared

    region = Region(dist.get_world_size(), programs, 2048)
    own = dist.get_rank() == 0
    if own:
        segment = shared_memory.SharedMemory(name, create=True, size=region.nbytes * region.ranks)
    dist.barrier()
    if not own:
        segment = shared_memory.SharedMemory(name)
    dist.barrier()
    if own:
        segment.unlink()
    assert segment.buf is not None
    return make_shared(segment.buf, dist.get_rank(), region, timeout_s=timeout_s), segment


def on_two_ranks(name: str, paths: dict[str, str], allreduce_of_all: str) -> str | None:
    """Uses of the kernel one after the other; return what `absent` does."""
    calls(f"{name}-calls", paths, 6, 2)
    averages(f"{name}-averages", allreduce_of_all)
    aliases(f"{name}-aliases", paths)
    message = absent(f"{name}-absent", paths["allreduce"])
    communicators(f"{name}-communicators", paths)
    return message


def calls(name: str, paths: dict[str, str], count: int, seed: int) -> None:
    """Random calls in a row: collectives, schedules, sizes, dtypes, reductions and modes."""
    interpret()
    from topoplan.runtime.extras.kernels.player import KernelPlayer

    memory, _segment = share(name)
    player = KernelPlayer(memory)
    plans = {collective: Plan.load(path) for collective, path in paths.items()}
    same = random.Random(seed)
    for number in range(count):
        collective = same.choice(sorted(plans))
        schedule = same.choice(plans[collective].schedules)
        dtype, reduction = same.choice(DTYPES), same.choice(REDUCTIONS)
        mode = same.choice(MODES)
        blocks = same.choice((1, 3, 64, 257, 700))
        in_place, offset = same.random() < 0.5, same.choice((0, 0, 1))
        source, target, wanted = make_example(collective, blocks, dtype, reduction, number)
        numel = blocks * dist.get_world_size()
        if collective in ("allreduce", "broadcast") and in_place:
            target = shift(source, offset)
            source = target
        else:
            in_place = False
            source, target = shift(source, offset), shift(target, offset)
        op = getattr(dist.ReduceOp, reduction)
        loaded = player.load(schedule, numel, dtype, op, mode=mode, in_place=in_place)
        player.launch(loaded, source, target)
        label = f"call {number}: {loaded.describe()} {reduction} {mode} {in_place} {offset}"
        assert torch.equal(target, wanted), f"{label}: {target[:8]} {wanted[:8]}"
    player.check()


def shift(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a copy that begins `offset` elements into its memory."""
    room = torch.empty(len(tensor) + offset, dtype=tensor.dtype)
    room[offset:] = tensor
    return room[offset:]


def make_example(
    collective: str, block: int, dtype: torch.dtype, reduction: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's input, an output, and what the output has to be in the end."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)
    numel = block * (1 if collective == "allgather" else ranks)
    # Products of 4 of these are exact in 8 bits.
    inputs = [torch.randint(1, 4, (numel,), generator=generator).to(dtype) for _ in range(ranks)]
    stacked = torch.stack(inputs).double()
    total = {
        "SUM": lambda: stacked.sum(0),
        "MAX": lambda: stacked.amax(0),
        "MIN": lambda: stacked.amin(0),
        "PRODUCT": lambda: stacked.prod(0),
    }[reduction]().to(dtype)
    own = slice(rank * block, (rank + 1) * block)
    wanted = {
        "allreduce": lambda: total,
        "broadcast": lambda: inputs[0],
        "allgather": lambda: torch.cat(inputs),
        "reduce-scatter": lambda: total[own],
        "alltoall": lambda: torch.cat([x[own] for x in inputs]),
    }[collective]()
    return inputs[rank], torch.full_like(wanted, -1), wanted


def averages(name: str, path: str) -> None:
    """Averages, of sums that a dtype of 16 bits cannot hold."""
    interpret()
    from topoplan.runtime.extras.kernels.player import KernelPlayer

    memory, _segment = share(name)
    player = KernelPlayer(memory)
    ranks = dist.get_world_size()
    one_shot = next(x for x in Plan.load(path).schedules if x.label == "one-shot")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.full((1000,), 40000.0, dtype=dtype)
        wanted = x.clone()
        loaded = player.load(one_shot, 1000, dtype, dist.ReduceOp.AVG, in_place=True)
        player.launch(loaded, x, x)
        assert torch.equal(x, wanted), (dtype, x[:4], ranks)


def aliases(name: str, paths: dict[str, str]) -> None:
    """An input in its place in the output, and the other way round; other overlaps are refused."""
    interpret()
    from topoplan.runtime.extras.kernels.player import KernelPlayer
    from topoplan.topo.errors import InputError

    memory, _segment = share(name)
    player = KernelPlayer(memory)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = slice(rank * 100, (rank + 1) * 100)
    gathered = torch.full((100 * ranks,), -1.0)
    gathered[own] = rank
    allgather = Plan.load(paths["allgather"]).schedules[0]
    loaded = player.load(allgather, 100 * ranks, torch.float32)
    player.launch(loaded, gathered[own], gathered)
    assert torch.equal(gathered, torch.arange(ranks).repeat_interleave(100).float())
    whole = torch.arange(100.0 * ranks) * (rank + 1)
    wanted = torch.arange(100.0 * ranks)[own] * (ranks * (ranks + 1) // 2)
    scatter = Plan.load(paths["reduce-scatter"]).schedules[0]
    loaded = player.load(scatter, 100 * ranks, torch.float32)
    player.launch(loaded, whole, whole[own])
    assert torch.equal(whole[own], wanted)
    alltoall = Plan.load(paths["alltoall"]).schedules[0]
    loaded = player.load(alltoall, 100 * ranks, torch.float32)
    try:
        player.launch(loaded, whole, whole)
        raise AssertionError("an alltoall in place was played")
    except InputError as error:
        assert "overlap" in str(error)


def compiled(name: str, paths: dict[str, str]) -> None:
    """Operators in one graph of torch.compile."""
    interpret()
    from topoplan.runtime.extras.kernels import ops
    from topoplan.runtime.extras.kernels.player import KernelPlayer

    memory, _segment = share(name)
    plans = {collective: Plan.load(path) for collective, path in paths.items()}
    group = ops.KernelGroup(
        "test",
        KernelPlayer(memory),
        lambda collective, size: (plans[collective].entry_for(size).schedule, "pull"),
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def step(x: torch.Tensor) -> torch.Tensor:
        total = ops.allreduce(x * 2, "sum", group.name)
        ops.allreduce_(total, "max", group.name)
        part = ops.reduce_scatter(total + 1, ranks, "sum", group.name)
        gathered: torch.Tensor = ops.allgather(part, ranks, group.name)
        return gathered

    x = torch.arange(16.0 * ranks).reshape(ranks, 16) * (rank + 1)
    graph = torch.compile(step, backend="aot_eager", fullgraph=True)
    total = torch.arange(16.0 * ranks).reshape(ranks, 16) * ranks * (ranks + 1)
    assert torch.equal(graph(x), (total + 1) * ranks)
    mean = ops.reduce_scatter(total, ranks, "avg", group.name)
    assert torch.equal(mean, total[rank : rank + 1])
    # Several slices of a dtype that is copied as integers.
    flags = torch.arange(20_000) % (rank + 2) == 0
    wanted = torch.cat([torch.arange(20_000) % (of + 2) == 0 for of in range(ranks)])
    assert torch.equal(ops.allgather(flags, ranks, group.name), wanted)
    assert not ops.allgather(flags[:0], ranks, group.name).numel()
    with refused("allgather: torch.complex128 is too wide"):
        ops.allgather(x.to(torch.complex128), ranks, group.name)
    with refused(f"ranks={ranks + 1}: the group 'test' has {ranks}"):
        ops.allgather(x, ranks + 1, group.name)


def absent(name: str, path: str) -> str | None:
    """Rank 0 calls alone: it names the rank that it waits for, and refuses later calls."""
    interpret()
    from topoplan.runtime.extras.kernels.player import KernelPlayer

    memory, _segment = share(name, timeout_s=0.02)
    player = KernelPlayer(memory)
    if dist.get_rank() > 0:
        dist.barrier()
        return None
    x = torch.ones(100)
    loaded = player.load(Plan.load(path).schedules[0], 100, torch.float32, in_place=True)
    player.launch(loaded, x, x)
    dist.barrier()
    try:
        player.launch(loaded, x, x)
    except ExecutionError as error:
        return str(error)
    return "no error"


def communicators(name: str, paths: dict[str, str]) -> None:
    """Communicators that play by kernels: all collectives, dtypes, reductions, and the race.

    The transport passes for one of GPUs, whose memory is this segment.
    """
    interpret()
    from topoplan.runtime.extras.kernels import runner as runners
    from topoplan.runtime.extras.kernels.player import KernelPlayer
    from topoplan.runtime.ranks import links

    memory, _segment = share(name)
    player = KernelPlayer(memory)
    patch.object(links, "uses_nccl", lambda _: True).start()
    patch.object(runners, "open_kernels", lambda _: player).start()
    for collective, path in paths.items():
        for choose in ("plan", "race")[: 2 if collective == "allreduce" else 1]:
            communicator = topoplan.Communicator(
                path, choose=choose, executor="one-sided", timeout=timedelta(seconds=60)
            )
            dtypes = (torch.float32, torch.bfloat16)  # a race takes long, by the interpreter
            for number, dtype in enumerate(dtypes[: 1 if choose == "race" else 2]):
                source, target, wanted = make_example(collective, 5, dtype, "SUM", number)
                if collective in ("allreduce", "broadcast"):
                    target = source
                    getattr(communicator, collective)(target)
                else:
                    getattr(communicator, collective.replace("-", "_"))(target, source)
                assert torch.equal(target, wanted), (collective, dtype, target, wanted)
                choice = communicator.choice(wanted.nbytes)
                assert choice is None or choice.schedule is None or choice.schedule.steps
            # Whoever only receives a broadcast puts nothing.
            assert communicator.wire_bytes > 0 or collective == "broadcast"
            communicator.close()
    options: dict[str, Any] = {"choose": "plan", "executor": "one-sided"}
    communicator = topoplan.Communicator(paths["reduce-scatter"], **options)
    whole, part = torch.full((6 * dist.get_world_size(),), 3.0), torch.empty(6)
    communicator.reduce_scatter(part, whole, dist.ReduceOp.AVG)
    assert torch.equal(part, torch.full((6,), 3.0))
    flags = torch.arange(2 * dist.get_world_size()) % 2 == 0
    gathered = torch.zeros_like(flags)
    allgather = topoplan.Communicator(paths["allgather"], **options)
    allgather.allgather(gathered, flags[:2])
    assert torch.equal(gathered, flags)
