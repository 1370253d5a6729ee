"""DDP under every option that it has, beside DDP's own allreduce."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

import topoplan
from ranks.checks import same_everywhere
from ranks.ddp_models import Branches, Complex, Stages, Tied, half_frozen
from ranks.training import Hook, batch, distance, flat, network, seeded, wrapped

# One step's forward and backward; False where the optimizer is not to step yet.
Backward = Callable[[DDP, int], bool | None]
Train = Callable[[DDP, Backward], torch.Tensor]
MANY: dict[str, Any] = {"bucket_cap_mb": 0.015}
UNUSED: dict[str, Any] = {"find_unused_parameters": True, **MANY}
STEPS = 4


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(dist.get_rank(), step)


def backward(ddp: DDP, step: int) -> None:
    x, y = data(step)
    mse_loss(ddp(x), y).backward()


def train(ddp: DDP, backward: Backward = backward) -> torch.Tensor:
    """Return the parameters after STEPS steps."""
    optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.05)
    for step in range(STEPS):
        if backward(ddp, step) is False:
            continue
        optimizer.step()
        optimizer.zero_grad()
    return flat(ddp)


def train_unevenly(ddp: DDP, backward: Backward) -> torch.Tensor:
    """Return the parameters after up to two more steps, another number on each rank, under
    join().
    """
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with ddp.join():
        for step in range(STEPS + dist.get_rank() % 3):
            backward(ddp, step)
            optimizer.step()
            optimizer.zero_grad()
    return flat(ddp)


def through(which: Callable[[int], Iterable[int]]) -> Backward:
    """Return a step that uses the branches `which(step)`."""

    def backward(ddp: DDP, step: int) -> None:
        x, y = data(step)
        mse_loss(ddp(x, which(step)), y).backward()

    return backward


def accumulating(ddp: DDP, step: int) -> bool:
    with ddp.no_sync() if step % 3 < 2 else nullcontext():
        backward(ddp, step)
    return step % 3 == 2


class Comparison:
    """Trains models by a hook and by DDP itself, and compares what comes out."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.of_stock: dict[object, torch.Tensor] = {}

    def check(
        self,
        name: str,
        make: Callable[[], Module],
        backward: Backward = backward,
        *,
        hook: Hook | None = None,
        group: dist.ProcessGroup | None = None,
        within: float = 1e-6,
        train: Train = train,
        **options: Any,
    ) -> None:
        """Assert that replicas are equal, near to stock's, and have learned."""
        key = make, backward, train, group
        if key not in self.of_stock:  # options change nothing about what stock computes
            self.of_stock[key] = train(wrapped(make, None, group, **options), backward)
        stock = self.of_stock[key]
        trained = train(wrapped(make, hook or self.hook, group, **options), backward)
        assert same_everywhere(trained, group), f"{name}: replicas differ"
        assert distance(trained, stock) <= within, f"{name}: {distance(trained, stock)} from stock"
        assert distance(trained, flat(seeded(make))) > 1e-3, f"{name}: nothing was learned"


def options(path: str, for_two: str) -> list[tuple[str, str]]:
    """Return mode and hash of what training ends with.

    `for_two` is a plan for the first two ranks.
    """
    compare_options(path, for_two)
    return fixed_order(path)


def variants_and_models(path: str) -> None:
    comparison = Comparison(topoplan.ddp_hook(path, choose="model"))
    compare_variants(comparison)
    compare_models(comparison)


def compare_options(path: str, for_two: str) -> None:
    rank = dist.get_rank()
    hook = topoplan.ddp_hook(path, choose="model")
    comparison = Comparison(hook)
    buckets: list[tuple[int, int]] = []

    def counting(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        buckets.append((bucket.index(), bucket.buffer().numel()))
        return hook(state, bucket)

    # DDP compares a hook's annotations with the types themselves, and here they are text
    counting.__annotations__.clear()
    check = comparison.check
    check("many buckets", network, hook=counting, **MANY)
    starts = [i for i, (index, _) in enumerate(buckets) if index == 0]
    first, second, third = (buckets[starts[i] : starts[i + 1]] for i in range(3))
    assert first != second == third, "buckets were not rebuilt"
    assert len(second) > 1
    check("views", network, gradient_as_bucket_view=True, **MANY)
    check("static graph", network, static_graph=True, **MANY)
    check(
        "unused on some ranks", Branches, through(lambda step: (0, 1 + (step + rank) % 2)), **UNUSED
    )
    check("no_sync", network, accumulating, **MANY)
    check("join", network, train=train_unevenly, **MANY)

    # bfloat16 rounds what lies beside a tie either way: replicas agree, but may be further from
    # stock than 1e-6
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def mixed(ddp: DDP, step: int) -> None:
        x, y = data(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(ddp(x).float(), y)
        scaler.scale(loss).backward()
        for p in ddp.parameters():
            assert p.grad is not None
            p.grad.div_(scaler.get_scale())

    def narrow(ddp: DDP, step: int) -> None:
        x, y = data(step)
        mse_loss(ddp(x.bfloat16()).float(), y).backward()

    check("autocast with a scaled loss", network, mixed, within=1e-2, **MANY)
    check("bfloat16", lambda: network().bfloat16(), narrow, within=3e-2, **MANY)
    group = dist.new_group([0, 1])
    if rank < 2:
        hook_of_two = topoplan.ddp_hook(for_two, group=group, choose="model")
        check("a subgroup", network, hook=hook_of_two, group=group, **MANY)


def compare_variants(comparison: Comparison) -> None:
    """Options together, and gradients in another order on each rank."""
    rank, check = dist.get_rank(), comparison.check
    check("one bucket", network)
    check(
        "static graph and views", network, static_graph=True, gradient_as_bucket_view=True, **MANY
    )
    check("unused everywhere", Branches, through(lambda step: (0, 2)), **UNUSED)
    some = through(lambda step: (step + rank) % 3 * (1,) + (0,))
    check("unused and views", Branches, some, gradient_as_bucket_view=True, **UNUSED)
    orders = (0, 1, 2), (2, 1, 0), (1, 0, 2)
    check(
        "another order of gradients on each rank",
        Branches,
        through(lambda step: orders[rank % 3]),
        **MANY,
    )
    check("no_sync and views", network, accumulating, gradient_as_bucket_view=True, **MANY)

    def forwards_first(ddp: DDP, step: int) -> None:
        with ddp.no_sync():
            backward(ddp, 3 * step)
        pairs = [data(3 * step + i) for i in (1, 2)]
        torch.stack([mse_loss(ddp(x), y) for x, y in pairs]).sum().backward()

    def every_other(ddp: DDP, step: int) -> None:
        with ddp.no_sync() if step % 2 else nullcontext():
            backward(ddp, step)

    check("several forward passes", network, forwards_first, **MANY)
    check("join and no_sync", network, every_other, train=train_unevenly, **MANY)
    check(
        "join and unused",
        Branches,
        through(lambda step: (0, 1 + rank % 2)),
        train=train_unevenly,
        **UNUSED,
    )


def compare_models(comparison: Comparison) -> None:
    """Float64, shared, complex and frozen parameters, checkpoints, a state loaded in between."""
    check = comparison.check

    def doubled(ddp: DDP, step: int) -> None:
        x, y = data(step)
        mse_loss(ddp(x.double()), y.double()).backward()

    saved: dict[int, dict[str, torch.Tensor]] = {}

    def reloading(ddp: DDP, step: int) -> None:
        if step == 0:
            saved[id(ddp)] = {name: value.clone() for name, value in ddp.state_dict().items()}
        if step == 2:
            ddp.load_state_dict(saved[id(ddp)])
        backward(ddp, step)

    check("float64", lambda: network().double(), doubled)
    check("shared parameters", Tied, **MANY)
    check("complex parameters", Complex, **MANY)
    check("checkpoints", lambda: Stages(False), **MANY)
    check("reentrant checkpoints", lambda: Stages(True), static_graph=True, **MANY)
    check("frozen parameters", half_frozen, **MANY)
    check("state loaded in between", network, reloading, **MANY)


def fixed_order(path: str) -> list[tuple[str, str]]:
    """Return mode and hash of what training ends with, where no race decides on the order of
    additions.
    """
    hashes = []
    for choose in ("plan", "model"):
        trained = train(wrapped(network, topoplan.ddp_hook(path, choose=choose), **MANY))
        hashes.append((choose, hashlib.sha256(trained.numpy().tobytes()).hexdigest()))
    return hashes
