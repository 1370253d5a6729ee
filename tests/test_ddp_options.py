"""DDP with the hook under every option that DDP has: replicas agree bitwise, and are stock's to 1e-6 in float32.

Relative means: the largest difference of any parameter to stock's, to the largest parameter. Ideas are those of torch's own
tests of DDP (uneven inputs, control flow that differs between ranks, rebuilt buckets, shared parameters, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]
Plans = Callable[[str], str]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Plans:
    """The path of an allreduce plan for a preset."""
    folder: Path = tmp_path_factory.mktemp("plans")

    def made(name: str) -> str:
        path = folder / f"{name.replace(':', '-')}.json"
        if not path.exists():
            topology = preset(name)
            synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(path)
        return str(path)

    return made


HEAD = """
import hashlib, threading
from contextlib import nullcontext
from torch.nn import Linear, Module, Parameter, ReLU, Sequential
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

def plain():
    return Sequential(Linear(33, 64), ReLU(), Linear(64, 65), ReLU(), Linear(65, 3))
class Branches(Module):
    # forward(x, which) uses some of the branches, in that order
    def __init__(self):
        super().__init__()
        self.first, self.last = Linear(33, 40), Linear(40, 3)
        self.branches = torch.nn.ModuleList([Linear(40, 40) for _ in range(3)])
    def forward(self, x, which):
        x = self.first(x)
        return self.last(sum(self.branches[i](x).relu() for i in which))
class Tied(Module):
    # one layer used twice, and a weight that two layers share
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.out = Linear(33, 33), Linear(33, 33), Linear(33, 33), Linear(33, 3)
        self.c.weight = self.b.weight
    def forward(self, x):
        return self.out(self.c(self.a(self.b(self.a(x).relu()).relu()).relu()))
class Stages(Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stages = torch.nn.ModuleList([Linear(33, 64), *(Linear(64, 64) for _ in range(3)), Linear(64, 3)])
        self.reentrant = reentrant
    def forward(self, x):
        x = self.stages[0](x)
        for stage in self.stages[1:-1]:
            x = checkpoint(stage, x.relu(), use_reentrant=self.reentrant)
        return self.stages[-1](x)
class Complex(Module):
    def __init__(self):
        super().__init__()
        self.weight, self.out = Parameter(torch.randn(33, 8, dtype=torch.complex64) / 6), Linear(8, 3)
    def forward(self, x):
        return self.out((x.to(torch.complex64) @ self.weight).abs())

def data(step, rank=RANK):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 33, generator=g), torch.randn(16, 3, generator=g)
def backward(ddp, step):
    x, y = data(step)
    mse_loss(ddp(x), y).backward()
def flat(model):
    return torch.cat([torch.view_as_real(p.detach()).reshape(-1) if p.is_complex() else p.detach().float().reshape(-1)
                      for p in model.parameters()])
def same_everywhere(values, group=None):
    others = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(others, values, group)
    return all(torch.equal(values, other) for other in others)
def relative(mine, stock):
    return float((mine - stock).abs().max() / stock.abs().max())
def wrapped(make, used, group=None, **options):
    torch.manual_seed(7)
    model = make()
    ddp = DDP(model, process_group=group, **options)
    if used is not None:
        ddp.register_comm_hook(None, used)
    return ddp
def train(ddp, backward=backward, steps=20, update=None):
    optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.05)
    for step in range(steps):
        if backward(ddp, step) is False:
            continue
        optimizer.step()
        optimizer.zero_grad()
    return flat(ddp)
of_stock = {}
def compare(name, make, backward=backward, used=None, group=None, within=1e-6, train=train, **options):
    used = used or hook
    key = make, backward, train, group
    if key not in of_stock:  # options change nothing about what stock computes
        of_stock[key] = train(wrapped(make, None, group, **options), backward)
    stock = of_stock[key]
    torch.manual_seed(7)
    start = flat(make())
    mine = train(wrapped(make, used, group, **options), backward)
    assert same_everywhere(mine, group), f"{name}: replicas differ"
    assert relative(mine, stock) <= within, f"{name}: {relative(mine, stock)} from stock"
    assert relative(mine, start) > 1e-3, f"{name}: nothing was learned"
    return mine
def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")
def digest(values):
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()
many = dict(bucket_cap_mb=0.015)
unused = dict(find_unused_parameters=True, **many)
def using(which):
    def backward(ddp, step):
        x, y = data(step)
        mse_loss(ddp(x, which(step)), y).backward()
    return backward
def accumulating(ddp, step):
    with ddp.no_sync() if step % 3 < 2 else nullcontext():
        backward(ddp, step)
    return step % 3 == 2
def uneven(ddp, backward):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with ddp.join():
        for step in range(20 + RANK % 3):
            backward(ddp, step)
            optimizer.step()
            optimizer.zero_grad()
    return flat(ddp)
"""

OPTIONS = """
hook = topoplan.ddp_hook(ARGS[0], choose="model")
buckets = []
def counted(state, bucket):
    buckets.append((bucket.index(), bucket.buffer().numel()))
    return hook(state, bucket)
compare("many buckets", plain, used=counted, **many)
rounds = [i for i, (index, _) in enumerate(buckets) if index == 0]
first, second, third = buckets[: rounds[1]], buckets[rounds[1] : rounds[2]], buckets[rounds[2] : rounds[3]]
assert first != second == third and len(second) > 1, "buckets were not rebuilt"
compare("views", plain, gradient_as_bucket_view=True, **many)
compare("static graph", plain, static_graph=True, **many)
compare("unused on some ranks", Branches, using(lambda step: (0, 1 + (step + RANK) % 2)), **unused)
compare("no_sync", plain, accumulating, **many)
compare("join", plain, train=uneven, **many)

# bfloat16 rounds what lies beside a tie either way: replicas agree, but may be further from stock than 1e-6
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
def mixed(ddp, step):
    x, y = data(step)
    with torch.autocast("cpu", torch.bfloat16):
        loss = mse_loss(ddp(x).float(), y)
    scaler.scale(loss).backward()
    for p in ddp.parameters():
        p.grad.div_(scaler.get_scale())
compare("autocast with a scaled loss", plain, mixed, within=1e-2, **many)
def narrow(ddp, step):
    mse_loss(ddp(data(step)[0].bfloat16()).float(), data(step)[1]).backward()
compare("bfloat16", lambda: plain().bfloat16(), narrow, within=3e-2, **many)
if WORLD > 2:
    halves = [dist.new_group(range(parity, WORLD, 2)) for parity in (0, 1)]
    group = halves[RANK % 2]
    compare("a subgroup", plain, used=topoplan.ddp_hook(ARGS[1], group=group, choose="model"), group=group, **many)
"""


@pytest.mark.parametrize(("topology", "part"), [("ring:2", ""), ("switch:8", "ring:4")])
def test_every_option_trains_as_stock_does(run_ranks: RunRanks, plans: Plans, topology: str, part: str) -> None:
    """Overlap, rebuilt buckets, views, static graph, unused parameters, no_sync, join, mixed precision, subgroups."""
    halves = [plans(part)] if part else []
    run_ranks(HEAD + OPTIONS, int(topology.split(":")[1]), plans(topology), *halves)


VARIANTS = """
compare("one bucket", plain)
compare("static graph and views", plain, static_graph=True, gradient_as_bucket_view=True, **many)
compare("unused everywhere", Branches, using(lambda step: (0, 2)), **unused)
views = dict(gradient_as_bucket_view=True)
compare("unused and views", Branches, using(lambda step: (step + RANK) % 3 * (1,) + (0,)), **views, **unused)
orders = (0, 1, 2), (2, 1, 0), (1, 0, 2)
compare("another order of gradients on each rank", Branches, using(lambda step: orders[RANK % 3]), **many)
compare("no_sync and views", plain, accumulating, gradient_as_bucket_view=True, **many)
def forwards_first(ddp, step):
    with ddp.no_sync():
        backward(ddp, 3 * step)
    pairs = [data(3 * step + i) for i in (1, 2)]
    sum([mse_loss(ddp(x), y) for x, y in pairs]).backward()
compare("several forward passes", plain, forwards_first, **many)
def every_other(ddp, step):
    with ddp.no_sync() if step % 2 else nullcontext():
        backward(ddp, step)
compare("join and no_sync", plain, every_other, train=uneven, **many)
compare("join and unused", Branches, using(lambda step: (0, 1 + RANK % 2)), train=uneven, **unused)
def doubled(ddp, step):
    mse_loss(ddp(data(step)[0].double()), data(step)[1].double()).backward()
compare("float64", lambda: plain().double(), doubled)

compare("shared parameters", Tied, **many)
compare("complex parameters", Complex, **many)
compare("checkpoints", lambda: Stages(False), **many)
compare("reentrant checkpoints", lambda: Stages(True), static_graph=True, **many)
def half_frozen():
    model = plain()
    model[0].requires_grad_(False)
    return model
compare("frozen parameters", half_frozen, **many)
def reloading(ddp, step):
    if step == 0:
        ddp.kept = {k: v.clone() for k, v in ddp.state_dict().items()}
    if step == 10:
        ddp.load_state_dict(ddp.kept)
    backward(ddp, step)
compare("state loaded in between", plain, reloading, **many)
for choose in ("plan", "model"):
    made = topoplan.ddp_hook(ARGS[0], choose=choose)
    print(choose, digest(train(wrapped(plain, made, **many))))
"""


@pytest.fixture(scope="module")
def variants(run_ranks: RunRanks, plans: Plans) -> list[str]:
    """What four ranks print that go through all options, by rank."""
    return run_ranks(HEAD + OPTIONS + VARIANTS + 'print("through")', 4, plans("ring:4"), plans("ring:2"))


def test_variants_of_options_and_other_models_train_as_stock_does(variants: list[str]) -> None:
    """All of the above on four ranks, and: options together, shared, complex and frozen parameters, checkpointing,
    gradients that come in another order on each rank, a state loaded in between.
    """
    assert all("through" in out for out in variants)


SEVERAL = """
hook = topoplan.ddp_hook(ARGS[0], choose="model")
other = topoplan.ddp_hook(ARGS[0], choose="plan")

def both(used_by_a, used_by_b):
    a, b = wrapped(plain, used_by_a, **many), wrapped(lambda: Sequential(plain(), Linear(3, 3)), used_by_b, **many)
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.05)
    for step in range(20):
        x, y = data(step)
        if step % 2:
            (mse_loss(a(x), y) + mse_loss(b(x), y)).backward()
        else:
            losses = mse_loss(a(x), y), mse_loss(b(x), y)
            losses[1].backward()
            losses[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([flat(a), flat(b)])
stock = both(None, None)
for name, used in (("one hook", (hook, hook)), ("two hooks", (hook, other))):
    mine = both(*used)
    assert same_everywhere(mine) and relative(mine, stock) <= 1e-6, (name, relative(mine, stock))
print("hooks side by side")

for choose in ("plan", "model"):
    made = topoplan.ddp_hook(ARGS[0], choose=choose)
    print(choose, digest(train(wrapped(plain, made, **many))))
raced = topoplan.ddp_hook(ARGS[0], choose="race")
ddp = wrapped(plain, raced)
assert raced.communicator.choice(4 * flat(ddp).numel()) is None
backward(ddp, 0)
choice = raced.communicator.choice(4 * flat(ddp).numel())
labels = [None] * WORLD
dist.all_gather_object(labels, (choice.label, choice.raced))
assert labels == [labels[0]] * WORLD and choice.label in choice.raced, labels
print("raced", choice.label)

# overlap: the average of the first bucket waits until the gradient that backward computes last is there
seen, average = threading.Event(), hook.communicator.allreduce
def late(tensor, *rest, **more):
    assert seen.wait(60), "backward waits for its first bucket"
    return average(tensor, *rest, **more)
ddp = wrapped(plain, hook, **many)
backward(ddp, 0)
hook.communicator.allreduce = late
ddp.module[0].bias.register_hook(lambda gradient: seen.set())
backward(ddp, 1)
assert seen.is_set()
print("backward went on")
hook.communicator.allreduce = average
"""

WRONG = """
dist.destroy_process_group()
def tried(name, call):
    error = error_of(call)
    print(f"{name} | {type(error).__name__} | {str(error).splitlines()[0]}", flush=True)
tried("early", lambda: topoplan.ddp_hook(ARGS[0]))
dist.init_process_group("gloo", init_method="file://" + FILE + ".again", rank=RANK, world_size=WORLD)
tried("other world", lambda: topoplan.ddp_hook(ARGS[1]))
hook = topoplan.ddp_hook(ARGS[0], choose="model")
tried("twice", lambda: wrapped(plain, hook).register_comm_hook(None, hook))
from torch.nn.parallel.distributed import _MixedPrecision
narrow = wrapped(plain, None, mixed_precision=_MixedPrecision(torch.bfloat16, torch.bfloat16))
tried("mixed_precision", lambda: narrow.register_comm_hook(None, hook))
tried("float8", lambda: hook.communicator.allreduce(torch.zeros(8).to(torch.float8_e4m3fn)))
sparse = wrapped(lambda: torch.nn.Embedding(20, 8, sparse=True), hook)
tried("sparse", lambda: sparse(torch.tensor([RANK, 5])).sum().backward())
compare("after errors that were not faults", plain)

short = topoplan.ddp_hook(ARGS[0], choose="model", timeout=timedelta(seconds=6))
ddp = wrapped(plain, short)
backward(ddp, 0)
if RANK == WORLD - 1:
    def fall(*rest, **more):
        raise ZeroDivisionError("fell over")
    short.communicator.allreduce = fall
tried("fault", lambda: backward(ddp, 1))
backward(wrapped(plain, hook), 0)
"""


@pytest.fixture(scope="module")
def uses(run_ranks: RunRanks, plans: Plans) -> list[str]:
    """What four ranks print that use several hooks, and then use hooks wrongly, by rank."""
    return run_ranks(HEAD + SEVERAL + WRONG, 4, plans("ring:4"), plans("ring:2"))


def test_hooks_may_be_shared_and_used_side_by_side(uses: list[str]) -> None:
    """Two models with one hook, and with one each, whose backward passes alternate or are one; a bucket's average does not
    hold up backward; a race's choice is alike on all ranks and can be asked for.
    """
    assert all("hooks side by side" in out and "backward went on" in out and "raced" in out for out in uses)


@pytest.mark.parametrize(
    ("use", "kind", "said"),
    [
        ("early", "InputError", "torch.distributed is not initialised; call init_process_group first"),
        ("other world", "PlanMismatchError", "the plan is for 2 ranks, the group has 4"),
        ("twice", "RuntimeError", "can only be called once"),
        ("mixed_precision", "RuntimeError", "can only be called once"),
        ("float8", "InputError", "float8_e4m3fn tensors cannot be reduced; expected one of"),
        ("sparse", "InputError", "sparse_coo tensors are not supported; expected a dense one"),
    ],
)
def test_wrong_use_gives_one_clear_error_on_every_rank(uses: list[str], use: str, kind: str, said: str) -> None:
    """DDP's own mixed_precision brings a hook of its own, so that ours would be the second."""
    for out in uses:
        (line,) = [line for line in out.splitlines() if line.startswith(f"{use} | ")]
        assert line.split(" | ")[1] == kind and said in line


def test_a_fault_comes_out_of_backward_as_itself(uses: list[str]) -> None:
    """The rank that fell over raises what it fell over; the others, within the deadline, an error that names it."""
    lines = [line for out in uses for line in out.splitlines() if line.startswith("fault | ")]
    assert lines[3] == "fault | ZeroDivisionError | fell over"
    for line in lines[:3]:
        assert line.startswith("fault | ExecutionError | ") and "rank 3 does not answer" in line


def test_two_runs_train_to_the_same_bits(variants: list[str], uses: list[str]) -> None:
    """The order of reduction is fixed where no race decides on it."""
    found = [line for out in (*variants, *uses) for line in out.splitlines() if line.startswith(("plan ", "model "))]
    assert len(found) == 16 and len(set(found)) == 2
