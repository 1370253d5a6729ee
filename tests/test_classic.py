"""The classic systems keep what each promises: equal replicas, counted staleness, contraction, bytes, errors on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from topoplan.runtime.classic import NAMES, system_of
from topoplan.runtime.classic.buckets import BUCKET_BYTES, Buckets
from topoplan.runtime.classic.quantization import BLOCK, dequantize, quantize, quantized_bytes
from topoplan.topo.errors import InputError

RunRanks = Callable[..., list[str]]

HEAD = """
import time
from fractions import Fraction
from topoplan.runtime import classic
from topoplan.topo.errors import ExecutionError, InfeasibleError, InputError, TopoplanError
from topoplan.topo.graph import Device, Link, Topology, both_ways
from topoplan.topo.presets import preset
Linear, ReLU = torch.nn.Linear, torch.nn.ReLU
def model(seed=7, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(Linear(33, 64), ReLU(), Linear(64, 65), ReLU(), Linear(65, 3)).to(dtype)
def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
def batch(worker, step, dtype=torch.float32):
    g = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(16, 33, generator=g).to(dtype), torch.randn(16, 3, generator=g).to(dtype)
def backward(net, worker, step, dtype=torch.float32):
    x, y = batch(worker, step, dtype)
    torch.nn.functional.mse_loss(net(x), y).backward()
def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])
def everyones(tensor):
    out = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(out, tensor)
    return out
def alike(tensor):
    return all(torch.equal(tensor, other) for other in everyones(tensor))
def averaged(workers, steps, seed=7):
    "One process that averages the gradients of all workers' batches."
    net = model(seed)
    optimizer = sgd(net.parameters())
    for step in range(steps):
        for worker in range(workers):
            backward(net, worker, step)
        for p in net.parameters():
            p.grad /= workers
        optimizer.step()
        optimizer.zero_grad()
    return flat(net)
def apart(tensor):
    "Distance of all replicas from their mean, and the mean."
    rows = torch.stack(everyones(tensor)).double()
    return float((rows - rows.mean(0)).norm()), rows.mean(0)
"""

BOXES = """
devices = [Device(f"gpu{i}") for i in range(4)]
devices += [Device("s0", "switch", "pcie"), Device("s1", "switch", "pcie"), Device("net", "switch", "network")]
links = [x for i in range(4) for x in both_ways(Link(f"gpu{i}", f"s{i // 2}", Fraction(10)))]
links += [x for i in range(2) for x in both_ways(Link(f"s{i}", "net", Fraction(1)))]
boxes = Topology("boxes", tuple(devices), tuple(links))
"""


def test_synchronous_systems_average_and_keep_replicas_bitwise_equal(run_ranks: RunRanks) -> None:
    """10 steps from different seeds: all begin as the first worker, end within 1e-6 of averaging in one process (8-bit
    gradients: within 5 %), and send what they say. In several buckets; half precision included.
    """
    body = (
        HEAD
        + BOXES
        + """
from topoplan.runtime.classic import buckets
buckets.BUCKET_BYTES = 8192
wanted, start = averaged(4, 10), flat(model(7))
half = 2 * 3 * start.nbytes // 4
for name in ("gather", "ring", "hierarchical", "plan", "stock", "parameter-server", "bytegrad"):
    net = model(7 + RANK)
    topology = boxes if name in ("hierarchical", "plan") else None
    system = classic.make(name, net, sgd, topology=topology, choose="model")
    assert torch.equal(flat(net), start) and len(system.buckets.layout) == 4, name
    assert not system.is_helper and system.bytes_sent == 0
    for step in range(10):
        backward(net, RANK, step)
        system.step()
        assert all(p.grad is None for p in net.parameters()) and alike(flat(net)), (name, step)
    system.finish()
    assert system.steps == 10 and (system.optimizer is None) == (name == "gather" and RANK > 0)
    off = (flat(net) - wanted).norm() / (start - wanted).norm()
    assert off <= (5e-2 if name == "bytegrad" else 1e-6), (name, off)
    sent = system.bytes_sent / 10
    if name == "gather":
        assert sent == start.nbytes * (3 if RANK == 0 else 1)
    elif name == "bytegrad":
        assert sent <= 0.27 * half, sent / half
        given = torch.randn(1000, generator=torch.Generator().manual_seed(RANK))
        exact, got = torch.stack(everyones(given)).mean(0), given.clone()
        system.average([got])
        span = max(float(x.max() - x.min()) for x in (*everyones(given), exact))
        assert alike(got) and 0 < (got - exact).abs().max() <= 2 * span / 510
    elif name != "plan":
        assert abs(sent - half) <= 64, (name, sent, half)

for name in classic.NAMES:  # half precision, where it is taken
    if name in ("async-parameter-server", "hierarchical", "neighbours-8bit"):
        continue
    net = model(7 + RANK, torch.bfloat16)
    system = classic.make(name, net, sgd, topology=boxes if name == "plan" else None, choose="model")
    before = flat(net)
    for step in range(3):
        backward(net, RANK, step, torch.bfloat16)
        system.step()
    system.finish()
    assert alike(flat(net)) and not torch.equal(before, flat(net)) and flat(net).isfinite().all(), name

net = model()  # a parameter that only one rank used: zeros from the others
system = classic.make("parameter-server", net, lambda p: torch.optim.SGD(p, lr=1.0))
before = net[4].bias.detach().clone()
if RANK == 2:
    net[4].bias.sum().backward()
system.step()
assert torch.allclose(net[4].bias, before - 0.25) and alike(flat(net))
"""
    )
    run_ranks(body, 4)


def test_helpers_serve_synchronously_and_asynchronously(run_ranks: RunRanks) -> None:
    """Two workers, two helpers. Synchronous: the helpers add up BytePS's shares, replicas are bitwise equal and near to
    averaging. Asynchronous: one worker makes ten steps while the other makes none, whose next gradients are counted as
    ten steps stale; all end with the same model, having lowered the loss.
    """
    body = (
        HEAD
        + """
store = dist.distributed_c10d._get_default_store()
helping = RANK in (1, 3)
worker = RANK // 2
start = flat(model(7))
def alike_on_workers(net):
    rows = everyones(flat(net) if net is not None else start)
    return torch.equal(rows[0], rows[2]) and not torch.equal(rows[0], start)

net = None if helping else model(7 + RANK)
system = classic.make("parameter-server", net, sgd, helpers=(1, 3))
assert system.is_helper == helping and system.workers == (0, 2) and system.helpers == (1, 3)
if helping:
    system.serve()
    assert system.steps == 10
else:
    for step in range(10):
        backward(net, worker, step)
        system.step()
    system.finish()
    off = (flat(net) - averaged(2, 10)).norm() / (start - flat(net)).norm()
    assert off <= 1e-6, off
assert alike_on_workers(net)
shares = {r: Fraction(s) for r, s in system.report()["shares"].items()}
assert sum(shares.values()) == 1 and set(shares) == {0, 1, 2, 3}
expected = 2 * shares[RANK] if helping else shares[RANK] + (1 - shares[RANK])
assert abs(system.bytes_sent / 10 / start.nbytes - expected) <= 0.01, (system.bytes_sent, expected)

light = lambda p: torch.optim.SGD(p, lr=0.1)
net = None if helping else model(7 + RANK)
system = classic.make("async-parameter-server", net, light, helpers=(1, 3))
if helping:
    system.serve()
    report = system.report()
    assert report["updates"] == 62 and report["lost"] == () and report["staleness_max"] >= 10, report
    assert report["share"] == "1/2"
else:
    assert torch.equal(flat(net), start)
    losses = []
    after = {(1, 0): "0 made 1", (0, 1): "1 made 1", (1, 1): "0 made 11", (0, 11): "1 made 2"}
    for step in range(31):
        if (worker, step) in after:
            store.wait([after[worker, step]])
        x, y = batch(worker, 0)
        loss = torch.nn.functional.mse_loss(net(x), y)
        losses.append(loss.item())
        loss.backward()
        system.step()
        store.set(f"{worker} made {system.steps}", "yes")
        if (worker, step) == (1, 1):
            assert system.report()["staleness_max"] == 10, system.report()
    system.finish()
    assert system.steps == 31 and losses[-1] < 0.75 * losses[0], losses
    assert (worker == 0) or system.report()["staleness_max"] >= 10
    assert abs(system.bytes_sent / 31 / start.nbytes - 1) <= 0.01
assert alike_on_workers(net)
"""
    )
    run_ranks(body, 4)


def test_a_worker_that_dies_is_named_or_left_out(run_ranks: RunRanks) -> None:
    """Worker 1 dies between steps. The asynchronous helper serves worker 0 to the end and reports the loss; the synchronous
    system raises an error that names rank 1, on the worker and on the helper, long before the deadline.
    """
    body = (
        HEAD
        + """
helping = RANK == 2
nets = [None if helping else model() for _ in range(2)]
sync = classic.make("parameter-server", nets[0], sgd, helpers=(2,))
free = classic.make("async-parameter-server", nets[1], sgd, helpers=(2,))
store = dist.distributed_c10d._get_default_store()
if helping:
    free.serve()
    assert free.report()["lost"] == (1,) and free.report()["updates"] == 7, free.report()
    begun = time.monotonic()
    try:
        sync.serve()
    except ExecutionError as error:
        assert "rank 1 does not answer" in str(error), error
    else:
        raise AssertionError("no error")
else:
    for step in range(2 if RANK == 1 else 5):
        backward(nets[1], RANK, step)
        free.step()
    if RANK == 1:
        store.set("dead", "yes")
        os._exit(0)
    store.wait(["dead"])
    free.finish()
    begun = time.monotonic()
    backward(nets[0], RANK, 0)
    try:
        sync.step()
    except ExecutionError as error:
        assert "rank 1 does not answer" in str(error), error
    else:
        raise AssertionError("no error")
assert time.monotonic() - begun < 60
store.set(f"done {RANK}", "yes")
store.wait([f"done {2 - RANK}"])
os._exit(0)
"""
    )
    run_ranks(body, 3)


def test_neighbours_keep_the_mean_and_draw_together(run_ranks: RunRanks) -> None:
    """On a ring, a path and a star: averaging alone keeps the mean and contracts at least by the second eigenvalue; with
    8 bits, in 0.27 of the bytes, it contracts nearly as fast. Trained, both reach a loss within 5 % of
    averaging all gradients.
    """
    body = (
        HEAD
        + """
still = lambda p: torch.optim.SGD(p, lr=0.0)
for name in ("path:4", "star:4", None):
    net = model()
    system = classic.make("neighbours", net, still, topology=preset(name) if name else None)
    by = system.report()["contraction"]
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(RANK)))
    before, mean = apart(flat(net))
    for _ in range(4):
        system.step()
        now, kept = apart(flat(net))
        assert now <= by * before * (1 + 1e-5), (name, now, before, by)
        assert (kept - mean).abs().max() <= 1e-6 * mean.abs().max(), name
        before = now
    sent = system.bytes_sent
    assert sent == 4 * len(system.report()["neighbours"]) * flat(net).nbytes
    distance = flat(net)
    system.finish()
    assert alike(flat(net)) and abs(system.report()["distance"] - (distance - flat(net)).norm()) <= 1e-5

    net = model()
    whole = lambda p: torch.optim.SGD(p, lr=1.0)
    system = classic.make("neighbours-8bit", net, whole, topology=preset(name) if name else None)
    towards = torch.randn(flat(net).shape, generator=torch.Generator().manual_seed(RANK))
    (torch.cat([p.reshape(-1) for p in net.parameters()]) * towards).sum().backward()
    system.step()
    first, mean = apart(flat(net))
    before = first
    for _ in range(20):
        system.step()
        now, kept = apart(flat(net))
        assert now <= max((by + 0.05) * before, 1e-3 * first), (name, now, before, by)
        before = now
    moved = (kept - mean).norm()
    assert before <= 2e-2 * first and moved <= 2e-2 * first, (name, before / first, moved / first)
    assert system.bytes_sent / 21 <= 0.27 * sent / 4
    system.finish()
    assert alike(flat(net))

teacher = torch.randn(33, 1, generator=torch.Generator().manual_seed(99))
def data(worker):
    g = torch.Generator().manual_seed(worker)
    x = torch.randn(64, 33, generator=g)
    return x, x @ teacher + 0.1 * torch.randn(64, 1, generator=g)
xs, ys = (torch.cat(parts) for parts in zip(*map(data, range(4))))
losses = {}
for name in ("stock", "neighbours", "neighbours-8bit", "bytegrad"):
    torch.manual_seed(7)
    net = Linear(33, 1)
    system = classic.make(name, net, lambda p: torch.optim.SGD(p, lr=0.1), topology=preset("ring:4"))
    x, y = data(RANK)
    for step in range(80):
        torch.nn.functional.mse_loss(net(x), y).backward()
        system.step()
    system.finish()
    losses[name] = torch.nn.functional.mse_loss(net(xs), ys).item()
assert losses["stock"] < 0.02, losses
assert all(loss <= 1.05 * losses["stock"] for loss in losses.values()), losses
"""
    )
    run_ranks(body, 4)


def test_wrong_use_is_the_same_error_on_every_rank(run_ranks: RunRanks) -> None:
    body = (
        HEAD
        + """
from topoplan.synth.synthesize import collective_on, synthesize
def refused(kind, why, name, net, optimizer=sgd, **options):
    try:
        classic.make(name, net, optimizer, **options)
    except kind as error:
        text = str(error)
    else:
        text = "no error"
    assert why in text and "\\n" not in text, (name, text)
    texts = [None] * WORLD
    dist.all_gather_object(texts, text)
    assert len(set(texts)) == 1, texts
last = RANK == 2
refused(InputError, "rank 0: unknown system 'rings'", "rings", model())
refused(InputError, "rank 2: unknown system", "rings" if last else "ring", model())
refused(InputError, "rank 2 for gather", "gather" if last else "stock", model())
refused(InputError, "helper, but it brought a model", "parameter-server", model(), helpers=(2,))
refused(InputError, "rank 2: this rank brought NoneType", "parameter-server", None if last else model())
refused(InputError, "needs helpers", "async-parameter-server", model())
refused(InputError, "no use for helpers", "ring", None if last else model(), helpers=(2,))
refused(InputError, "expected different ranks of the group, 0 to 2", "parameter-server", model(), helpers=(3,))
refused(InputError, "all 3 ranks are helpers", "parameter-server", None, helpers=(0, 1, 2))
refused(InputError, "named helpers", "parameter-server", None if last else model(), helpers=(2,) if last else ())
refused(InputError, "models of rank 0 and rank 2 differ", "stock", Linear(3, 4) if last else Linear(3, 3))
refused(InputError, "models of rank 0 and rank 2 differ", "stock", Linear(3, 3).to(torch.bfloat16 if last else torch.float32))
refused(InputError, "is of bfloat16; this system takes float32", "neighbours-8bit", model(dtype=torch.bfloat16))
refused(InputError, "no parameters that require gradients", "stock", ReLU())
refused(InputError, "expected a function of the parameters", "stock", model(), optimizer=sgd(model().parameters()))
refused(InputError, "wrapped in DDP", "stock", torch.nn.parallel.DistributedDataParallel(model()))
refused(InputError, "does not follow a plan", "gather", model(), plan="plan.json")
refused(InputError, "needs a plan, or a topology", "hierarchical", model())
refused(InfeasibleError, "is one box", "hierarchical", model(), topology=preset("ring:3"))
refused(InputError, "has 4 GPUs, there are 3 workers", "ring", model(), topology=preset("ring:4"))
refused(InputError, "has 4 GPUs, there are 3 workers", "neighbours", model(), topology=preset("ring:4"))
refused(InputError, "has 4 GPUs, for 2 workers and 1 helpers", "parameter-server", None if last else model(),
        topology=preset("ring:4"), helpers=(2,))
two = Topology("parts", tuple(Device(f"gpu{i}") for i in range(3)), both_ways(Link("gpu0", "gpu1")))
refused(InfeasibleError, "rank 2 and rank 0 are not joined", "neighbours", model(), topology=two)
plan = synthesize(collective_on("allreduce", preset("ring:3")), preset("ring:3"), "packing", 5).plan
refused(InputError, "this one has packing, too", "ring", model(), plan=plan)
gathers = synthesize(collective_on("allgather", preset("ring:3")), preset("ring:3"), "ring", 5).plan
refused(InputError, "this one is for allgather", "plan", model(), plan=gathers)

def says(kind, why, call):
    try:
        call()
    except kind as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
net = None if last else model()
system = classic.make("parameter-server", net, sgd, helpers=(2,))
if last:
    says(InputError, "is a helper and holds no model", system.step)
    says(InputError, "is a helper and holds no model", system.finish)
    system.serve()
    says(InputError, "serve() has ended", system.serve)
else:
    says(InputError, "serve() is for helpers", system.serve)
    system.finish()
    says(InputError, "after finish()", system.step)
"""
    )
    run_ranks(body, 3)


# -- the parts, in one process -----------------------------------------------------------------------------------------


def test_every_system_says_what_it_promises_and_whence_it_is() -> None:
    assert len(NAMES) == 10
    for name in NAMES:
        system = system_of(name)
        assert system.name == name and system.promise and system.source and "\n" not in system.promise + system.source
    with pytest.raises(InputError, match="unknown system 'horovod'"):
        system_of("horovod")


@pytest.mark.parametrize("numel", [1, 3, 255, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bits_are_off_by_half_a_level_and_with_noise_by_one_unbiased(numel: int, dtype: torch.dtype) -> None:
    rows = (torch.randn(3, numel, generator=torch.Generator().manual_seed(numel)) * 10 + 100).to(dtype)
    packed = quantize(rows)
    assert packed.shape == (3, quantized_bytes(numel)) and packed.dtype == torch.uint8
    span = rows.float().amax(1, keepdim=True) - rows.float().amin(1, keepdim=True)
    slack = 1e-4 * 100 / 255  # float32's own rounding of values around 100
    assert ((dequantize(packed, numel) - rows.float()).abs() <= span / 510 + slack).all()
    noise = torch.Generator().manual_seed(0)
    many = rows.repeat(400, 1)
    tries = (dequantize(quantize(many, noise), numel) - many.float()).view(400, 3, numel)
    assert (tries.abs() <= span / 255 + slack).all()
    assert (tries.mean(0).abs() <= 5 * span / 510 / 20 + slack).all()


def test_eight_bits_keep_constants_exactly_and_show_what_is_not_finite() -> None:
    same = torch.full((1, 300), -2.5)
    assert torch.equal(dequantize(quantize(same), 300), same)
    for bad in (float("nan"), float("inf"), float("-inf")):
        rows = torch.zeros(1, 2 * BLOCK)
        rows[0, 5] = bad
        back = dequantize(quantize(rows), 2 * BLOCK)
        assert back[0, :BLOCK].isnan().all() and torch.equal(back[0, BLOCK:], rows[0, BLOCK:])


def test_buckets_keep_dtypes_apart_and_to_their_size() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            big = BUCKET_BYTES // 4
            self.a = torch.nn.Parameter(torch.zeros(big - 1))
            self.b = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
            self.c = torch.nn.Parameter(torch.zeros(1))
            self.d = torch.nn.Parameter(torch.zeros(1))
            self.frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

    net = Mixed()
    buckets = Buckets(net, torch.device("cpu"))
    assert buckets.layout == [(BUCKET_BYTES // 4, "float32"), (5, "bfloat16"), (1, "float32")]
    net.b.grad = torch.ones(5, dtype=torch.bfloat16)
    flats = buckets.allocate()
    buckets.copy_gradients(flats)
    assert flats[1].tolist() == [1.0] * 5 and not flats[0].any()
    buckets.set_gradients([flat.fill_(2) for flat in flats])
    assert net.d.grad is not None and net.d.grad.item() == 2 and net.b.grad.tolist() == [2.0] * 5
    net.c.grad = torch.ones(1).to_sparse()
    with pytest.raises(InputError, match="sparse"):
        buckets.copy_gradients(flats)
