"""Every classic system: what it promises of replicas, bytes and staleness."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from rank_process import Events

from examples import classic
from examples.classic import buckets
from ranks.checks import from_all, same_everywhere
from ranks.classic_neighbours import contract_and_train
from ranks.classic_training import averaged, backward, flat, model, plain_sgd, sgd, two_boxes

SYNCHRONOUS = ("gather", "ring", "hierarchical", "plan", "stock", "parameter-server", "bytegrad")
STEPS = 4
NOT_IN_HALF_PRECISION = ("async-parameter-server", "hierarchical", "neighbours-8bit")


def every_system(plan: str) -> None:
    """`plan` is one for four ranks."""
    buckets.BUCKET_BYTES = 8192
    wanted, start = averaged(4, STEPS), flat(model())
    for name in SYNCHRONOUS:
        average_gradients(name, wanted, start)
    halves = [name for name in classic.NAMES if name not in NOT_IN_HALF_PRECISION]
    for number, name in enumerate(halves):
        two_steps_in_half_precision(name, plan, (torch.bfloat16, torch.float16)[number % 2])
    a_parameter_that_one_rank_used()
    serve_synchronously()
    serve_asynchronously()
    contract_and_train()


def average_gradients(name: str, wanted: torch.Tensor, start: torch.Tensor) -> None:
    rank = dist.get_rank()
    net = model(7 + rank)
    topology = two_boxes() if name in ("hierarchical", "plan") else None
    system = classic.make(name, net, sgd, topology=topology, choose="model")
    assert torch.equal(flat(net), start), name
    assert len(system.buckets.layout) == 4, name
    assert not system.is_helper
    assert system.bytes_sent == 0
    for step in range(STEPS):
        backward(net, rank, step)
        system.step()
        assert all(p.grad is None for p in net.parameters()), (name, step)
        assert same_everywhere(flat(net)), (name, step)
    system.finish()
    assert system.steps == STEPS
    assert (system.optimizer is None) == (name == "gather" and rank > 0)
    off = (flat(net) - wanted).norm() / (start - wanted).norm()
    assert off <= (5e-2 if name == "bytegrad" else 1e-6), (name, off)
    half = 2 * 3 * start.nbytes // 4
    assert system.bytes_sent is not None
    sent = system.bytes_sent / STEPS
    if name == "gather":
        assert sent == start.nbytes * (3 if rank == 0 else 1)
    elif name == "bytegrad":
        assert sent <= 0.27 * half, sent / half
        averages_within_half_a_level(system)
    elif name != "plan":
        assert abs(sent - half) <= 64, (name, sent, half)


def averages_within_half_a_level(system: Any) -> None:
    given = torch.randn(1000, generator=torch.Generator().manual_seed(dist.get_rank()))
    everyones, average = from_all(given), given.clone()
    exact = torch.stack(everyones).mean(0)
    system.average([average])
    span = max(float(x.max() - x.min()) for x in (*everyones, exact))
    assert same_everywhere(average)
    assert 0 < (average - exact).abs().max() <= 2 * span / 510


def two_steps_in_half_precision(name: str, plan: str, dtype: torch.dtype) -> None:
    rank = dist.get_rank()
    net = model(7 + rank, dtype)
    system = classic.make(name, net, sgd, plan=plan if name == "plan" else None, choose="model")
    before = flat(net)
    for step in range(2):
        backward(net, rank, step, dtype)
        system.step()
    system.finish()
    assert same_everywhere(flat(net)), name
    assert not torch.equal(before, flat(net)), name
    assert flat(net).isfinite().all(), name


def a_parameter_that_one_rank_used() -> None:
    """The others' gradients are zeros."""
    net: Any = model()
    system = classic.make("parameter-server", net, plain_sgd(1.0))
    before = net[4].bias.detach().clone()
    if dist.get_rank() == 2:
        net[4].bias.sum().backward()
    system.step()
    assert torch.allclose(net[4].bias, before - 0.25)
    assert same_everywhere(flat(net))


def assert_workers_agree(net: torch.nn.Module | None, start: torch.Tensor) -> None:
    rows = from_all(start if net is None else flat(net))
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], start)


def serve_synchronously() -> None:
    """Ranks 0 and 2 work, ranks 1 and 3 help."""
    rank = dist.get_rank()
    helping, start = rank in (1, 3), flat(model())
    net = None if helping else model(7 + rank)
    system = classic.make("parameter-server", net, sgd, helpers=(1, 3))
    assert system.is_helper == helping
    assert system.workers == (0, 2)
    assert system.helpers == (1, 3)
    if net is None:
        system.serve()
        assert system.steps == STEPS
    else:
        for step in range(STEPS):
            backward(net, rank // 2, step)
            system.step()
        system.finish()
        off = (flat(net) - averaged(2, STEPS)).norm() / (start - flat(net)).norm()
        assert off <= 1e-6, off
    assert_workers_agree(net, start)
    report: Any = system.report()
    shares = {r: Fraction(share) for r, share in report["shares"].items()}
    assert sum(shares.values()) == 1
    assert set(shares) == {0, 1, 2, 3}
    expected = 2 * shares[rank] if helping else shares[rank] + (1 - shares[rank])
    assert system.bytes_sent is not None
    assert abs(system.bytes_sent / STEPS / start.nbytes - expected) <= 0.01, (
        system.bytes_sent,
        expected,
    )


def serve_asynchronously() -> None:
    """Ranks 0 and 2 work, ranks 1 and 3 help. Worker 0 makes ten steps while worker 1 makes none,
    whose next gradients are ten steps stale.
    """
    rank, events = dist.get_rank(), Events()
    start, worker = flat(model()), rank // 2
    net = None if rank in (1, 3) else model(7 + rank)
    system = classic.make("async-parameter-server", net, plain_sgd(0.1), helpers=(1, 3))
    report: Any
    if net is None:
        system.serve()
        report = system.report()
        assert report["updates"] == 62, report
        assert report["lost"] == (), report
        assert report["staleness_max"] >= 10, report
        assert report["share"] == "1/2"
        assert_workers_agree(net, start)
        return
    assert torch.equal(flat(net), start)
    losses = []
    after = {(1, 0): "0 made 1", (0, 1): "1 made 1", (1, 1): "0 made 11", (0, 11): "1 made 2"}
    for step in range(31):
        if (worker, step) in after:
            events.wait(after[worker, step])
        losses.append(backward(net, worker, 0).item())
        system.step()
        events.tell(f"{worker} made {system.steps}")
        if (worker, step) == (1, 1):
            report = system.report()
            assert report["staleness_max"] == 10, report
    system.finish()
    assert system.steps == 31
    assert losses[-1] < 0.75 * losses[0], losses
    report = system.report()
    assert worker == 0 or report["staleness_max"] >= 10
    assert system.bytes_sent is not None
    assert abs(system.bytes_sent / 31 / start.nbytes - 1) <= 0.01
    assert_workers_agree(net, start)
