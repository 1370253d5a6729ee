"""Tensors that move from one mesh to another, as ranks see them."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from rank_process import Events
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import topoplan
from ranks.checks import from_all, refused
from topoplan.runtime.extras.reshard import transfer

Laid = tuple[DeviceMesh, list[Placement]]
Named = dict[str, DTensor]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def draw_laid(drawing: random.Random, dims: int, *, terms: bool) -> Laid:
    """Return a mesh of some of the ranks, of one or two dimensions, with placements on it."""
    world = dist.get_world_size()
    sizes: list[tuple[int, ...]] = [(n,) for n in range(1, world + 1)]
    sizes += [(m, n) for m in range(1, 5) for n in range(2, 5) if m * n <= world]
    size = drawing.choice(sizes)
    # Ascending: torch gathers in the order of ranks, not of a mesh whose ranks are in another one.
    ranks = torch.tensor(sorted(drawing.sample(range(world), torch.Size(size).numel()))).view(size)
    placements: list[Placement] = []
    for _ in size:
        dim = drawing.randrange(dims)
        placements.append(
            drawing.choice([Replicate(), Shard(dim), Shard(dim), *([Partial()] if terms else [])])
        )
    return DeviceMesh("cpu", ranks), placements


def lay(full: torch.Tensor, laid: Laid) -> DTensor:
    """Return this rank's part of a tensor; terms of a sum are the tensor times 1, 2, 3..."""
    mesh, placements = laid
    place, local = mesh.get_coordinate(), full
    if place is None:
        local = full.new_empty(0)
    else:
        term = 1
        for dim, placement in enumerate(placements):
            if placement.is_partial():
                term = term * mesh.size(dim) + place[dim]
            elif not placement.is_replicate():
                split: Any = placement
                parts, _ = split._split_tensor(local, mesh.size(dim), with_padding=False)
                local = parts[place[dim]]
        local = (local.clone() if full.dtype == torch.bool else local * term).contiguous()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


def draw_pair(seed: int) -> tuple[DTensor, DTensor, torch.Tensor]:
    """Return a source, an empty destination, and the whole value on all ranks."""
    drawing = random.Random(seed)
    shape = [drawing.randint(1, 13) for _ in range(drawing.randint(1, 3))]
    dtype = drawing.choice(DTYPES)
    values = torch.Generator().manual_seed(seed)
    # Sums of terms are exact in any order: bfloat16 has all integers up to 256, and the terms of 8
    # ranks add up to 92 times a value.
    end = {torch.bool: 2, torch.bfloat16: 3}.get(dtype, 7)
    full = torch.randint(0, end, shape, generator=values).to(dtype)
    source = draw_laid(drawing, len(shape), terms=dtype != torch.bool)
    destination = draw_laid(drawing, len(shape), terms=False)
    before, after = lay(full, source), lay(torch.zeros_like(full), destination)
    return before, after, full


def full_of(tensor: DTensor) -> torch.Tensor | None:
    """Return the whole tensor by torch, on the ranks of its mesh."""
    return None if tensor.device_mesh.get_coordinate() is None else tensor.full_tensor()


def everything_arrives(first: int, count: int) -> list[float]:
    random_pairs_equal_full_tensor(first, count)
    sums_have_the_same_bits()
    bad_arguments_are_refused()
    return a_plan_is_used_again()


def random_pairs_equal_full_tensor(first: int, count: int) -> dict[int, tuple[DTensor, DTensor]]:
    """Move random tensors, check what arrives, and return source and destination by seed."""
    pairs = {}
    for seed in range(first, first + count):
        before, after, full = draw_pair(seed)
        plan = topoplan.reshard(
            (before.device_mesh, before.placements),
            (after.device_mesh, after.placements),
            full.shape,
            full.dtype,
        )
        plan.run(before, after)
        check_equal(before, after, seed)
        pairs[seed] = before, after
    return pairs


def check_equal(before: DTensor, after: DTensor, seed: object) -> None:
    """Assert that two tensors are equal, bit for bit, as torch gathers them."""
    wholes: list[Any] = [None] * dist.get_world_size()
    mine = [full_of(tensor) for tensor in (before, after)]
    dist.all_gather_object(wholes, mine)
    expected = next(x for x, _ in wholes if x is not None)
    for _, got in wholes:
        assert got is None or torch.equal(got, expected), (seed, expected, got)


def a_plan_is_used_again() -> list[float]:
    """Move changing values with one plan, in several rounds; return what was sent, and the need."""
    rank, world = dist.get_rank(), dist.get_world_size()
    half = world // 2
    meshes = [list(range(half)), list(range(half, world))]
    size = 1024
    plan = topoplan.reshard(
        (meshes[0], [Shard(0)]), (meshes[1], [Shard(1)]), (size, size), torch.float32
    )
    source, destination = None, None
    for step in range(2):
        whole = torch.arange(size * size, dtype=torch.float32).view(size, size) + step
        if rank in meshes[0]:
            source = whole.chunk(half)[rank].clone()
        else:
            destination = torch.zeros(size, size // half)
        plan.run(source, destination)
        if destination is not None:
            assert torch.equal(destination, whole.chunk(half, 1)[rank - half])
    return [plan.sent_bytes, plan.rounds]


def sums_have_the_same_bits() -> None:
    """Terms that round differently in another order end alike on all ranks that need them."""
    world = dist.get_world_size()
    terms = torch.tensor([1e8, 1.0, -1e8, 3e-3]).repeat(9)[torch.arange(32) + dist.get_rank()]
    for op in ("sum", "avg"):
        plan = topoplan.reshard(
            (range(world), [Partial(op)]), (range(world), [Replicate()]), (32,), torch.float32
        )
        result = torch.empty(32)
        plan.run(terms, result)
        expected = torch.zeros(32)
        for term in from_all(terms):
            expected = expected + term
        if op == "avg":
            expected /= world
        assert torch.equal(result, expected), (result, expected)


def bad_arguments_are_refused() -> None:
    """An argument that does not fit, on one rank alone, is an error on all of them."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    whole, rows = (ranks, [Replicate()]), (ranks, [Shard(0)])
    cases: list[Any] = [
        ((ranks, [Shard(2)]), whole, (8, 8), torch.float32, "src: Shard(2) of a tensor of 2"),
        (whole, (ranks, [Partial()]), (8, 8), torch.float32, "dst: Partial"),
        ((ranks, [Partial("avg")]), whole, (8, 8), torch.int64, "src: Partial of an average"),
        (([0, 99], [Shard(0)]), whole, (8, 8), torch.float32, "src: mesh with rank 99"),
        (rows, whole, (8 + (rank == 1), 8), torch.float32, "describe different transfers"),
        ((DeviceMesh("cpu", list(reversed(ranks))), [Shard(0)]), whole, (8, 8), torch.float32,
         "src: DeviceMesh [3, 2, 1, 0] with descending ranks"),
        ((ranks, [Partial()]), whole, (8, 8), torch.float8_e4m3fn, "src: Partial of a sum of"),
        (rows, whole[0] if rank == 1 else whole, (8, 8), torch.float32, "dst: expected a mesh"),
        (rows, whole, "eight" if rank == 1 else (8, 8), torch.float32, "shape 'eight'"),
        (
            (ranks, [Partial("avg" if rank == 1 else "sum")]), whole, (8, 8), torch.float32,
            "describe different transfers",
        ),
    ]  # fmt: skip
    for src, dst, shape, dtype, text in cases:
        with refused(text):
            topoplan.reshard(src, dst, shape, dtype)
    with refused("'ring:9' has 9 GPUs", topoplan.PlanMismatchError):
        topoplan.reshard(rows, whole, (8, 8), torch.float32, "ring:9")
    with (
        patch.object(transfer, "make_plan", side_effect=ValueError("no such cut")),
        refused("cannot plan what has to move (ValueError: no such cut)", topoplan.ExecutionError),
    ):
        topoplan.reshard(rows, whole, (8, 8), torch.float32)
    plan = topoplan.reshard(rows, whole, (8, 8), torch.float32)
    own, all_of_it = torch.ones(8 // len(ranks), 8), torch.zeros(8, 8)
    for source, text in [
        (torch.ones(3, 8), "src: shard of shape (3, 8)"),
        (own.double(), "torch.float64 on rank 1; expected (2, 8)"),
        (None, "src: NoneType on rank 1; expected its shard"),
        (all_of_it[3:5], "src: shares memory with dst"),
    ]:
        with refused(text):
            plan.run(source if rank == 1 else own, all_of_it)
    with refused("dst: shard on rank 1 whose elements share memory, as expand makes"):
        plan.run(own, torch.zeros(1, 8).expand(8, 8) if rank == 1 else all_of_it)
    with refused("timeout 5: expected a timedelta above 0"):
        topoplan.reshard(rows, whole, (8, 8), torch.float32, timeout=5)  # type: ignore[arg-type]
    plan.run(own, all_of_it)  # after that it goes on
    with torch.inference_mode():
        served = torch.zeros(8, 8)
    plan.run(own, served)
    assert all_of_it.sum() == served.sum() == 64


def state_dicts_move(folder: str) -> list[int]:
    """Move dicts of tensors as a checkpoint would be loaded; return the bytes of scratch memory."""
    names = [f"w{seed}" for seed in range(8)]
    before, after = dict[str, DTensor](), dict[str, DTensor]()
    for seed, name in enumerate(names):
        before[name], after[name], _ = draw_pair(seed + 100)
    loaded = {name: lay_like(after[name]) for name in names}
    for step in range(2):
        topoplan.reshard_state_dict(before, after)
        for name in names:
            check_equal(before[name], after[name], (step, name))
            if before[name].dtype != torch.bool and step == 0:
                before[name].to_local().add_(1)
    # What torch.distributed.checkpoint loads: of tensors without terms, which it cannot save.
    whole = {name: t for name, t in before.items() if not any(p.is_partial() for p in t.placements)}
    save(whole, checkpoint_id=folder)
    load({name: loaded[name] for name in whole}, checkpoint_id=folder)
    for name in whole:
        assert torch.equal(loaded[name].to_local(), after[name].to_local()), name
    return [len(shared.reshards) for shared in transfer._transfers.values()]


def meshes_of_copies_are_one() -> None:
    """FSDP lays what tensor parallelism does not split over a mesh per tensor-parallel rank."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    models: list[Any] = []
    for mesh in (DeviceMesh("cpu", torch.arange(4)), grid["dp"]):
        model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.LayerNorm(7))
        if mesh.size() == 2:
            parallelize_module(model, grid["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh)
        models.append(model.state_dict())
    assert models[1]["1.weight"].device_mesh.size() == 2
    for before, after in (models, reversed(models)):
        for tensor in after.values():
            tensor.to_local().zero_()
        for _ in range(2):
            for number, tensor in enumerate(before.values()):
                tensor.to_local().fill_(dist.get_rank() // 2 + number)
            topoplan.reshard_state_dict(before, after)
            for name in before:
                check_equal(before[name], after[name], name)
        topoplan.reshard_state_dict(after, after)  # to itself: nothing moves
    rank = dist.get_rank()
    apart, other = (
        lay(torch.ones(4), (DeviceMesh("cpu", torch.arange(3) + i), [Shard(0)])) for i in range(2)
    )
    with refused("'a' is torch.float32 (4,) (Shard(dim=0),) on [0, 1, 2] on rank 0"):
        mine = {"a": other if rank == 3 else apart}
        topoplan.reshard_state_dict(mine, mine)


def lay_like(tensor: DTensor) -> DTensor:
    """Return a tensor of zeros with the same placements."""
    return lay(
        torch.zeros(tensor.shape, dtype=tensor.dtype),
        (tensor.device_mesh, list(tensor.placements)),
    )


def bad_dicts_are_refused() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = DeviceMesh("cpu", torch.arange(world))
    whole = torch.arange(64.0).view(8, 8)

    def rows(tensor: torch.Tensor = whole, dim: int = 0) -> DTensor:
        return lay(tensor, (mesh, [Shard(dim)]))

    good = {"a": rows(), "b": rows()}
    others: list[tuple[Any, str]] = [
        ({"a": rows()}, "'b' is only in the source"),
        ({"a": rows(), "b": rows(whole.double())}, "'b': torch.float32 of shape (8, 8) in the"),
        ({"a": rows(whole[:4]), "b": rows()}, "'a': torch.float32 of shape (8, 8) in the source"),
        ({"a": rows(), "b": whole}, "destination['b']: Tensor; expected a DTensor"),
        (torch.nn.Linear(2, 2), "destination: Linear; expected a dict of DTensors"),
        ({"a": rows(), 1: rows()}, "'b' is only in the source, one of 2"),
        ({"a": rows(), "b": rows(dim=1)}, "'b' is torch.float32 (8, 8)"),
    ]
    for other, text in others:
        with refused(text):
            topoplan.reshard_state_dict(good, other if rank == 1 else {"a": rows(), "b": rows()})
    topoplan.reshard_state_dict(good, {"a": rows(dim=1), "b": rows()})
    machine = "switch:4" if rank == 1 else None  # for rank 1 the plan is not cached
    with refused("topology is None on rank 0, 'switch:4' on rank 1"):
        topoplan.reshard_state_dict(good, {"a": rows(dim=1), "b": rows()}, machine)
    terms, tied = lay(whole, (mesh, [Partial()])), lay(whole, (mesh, [Replicate()]))
    with refused("destination['b']: shares memory with destination['a']"):
        topoplan.reshard_state_dict({"a": terms, "b": terms}, {"a": tied, "b": tied})


def later_calls_have_their_own_deadline(source: Named, destination: Named) -> None:
    """A rank that does not call is named by then, though the first call would wait for long."""
    rank, events = dist.get_rank(), Events()
    if rank == 0:
        for other in range(1, dist.get_world_size()):
            events.wait(f"{other} gave up")
    with refused("rank 0" if rank else "", topoplan.ExecutionError):
        topoplan.reshard_state_dict(source, destination, timeout=timedelta(seconds=1))
    events.tell(f"{rank} gave up")


def scratch_memory_is_bounded() -> list[int]:
    """Return the peak of the memory that a call adds, and the bytes of the largest shard."""
    world = dist.get_world_size()
    mesh = DeviceMesh("cpu", torch.arange(world))
    before = {f"w{i}": lay(torch.rand(1 << 11, 1 << 11), (mesh, [Shard(0)])) for i in range(3)}
    after = {name: lay(torch.zeros(1 << 11, 1 << 11), (mesh, [Shard(1)])) for name in before}
    tiny = {"t": lay(torch.rand(8, 8), (mesh, [Shard(0)]))}
    moved = {"t": lay(torch.zeros(8, 8), (mesh, [Shard(1)]))}
    topoplan.reshard_state_dict(tiny, moved)  # connections, imports
    largest = before["w0"].to_local().nbytes
    Path("/proc/self/clear_refs").write_text("5")
    rss_bytes = read_status("VmRSS")
    topoplan.reshard_state_dict(before, after)
    added = read_status("VmHWM") - rss_bytes
    for name in before:
        check_equal(before[name], after[name], name)
    bad_dicts_are_refused()
    meshes_of_copies_are_one()
    later_calls_have_their_own_deadline(tiny, moved)
    return [added, largest]


def read_status(name: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) << 10
