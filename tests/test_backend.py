"""The backend "topo": collectives through plans are right, and all else is done as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.ir.collective import Collective
from topoplan.synth.synthesize import synthesize
from topoplan.topo.presets import preset

RunRanks = Callable[..., list[str]]

HEAD = """
dist.barrier()
dist.destroy_process_group()
import topoplan.runtime.register
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.executor import Executor
from topoplan.runtime.backend.options import backend_options
played = []
plain_run = Executor.run
def counted(self, schedule, *rest):
    played.append(schedule.collective.name)
    return plain_run(self, schedule, *rest)
Executor.run = counted
def start(backend="topo", number=[0], **options):
    number[0] += 1
    dist.init_process_group(
        backend, init_method=f"file://{FILE}-{number[0]}", rank=RANK, world_size=WORLD, timeout=timedelta(seconds=60),
        pg_options=backend_options(**{"choose": "plan", **options}) if options else None,
    )
def of(rank, numel, dtype=torch.float32):
    g = torch.Generator().manual_seed(rank)
    return (torch.randn(numel, generator=g, dtype=torch.float64) * 4).to(dtype)
def everyones(numel, dtype=torch.float32):
    return torch.stack([of(rank, numel, dtype).double() for rank in range(WORLD)])
def close(got, wanted):
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: .1, torch.float16: .02}.get(got.dtype, 0)
    wanted = wanted.to(got.dtype).double()
    assert (got.double() - wanted).abs().max() <= bound * (1 + wanted.abs().max()), (got[:4], wanted[:4])
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans for a ring of four; broadcast is for root 1, reduce for root 2."""
    folder: Path = tmp_path_factory.mktemp("plans")
    topology = preset("ring:4")
    for name in ("allreduce", "allgather", "reduce-scatter", "alltoall", "broadcast", "reduce"):
        root = {"broadcast": 1, "reduce": 2}.get(name)
        found = synthesize(Collective(name, 4, root), topology, time_limit_s=20)
        found.plan.save(folder / f"{name}.json")
    (folder / "ring.json").write_text(topology.dumps(), encoding="utf-8")
    return folder


def test_collectives_go_through_plans_and_are_right(run_ranks: RunRanks, plans: Path) -> None:
    """Each of the six, sync and async, against float64; what no plan is for is done by gloo, with AVG as well."""
    body = (
        HEAD
        + """
start(plans=ARGS[0])
world = dist.group.WORLD
assert type(world) is TopoGroup and dist.get_backend() == "topo"
N = 4 * 1003
ops = dict(SUM=lambda x: x.sum(0), AVG=lambda x: x.mean(0), PRODUCT=lambda x: x.prod(0), MIN=lambda x: x.amin(0),
           MAX=lambda x: x.amax(0))
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for name, reference in ops.items():
        if name == "PRODUCT" and dtype.itemsize == 2:
            continue
        for asynchronous in (False, True):
            tensor = of(RANK, N, dtype)
            work = dist.all_reduce(tensor, getattr(dist.ReduceOp, name), async_op=asynchronous)
            if asynchronous:
                assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
                assert work.result()[0] is tensor and work.get_future().wait()[0] is tensor
            close(tensor, reference(everyones(N, dtype)))
            everybody = [torch.empty(N, dtype=dtype) for _ in range(WORLD)]
            dist.all_gather(everybody, tensor)
            assert all(torch.equal(tensor, other) for other in everybody)
assert set(played) == {"allreduce", "allgather"}, set(played)
many = [of(RANK, N) + i for i in range(20)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in many]
last = of(RANK, N)
dist.all_reduce(last)
assert all(work.is_completed() for work in works), "a sync call overtook async ones"
for i, tensor in enumerate(many):
    close(tensor, everyones(N).sum(0) + 4 * i)
crooked = of(RANK, 2 * N)[::2]
dist.all_reduce(crooked)
close(crooked, everyones(2 * N).sum(0)[::2])
with torch.inference_mode():
    for asynchronous in (False, True):
        tensor = of(RANK, N)
        work = dist.all_reduce(tensor, async_op=asynchronous)
        work and work.wait()
        close(tensor, everyones(N).sum(0))

def check(name, call, result, wanted):
    for asynchronous in (False, True):
        played.clear()
        result.fill_(7)
        work = call(asynchronous)
        work and work.wait()
        assert set(played) == {name}, (name, played)
        close(result, wanted)
mine = of(RANK, N)
parts = everyones(N).sum(0).chunk(WORLD)
whole, part = torch.empty(WORLD * N), torch.empty(N // WORLD)
check("allgather", lambda a: dist.all_gather_single(whole, mine, async_op=a), whole, everyones(N).reshape(-1))
check("reduce-scatter", lambda a: dist.reduce_scatter_single(part, mine, async_op=a), part, parts[RANK])
check("reduce-scatter", lambda a: dist.reduce_scatter(part, list(mine.chunk(WORLD)), async_op=a), part, parts[RANK])
check("reduce-scatter", lambda a: dist.reduce_scatter_single(part, mine, op=dist.ReduceOp.AVG, async_op=a), part,
      parts[RANK] / WORLD)
sent = torch.empty(N)
check("alltoall", lambda a: dist.all_to_all_single(sent, mine, async_op=a), sent,
      torch.cat([row.chunk(WORLD)[RANK] for row in everyones(N)]))
played.clear()
for root in range(WORLD):
    for asynchronous in (False, True):
        tensor = of(RANK, N)
        work = dist.broadcast(tensor, root, async_op=asynchronous)
        work and work.wait()
        close(tensor, of(root, N))
        for op, wanted in ((dist.ReduceOp.SUM, everyones(N).sum(0)), (dist.ReduceOp.AVG, everyones(N).mean(0))):
            tensor = of(RANK, N)
            work = dist.reduce(tensor, root, op, async_op=asynchronous)
            work and work.wait()
            if RANK == root:
                close(tensor, wanted)
            elif root == 2:
                close(tensor, of(RANK, N))
assert played.count("broadcast") == 2 and played.count("reduce") == 4, played

played.clear()
few = torch.tensor([RANK + 1.0, 2.0])
dist.all_reduce(few, dist.ReduceOp.AVG)
close(few, torch.tensor([2.5, 2.0]))
work = dist.all_reduce(few, dist.ReduceOp.AVG, async_op=True)
work.wait()
counts = torch.full((1000,), RANK)
dist.all_reduce(counts)
assert (counts == 6).all()
flags = torch.tensor([RANK == 1])
dist.broadcast(flags, 1)
assert flags.item()
boxes = [None] * WORLD
dist.all_gather_object(boxes, dict(rank=RANK))
assert [box["rank"] for box in boxes] == list(range(WORLD))
dist.barrier()
uneven = torch.empty(WORLD * (RANK + 1))
sizes = [other + 1 for other in range(WORLD)]
dist.all_to_all_single(uneven, torch.full((sum(sizes),), float(RANK)), [RANK + 1] * WORLD, sizes)
assert torch.equal(uneven, torch.arange(4.0).repeat_interleave(RANK + 1))
if RANK == 0:
    dist.send(mine, 3)
elif RANK == 3:
    got = torch.empty(N)
    dist.recv(got, 0)
    close(got, of(0, N))
assert not played
large = torch.full((1 << 17,), RANK)
dist.all_reduce(large)
assert (large == 6).all() and played == ["allreduce"]
dist.barrier()
dist.destroy_process_group()

start(plans=ARGS[0], compress="int8", choose="model")
tensor = of(RANK, 40_000)
dist.all_reduce(tensor)
wanted = everyones(40_000).sum(0)
assert 0 < (tensor - wanted).abs().max() < .05 * wanted.abs().max()
sent = dist.group.WORLD.communicators["allreduce", None, "cpu"].wire_bytes
assert sent <= 2 * .27 * tensor.nbytes, sent  # the schedule sends the vector twice
tensor = of(RANK, 40_000)
dist.all_reduce(tensor, dist.ReduceOp.MAX)  # by gloo, exact
close(tensor, everyones(40_000).amax(0))
"""
    )
    run_ranks(body, 4, str(plans))
